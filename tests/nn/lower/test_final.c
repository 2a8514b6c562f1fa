/*
 * test_final.c - which weights a step of training announces as final, and when: before the backward
 * ends, and after the last step that reads the weight or writes its gradient.
 */
#include "api/session.h"
#include "nn/compile/compile.h"
#include "nn/lower/lower.h"
#include "tests/support/suite.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <tessera/reduce.h>

enum { TOKENS = 32 };

/* Addresses that no step accesses: the program only binds them. */
#define REGION(i) ((char *)((uintptr_t)(i) << 40))

struct lowered {
	struct tess_planned_model model;
	struct tess_program *program;
	struct tess_view *weights;
	struct tess_rank_program *steps;
	char *weights_end;
};

/* Gives each weight addresses of its own. */
static void place_weights(struct lowered *o, int32_t rank)
{
	o->weights = calloc((size_t)o->program->nweights, sizeof *o->weights);
	o->weights_end = REGION(3);
	for (int32_t i = 0; i < o->program->nweights; i++) {
		const struct tess_weight *w = o->program->weight[i];
		int64_t n = tess_weight_get_kept(o->program, w, rank, TESS_REST).len;

		o->weights[i].data = o->weights_end;
		o->weights_end += (uint64_t)n * tess_width(w->dtype);
	}
}

static void open_lowered(struct lowered *o, const char *model, const char *mesh, int32_t rank,
                         int32_t rest_location)
{
	static const int64_t length = TOKENS;
	struct tess_session_options options = { .size = sizeof options };
	struct tess_training training = { .lengths = &length,
		                          .nsequences = 1,
		                          .bucket = 9000,
		                          .state_location = TESS_LOCATION_DISK };
	const struct tess_memory memory = { .step = REGION(1),
		                            .gradients = REGION(2),
		                            .inputs = REGION(4),
		                            .rope = (float *)REGION(5) };
	struct tess_record_options how = { .ntokens = TOKENS,
		                           .nselected = TOKENS,
		                           .logits_root = TESS_LOGITS_CUT,
		                           .rest_location = rest_location,
		                           .offload_min = 256,
		                           .training = &training };
	char path[512];

	*o = (struct lowered){ 0 };
	snprintf(path, sizeof path, "%s/%s", SOURCE_ROOT, model);
	ck_assert_msg(!tess_planned_model_open(path, &options, TESS_CHECKPOINT_WHOLE, &o->model) &&
	                      !tess_mesh_shape_parse(mesh, 0, &how.mesh),
	              "%s", tess_error());
	training.all_sequences = how.mesh.dim[0].size;
	how.model = o->model.model;
	how.plan = &o->model.plan;
	how.source = &o->model.source;
	ck_assert_msg(!tess_program_compile(&how, &o->program), "%s", tess_error());
	place_weights(o, rank);
	ck_assert_msg(!tess_program_lower(o->program, rank, o->weights, &o->steps), "%s",
	              tess_error());
	tess_rank_program_bind(o->steps, &memory);
}

static void close_lowered(struct lowered *o)
{
	tess_rank_program_free(o->steps);
	tess_program_free(o->program);
	tess_planned_model_close(&o->model);
	free(o->weights);
}

/* Returns whether a view has an element in [begin, end). */
static bool is_view_in(const struct tess_view *v, const char *begin, const char *end)
{
	int64_t last = 0;

	for (int32_t i = 0; i < v->ndim; i++)
		last += (v->shape[i] - 1) * v->stride[i];
	return v->ndim && (const char *)v->data < end &&
	       (const char *)v->data + (uint64_t)(last + 1) * tess_width(v->dtype) > begin;
}

static bool uses_memory(const struct tess_step *s, const char *begin, const char *end)
{
	bool uses = false;

	for (; s && s->kind == TESS_STEP_OP; s = s->fused) {
		for (int32_t i = 0; i < s->op.nin; i++)
			uses = uses || is_view_in(&s->op.in[i], begin, end);
		for (int32_t i = 0; i < s->op.nout; i++)
			uses = uses || is_view_in(&s->op.out[i], begin, end);
	}
	return uses;
}

