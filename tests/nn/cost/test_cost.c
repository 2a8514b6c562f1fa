/*
 * test_cost.c - the bytes and FLOPs of ops by hand; machine files and what they are refused for;
 * rates and links; and the time of steps whose started calls and transfers overlap with ops.
 */
#include "core/base/status.h"
#include "nn/cost/step_time.h"
#include "tests/support/scratch.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>

/* ---- ops ------------------------------------------------------------------------------------- */

static struct tess_view make_matrix(int64_t rows, int64_t cols)
{
	return (struct tess_view){
		NULL, TESS_F32, 2, TESS_ROWS, 0, { rows, cols }, { cols, 1 },
	};
}

static struct tess_view make_list_view(int64_t n, int32_t dtype)
{
	return (struct tess_view){ NULL, dtype, 1, TESS_ROWS, 0, { n }, { 1 } };
}

static struct tess_op_cost count_cost(const struct tess_op *op, const struct tess_op_known *known)
{
	struct tess_op_cost cost = { 0 };

	tess_op_add_cost(op, known, &cost);
	return cost;
}

/* Two products of 5 rows: 5 x 8 by 8 x 3 and by 8 x 2. */
START_TEST(cost_of_products)
{
	const struct tess_view in[] = { make_matrix(5, 8), make_matrix(3, 8), make_matrix(2, 8) },
			       out[] = { make_matrix(5, 3), make_matrix(5, 2) },
			       dw[] = { make_matrix(3, 8) },
			       g[] = { make_matrix(5, 8), make_matrix(5, 3) };
	const struct tess_op
		op = { .kind = TESS_OP_LINEAR, .nin = 3, .nout = 2, .in = in, .out = out },
		gradient = { .kind = TESS_OP_LINEAR_DW, .nin = 2, .nout = 1, .in = g, .out = dw };
	struct tess_op_cost cost = count_cost(&op, &(struct tess_op_known){ 0 });

	ck_assert_uint_eq(cost.flops, 2 * 5 * 8 * (3 + 2));
	ck_assert_uint_eq(cost.weight_bytes, 4 * 8 * (3 + 2));
	ck_assert_uint_eq(cost.bytes, 4 * (5 * 8 + 8 * 5 + 5 * 5));
	cost = count_cost(&gradient, &(struct tess_op_known){ 0 });
	ck_assert_uint_eq(cost.flops, 2 * 5 * 8 * 3);
}
END_TEST

/* A table counts the rows that are looked up, of those that this rank has. */
START_TEST(cost_of_a_table)
{
	static const int32_t ids[] = { 3, 10, 11 };
	const double first[TESS_EMBED_NUMS] = { 10 };
	const struct tess_view in[] = { make_list_view(3, TESS_I32), make_matrix(100, 4) },
			       out[] = { make_matrix(3, 4) };
	const struct tess_op op = { .kind = TESS_OP_EMBED,
		                    .nin = 2,
		                    .nout = 1,
		                    .nnum = TESS_EMBED_NUMS,
		                    .in = in,
		                    .out = out,
		                    .num = first };
	struct tess_op_cost cost = count_cost(&op, &(struct tess_op_known){ .ids = ids });

	ck_assert_uint_eq(cost.weight_bytes, 2 * 4 * 4);
	ck_assert_uint_eq(cost.bytes, 3 * 4 + 2 * 4 * 4 + 3 * 4 * 4);
	cost = count_cost(&op, &(struct tess_op_known){ 0 });
	ck_assert_uint_eq(cost.weight_bytes, 3 * 4 * 4);
}
END_TEST

