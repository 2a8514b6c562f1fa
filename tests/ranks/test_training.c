/*
 * Steps of training on real groups: losses, gradients and AdamW of the goldens, which are made by
 * torch in float64; the same bits on any mesh; micro-batches, masters of bf16 weights; what is
 * refused, and changes nothing.
 */
#include "../unit/suite.h"
#include "hf/safetensors.h"
#include "spawn.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tessera/reduce.h>

/* ---- goldens --------------------------------------------------------------------------------- */

static json_t *errors; /* of torch's float32 against float64: [largest, relative] by name */
static struct tess_safetensors *golden;
static char folder[512];

static void open_golden_of(const char *family)
{
	char path[640];
	json_t *all;

	snprintf(folder, sizeof folder, "%s/tests/data/goldens/%s", SOURCE_ROOT, family);
	snprintf(path, sizeof path, "%s/golden.json", folder);
	all = json_load_file(path, 0, NULL);
	ck_assert(all != NULL);
	errors = json_incref(json_object_get(all, "float32_torch_error_max_abs_and_relative"));
	json_decref(all);
	snprintf(path, sizeof path, "%s/golden.safetensors", folder);
	ck_assert_msg(!tess_safetensors_open(path, false, &golden), "%s", tess_error());
}

static void close_golden(void)
{
	json_decref(errors);
	tess_safetensors_close(golden);
}

static double get_float_of(const void *data, int32_t dtype, int64_t i)
{
	double d;
	float f;

	if (dtype == TESS_F64) {
		memcpy(&d, (const char *)data + 8 * i, sizeof d);
		return d;
	}
	memcpy(&f, (const char *)data + 4 * i, sizeof f);
	return (double)f;
}

