/*
 * test_recompute.c - modules that are computed again in the backward: the bits of a step that keeps
 * all values, in less memory; the repeated records, and the refused patterns.
 */
#include "core/base/option.h"
#include "nn/lower/lower.h"
#include "nn/weights/weights.h"
#include "tests/reference/lockstep.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/suite.h"

enum { SEQUENCES = 3, TOKENS = 40 + 7 + 33 };
static const int64_t some_lengths[SEQUENCES] = { 40, 7, 33 };

static tess_status train_once(const struct checkpoint_fixture *f, const char *plan,
                              const char *mesh, const char *const *recompute,
                              struct lockstep_gradients *out)
{
	int32_t ids[TOKENS], labels[TOKENS];
	struct lockstep how = { f->model, &f->source, plan, 1, ids, TOKENS, true, mesh };
	struct lockstep_step step = {
		.how = &how, .lengths = some_lengths, .nsequences = SEQUENCES, .labels = labels
	};

	for (int i = 0; i < TOKENS; i++) {
		ids[i] = (i * 37 + 11) % 90;
		labels[i] = i % 9 ? (i * 53 + 5) % 90 : -100;
	}
	return lockstep_train_again(&step, recompute, out);
}

static tess_status record_step(const struct checkpoint_fixture *f, const char *spec,
                               const char *const *recompute, struct tess_program **out)
{
	struct tess_training t = { .lengths = some_lengths,
		                   .nsequences = SEQUENCES,
		                   .all_sequences = SEQUENCES,
		                   .recompute = recompute };
	struct tess_plan plan;
	struct tess_record_options options = { .model = f->model,
		                               .plan = &plan,
		                               .source = &f->source,
		                               .mesh = tess_mesh_shape_make("tp", 2),
		                               .ntokens = TOKENS,
		                               .nselected = TOKENS,
		                               .training = &t };
	tess_status st = tess_plan_open(f->model, spec, NULL, 0, &plan);

	if (st)
		return st;
	st = tess_program_compile(&options, out);
	tess_plan_free(&plan);
	return st;
}

static uint64_t measure_step_bytes(const struct checkpoint_fixture *f, const char *plan,
                                   const char *const *recompute)
{
	struct tess_program *p;
	struct tess_rank_program *l;
	uint64_t bytes;

	ck_assert_msg(!record_step(f, plan, recompute, &p), "%s", tess_error());
	ck_assert_msg(!tess_program_lower(p, 0, NULL, &l), "%s", tess_error());
	bytes = l->bytes;
	tess_rank_program_free(l);
	tess_program_free(p);
	return bytes;
}

static const char *const layers[] = { "model.layers.*", NULL };
static const char *const nested[] = { "**.mlp", "model.layers.*", NULL };
static const char *const blocks[] = { "**.mlp", "**.self_attn", NULL };
static const char *const all[] = { "**", NULL };
static const char *const *const patterns[] = { layers, nested, blocks, all };

/* ---- bits ------------------------------------------------------------------------------------ */

static const struct {
	const char *plan, *mesh;
} runs[] = { { "none", "tp=1" }, { "tp", "tp=3" }, { "tp+sp", "tp=2" }, { "tp", "dp=2,tp=2" } };