/* Two sequences of 3 and of 2 rows, the second from position 4 on: 1 + 2 + 3 and 5 + 6 keys. */
START_TEST(cost_of_attention)
{
	static const int32_t position[] = { 0, 1, 2, 4, 5 }, slot[] = { 0, 0, 0, 1, 1 };
	double num[TESS_ATTENTION_NUMS] = { [TESS_ATTENTION_HEAD] = 4,
		                            [TESS_ATTENTION_VALUE] = 4,
		                            [TESS_ATTENTION_DTYPE] = TESS_F32 };
	const struct tess_view in[] = { make_matrix(5, 8),           make_matrix(5, 4),
		                        make_matrix(5, 4),           make_list_view(5, TESS_I32),
		                        make_list_view(5, TESS_I32), { 0 } },
			       out[] = { make_matrix(5, 8) };
	const struct tess_op op = { .kind = TESS_OP_ATTENTION,
		                    .nin = 6,
		                    .nout = 1,
		                    .nnum = TESS_ATTENTION_NUMS,
		                    .in = in,
		                    .out = out,
		                    .num = num };
	const struct tess_op_known known = { .position = position, .slot = slot };
	struct tess_op_cost cost = count_cost(&op, &known);

	ck_assert_uint_eq(cost.flops, 2 * (1 + 2 + 3 + 5 + 6) * 2 * (4 + 4));
	num[TESS_ATTENTION_WINDOW] = 2;
	cost = count_cost(&op, &known);
	ck_assert_uint_eq(cost.flops, 2 * (1 + 2 + 2 + 2 + 2) * 2 * (4 + 4));
	cost = count_cost(&op, &(struct tess_op_known){ 0 });
	ck_assert_uint_eq(cost.flops, 0);
}
END_TEST

/* ---- machine files --------------------------------------------------------------------------- */

#define DEVICE "\"memory\":1e9,\"latency\":1e-3"
#define RATES \
	"\"rates\":{\"product\":[[4,8,1e6],[64,8,4e6]],\"attention\":[[1,0,1e6]]," \
	"\"memory\":[[1,0,2e6]]}"
#define LINKS \
	"\"ranks_per_host\":4,\"within\":{\"default\":[[2,0.5,100],[4,0.5,200]]," \
	"\"send\":[[2,0.25,50]]},\"between\":{\"default\":[[2,2,10],[8,2,40]]}"
#define FILE_OF(device, links, more) \
	"{\"name\":\"m\",\"device\":{" device "},\"links\":{" links "}" more "}"
#define GOOD FILE_OF(DEVICE "," RATES, LINKS, "")

static struct tess_machine *open_machine(const char *text)
{
	struct tess_machine *m;

	ck_assert_msg(!tess_machine_open(scratch_write_text("m.json", text), &m), "%s",
	              tess_error());
	return m;
}

static const struct {
	const char *text, *says;
} damaged[] = {
	{ "[]", ": a machine file is an object" },
	{ "{\"name\":\"m\"}", "device" },
	{ FILE_OF("\"latency\":0," RATES, LINKS, ""), ": device: \"memory\" is missing" },
	{ FILE_OF("\"memory\":1e9," RATES, LINKS, ""), ": device: \"latency\" is missing" },
	{ FILE_OF("\"memory\":-1,\"latency\":0," RATES, LINKS, ""), "memory" },
	{ FILE_OF("\"memory\":1e9,\"latency\":-1e-6," RATES, LINKS, ""), "latency" },
	{ FILE_OF("\"memory\":\"80GB\",\"latency\":0," RATES, LINKS, ""), "memory" },
	{ FILE_OF(DEVICE, LINKS, ""), "rates" },
	{ FILE_OF(DEVICE ",\"rates\":{\"product\":[[1,0,1]],\"memory\":[[1,0,1]]}", LINKS, ""),
	  ": rates: \"attention\" is missing, which stands for all ops of its class that are not "
	  "listed" },
	{ FILE_OF(DEVICE ",\"rates\":{\"product\":[]}", LINKS, ""),
	  ": product: needs a list with at least one point" },
	{ FILE_OF(DEVICE ",\"rates\":{\"product\":[[1,0,-3]]}", LINKS, ""),
	  ": product: a point is [a, b, rate]: numbers, a and the rate above 0, b not negative" },
	{ FILE_OF(DEVICE ",\"rates\":{\"product\":[[1,0,0]]}", LINKS, ""), ": product: a point" },
	{ FILE_OF(DEVICE ",\"rates\":{\"product\":[[1,0]]}", LINKS, ""), ": product: a point" },
	{ FILE_OF(DEVICE ",\"rates\":{\"product\":[[1,0,NaN]]}", LINKS, ""), "NaN" },
	{ FILE_OF(DEVICE "," RATES, "\"within\":{\"sum\":[[2,0,1]]}", ""),
	  ": links: within: \"default\" is missing, which stands for all collectives that are not "
	  "listed" },
	{ FILE_OF(DEVICE "," RATES, "\"ranks_per_host\":4,\"within\":{\"default\":[[2,0,1]]}", ""),
	  "between" },
	{ FILE_OF(DEVICE "," RATES, "\"within\":{\"default\":[[2,-1,1]]}", ""),
	  ": default: a point" },
	{ FILE_OF(DEVICE "," RATES, "\"within\":{\"default\":[[2,0,1,1]]}", ""),
	  ": default: a point" },
	{ FILE_OF(DEVICE ",\"rates\":{\"product\":[[1,0,1,1,1]]}", LINKS, ""),
	  ": product: a point" },
	{ FILE_OF(DEVICE "," RATES, LINKS, ",\"corrections\":{\"time\":{\"dta\":1}}"),
	  ": corrections: time: there is no \"dta\"" },
	{ FILE_OF(DEVICE "," RATES, LINKS, ",\"corrections\":{\"memory\":{\"step\":-1}}"), "step" },
	{ FILE_OF(DEVICE "," RATES, LINKS, ",\"error\":-0.1"), "error" },
	{ FILE_OF(DEVICE "," RATES, LINKS, ",\"measured\":3"), ": measured: text is needed" },
};