/* Checks that no step from `first` on moves a part of the weight, or of its gradient. */
static void check_unmoved(const struct lowered *o, const struct tess_weight *w, int32_t first)
{
	for (int32_t i = first; i < o->steps->nsteps; i++) {
		const struct tess_step *s = o->steps->step[i];

		s = s->kind == TESS_STEP_WAIT ? s->of : s;
		ck_assert_msg(s->kind != TESS_STEP_TRANSFER || s->transfer->weight != w,
		              "%s: moved after it is final", w->name);
	}
}

/* Checks that no step from `first` on uses the weight or its gradient, or waits for a sum of it. */
static void check_unused(const struct lowered *o, const struct tess_weight *w, int32_t first)
{
	const struct tess_view *gradient = &o->steps->gradient[w->index];
	const char *weight = o->weights[w->index].data,
		   *end = w->index + 1 < o->program->nweights ? o->weights[w->index + 1].data
	                                                      : o->weights_end;
	const char *from = gradient->data, *to = from + 4 * gradient->shape[0];

	ck_assert(gradient->ndim && from >= REGION(2) && from < REGION(3));
	for (int32_t i = first; i < o->steps->nsteps; i++) {
		const struct tess_step *s = o->steps->step[i],
				       *sum = s->kind == TESS_STEP_WAIT ? s->of : s;

		ck_assert_msg(!uses_memory(s, weight, end), "%s: read after it is final", w->name);
		ck_assert_msg(!uses_memory(s, from, to),
		              "%s: its gradient is changed after it is "
		              "final",
		              w->name);
		ck_assert_msg(sum->kind != TESS_STEP_SUM || (char *)sum->sum_out < from ||
		                      (char *)sum->sum_out >= to,
		              "%s: a sum of its gradient ends after it is final", w->name);
	}
}

static const struct {
	const char *model, *mesh;
	int32_t rank, rest_location;
} cases[] = {
	{ "tests/data/goldens/llama", "tp=1", 0, TESS_LOCATION_DEVICE },
	{ "tests/data/goldens/llama", "dp=2,tp=1", 1, TESS_LOCATION_DEVICE },
	{ "tests/data/goldens/gpt2", "dp=2,tp=2", 3, TESS_LOCATION_DEVICE },
	{ "data", "tp=2", 1, TESS_LOCATION_DEVICE },
	{ "tests/data/goldens/qwen3", "tp=2", 0, TESS_LOCATION_DEVICE },
	{ "tests/data/goldens/llama", "tp=1", 0, TESS_LOCATION_DISK },
	{ "tests/data/goldens/gpt2", "dp=2,tp=2", 3, TESS_LOCATION_DISK },
};

START_TEST(announced_in_time)
{
	struct lowered o;
	bool *seen;
	int32_t n = 0, losses = 0, first = 0;

	open_lowered(&o, cases[_i].model, cases[_i].mesh, cases[_i].rank, cases[_i].rest_location);
	seen = calloc((size_t)o.program->nweights, sizeof *seen);
	for (int32_t i = 0; i < o.steps->nsteps; i++) {
		const struct tess_step *s = o.steps->step[i];

		if (s->kind == TESS_STEP_FINAL && !s->final_weight)
			losses++;
		if (s->kind != TESS_STEP_FINAL || !s->final_weight)
			continue;
		first = n++ ? first : i;
		ck_assert(losses == 1 && !seen[s->final_weight->index]);
		seen[s->final_weight->index] = true;
		check_unmoved(&o, s->final_weight, i + 1);
		if (!cases[_i].rest_location)
			check_unused(&o, s->final_weight, i + 1);
	}
	for (int32_t i = 0; i < o.program->nweights; i++) {
		const struct tess_weight *w = o.program->weight[i];
		bool shared = w->table;

		for (int32_t k = 0; k < o.program->nweights; k++)
			shared = shared || o.program->weight[k]->table == w;
		ck_assert_msg(seen[i] == (!shared && tess_weight_has_stored_state(o.program, w,
		                                                                  cases[_i].rank)),
		              "%s: %d", w->name, seen[i]);
	}
	ck_assert_int_gt(n, 8);
	ck_assert_int_lt(first, o.steps->nsteps * 3 / 4);
	free(seen);
	close_lowered(&o);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("final", 60, &r);

	tcase_add_loop_test(t, announced_in_time, 0, (int)(sizeof cases / sizeof *cases));
	return suite_end(r);
}
