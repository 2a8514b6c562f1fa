/*
 * test_storage.c - the elements of stored tensors on the ranks of a mesh: a rank holds the file's
 * elements, in the order of the weight's axes, and every element has one owner.
 */
#include "api/session.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "nn/program/storage.h"
#include "nn/weights/weights.h"
#include "tests/support/suite.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

static const struct {
	const char *model, *mesh, *plan;
	int32_t nranks;
} cases[] = {
	{ "data", "tp", NULL, 1 },
	{ "data", "tp", NULL, 3 },
	{ "tests/data/goldens/llama-odd", "tp", NULL, 5 },
	{ "tests/data/goldens/llama-bf16", "tp", NULL, 4 },
	{ "tests/data/goldens/gpt2", "tp", NULL, 3 },
	{ "tests/data/goldens/phi3-partial", "tp", NULL, 4 },
	{ "tests/data/goldens/qwen3_moe", "tp", NULL, 2 },
	{ "tests/data/goldens/mixtral", "ep=2,tp=2",
	  "{\"model.layers.*.mlp.experts.gate_up_proj\":\"moe_tp_gate_up_colwise\","
	  "\"model.layers.*.mlp.experts.down_proj\":\"moe_tp_down_rowwise\","
	  "\"ep:model.layers.*.mlp.experts.gate_up_proj\":\"grouped_gemm\","
	  "\"ep:model.layers.*.mlp.experts.down_proj\":\"grouped_gemm\","
	  "\"ep:model.layers.*.mlp.experts\":\"ep_dispatch_experts\","
	  "\"model.layers.*.mlp.experts\":\"moe_tp_experts\"}",
	  4 },
	{ "tests/data/goldens/deepseek_v3", "tp", NULL, 2 },
	{ "tests/data/goldens/gemma2", "a=2,tp=2",
	  "{\"tp\":{\"model.layers.*.mlp.up_proj\":\"colwise\","
	  "\"model.layers.*.mlp.gate_proj\":\"colwise\","
	  "\"model.layers.*.mlp.down_proj\":\"rowwise\"},"
	  "\"a\":{\"model.layers.*.mlp.up_proj\":\"rowwise\","
	  "\"model.layers.*.mlp.gate_proj\":\"rowwise\"}}",
	  4 },
};

struct opened {
	struct tess_planned_model model;
	struct tess_program *program;
	struct tess_arena arena;
	struct tess_stored_tensor *tensor;
	int64_t n;
};

static void open_case(int i, struct opened *o)
{
	/* a program of inference keeps weights where a training program does */
	static const struct tess_training training = { .nsequences = 1 };
	struct tess_session_options options = { .size = sizeof options, .plan = cases[i].plan };
	struct tess_mesh_shape mesh;
	char path[512];

	snprintf(path, sizeof path, "%s/%s", SOURCE_ROOT, cases[i].model);
	*o = (struct opened){ 0 };
	ck_assert_msg(!tess_planned_model_open(path, &options, TESS_CHECKPOINT_WHOLE, &o->model) &&
	                      !tess_mesh_shape_parse(cases[i].mesh, cases[i].nranks, &mesh) &&
	                      !tess_planned_model_record(&o->model, &mesh, 1, 1, &o->program) &&
	                      !tess_stored_tensors_list(o->program, &o->arena, &o->tensor, &o->n),
	              "%s", tess_error());
	o->program->training = &training;
}

static void close_case(struct opened *o)
{
	tess_arena_free(&o->arena);
	tess_program_free(o->program);
	tess_planned_model_close(&o->model);
}

/*
 * Checks that all ranges are inside their tensor, in order, and that the owned ones cover it once.
 */
static void check_owned(const struct opened *o, const struct tess_stored_tensor *t)
{
	int8_t *seen = calloc((size_t)t->about.size, 1);
	struct tess_kept_walk w;
	struct tess_kept_run run;

	for (int32_t r = 0; r < o->program->mesh.nranks; r++) {
		int64_t kept = tess_weight_get_kept(o->program, t->weight, r, TESS_STATE).len;
		int64_t stored_end = 0, kept_end = 0, n = 0;

		tess_kept_walk_begin(&w, o->program, t, r, TESS_STATE, TESS_OWNED);
		while (tess_kept_walk_next(&w, &run)) {
			MUST(run.n > 0 && run.stored >= stored_end && run.kept >= kept_end);
			stored_end = run.stored + run.n;
			kept_end = run.kept + run.n;
			MUST(stored_end <= t->about.size && kept_end <= kept);
			for (int64_t k = run.stored; k < stored_end; k++)
				MUST(seen[k]++ == 0);
			n += run.n;
		}
		MUST(tess_kept_count(o->program, t, r, TESS_STATE, TESS_OWNED, 0, t->about.size) ==
		     n);
	}
	for (int64_t k = 0; k < t->about.size; k++)
		MUST(seen[k] == 1);
	free(seen);
}

