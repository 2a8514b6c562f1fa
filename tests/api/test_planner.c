/*
 * test_planner.c - forecasts of libtessera.so: memory is that of tess_explain_training, terms add
 * up, and what cannot run is refused with the message of the run. Searches: what they give fits and
 * is in order, nothing that is simple is faster, and the best is about that of all
 * candidates. Values in files.
 */
#include "tests/support/scratch.h"

#include <math.h>
#include <stdbool.h>
#include <tessera/tessera.h>
#include <tessera/train.h>

enum { BATCH = 8, LENGTH = 32 };

/* A machine whose values have 4 bytes, so that memory is that of the run. */
static const char host[] =
	"{\"name\":\"host\",\"device\":{\"memory\":1e9,\"latency\":1e-6,\"rates\":{"
	"\"product\":[[1,1e6,1e10],[64,1e6,4e10]],\"attention\":[[1,1e5,5e9]],"
	"\"memory\":[[1,1e3,1e10]]}},"
	"\"error\":0.07,\"measured\":\"this\","
	"\"links\":{\"within\":{\"default\":[[2,1e-6,1e10],[8,4e-6,1e10]]}}}";
static const char *data, *machine;

static struct tess_planner *open_planner_for(uint64_t memory)
{
	const struct tess_planner_options o = { .size = sizeof o,
		                                .train = 1,
		                                .machine = machine,
		                                .memory = memory,
		                                .batch = BATCH,
		                                .sequence = LENGTH };
	struct tess_planner *p;

	ck_assert_msg(!tess_planner_open(data, &o, &p), "%s", tess_error());
	return p;
}

static void expect_sums(const struct tess_forecast *f)
{
	double seconds = 0, bytes = 0, calls[TESS_TIMES] = { 0 };

	for (int i = 0; i < TESS_TIMES; i++) {
		ck_assert(isfinite(f->terms[i]) && f->terms[i] >= 0);
		seconds += f->terms[i];
	}
	for (int i = 0; i < TESS_MEMORIES; i++)
		bytes += f->holds[i];
	for (int32_t i = 0; i < f->ncalls; i++) {
		const struct tess_forecast_call *c = &f->calls[i];

		calls[c->term] += c->seconds;
		ck_assert(!i || c[-1].seconds >= c->seconds);
		ck_assert_str_eq(c->along, c->term == TESS_TIME_DATA ? "dp" : "tp");
	}
	for (int i = TESS_TIME_TENSOR; i <= TESS_TIME_DATA; i++)
		ck_assert(fabs(calls[i] - f->terms[i]) <= 1e-9 * f->terms[i]);
	ck_assert(f->seconds > 0 && fabs(seconds / f->seconds - 1) < 1e-9);
	ck_assert(fabs(bytes - f->memory) < 0.5);
	ck_assert(f->sent >= 0 && *f->bound);
}

static const struct planned_case {
	const char *mesh, *plan;
	const char *const overrides[2], *const recompute[2];
	int64_t micro;
	const char *schedule;
} cases[] = {
	{ "tp=1", "none", { 0 }, { 0 }, 0, NULL },
	{ "dp=4,tp=1", "none", { 0 }, { 0 }, 0, NULL },
	{ "tp=3", "tp", { 0 }, { 0 }, 2, NULL },
	{ "dp=2,tp=2", "tp+sp", { "dp:**=zero1" }, { 0 }, 0, NULL },
	{ "dp=8,tp=1", "none", { "dp:**=zero3" }, { "model.layers.*" }, 0, NULL },
	{ "pp=2,dp=2", "none", { 0 }, { 0 }, 4, "1f1b" },
	{ "pp=2,tp=2", "tp", { 0 }, { 0 }, 2, "interleaved:2" },
	{ "pp=2", "none", { 0 }, { 0 }, 4, "zb-h1" },
};

static struct tess_explanation *explain_case(const struct planned_case *c)
{
	const struct tess_trainer_options o = { .size = sizeof o,
		                                .plan = c->plan,
		                                .overrides = c->overrides,
		                                .recompute = c->recompute[0] ? c->recompute : NULL,
		                                .optimizer = TESS_ADAMW,
		                                .pipeline_schedule = c->schedule,
		                                .micro_batches = c->micro };
	struct tess_explanation *e;
	int64_t micro = c->micro ? c->micro : 1;

	ck_assert_msg(!tess_explain_training(data, c->mesh, 0, BATCH / micro, LENGTH, &o, &e),
	              "%s: %s", c->mesh, tess_error());
	return e;
}

static struct tess_strategy make_case_strategy(const struct planned_case *c)
{
	return (struct tess_strategy){ .size = sizeof(struct tess_strategy),
		                       .mesh = c->mesh,
		                       .plan = c->plan,
		                       .overrides = c->overrides,
		                       .recompute = c->recompute[0] ? c->recompute : NULL,
		                       .micro_batches = c->micro,
		                       .pipeline_schedule = c->schedule };
}