START_TEST(damaged_files)
{
	struct tess_machine *m;
	const char *path = scratch_write_text("bad.json", damaged[_i].text);

	ck_assert_int_eq(tess_machine_open(path, &m), TESS_EINVAL);
	expect_part(tess_error(), damaged[_i].says);
	expect_part(tess_error(), "bad.json");
}
END_TEST

START_TEST(files_of_the_box)
{
	static const char *const names[] = { "a100", "h100", "h200" };
	struct tess_machine *m;

	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		ck_assert_msg(!tess_machine_open(names[i], &m), "%s", tess_error());
		ck_assert(m->memory >= 40e9 && m->ranks_per_host == 8 && !m->exact);
		tess_machine_close(m);
	}
	ck_assert_int_eq(tess_machine_open("b300", &m), TESS_ENOENT);
	expect_part(tess_error(), "there is no machine \"b300\"; use a100, h100, ");
}
END_TEST

static bool is_near(double a, double b)
{
	return fabs(a - b) <= 1e-6 * fabs(b);
}

/* A listed point has its rate, and rates between two points are between theirs. */
START_TEST(rates_of_points)
{
	struct tess_machine *m = open_machine(GOOD);
	double between;

	ck_assert(fabs(tess_machine_compute(m, "linear", "product", 4, 32) / 32e-6 - 1) < 1e-3);
	ck_assert(fabs(tess_machine_compute(m, "linear", "product", 64, 512) / 128e-6 - 1) < 1e-3);
	between = 128 / tess_machine_compute(m, "linear", "product", 16, 128);
	ck_assert(between > 1.5e6 && between < 2.5e6);
	ck_assert(is_near(tess_machine_compute(m, "norm", "memory", 7, 4e6), 2));
	ck_assert(tess_machine_compute(m, "linear", "product", 4, 0) == 0);
	tess_machine_close(m);
}
END_TEST

START_TEST(links_of_levels)
{
	struct tess_machine *m = open_machine(GOOD);

	ck_assert(tess_machine_is_within(m, 4, 1) && !tess_machine_is_within(m, 4, 2));
	ck_assert(is_near(tess_machine_communicate(m, "all_reduce", 2, 1, 100), 0.5 + 1));
	ck_assert(is_near(tess_machine_communicate(m, "all_reduce", 4, 1, 100), 0.5 + 0.5));
	ck_assert(is_near(tess_machine_communicate(m, "send", 2, 1, 100), 0.25 + 2));
	/* along hosts: 2 of 4 ranks, then 8 of 8 that are a host apart */
	ck_assert(is_near(tess_machine_communicate(m, "all_reduce", 8, 1, 100), 2 + 10));
	ck_assert(is_near(tess_machine_communicate(m, "all_reduce", 8, 4, 100), 2 + 2.5));
	/* the mean of the logarithms of 10 and 40 */
	ck_assert(is_near(tess_machine_communicate(m, "all_reduce", 4, 4, 100), 2 + 5));
	ck_assert(tess_machine_communicate(m, "all_reduce", 1, 1, 100) == 0);
	tess_machine_close(m);
}
END_TEST