/* The largest error of n numbers is at most 3 times that of torch in float32, which `key` names. */
static void check_error(const char *tensor, const char *key, const void *have, int32_t dtype,
                        int64_t n)
{
	const struct tess_slice *want = tess_safetensors_find(golden, tensor);
	double most = 0, allowed;

	ck_assert_msg(want != NULL && want->bytes == (uint64_t)n * tess_width(want->dtype), "%s",
	              tensor);
	ck_assert_msg(json_object_get(errors, key) != NULL, "%s", key);
	allowed = 3 * json_number_value(json_array_get(json_object_get(errors, key), 0));
	for (int64_t i = 0; i < n; i++) {
		double e = fabs(get_float_of(have, dtype, i) -
		                get_float_of(want->data, want->dtype, i));

		most = e > most || isnan(e) ? e : most;
	}
	ck_assert_msg(most <= allowed, "%s: error %g, torch's times 3 is %g", tensor, most,
	              allowed);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

enum { STEPS_MAX = 10 };

struct job { /* what ranks do, and what rank 0 gets */
	const char *mesh;
	int32_t nranks;
	struct tess_trainer_options options;
	const struct tess_batch *micro;
	int64_t nmicro;
	int32_t steps; /* 0: only gradients */
	double lr;
	double loss[STEPS_MAX], norm[STEPS_MAX];
	/* of all tensors, one after another: gradients, or, after steps, weights and masters */
	char *bytes;
	uint64_t nbytes;
};

static tess_status gather_tensors(struct tess_trainer *t, int32_t what, int32_t rank, struct job *j)
{
	for (int64_t i = 0; i < tess_trainer_count_tensors(t); i++) {
		const struct tess_trained *about = tess_trainer_get_tensor(t, i);
		uint64_t width = what == TESS_WEIGHT ? tess_width(about->dtype) : 4;
		uint64_t bytes = (uint64_t)about->size * width;
		int64_t half = about->size / 2;
		char *out = NULL;
		tess_status st;

		if (!about->trained)
			continue;
		if (rank == 0) {
			j->bytes = realloc(j->bytes, j->nbytes + bytes);
			out = j->bytes + j->nbytes;
			j->nbytes += bytes;
		}
		st = tess_trainer_gather(t, what, i, 0, half, 0, out);
		if (!st)
			st = tess_trainer_gather(t, what, i, half, about->size - half, 0,
			                         out ? out + (uint64_t)half * width : NULL);
		if (st)
			return st;
	}
	return TESS_OK;
}

static tess_status train_on_rank(struct tess_world *w, void *arg)
{
	struct job *j = arg;
	int32_t rank = tess_world_rank(w);
	struct tess_training_result r = { .size = sizeof r };
	struct tess_mesh *mesh = NULL;
	struct tess_trainer *t = NULL;
	tess_status st = tess_mesh_open(w, j->mesh, &mesh);

	if (!st)
		st = tess_trainer_open(mesh, folder, &j->options, &t);
	for (int32_t i = 0; i < (j->steps ? j->steps : 1) && !st; i++) {
		st = j->steps ? tess_trainer_step(t, j->micro, j->nmicro, j->lr, &r)
		              : tess_trainer_compute_gradients(t, j->micro, j->nmicro, &r);
		if (!rank && !st) {
			j->loss[i] = r.loss;
			j->norm[i] = r.norm;
		}
	}
	if (!st && !j->steps)
		st = gather_tensors(t, TESS_GRADIENT, rank, j);
	if (!st && j->steps)
		st = gather_tensors(t, TESS_WEIGHT, rank, j);
	if (!st && j->steps)
		st = gather_tensors(t, TESS_MASTER, rank, j);
	tess_trainer_close(t);
	tess_mesh_close(mesh);
	return st;
}

static void run_on(struct job *j, const char *mesh, int32_t nranks)
{
	j->mesh = mesh;
	j->nranks = nranks;
	j->options.size = sizeof j->options;
	j->options.threads = 1;
	spawn_ranks(nranks, train_on_rank, j);
}

static void free_training_job(struct job *j)
{
	free(j->bytes);
}

/* The two sequences of 32 ids of train.ids and train.labels. */
static int32_t golden_ids[64], golden_labels[64];
static const int64_t golden_lengths[2] = { 32, 32 };
static const struct tess_batch golden_batch = { 2, golden_lengths, golden_ids, golden_labels };

static void read_golden_batch(void)
{
	const int64_t *ids = tess_safetensors_find(golden, "train.ids")->data,
		      *labels = tess_safetensors_find(golden, "train.labels")->data;

	for (int i = 0; i < 64; i++) {
		golden_ids[i] = (int32_t)ids[i];
		golden_labels[i] = (int32_t)labels[i];
	}
}

struct on_mesh {
	const char *mesh;
	int32_t n;
};

static const struct on_mesh meshes[] = {
	{ "tp", 2 }, { "dp", 2 }, { "dp=2,tp=2", 4 }, { "tp", 3 }
};
enum { MESHES = sizeof meshes / sizeof *meshes };

/* Losses, norms and all tensors have the same bits on other meshes. */
static void expect_bits_on_meshes(const struct job *one)
{
	for (int32_t i = 0; i < MESHES; i++) {
		struct job j = { .options = one->options,
			         .micro = one->micro,
			         .nmicro = one->nmicro,
			         .steps = one->steps,
			         .lr = one->lr };

		run_on(&j, meshes[i].mesh, meshes[i].n);
		ck_assert_msg(!memcmp(j.loss, one->loss, sizeof j.loss), "%s: loss %a, not %a",
		              meshes[i].mesh, j.loss[0], one->loss[0]);
		ck_assert_msg(!memcmp(j.norm, one->norm, sizeof j.norm), "%s: norm",
		              meshes[i].mesh);
		ck_assert_uint_eq(j.nbytes, one->nbytes);
		ck_assert_msg(!memcmp(j.bytes, one->bytes, j.nbytes), "%s: tensors",
		              meshes[i].mesh);
		free_training_job(&j);
	}
}

/* ---- loss and gradients ---------------------------------------------------------------------- */

static const char *const families[] = { "llama", "llama-odd", "mistral",      "qwen2",  "qwen3",
	                                "olmo2", "phi3",      "phi3-partial", "gemma2", "gpt2" };

/* `bytes` are f32 of all tensors, in the order of the trainer: gathered by name on one rank. */
static tess_status check_goldens_by_name(struct tess_world *w, void *arg)
{
	struct tess_training_result r = { .size = sizeof r };
	const struct tess_trainer_options *options = arg;
	struct tess_mesh *mesh;
	struct tess_trainer *t;
	size_t checked = 0, wanted = 0;

	if (tess_mesh_open(w, "tp", &mesh) || tess_trainer_open(mesh, folder, options, &t) ||
	    tess_trainer_compute_gradients(t, &golden_batch, 1, &r))
		return TESS_EBUG;
	check_error("train.loss_f64", "train.loss", &r.loss, TESS_F64, 1);
	for (size_t i = 0; i < tess_safetensors_count(golden); i++) {
		const struct tess_slice *s = tess_safetensors_at(golden, i);
		int64_t tensor, n = (int64_t)s->bytes / 4;
		float *have;

		if (strncmp(s->name, "grad.", 5))
			continue;
		wanted++;
		tensor = tess_trainer_find_tensor(t, s->name + 5);
		ck_assert_msg(tensor >= 0, "no %s", s->name);
		have = calloc((size_t)n, sizeof *have);
		ck_assert_msg(!tess_trainer_gather(t, TESS_GRADIENT, tensor, 0, n, 0, have), "%s",
		              tess_error());
		check_error(s->name, s->name, have, TESS_F32, n);
		free(have);
	}
	for (int64_t i = 0; i < tess_trainer_count_tensors(t); i++)
		checked += tess_trainer_get_tensor(t, i)->trained != 0;
	ck_assert_uint_eq(checked, wanted);
	tess_trainer_close(t);
	tess_mesh_close(mesh);
	return TESS_OK;
}

START_TEST(loss_and_gradients)
{
	struct tess_trainer_options options = { .size = sizeof options, .threads = 1 };
	struct job one = { .micro = &golden_batch, .nmicro = 1 };

	open_golden_of(families[_i]);
	read_golden_batch();
	spawn_ranks(1, check_goldens_by_name, &options);
	run_on(&one, "tp", 1);
	expect_bits_on_meshes(&one);
	free_training_job(&one);
	close_golden();
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("training", 60, &r);

	tcase_add_loop_test(t, loss_and_gradients, 0, sizeof families / sizeof *families);
	return suite_end(r);
}