START_TEST(memory_is_that_of_the_run)
{
	const struct planned_case *c = &cases[_i];
	const struct tess_strategy s = make_case_strategy(c);
	struct tess_planner *p = open_planner_for(0);
	struct tess_explanation *e = explain_case(c);
	const struct tess_forecast *f;
	uint64_t fullest = 0;

	ck_assert_msg(!tess_planner_forecast(p, &s, &f), "%s", tess_error());
	for (int32_t r = 0; r < e->nranks; r++)
		fullest = e->ranks[r]->total > fullest ? e->ranks[r]->total : fullest;
	ck_assert_int_eq(f->nranks, e->nranks);
	ck_assert_msg((uint64_t)f->memory == fullest, "%s: %.0f bytes, not %llu", c->mesh,
	              f->memory, (unsigned long long)fullest);
	ck_assert(f->fits == 1);
	expect_sums(f);
	ck_assert(fabs(f->rate * f->seconds / (BATCH * LENGTH) - 1) < 1e-9);
	ck_assert((f->terms[TESS_TIME_BUBBLE] > 0) == !!strstr(c->mesh, "pp"));
	ck_assert(strcmp(f->strategy.mesh, c->mesh) == 0 && f->strategy.mesh != c->mesh);
	tess_explanation_free(e);
	tess_planner_close(p);
}
END_TEST

static const struct {
	struct tess_strategy s;
	const char *says;
	tess_status status;
} refused[] = {
	{ { .plan = "none" }, "the strategy has no mesh", TESS_EINVAL },
	{ { .mesh = "dp=3,", .plan = "none" }, "dp=3,", TESS_EINVAL },
	{ { .mesh = "dp=16", .plan = "none" },
	  "8 sequences cannot be cut for 16 ranks along dp",
	  TESS_EINVAL },
	{ { .mesh = "dp=2", .plan = "none", .micro_batches = 3 },
	  "8 sequences cannot be cut into 3 equal micro-batches",
	  TESS_EINVAL },
	{ { .mesh = "xp=2,tp=1", .plan = "none" }, "xp", TESS_EINVAL },
	{ { .mesh = "tp=2", .plan = "tq" }, "tq", TESS_ENOENT },
	{ { .mesh = "pp=99", .plan = "none" }, "99", TESS_EINVAL },
	{ { .mesh = "pp=2", .plan = "none", .pipeline_schedule = "2f2b" }, "2f2b", TESS_EINVAL },
};

START_TEST(refusals_are_those_of_the_run)
{
	struct tess_planner *p = open_planner_for(0);
	struct tess_strategy s = refused[_i].s;
	const struct tess_forecast *f = NULL;

	s.size = sizeof s;
	ck_assert_int_eq(tess_planner_forecast(p, &s, &f), refused[_i].status);
	expect_part(tess_error(), refused[_i].says);
	ck_assert_ptr_null(f);
	tess_planner_close(p);
}
END_TEST

static const struct {
	struct tess_planner_options o;
	tess_status status;
	const char *says;
} wrong[] = {
	{ { .machine = NULL }, TESS_EINVAL, "name a machine, or its file" },
	{ { .machine = "b300" }, TESS_ENOENT, "there is no machine \"b300\"" },
	{ { .machine = "h100", .batch = -1 }, TESS_EINVAL, "a batch of -1 sequences" },
	{ { .machine = "h100", .train = 1, .sequence = 513 },
	  TESS_EINVAL,
	  "sequences of 513 ids; the checkpoint was made for 512 positions" },
	{ { .machine = "h100", .prompt = 512, .tokens = 1 }, TESS_EINVAL, "sequences of 513 ids" },
	{ { .machine = "h100", .train = 1, .optimizer = 9 }, TESS_EINVAL, "optimizer" },
	{ { .machine = "h100", .train = 1, .math = TESS_F16 },
	  TESS_EINVAL,
	  "gradients below 6e-8" },
	{ { .machine = "h100", .train = 1, .math = TESS_BF16 },
	  TESS_EINVAL,
	  "machine h100: products of bf16 are for the cpu device" },
};

START_TEST(options_that_are_wrong)
{
	struct tess_planner_options o = wrong[_i].o;
	struct tess_planner *p = NULL;

	o.size = sizeof o;
	ck_assert_int_eq(tess_planner_open(data, &o, &p), wrong[_i].status);
	expect_part(tess_error(), wrong[_i].says);
	ck_assert_ptr_null(p);
}
END_TEST

/* Products of bf16 have rates of their own, routers those of f32; other terms stay. */
static const char half_as_wide[] =
	"{\"name\":\"fast\",\"device\":{\"memory\":1e9,\"latency\":1e-6,\"rates\":{"
	"\"product\":[[1,1e6,1e10]],\"attention\":[[1,1e5,5e9]],\"memory\":[[1,1e3,1e10]]},"
	"\"training_rates\":{\"product\":[[1,1e6,1e10]],\"product:bf16\":[[1,1e6,4e10]],"
	"\"linear_dw:bf16\":[[1,1e6,1e18]],\"experts_dw:bf16\":[[1,1e6,1e18]],"
	"\"attention\":[[1,1e5,5e9]],\"memory\":[[1,1e3,1e10]]}},"
	"\"links\":{\"within\":{\"default\":[[2,1e-6,1e10]]}}}";