/* Bytes after the first 50 have another rate. Between 2 and 8 ranks, all numbers are. */
START_TEST(links_beyond_caches)
{
	struct tess_machine *m = open_machine(
		FILE_OF(DEVICE "," RATES,
	                "\"within\":{\"default\":[[2,0.5,100,50,10],[8,0.5,400,200,40]]}", ""));

	ck_assert(is_near(tess_machine_communicate(m, "sum", 2, 1, 40), 0.5 + 0.4));
	ck_assert(is_near(tess_machine_communicate(m, "sum", 2, 1, 100), 0.5 + 0.5 + 5));
	ck_assert(is_near(tess_machine_communicate(m, "sum", 4, 1, 200), 0.5 + 0.5 + 5));
	tess_machine_close(m);
}
END_TEST

/* ---- steps ----------------------------------------------------------------------------------- */

/* A started all_reduce of two ranks along dp beside a product, then the wait for it. */
struct overlapped {
	struct tess_program program;
	struct tess_record record, *records[1];
	struct tess_rank_program rank;
	struct tess_step step[4], *list[4];
	struct tess_view in[2], out[1];
};

static void make_overlapped(struct overlapped *o, int32_t data_along, bool started)
{
	memset(o, 0, sizeof *o);
	ck_assert(!tess_mesh_shape_parse("dp=2,tp=2", 4, &o->program.mesh));
	o->record.kind = TESS_OP_LINEAR;
	o->records[0] = &o->record;
	o->program.record = o->records;
	o->program.data_along = data_along;
	o->program.pipeline_along = -1;
	o->in[0] = make_matrix(64, 8);
	o->in[1] = make_matrix(1000, 8);
	o->out[0] = make_matrix(64, 1000);
	o->step[0] = (struct tess_step){
		.kind = TESS_STEP_COLL,
		.started = started,
		.coll = { .kind = TESS_ALL_REDUCE, .dtype = TESS_F32, .count = 25 },
	};
	o->step[1] = (struct tess_step){
		.kind = TESS_STEP_OP,
		.op = { .kind = TESS_OP_LINEAR, .nin = 2, .nout = 1, .in = o->in, .out = o->out }
	};
	o->step[2] = (struct tess_step){ .kind = TESS_STEP_WAIT, .of = &o->step[0] };
	for (int i = 0; i < 4; i++)
		o->list[i] = &o->step[i];
	o->rank.nsteps = started ? 3 : 2;
	o->rank.step = o->list;
}

static struct tess_step_time measure_overlapped(const struct tess_machine *m,
                                                const struct overlapped *o)
{
	const struct tess_op_known known = { 0 };
	struct tess_step_time t = { 0 };
	double sum = 0;

	ck_assert(!tess_steps_time(m, &o->program, &o->rank, 0, o->rank.nsteps, &known, &t));
	for (int i = 0; i < TESS_TERMS; i++)
		sum += t.term[i] * m->time[i];
	ck_assert(is_near(t.seconds, sum));
	return t;
}

/* 1,024,000 FLOPs take 0.26 to 1 s, the start 1 ms; 100 bytes take 1.5 s on the first link. */
START_TEST(started_calls_overlap)
{
	struct tess_machine *slow = open_machine(GOOD),
			    *fast = open_machine(FILE_OF(DEVICE "," RATES,
	                                                 "\"within\":{\"default\":[[2,0,1e300]]}",
	                                                 "")),
			    *factor = open_machine(
				    FILE_OF(DEVICE "," RATES, LINKS,
	                                    ",\"corrections\":{\"time\":{\"data\":2}}")),
			    *host = open_machine(
				    FILE_OF("\"ranks\":1," DEVICE "," RATES, LINKS, ""));
	struct tess_step_time t;
	struct overlapped o;
	double compute;

	make_overlapped(&o, 0, true);
	t = measure_overlapped(fast, &o);
	compute = t.seconds;
	ck_assert(t.term[TESS_TERM_DATA] == 0 && is_near(t.term[TESS_TERM_LATENCY], 1e-3));
	ck_assert(is_near(t.term[TESS_TERM_PRODUCT],
	                  tess_machine_compute(fast, "linear", "product", 64, 1024000)));
	ck_assert(compute > 0.25 && compute < 1);
	ck_assert(is_near(t.sent[0], 100) && t.sent[1] == 0);
	t = measure_overlapped(slow, &o);
	ck_assert(is_near(t.seconds, 1.5) && is_near(t.called[0], 1.5));
	ck_assert(is_near(t.term[TESS_TERM_DATA], 1.5 - compute));
	ck_assert(is_near(measure_overlapped(factor, &o).seconds, 3));
	/* ranks that share CPUs hide nothing */
	ck_assert(is_near(measure_overlapped(host, &o).seconds, 1.5 + compute));
	/* a second one waits for the link */
	o.step[2] = o.step[0];
	o.step[3] = (struct tess_step){ .kind = TESS_STEP_WAIT, .of = &o.step[2] };
	o.rank.nsteps = 4;
	t = measure_overlapped(slow, &o);
	ck_assert(is_near(t.seconds, 3) && is_near(t.term[TESS_TERM_DATA], 3 - compute));
	/* one that is not started does not overlap; along another dimension it is of TENSOR */
	make_overlapped(&o, 1, false);
	t = measure_overlapped(slow, &o);
	ck_assert(is_near(t.seconds, 1.5 + compute) && is_near(t.term[TESS_TERM_TENSOR], 1.5));
	ck_assert(t.term[TESS_TERM_DATA] == 0);
	tess_machine_close(slow);
	tess_machine_close(fast);
	tess_machine_close(factor);
	tess_machine_close(host);
}
END_TEST

