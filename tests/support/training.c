/* training.c - the goldens of training, and jobs that train on real groups. */
#include "training.h"
#include "spawn.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tessera/reduce.h>

/* ---- goldens --------------------------------------------------------------------------------- */

static json_t *errors; /* errors of torch's float32 against float64: [largest, relative] by name */
struct tess_safetensors *training_golden;
char training_folder[512];

void training_open_golden(const char *family)
{
	char path[640];
	json_t *all;

	snprintf(training_folder, sizeof training_folder, "%s/tests/data/goldens/%s", SOURCE_ROOT,
	         family);
	snprintf(path, sizeof path, "%s/golden.json", training_folder);
	all = json_load_file(path, 0, NULL);
	ck_assert(all != NULL);
	errors = json_incref(json_object_get(all, "float32_torch_error_max_abs_and_relative"));
	json_decref(all);
	snprintf(path, sizeof path, "%s/golden.safetensors", training_folder);
	ck_assert_msg(!tess_safetensors_open(path, false, &training_golden), "%s", tess_error());
}

void training_close_golden(void)
{
	json_decref(errors);
	tess_safetensors_close(training_golden);
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

void training_check_error(const char *tensor, const char *key, double times, const void *have,
                          int32_t dtype, int64_t n)
{
	const struct tess_slice *want = tess_safetensors_find(training_golden, tensor);
	double most = 0, allowed;

	ck_assert_msg(want != NULL && want->bytes == (uint64_t)n * tess_width(want->dtype), "%s",
	              tensor);
	ck_assert_msg(json_object_get(errors, key) != NULL, "%s", key);
	allowed = times * json_number_value(json_array_get(json_object_get(errors, key), 0));
	for (int64_t i = 0; i < n; i++) {
		double e = fabs(get_float_of(have, dtype, i) -
		                get_float_of(want->data, want->dtype, i));

		most = e > most || isnan(e) ? e : most;
	}
	ck_assert_msg(most <= allowed, "%s: error %g, torch's times 3 is %g", tensor, most,
	              allowed);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static tess_status gather_tensors(struct tess_trainer *t, int32_t what, int32_t rank,
                                  struct training_job *j)
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
	struct training_job *j = arg;
	int32_t rank = tess_world_rank(w);
	struct tess_training_result r = { .size = sizeof r };
	struct tess_mesh *mesh = NULL;
	struct tess_trainer *t = NULL;
	tess_status st = tess_mesh_open(w, j->mesh, &mesh);

	if (!st)
		st = tess_trainer_open(mesh, training_folder, &j->options, &t);
	for (int32_t i = 0; i < (j->steps ? j->steps : 1) && !st; i++) {
		st = j->steps ? tess_trainer_step(t, j->micro, j->nmicro, j->lr, &r)
		              : tess_trainer_compute_gradients(t, j->micro, j->nmicro, &r);
		if (!rank && !st) {
			j->loss[i] = r.loss;
			j->norm[i] = r.norm;
			j->balance[i] = r.balance;
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

void training_run_on(struct training_job *j, const char *mesh, int32_t nranks)
{
	j->mesh = mesh;
	j->nranks = nranks;
	j->options.size = sizeof j->options;
	j->options.threads = 1;
	spawn_ranks(nranks, train_on_rank, j);
}

void training_free_job(struct training_job *j)
{
	free(j->bytes);
	j->bytes = NULL;
	j->nbytes = 0;
}

static int32_t golden_ids[64], golden_labels[64];
static const int64_t golden_lengths[2] = { 32, 32 };
const struct tess_batch training_batch = { 2, golden_lengths, golden_ids, golden_labels };

void training_read_batch(void)
{
	const int64_t *ids = tess_safetensors_find(training_golden, "train.ids")->data,
		      *labels = tess_safetensors_find(training_golden, "train.labels")->data;

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

void training_expect_bits(const struct training_job *one)
{
	/* the third covers the threads of the others */
	for (int32_t i = TSAN ? 2 : 0; i < MESHES; i += TSAN ? MESHES : 1) {
		struct training_job j = { .options = one->options,
			                  .micro = one->micro,
			                  .nmicro = one->nmicro,
			                  .steps = one->steps,
			                  .lr = one->lr };

		training_run_on(&j, meshes[i].mesh, meshes[i].n);
		ck_assert_msg(!memcmp(j.loss, one->loss, sizeof j.loss), "%s: loss %a, not %a",
		              meshes[i].mesh, j.loss[0], one->loss[0]);
		ck_assert_msg(!memcmp(j.norm, one->norm, sizeof j.norm), "%s: norm",
		              meshes[i].mesh);
		ck_assert_uint_eq(j.nbytes, one->nbytes);
		ck_assert_msg(!memcmp(j.bytes, one->bytes, j.nbytes), "%s: tensors",
		              meshes[i].mesh);
		training_free_job(&j);
	}
}

/* ---- what goldens say ------------------------------------------------------------------------ */

const struct tess_trainer_options training_adamw = { .size = sizeof training_adamw,
	                                             .threads = 1,
	                                             .beta1 = 0.9,
	                                             .beta2 = 0.95,
	                                             .eps = 1e-8,
	                                             .weight_decay = 0.1,
	                                             .clip = 1 };

tess_status training_check_gradients(struct tess_world *w, void *arg)
{
	struct tess_training_result r = { .size = sizeof r };
	const struct tess_trainer_options *options = arg;
	const char *kind = options->balance > 0 ? "grad_with_aux." : "grad.";
	size_t checked = 0, wanted = 0, prefix = strlen(kind);
	struct tess_mesh *mesh;
	struct tess_trainer *t;

	if (tess_mesh_open(w, "tp", &mesh) ||
	    tess_trainer_open(mesh, training_folder, options, &t) ||
	    tess_trainer_compute_gradients(t, &training_batch, 1, &r))
		return TESS_EBUG;
	training_check_error(options->balance > 0 ? "train.loss_with_aux_f64" : "train.loss_f64",
	                     "train.loss", 3, &r.loss, TESS_F64, 1);
	for (size_t i = 0; i < tess_safetensors_count(training_golden); i++) {
		const struct tess_slice *s = tess_safetensors_at(training_golden, i);
		int64_t tensor, n = (int64_t)s->bytes / 4;
		char key[256];
		float *have;

		if (strncmp(s->name, kind, prefix))
			continue;
		wanted++;
		snprintf(key, sizeof key, "grad.%s", s->name + prefix);
		tensor = tess_trainer_find_tensor(t, s->name + prefix);
		ck_assert_msg(tensor >= 0, "no %s", s->name);
		have = calloc((size_t)n, sizeof *have);
		ck_assert_msg(!tess_trainer_gather(t, TESS_GRADIENT, tensor, 0, n, 0, have), "%s",
		              tess_error());
		training_check_error(s->name, key, 3, have, TESS_F32, n);
		free(have);
	}
	for (int64_t i = 0; i < tess_trainer_count_tensors(t); i++)
		checked += tess_trainer_get_tensor(t, i)->trained != 0;
	if (options->balance > 0) /* the goldens of routers */
		ck_assert(wanted && wanted < checked && r.balance > 0);
	else
		ck_assert_uint_eq(checked, wanted);
	tess_trainer_close(t);
	tess_mesh_close(mesh);
	return TESS_OK;
}

tess_status training_check_adamw(struct tess_world *w, void *arg)
{
	struct tess_training_result r = { .size = sizeof r };
	struct tess_mesh *mesh = NULL;
	struct tess_trainer *t = NULL;
	double loss[TRAINING_STEPS_MAX], norm[TRAINING_STEPS_MAX];
	int32_t found = 0;

	HOLDS(!tess_mesh_open(w, "tp", &mesh) &&
	      !tess_trainer_open(mesh, training_folder, &training_adamw, &t));
	for (int32_t i = 0; i < TRAINING_STEPS_MAX; i++) {
		HOLDS(!tess_trainer_step(t, &training_batch, 1, 1e-2, &r) && r.updated);
		loss[i] = r.loss;
		norm[i] = r.norm;
	}
	training_check_error("adamw.losses", "adamw.losses", 3, loss, TESS_F64, TRAINING_STEPS_MAX);
	training_check_error("adamw.gradnorm", "adamw.gradnorm", *(const double *)arg, norm,
	                     TESS_F64, TRAINING_STEPS_MAX);
	for (size_t i = 0; i < tess_safetensors_count(training_golden); i++) {
		const struct tess_slice *s = tess_safetensors_at(training_golden, i);
		int64_t n = (int64_t)s->bytes / 4;
		float *have;

		if (strncmp(s->name, "adamw.param.", 12))
			continue;
		found++;
		have = calloc((size_t)n, sizeof *have);
		HOLDS(!tess_trainer_gather(
			t, TESS_WEIGHT, tess_trainer_find_tensor(t, s->name + 12), 0, n, 0, have));
		training_check_error(s->name, s->name, 3, have, TESS_F32, n);
		free(have);
	}
	HOLDS(found == 2);
	tess_trainer_close(t);
	tess_mesh_close(mesh);
	return TESS_OK;
}