/* Predicts a step with products of `math` on one rank. */
static struct tess_forecast forecast_math(const char *model, const char *with, int32_t math)
{
	const struct tess_planner_options o = { .size = sizeof o,
		                                .train = 1,
		                                .machine = with,
		                                .batch = BATCH,
		                                .sequence = LENGTH,
		                                .math = math };
	const struct tess_strategy s = { .size = sizeof s, .mesh = "tp=1", .plan = "none" };
	const struct tess_forecast *f;
	struct tess_forecast copy;
	struct tess_planner *p;

	ck_assert_msg(!tess_planner_open(model, &o, &p), "%s", tess_error());
	ck_assert_msg(!tess_planner_forecast(p, &s, &f), "%s", tess_error());
	copy = *f;
	ck_assert_int_eq(*f->assumed != '\0', math == TESS_BF16 && with == machine);
	if (*f->assumed)
		expect_part(f->assumed, "products of bf16 are assumed to take the time of those in "
		                        "f32");
	tess_planner_close(p);
	return copy;
}

/*
 * A forward, the gradients of values and those of weights have a third of the products each: the
 * first two at four times the rate, the last one in no time. Experts compute their forward again;
 * routers stay in f32.
 */
START_TEST(products_of_bf16)
{
	const char *model = _i ? getenv("MIXTURE_DIR") : data;
	char path[512];
	struct tess_forecast f, b, same;
	double factor;

	snprintf(path, sizeof path, "%s", scratch_write_text("fast.json", half_as_wide));
	f = forecast_math(model, path, TESS_F32);
	b = forecast_math(model, path, TESS_BF16);
	for (int i = 0; i < TESS_TIMES; i++)
		ck_assert(i == TESS_TIME_PRODUCTS || f.terms[i] == b.terms[i]);
	ck_assert_double_eq(f.memory, b.memory);
	factor = b.terms[TESS_TIME_PRODUCTS] / f.terms[TESS_TIME_PRODUCTS];
	ck_assert_msg(fabs(factor - (_i ? 0.184 : 1.0 / 6)) < 1e-3, "%g", factor);
	/* a file without rates of them */
	same = forecast_math(model, machine, TESS_BF16);
	f = forecast_math(model, machine, 0);
	ck_assert_double_eq(same.seconds, f.seconds);
}
END_TEST

/* Expects that plain dp and plain tp of n ranks, if they run and fit, are not faster than f. */
static void expect_best(struct tess_planner *p, const struct tess_forecast *f, int32_t n)
{
	static const char *const plain[][2] = { { "dp=%d,tp=1", "none" }, { "tp=%d", "auto" } };

	for (int i = 0; i < 2; i++) {
		char mesh[32];
		const struct tess_strategy s = { .size = sizeof s,
			                         .mesh = mesh,
			                         .plan = plain[i][1] };
		const struct tess_forecast *other;

		snprintf(mesh, sizeof mesh, i ? "tp=%d" : "dp=%d,tp=1", (int)n);
		if (!tess_planner_forecast(p, &s, &other) && other->fits)
			ck_assert_msg(f->seconds <= other->seconds, "%s is faster than %s", mesh,
			              f->strategy.mesh);
	}
}

START_TEST(searches)
{
	static const int32_t ranks[] = { 1, 2, 3, 8 };
	struct tess_planner *p = open_planner_for(0);
	const struct tess_forecast *const *best;
	int32_t n;

	for (size_t k = 0; k < sizeof ranks / sizeof *ranks; k++) {
		ck_assert_msg(!tess_planner_search(p, ranks[k], 3, &best, &n), "%s", tess_error());
		ck_assert(n >= 1 && n <= 3);
		for (int32_t i = 0; i < n; i++) {
			expect_sums(best[i]);
			ck_assert(best[i]->fits && best[i]->nranks == ranks[k]);
			ck_assert(best[i]->error == 0.07 && !strcmp(best[i]->measured, "this"));
			ck_assert(!i || best[i - 1]->seconds <= best[i]->seconds);
		}
		expect_best(p, best[0], ranks[k]);
	}
	ck_assert_int_eq(tess_planner_search(p, 0, 3, &best, &n), TESS_EINVAL);
	ck_assert_int_eq(tess_planner_search(p, 2, 0, &best, &n), TESS_EINVAL);
	ck_assert_int_eq(tess_planner_search(p, 7919, 3, &best, &n), TESS_EINVAL);
	expect_part(tess_error(), "no strategy runs on 7919 ranks");
	expect_part(tess_error(), "try -n 40, or a larger batch");
	ck_assert_msg(!tess_planner_search(p, 40, 3, &best, &n), "%s", tess_error());
	tess_planner_close(p);
}
END_TEST

/* Returns the number before `what` in a message. */
static long find_planned_number(const char *message, const char *what)
{
	const char *at = strstr(message, what);

	ck_assert_msg(at != NULL, "%s: no \"%s\"", message, what);
	while (at > message && (at[-1] >= '0' && at[-1] <= '9'))
		at--;
	return strtol(at, NULL, 10);
}