/* ---- files ----------------------------------------------------------------------------------- */

#define DISK ",\"disk\":{\"read\":100,\"write\":50}"

/* Returns the time of a transfer of 25 f32 elements, the product, and the wait for the transfer. */
static struct tess_step_time measure_transfer(const struct tess_machine *m, bool writes)
{
	const struct tess_weight weight = { .dtype = TESS_F32 };
	struct tess_transfer transfer = {
		.weight = &weight, .what = TESS_GRADIENT, .n = 25, .writes = writes
	};
	struct overlapped o;

	make_overlapped(&o, -1, true);
	o.step[0] = (struct tess_step){ .kind = TESS_STEP_TRANSFER,
		                        .started = true,
		                        .transfer = &transfer };
	return measure_overlapped(m, &o);
}

/* 100 bytes of two ranks of a host take 2 s to read, and 4 s to write, beside 0.26 to 1 s. */
START_TEST(transfers_overlap)
{
	struct tess_machine *m = open_machine(FILE_OF(DEVICE "," RATES, LINKS, DISK)),
			    *fast = open_machine(
				    FILE_OF(DEVICE "," RATES, LINKS,
	                                    ",\"disk\":{\"read\":1e15,\"write\":1e15}"));
	struct tess_step_time t;
	double compute;

	tess_machine_choose(m, 2, true);
	tess_machine_choose(fast, 2, true);
	t = measure_transfer(fast, false);
	compute = t.seconds;
	ck_assert(compute > 0.25 && compute < 1 && t.term[TESS_TERM_DISK] == 0);
	t = measure_transfer(m, false);
	ck_assert(is_near(t.seconds, 2) && is_near(t.term[TESS_TERM_DISK], 2 - compute));
	t = measure_transfer(m, true);
	ck_assert(is_near(t.seconds, 4) && is_near(t.term[TESS_TERM_DISK], 4 - compute));
	tess_machine_choose(m, 1, true);
	ck_assert(is_near(measure_transfer(m, false).seconds, 1));
	/* ten buckets: the last change, or the first read and the last write, is not hidden */
	ck_assert(is_near(tess_update_wait_time(1, 5, 10), 4.1));
	ck_assert(is_near(tess_update_wait_time(5, 1, 10), 0.1));
	ck_assert(tess_update_wait_time(5, 0, 10) == 0);
	tess_machine_close(m);
	tess_machine_close(fast);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("cost", 60, &r);
	int failed;

	scratch_make();
	tcase_add_test(t, cost_of_products);
	tcase_add_test(t, cost_of_a_table);
	tcase_add_test(t, cost_of_attention);
	tcase_add_loop_test(t, damaged_files, 0, sizeof damaged / sizeof *damaged);
	tcase_add_test(t, files_of_the_box);
	tcase_add_test(t, rates_of_points);
	tcase_add_test(t, links_of_levels);
	tcase_add_test(t, links_beyond_caches);
	tcase_add_test(t, started_calls_overlap);
	tcase_add_test(t, transfers_overlap);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}