START_TEST(gives_the_same_bits)
{
	struct checkpoint_fixture f;
	struct lockstep_gradients want, have;
	char what[128];

	open_checkpoint_fixture("tests/data/goldens/llama-odd", &f);
	ck_assert_msg(!train_once(&f, "none", NULL, NULL, &want), "%s", tess_error());
	for (size_t i = (size_t)_i % (1 + THIN / 4); i < sizeof patterns / sizeof *patterns;
	     i += 1 + THIN / 4) {
		ck_assert_msg(!train_once(&f, runs[_i].plan, runs[_i].mesh, patterns[i], &have),
		              "%s", tess_error());
		snprintf(what, sizeof what, "%s on %s, recomputing %s", runs[_i].plan,
		         runs[_i].mesh, patterns[i][0]);
		lockstep_compare_gradients(what, &want, &have);
		lockstep_free_gradients(&have);
	}
	lockstep_free_gradients(&want);
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

/* ---- memory, records ------------------------------------------------------------------------- */

START_TEST(takes_less_memory)
{
	struct checkpoint_fixture f;
	uint64_t kept, by_layers, by_blocks;

	open_checkpoint_fixture("data", &f);
	for (size_t i = 0; i < 3; i++) {
		kept = measure_step_bytes(&f, runs[i].plan, NULL);
		by_layers = measure_step_bytes(&f, runs[i].plan, layers);
		by_blocks = measure_step_bytes(&f, runs[i].plan, blocks);
		ck_assert_uint_lt(by_layers, kept / 10 * 6);
		ck_assert_uint_lt(by_blocks, kept / 10 * 9);
		ck_assert_uint_eq(by_layers, measure_step_bytes(&f, runs[i].plan, nested));
	}
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

static int32_t count_repeated(const struct tess_program *p, int32_t kind)
{
	int32_t n = 0;

	for (int32_t i = 0; i < p->nrecords; i++)
		n += p->record[i]->repeats && p->record[i]->kind == kind;
	return n;
}

/*
 * Checks that records that the mlp's backward does not read are not repeated: its last matrix, and
 * the sum.
 */
START_TEST(repeats_what_is_read)
{
	static const char *const mlp[] = { "model.layers.1.mlp", NULL };
	struct checkpoint_fixture f;
	struct tess_program *p;

	open_checkpoint_fixture("data", &f);
	ck_assert_msg(!record_step(&f, "tp", mlp, &p), "%s", tess_error());
	ck_assert_int_eq(count_repeated(p, TESS_OP_LINEAR), 1);
	ck_assert_int_eq(count_repeated(p, TESS_OP_GLU), 1);
	ck_assert_int_eq(count_repeated(p, TESS_REC_MOVE), 0);
	for (int32_t i = 0; i < p->nrecords; i++)
		if (p->record[i]->repeats) {
			expect_part(p->record[i]->module, "model.layers.1.mlp");
			ck_assert(p->record[i]->in[0] == p->record[i]->repeats->in[0] ||
			          p->record[i]->in[0]->repeats);
			ck_assert_ptr_eq(p->record[i]->out[0]->repeats,
			                 p->record[i]->repeats->out[0]);
		}
	tess_program_free(p);
	ck_assert_msg(!record_step(&f, "tp+sp", mlp, &p), "%s", tess_error());
	ck_assert_int_eq(count_repeated(p, TESS_REC_MOVE), 1); /* the gather of its input */
	tess_program_free(p);
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

/* ---- values that a device rounds ------------------------------------------------------------- */

static int32_t refused_kind; /* ops of it round nothing */

static int32_t round_products(const struct tess_op *op, int32_t i)
{
	if (op->kind == refused_kind)
		return 0;
	switch (op->kind) {
	case TESS_OP_LINEAR:
		return !i;
	case TESS_OP_LINEAR_DX:
		return i < op->nin / 2;
	case TESS_OP_LINEAR_DW:
		return i < op->nin;
	default:
		return (op->kind == TESS_OP_GLU || op->kind == TESS_OP_GLU_D) && i >= op->nin;
	}
}

/* Lowers a step for a device that rounds; counts the outs of GLU and GLU_D, and those in bf16. */
static void count_rounded(const struct checkpoint_fixture *f, int32_t *outs, int32_t *rounded,
                          uint64_t *bytes)
{
	static const struct tess_device device = { .size = sizeof device,
		                                   .name = "rounding",
		                                   .mem = TESS_HOST,
		                                   .exact = 1,
		                                   .rounds = round_products };
	struct tess_rank_program *l;
	struct tess_program *p;

	ck_assert_msg(!record_step(f, "none", NULL, &p), "%s", tess_error());
	p->device = &device;
	ck_assert_msg(!tess_program_lower(p, 0, NULL, &l), "%s", tess_error());
	*outs = *rounded = 0;
	for (int32_t i = 0; i < l->nsteps; i++)
		for (const struct tess_step *s = l->step[i]; s; s = s->fused)
			for (int32_t k = 0; s->kind == TESS_STEP_OP && k < s->op.nout; k++) {
				bool half = s->op.out[k].dtype == TESS_BF16;
				bool glu = s->op.kind == TESS_OP_GLU || s->op.kind == TESS_OP_GLU_D;

				ck_assert(!half || glu);
				*outs += glu;
				*rounded += half;
			}
	*bytes = l->bytes;
	tess_rank_program_free(l);
	tess_program_free(p);
}

/* Checks that a value is stored as bf16 if all ops that write and read it agree. */
START_TEST(stores_rounded_values)
{
	struct checkpoint_fixture f;
	uint64_t bytes, all_bytes;
	int32_t outs, rounded;

	open_checkpoint_fixture("data", &f);
	refused_kind = TESS_OP_LINEAR_DW; /* it reads all of them */
	count_rounded(&f, &outs, &rounded, &all_bytes);
	ck_assert_int_eq(rounded, 0);
	refused_kind = TESS_OP_GLU_D;
	count_rounded(&f, &outs, &rounded, &bytes);
	ck_assert_int_gt(rounded, 0);
	ck_assert_int_eq(rounded * 3, outs);
	ck_assert_uint_lt(bytes, all_bytes);
	refused_kind = 0;
	count_rounded(&f, &outs, &rounded, &bytes);
	ck_assert_int_eq(rounded, outs);
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

START_TEST(patterns_must_match)
{
	static const char *const wrong[] = { "model.layers.*", "model.layer.*", NULL };
	struct checkpoint_fixture f;
	struct tess_program *p;

	open_checkpoint_fixture("data", &f);
	ck_assert_int_eq(record_step(&f, "tp", wrong, &p), TESS_EINVAL);
	expect_part(tess_error(), "recompute \"model.layer.*\": no module matches it");
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("recompute", 120, &r);

	tess_option_add("weights", tess_weights_options);
	srunner_set_fork_status(r, CK_NOFORK);
	tcase_add_loop_test(t, gives_the_same_bits, 0, sizeof runs / sizeof *runs);
	tcase_add_test(t, takes_less_memory);
	tcase_add_test(t, repeats_what_is_read);
	tcase_add_test(t, stores_rounded_values);
	tcase_add_test(t, patterns_must_match);
	return suite_end(r);
}