/* The message has the least memory, and the least numbers of ranks that fit. */
START_TEST(nothing_fits)
{
	struct tess_planner *p = open_planner_for(0);
	const struct tess_forecast *const *best;
	uint64_t least = 0;
	char need[64];
	int32_t n;
	long ranks;

	while (!tess_planner_search(p, 2, 1, &best, &n)) {
		ck_assert_int_eq(n, 1);
		least = (uint64_t)best[0]->memory;
		tess_planner_close(p);
		p = open_planner_for(least - 1);
	}
	snprintf(need, sizeof need, "2 ranks need at least %.3g GB each", (double)least / 1e9);
	expect_part(tess_error(), need);
	tess_planner_close(p);
	p = open_planner_for(least / 3);
	ck_assert_int_eq(tess_planner_search(p, 2, 1, &best, &n), TESS_EINVAL);
	ranks = find_planned_number(tess_error(), " ranks would fit in ");
	ck_assert(ranks > 2 && (ranks & (ranks - 1)) == 0);
	ck_assert_msg(!tess_planner_search(p, (int32_t)ranks, 1, &best, &n), "%s", tess_error());
	ck_assert(ranks == 4 || tess_planner_search(p, (int32_t)ranks / 2, 1, &best, &n));
	tess_planner_close(p);
}
END_TEST

/* Ranks that share a host's memory have a part of it. */
START_TEST(ranks_share_memory)
{
	static const char shared[] = "\"memory\":1e9,\"ranks\":1,";
	const struct tess_strategy one = { .size = sizeof one, .mesh = "tp=1", .plan = "none" };
	const struct tess_strategy two = { .size = sizeof two, .mesh = "dp=2", .plan = "none" };
	struct tess_planner_options o = {
		.size = sizeof o, .train = 1, .batch = 2, .sequence = LENGTH
	};
	const char *at = strstr(host, "\"memory\":1e9,");
	const struct tess_forecast *f;
	struct tess_planner *p;
	char text[1024];

	/* each rank holds between a half and all of the memory */
	snprintf(text, sizeof text, "%.*s%s%s", (int)(at - host), host, shared,
	         at + strlen("\"memory\":1e9,"));
	memcpy(strstr(text, "1e9"), "9e6", 3);
	o.machine = scratch_write_text("shared.json", text);
	ck_assert_msg(!tess_planner_open(data, &o, &p), "%s", tess_error());
	ck_assert_msg(!tess_planner_forecast(p, &one, &f), "%s", tess_error());
	ck_assert_msg(f->fits && f->memory > 4.5e6, "%g bytes", f->memory);
	ck_assert_msg(!tess_planner_forecast(p, &two, &f), "%s", tess_error());
	ck_assert_msg(!f->fits && f->memory < 9e6, "%g bytes", f->memory);
	ck_assert_msg(!tess_planner_forecast(p, &one, &f) && f->fits, "%s", tess_error());
	tess_planner_close(p);
}
END_TEST

/* What --explore gives is in order, begins with the best, and has what half of the memory does. */
START_TEST(explores_time_and_memory)
{
	struct tess_planner *p = open_planner_for(0);
	const struct tess_forecast *const *best, *const *front;
	const struct tess_forecast *last;
	double seconds;
	int32_t n;

	ck_assert_msg(!tess_planner_search(p, 8, 1, &best, &n), "%s", tess_error());
	seconds = best[0]->seconds;
	ck_assert_msg(!tess_planner_explore(p, 8, 1000, &front, &n), "%s", tess_error());
	ck_assert(n > 2 && front[0]->seconds == seconds);
	for (int32_t i = 0; i < n; i++) {
		expect_sums(front[i]);
		ck_assert(front[i]->fits && front[i]->nranks == 8);
		ck_assert(!i || (front[i - 1]->seconds < front[i]->seconds &&
		                 front[i - 1]->memory > front[i]->memory));
	}
	last = front[n - 1];
	ck_assert(last->memory < front[0]->memory / 2);
	ck_assert(!tess_planner_explore(p, 8, 2, &front, &n) && n == 2);
	ck_assert_int_eq(tess_planner_explore(p, 0, 3, &front, &n), TESS_EINVAL);
	tess_planner_close(p);
}
END_TEST

static const struct tess_forecast *forecast_generation(const char *model, const char *with,
                                                       int64_t batch, int64_t tokens,
                                                       const char *mesh, const char *plan,
                                                       struct tess_planner **p)
{
	const struct tess_planner_options o = {
		.size = sizeof o, .machine = with, .batch = batch, .prompt = 32, .tokens = tokens
	};
	const struct tess_strategy s = { .size = sizeof s, .mesh = mesh, .plan = plan };
	const struct tess_forecast *f;

	ck_assert_msg(!tess_planner_open(model, &o, p), "%s", tess_error());
	ck_assert_msg(!tess_planner_forecast(*p, &s, &f), "%s", tess_error());
	expect_sums(f);
	return f;
}

/*
 * The step of a prompt chooses its first id, and short prompts share a step. An id that is chosen
 * takes a second by "sample".
 */