/* Checks that the ranks of each copy cover the tensor once; the first copy is the owned one. */
static void check_copies(const struct opened *o, const struct tess_stored_tensor *t)
{
	int64_t n[2][8] = { 0 };
	struct tess_kept_walk w;
	struct tess_kept_run run;
	int32_t ncopies = 0;

	for (int32_t r = 0; r < o->program->mesh.nranks; r++) {
		int32_t copy = tess_weight_get_copy(o->program, t->weight, r, TESS_REST);

		MUST(copy >= 0 && copy < 8);
		ncopies = copy < ncopies ? ncopies : copy + 1;
		for (int owned = 0; owned < 2; owned++) {
			tess_kept_walk_begin(&w, o->program, t, r, TESS_REST,
			                     owned ? TESS_OWNED : TESS_OWNED_IN_COPY);
			while (tess_kept_walk_next(&w, &run))
				n[owned][copy] += run.n;
		}
	}
	for (int32_t k = 0; k < ncopies; k++) {
		ck_assert_int_eq(n[0][k], t->about.size);
		ck_assert_int_eq(n[1][k], k ? 0 : t->about.size);
	}
}

START_TEST(every_element_is_owned_once)
{
	struct opened o;
	size_t files = 0;

	open_case(_i, &o);
	for (int64_t i = 0; i < o.n; i++) {
		struct tess_view v;

		ck_assert(!o.model.source.find(o.model.source.self, o.tensor[i].about.name, &v));
		ck_assert_int_eq(v.ndim, o.tensor[i].about.ndim);
		for (int32_t a = 0; a < v.ndim; a++)
			ck_assert_int_eq(v.shape[a], o.tensor[i].about.shape[a]);
		check_owned(&o, &o.tensor[i]);
		check_copies(&o, &o.tensor[i]);
		files++;
	}
	ck_assert_uint_eq(files, o.model.source.count);
	close_case(&o);
}
END_TEST

/* Checks that a rank holds its part of the weight, with the bytes of the files. */
static void check_held(const struct opened *o, int32_t rank, const struct tess_rank_weights *held,
                       int64_t *kept)
{
	for (int64_t i = 0; i < o->n; i++) {
		const struct tess_stored_tensor *t = &o->tensor[i];
		uint64_t width = tess_width(t->about.dtype);
		const char *data = held->view[t->weight->index].data;
		struct tess_kept_walk w;
		struct tess_kept_run run;
		struct tess_view v;

		MUST(!o->model.source.find(o->model.source.self, t->about.name, &v));
		tess_kept_walk_begin(&w, o->program, t, rank, TESS_REST, TESS_HELD);
		while (tess_kept_walk_next(&w, &run)) {
			MUST(!memcmp(data + (uint64_t)run.kept * width,
			             (const char *)v.data + (uint64_t)run.stored * width,
			             (uint64_t)run.n * width));
			kept[t->weight->index] -= run.n;
		}
	}
}

START_TEST(what_is_held_is_that_of_the_file)
{
	struct tess_opened_device cpu = { 0 };
	struct opened o;
	int64_t *kept;

	open_case(_i, &o);
	kept = calloc((size_t)o.program->nweights, sizeof *kept);
	ck_assert(!tess_plugin_find_device("cpu", &cpu.table) && !cpu.table->open(0, 1, &cpu.self));
	for (int32_t r = 0; r < o.program->mesh.nranks; r++) {
		struct tess_rank_weights held;

		ck_assert_msg(
			!tess_rank_weights_load(o.program, &o.model.source, r, &cpu, NULL, &held),
			"%s", tess_error());
		for (int32_t i = 0; i < o.program->nweights; i++)
			kept[i] = o.program->weight[i]->table
			                  ? 0
			                  : tess_weight_count_local(o.program, o.program->weight[i],
			                                            r);
		check_held(&o, r, &held, kept);
		for (int32_t i = 0; i < o.program->nweights; i++)
			ck_assert_int_eq(kept[i], 0);
		tess_rank_weights_free(&held);
	}
	cpu.table->close(cpu.self);
	free(kept);
	close_case(&o);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("storage", 60, &r);

	tcase_add_loop_test(t, every_element_is_owned_once, 0, sizeof cases / sizeof *cases);
	tcase_add_loop_test(t, what_is_held_is_that_of_the_file, 0, sizeof cases / sizeof *cases);
	return suite_end(r);
}