START_TEST(steps_of_generation)
{
	static const char sampling[] =
		"{\"name\":\"host\",\"device\":{\"memory\":1e9,\"latency\":0,\"rates\":{"
		"\"product\":[[1,1e6,1e30]],\"attention\":[[1,1e5,1e30]],"
		"\"memory\":[[1,1e3,1e30]],\"sample\":[[1,2048,%d]]}},"
		"\"links\":{\"within\":{\"default\":[[2,0,1e30]]}}}";
	struct tess_planner *few, *more, *one, *chosen;
	const struct tess_forecast *f =
		forecast_generation(data, machine, 4, 1, "tp=1", "none", &few);
	const struct tess_forecast *g =
		forecast_generation(data, machine, 4, 9, "tp=1", "none", &more);
	const struct tess_forecast *h =
		forecast_generation(data, machine, 1, 1, "tp=1", "none", &one);
	char text[1024];

	ck_assert(fabs(f->seconds / f->prompt_seconds - 1) < 1e-9);
	ck_assert(fabs(g->seconds / (g->prompt_seconds + 8 * g->token_seconds) - 1) < 1e-9);
	ck_assert(f->prompt_seconds > h->prompt_seconds &&
	          f->prompt_seconds < 4 * h->prompt_seconds);
	ck_assert(f->terms[TESS_TIME_LATENCY] == h->terms[TESS_TIME_LATENCY]);
	snprintf(text, sizeof text, sampling, 2048);
	f = forecast_generation(data, scratch_write_text("sampling.json", text), 4, 9, "tp=1",
	                        "none", &chosen);
	ck_assert_msg(fabs(f->seconds / (4 * 9) - 1) < 1e-3, "%g", f->seconds);
	ck_assert(fabs(f->token_seconds / 4 - 1) < 1e-3);
	tess_planner_close(few);
	tess_planner_close(more);
	tess_planner_close(one);
	tess_planner_close(chosen);
}
END_TEST

/* A rank that has half of the experts computes half of their rows, as one with half of each. */
START_TEST(experts_of_a_rank)
{
	const char *model = getenv("MIXTURE_DIR");
	struct tess_planner *cut, *half;
	const struct tess_forecast *f =
		forecast_generation(model, machine, 4, 1, "tp=2", "tp", &cut);
	const struct tess_forecast *g =
		forecast_generation(model, machine, 4, 1, "tp=2", "ep", &half);
	double factor = g->terms[TESS_TIME_PRODUCTS] / f->terms[TESS_TIME_PRODUCTS];

	ck_assert_msg(factor > 0.9 && factor < 1.15, "%g", factor);
	tess_planner_close(cut);
	tess_planner_close(half);
}
END_TEST

/* Half of the memory that plain dp takes is kept by a strategy with less. */
START_TEST(less_memory)
{
	const struct tess_strategy plain = { .size = sizeof plain,
		                             .mesh = "dp=4,tp=1",
		                             .plan = "none" };
	struct tess_planner *p = open_planner_for(0);
	const struct tess_forecast *const *best, *f;
	uint64_t half;
	int32_t n;

	ck_assert(!tess_planner_forecast(p, &plain, &f));
	half = (uint64_t)(f->memory / 2);
	tess_planner_close(p);
	p = open_planner_for(half);
	ck_assert_msg(!tess_planner_search(p, 4, 3, &best, &n), "%s", tess_error());
	for (int32_t i = 0; i < n; i++)
		ck_assert(best[i]->memory <= (double)half);
	tess_planner_close(p);
}
END_TEST

/* ---- all candidates -------------------------------------------------------------------------- */

enum { CUT_RANKS = 4 };

/* A machine with links of so many bytes a second, and plain dp's memory in percent. */
static const struct {
	const char *rate;
	int percent; /* 0: no limit */
} whole_searches[] = { { "1e10", 0 }, { "3e8", 0 }, { "3e8", 65 }, { "1e10", 40 } };

/* Every candidate of a search, predicted. */
struct all_candidates {
	struct tess_planner *planner;
	double memory; /* of a rank */
	double seconds; /* of the best that fits; 0: none does */
	char name[256];
	int n;
};

static void name_strategy(const struct tess_strategy *s, char name[static 256])
{
	snprintf(name, 256, "%s %s %s %s %d %s", s->mesh, s->plan,
	         s->overrides && s->overrides[0] ? s->overrides[0] : "",
	         s->recompute ? s->recompute[0] : "", (int)s->micro_batches,
	         s->pipeline_schedule ? s->pipeline_schedule : "");
}

static void add_forecast(struct all_candidates *a, const struct tess_strategy *s)
{
	const struct tess_forecast *f;

	if (tess_planner_forecast(a->planner, s, &f))
		return;
	a->n++;
	if (f->memory > a->memory || (a->seconds > 0 && f->seconds >= a->seconds))
		return;
	a->seconds = f->seconds;
	name_strategy(s, a->name);
}

static void add_schedules_of(struct all_candidates *a, struct tess_strategy s, bool stages)
{
	static const char *const schedules[] = { "1f1b", "interleaved:2", "zb-h1", "zb-v" };

	for (int i = 0; i < (stages ? 4 : 1); i++) {
		s.pipeline_schedule = stages ? schedules[i] : NULL;
		if (!s.recompute || i < 2)
			add_forecast(a, &s);
	}
}

static void add_steps(struct all_candidates *a, struct tess_strategy s, int dp, bool stages)
{
	static const char *const recomputed[][2] = { { NULL },
		                                     { "model.layers.*.self_attn" },
		                                     { "model.layers.*" } };

	for (int i = 0; i < 3; i++)
		for (s.micro_batches = 1; s.micro_batches <= BATCH / dp; s.micro_batches *= 2) {
			s.recompute = i ? recomputed[i] : NULL;
			add_schedules_of(a, s, stages);
		}
}

static void add_meshes(struct all_candidates *a)
{
	static const char *const plans[] = { "tp", "tp+sp" };
	static const char *const zeros[][2] = { { NULL }, { "dp:**=zero1" }, { "dp:**=zero3" } };

	for (int tp = 1; tp <= CUT_RANKS; tp *= 2)
		for (int pp = 1; pp <= CUT_RANKS / tp; pp *= 2)
			for (int plan = 0; plan < (tp > 1 ? 2 : 1); plan++)
				for (int zero = 0, dp = CUT_RANKS / tp / pp; zero < 3; zero++) {
					struct tess_strategy s = { .size = sizeof s };
					char mesh[64];

					snprintf(mesh, sizeof mesh, "pp=%d,dp=%d,tp=%d", pp, dp,
					         tp);
					s.mesh = mesh;
					s.plan = tp > 1 ? plans[plan] : "none";
					s.overrides = zeros[zero];
					if (!zero || dp > 1)
						add_steps(a, s, dp, pp > 1);
				}
}

/* A search predicts few of its candidates; the best of them is about as fast as that of all. */
START_TEST(best_of_all_candidates)
{
	const struct tess_strategy plain = { .size = sizeof plain,
		                             .mesh = "dp=4,tp=1",
		                             .plan = "none" };
	const char *at = strstr(host, "[[2,1e-6");
	struct all_candidates a = { .memory = 1e9 };
	const struct tess_forecast *const *best, *f;
	char text[1024], name[256];
	int32_t n;

	snprintf(text, sizeof text, "%.*s[[2,1e-6,%s],[8,1e-6,%s]]}}}", (int)(at - host), host,
	         whole_searches[_i].rate, whole_searches[_i].rate);
	machine = scratch_write_text("links.json", text);
	a.planner = open_planner_for(0);
	ck_assert(!tess_planner_forecast(a.planner, &plain, &f));
	if (whole_searches[_i].percent)
		a.memory = floor(f->memory * whole_searches[_i].percent / 100);
	add_meshes(&a);
	ck_assert(a.n > 200 && a.seconds > 0);
	tess_planner_close(a.planner);
	a.planner = open_planner_for((uint64_t)a.memory);
	ck_assert_msg(!tess_planner_search(a.planner, CUT_RANKS, 1, &best, &n), "%s", tess_error());
	name_strategy(&best[0]->strategy, name);
	ck_assert_msg(best[0]->seconds <= 1.05 * a.seconds, "%s takes %g s, and %s %g s", name,
	              best[0]->seconds, a.name, a.seconds);
	expect_best(a.planner, best[0], CUT_RANKS);
	tess_planner_close(a.planner);
}
END_TEST

/* ---- files ----------------------------------------------------------------------------------- */

static const struct tess_planner_options disk_options = {
	.size = sizeof disk_options, .train = 1, .batch = BATCH, .sequence = LENGTH
};

static struct tess_planner *open_disk_planner(struct tess_planner_options o, double rate,
                                              double size)
{
	struct tess_planner *p;
	char text[1024];

	snprintf(text, sizeof text, "%.*s,\"disk\":{\"read\":%g,\"write\":%g,\"size\":%g}}",
	         (int)strlen(host) - 1, host, rate, rate, size);
	o.machine = scratch_write_text("disk.json", text);
	ck_assert_msg(!tess_planner_open(data, &o, &p), "%s", tess_error());
	return p;
}

/* Opens a planner on the host with a disk of `rate` bytes a second, for steps with clipping. */
static struct tess_planner *open_clipped(double rate)
{
	struct tess_planner_options o = disk_options;

	o.clip = 1;
	return open_disk_planner(o, rate, 0);
}

/* Opens a planner on the host with a disk of `rate` bytes a second; size: of the disk. */
static struct tess_planner *open_with_disk(double rate, double size, uint64_t memory, bool all)
{
	struct tess_planner_options o = disk_options;

	o.memory = memory;
	o.offload_optimizer = o.offload_weights = all;
	return open_disk_planner(o, rate, size);
}

/* Predicts a strategy without files (NULL), or with them on disk. */
static const struct tess_forecast *predict_files_on(struct tess_planner *p, const char *mesh,
                                                    const char *state, const char *weights)
{
	const struct tess_strategy s = { .size = sizeof s,
		                         .mesh = mesh,
		                         .plan = "none",
		                         .micro_batches = 2,
		                         .offload_optimizer = state,
		                         .offload_weights = weights };
	const struct tess_forecast *f;

	ck_assert_msg(!tess_planner_forecast(p, &s, &f), "%s", tess_error());
	expect_sums(f);
	return f;
}

static const struct tess_forecast *predict_files(struct tess_planner *p, const char *state,
                                                 const char *weights)
{
	return predict_files_on(p, "dp=2", state, weights);
}

/* A slow disk binds; one that takes no time makes a step as fast as in memory, but for copies. */
START_TEST(disks_bind)
{
	struct tess_planner *slow = open_with_disk(1e5, 1e9, 0, false),
			    *fast = open_with_disk(1e15, 1e9, 0, false);
	const struct tess_forecast *in_memory = predict_files(fast, NULL, NULL), *f;
	double moved;

	ck_assert(in_memory->disk == 0 && in_memory->terms[TESS_TIME_DISK] == 0);
	f = predict_files(fast, "disk", NULL);
	ck_assert(fabs(f->seconds / in_memory->seconds - 1) < 1e-6);
	ck_assert(f->disk > 0 && f->memory < in_memory->memory && f->disk_read > 0);
	f = predict_files(fast, "disk", "disk");
	ck_assert(f->seconds < 1.05 * in_memory->seconds);
	ck_assert(f->disk_read > f->disk_written && f->fits && f->disk_limit == 5e8);
	for (int i = 0; i < 2; i++) {
		f = predict_files(slow, "disk", i ? "disk" : NULL);
		ck_assert_str_eq(f->bound, "disk");
		/* two ranks share the disk */
		moved = 2 * (f->disk_read + f->disk_written) / 1e5;
		ck_assert_msg(f->seconds < 1.01 * (moved + in_memory->seconds) &&
		                      f->seconds > 0.95 * moved,
		              "%g, not %g s", f->seconds, moved);
	}
	tess_planner_close(slow);
	tess_planner_close(fast);
}
END_TEST

START_TEST(disks_of_machines)
{
	struct tess_planner *small = open_with_disk(1e9, 1e5, 0, false),
			    *none = open_planner_for(0);
	const struct tess_strategy s = {
		.size = sizeof s, .mesh = "tp=1", .plan = "none", .offload_optimizer = "disk"
	};
	const struct tess_forecast *f;

	ck_assert(!predict_files(small, "disk", NULL)->fits);
	ck_assert(predict_files(small, NULL, NULL)->fits);
	ck_assert_int_eq(tess_planner_forecast(none, &s, &f), TESS_EINVAL);
	expect_part(tess_error(), "machine host has no rates of a disk");
	tess_planner_close(small);
	tess_planner_close(none);
}
END_TEST

/* If nothing fits, the message has a strategy with files that does; and a search may have them. */
START_TEST(searches_files)
{
	struct tess_planner *p = open_with_disk(1e9, 0, 0, false);
	const struct tess_forecast *const *best;
	uint64_t memory;
	int32_t n;

	ck_assert_msg(!tess_planner_explore(p, 2, 1000, &best, &n), "%s", tess_error());
	memory = (uint64_t)best[n - 1]->memory - 1;
	for (int32_t i = 0; i < n; i++)
		ck_assert(!best[i]->strategy.offload_optimizer && !best[i]->disk);
	tess_planner_close(p);
	p = open_with_disk(1e9, 0, memory, false);
	ck_assert_int_eq(tess_planner_search(p, 2, 1, &best, &n), TESS_EINVAL);
	expect_part(tess_error(), "; values on disk would fit in ");
	expect_part(tess_error(), " --offload-optimizer DIR");
	tess_planner_close(p);
	p = open_with_disk(1e9, 0, memory, true);
	ck_assert_msg(!tess_planner_search(p, 2, 1, &best, &n), "%s", tess_error());
	ck_assert(best[0]->fits && best[0]->disk > 0 && best[0]->memory <= (double)memory);
	ck_assert_str_eq(best[0]->strategy.offload_optimizer, "disk");
	tess_planner_close(p);
}
END_TEST

/* Without clipping the disk works during the backward and the next forward, and hides there. */
START_TEST(updates_overlap)
{
	struct tess_planner *p = open_with_disk(1e15, 0, 0, false);
	const struct tess_forecast *f = predict_files_on(p, "tp=1", NULL, NULL);
	double compute = f->seconds, clipped, rate;

	f = predict_files_on(p, "tp=1", "disk", NULL);
	rate = (f->disk_read + f->disk_written) / (0.2 * compute);
	tess_planner_close(p);
	p = open_with_disk(rate, 0, 0, false);
	f = predict_files_on(p, "tp=1", "disk", NULL);
	ck_assert_msg(f->seconds >= compute && f->seconds < 1.05 * compute, "%g and %g s",
	              f->seconds, compute);
	tess_planner_close(p);
	p = open_with_disk(rate / 2.2, 0, 0, false); /* 0.44 of the time of a step */
	f = predict_files_on(p, "tp=1", "disk", NULL);
	ck_assert_msg(f->seconds < 1.05 * compute, "%g and %g s", f->seconds, compute);
	tess_planner_close(p);
	p = open_clipped(rate);
	clipped = predict_files_on(p, "tp=1", "disk", NULL)->seconds;
	ck_assert_msg(clipped > 1.1 * compute && clipped < 1.2 * compute, "%g and %g s", clipped,
	              compute);
	/* of gradients in files the norm takes reads of its own */
	rate = predict_files_on(p, "tp=1", "disk", "disk")->disk_read;
	tess_planner_close(p);
	p = open_with_disk(1e9, 0, 0, false);
	ck_assert(predict_files_on(p, "tp=1", "disk", "disk")->disk_read < rate);
	tess_planner_close(p);
}
END_TEST

/* If nothing fits, a strategy that gathers weights does with a tile, or the message has one. */
START_TEST(searches_tiles)
{
	struct tess_planner_options o = disk_options;
	const struct tess_forecast *const *best;
	struct tess_planner *p;
	int32_t n;

	o.batch = 1;
	o.offload_weights = 1;
	p = open_disk_planner(o, 1e9, 0);
	ck_assert_msg(!tess_planner_explore(p, 1, 1000, &best, &n), "%s", tess_error());
	ck_assert(!best[n - 1]->strategy.tile);
	o.memory = (uint64_t)best[n - 1]->memory - 1;
	tess_planner_close(p);
	p = open_disk_planner(o, 1e9, 0);
	ck_assert_msg(!tess_planner_search(p, 1, 5, &best, &n), "%s", tess_error());
	ck_assert(n == 1 && best[0]->fits && best[0]->memory <= (double)o.memory);
	ck_assert(best[0]->strategy.tile && best[0]->strategy.offload_weights);
	tess_planner_close(p);
	o.offload_weights = 0;
	p = open_disk_planner(o, 1e9, 0);
	ck_assert_int_eq(tess_planner_search(p, 1, 5, &best, &n), TESS_EINVAL);
	expect_part(tess_error(), "; values on disk would fit in ");
	expect_part(tess_error(), " --offload-weights DIR --tile ");
	tess_planner_close(p);
}
END_TEST

/* Opens a planner on GPUs whose host changes `rate` bytes a second, and copies as many. */
static struct tess_planner *open_with_gpus(double rate)
{
	struct tess_planner_options o = {
		.size = sizeof o, .train = 1, .batch = BATCH, .sequence = LENGTH
	};
	struct tess_planner *p;
	char text[1024];

	snprintf(text, sizeof text,
	         "{\"name\":\"gpus\",\"device\":{\"memory\":1e9,\"exact\":false,\"latency\":1e-7,"
	         "\"rates\":{\"product\":[[1,1,1e12]],\"attention\":[[1,1,1e12]],"
	         "\"memory\":[[1,1,1e11]]}},\"links\":{\"within\":{\"default\":[[2,1e-6,1e10]]}},"
	         "\"host\":{\"read\":%g,\"write\":%g,\"memory\":%g,\"size\":1e9}}",
	         rate, rate, rate);
	o.machine = scratch_write_text("gpus.json", text);
	ck_assert_msg(!tess_planner_open(data, &o, &p), "%s", tess_error());
	return p;
}

START_TEST(memory_of_hosts)
{
	static const struct tess_strategy strategies[] = {
		{ .size = sizeof *strategies, .mesh = "dp=2", .offload_optimizer = "disk" },
		{ .size = sizeof *strategies, .mesh = "dp=2", .offload_optimizer = "host" },
	};
	struct tess_planner *p = open_with_gpus(1e6), *none = open_with_gpus(0);
	const struct tess_forecast *memory = predict_files(p, NULL, NULL), *f;
	double copied, changed, fits = memory->memory;

	f = predict_files(p, "host", NULL);
	ck_assert(f->disk > 0 && f->disk_limit == 5e8 && f->fits && f->memory < fits);
	copied = (f->disk_read + f->disk_written) / 1e6;
	/* two ranks change 28 bytes of each weight, of 4 bytes, which are read and written */
	changed = 2 * 28 / 4 * f->disk_read / 1e6;
	ck_assert_msg(f->seconds > changed && f->seconds < 1.1 * (copied + changed),
	              "%g, not %g s and %g s", f->seconds, copied, changed);
	f = predict_files(p, "host", "host");
	ck_assert(f->memory < fits && f->disk_read > 0);
	ck_assert_int_eq(tess_planner_forecast(p, &strategies[0], &f), TESS_ENOTSUP);
	ck_assert_int_eq(tess_planner_forecast(none, &strategies[1], &f), TESS_EINVAL);
	expect_part(tess_error(), "machine gpus has no rates of its host");
	tess_planner_close(p);
	tess_planner_close(none);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("planner", 120, &r);
	char path[512];
	int failed;

	scratch_make();
	data = getenv("DATA_DIR");
	snprintf(path, sizeof path, "%s", scratch_write_text("host.json", host));
	machine = path;
	tcase_add_loop_test(t, memory_is_that_of_the_run, 0, sizeof cases / sizeof *cases);
	tcase_add_loop_test(t, refusals_are_those_of_the_run, 0, sizeof refused / sizeof *refused);
	tcase_add_loop_test(t, options_that_are_wrong, 0, sizeof wrong / sizeof *wrong);
	tcase_add_loop_test(t, products_of_bf16, 0, 2);
	tcase_add_test(t, searches);
	tcase_add_loop_test(t, best_of_all_candidates, 0,
	                    sizeof whole_searches / sizeof *whole_searches);
	tcase_add_test(t, explores_time_and_memory);
	tcase_add_test(t, steps_of_generation);
	tcase_add_test(t, experts_of_a_rank);
	tcase_add_test(t, less_memory);
	tcase_add_test(t, nothing_fits);
	tcase_add_test(t, ranks_share_memory);
	tcase_add_test(t, disks_bind);
	tcase_add_test(t, disks_of_machines);
	tcase_add_test(t, searches_files);
	tcase_add_test(t, updates_overlap);
	tcase_add_test(t, searches_tiles);
	tcase_add_test(t, memory_of_hosts);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}
