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

static void close_golden_of(void)
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

/* The largest error of n numbers is at most `times` that of torch in float32, which `key` names. */
static void check_error(const char *tensor, const char *key, double times, const void *have,
                        int32_t dtype, int64_t n)
{
	const struct tess_slice *want = tess_safetensors_find(golden, tensor);
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

enum { STEPS_MAX = 10 };

struct job { /* what ranks do, and what rank 0 gets */
	const char *mesh;
	int32_t nranks;
	struct tess_trainer_options options;
	const struct tess_batch *micro;
	int64_t nmicro;
	int32_t steps; /* 0: only gradients */
	double lr;
	double loss[STEPS_MAX], norm[STEPS_MAX], balance[STEPS_MAX];
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
	j->bytes = NULL;
	j->nbytes = 0;
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

static const char *const families[] = { "llama",    "llama-odd", "mistral",     "qwen2",
	                                "qwen3",    "olmo2",     "phi3",        "phi3-partial",
	                                "gemma2",   "gpt2",      "deepseek_v3", "mixtral",
	                                "qwen3_moe" };
enum { BALANCED_AT = 11 }; /* from here on with goldens of the load balancing loss */

/* `bytes` are f32 of all tensors, in the order of the trainer: gathered by name on one rank. */
static tess_status check_goldens_by_name(struct tess_world *w, void *arg)
{
	struct tess_training_result r = { .size = sizeof r };
	const struct tess_trainer_options *options = arg;
	const char *kind = options->balance > 0 ? "grad_with_aux." : "grad.";
	size_t checked = 0, wanted = 0, prefix = strlen(kind);
	struct tess_mesh *mesh;
	struct tess_trainer *t;

	if (tess_mesh_open(w, "tp", &mesh) || tess_trainer_open(mesh, folder, options, &t) ||
	    tess_trainer_compute_gradients(t, &golden_batch, 1, &r))
		return TESS_EBUG;
	check_error(options->balance > 0 ? "train.loss_with_aux_f64" : "train.loss_f64",
	            "train.loss", 3, &r.loss, TESS_F64, 1);
	for (size_t i = 0; i < tess_safetensors_count(golden); i++) {
		const struct tess_slice *s = tess_safetensors_at(golden, i);
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
		check_error(s->name, key, 3, have, TESS_F32, n);
		free(have);
	}
	for (int64_t i = 0; i < tess_trainer_count_tensors(t); i++)
		checked += tess_trainer_get_tensor(t, i)->trained != 0;
	if (options->balance > 0) /* the goldens are those of routers */
		ck_assert(wanted && wanted < checked && r.balance > 0);
	else
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
	close_golden_of();
}
END_TEST

/* ---- steps ----------------------------------------------------------------------------------- */

/*
 * gpt2: the gradient of one weight, h.1.mlp.c_fc.weight[2][3], is 2.0e-8 at first, near the eps of
 * AdamW, where an error of 3e-9, a tenth of what is allowed, changes its step by 3 %.
 */
static const struct adamw_family {
	const char *name;
	double norm_times;
} adamw_families[] = { { "llama", 3 }, { "llama-odd", 3 }, { "gpt2", 4 }, { "mixtral", 3 } };
static const struct adamw_family *adamw;

static tess_status check_adamw(struct tess_world *w, void *arg)
{
	const struct tess_trainer_options *options = arg;
	struct tess_training_result r = { .size = sizeof r };
	struct tess_mesh *mesh = NULL;
	struct tess_trainer *t = NULL;
	double loss[STEPS_MAX], norm[STEPS_MAX];
	int32_t found = 0;

	HOLDS(!tess_mesh_open(w, "tp", &mesh) && !tess_trainer_open(mesh, folder, options, &t));
	for (int32_t i = 0; i < STEPS_MAX; i++) {
		HOLDS(!tess_trainer_step(t, &golden_batch, 1, 1e-2, &r) && r.updated);
		loss[i] = r.loss;
		norm[i] = r.norm;
	}
	check_error("adamw.losses", "adamw.losses", 3, loss, TESS_F64, STEPS_MAX);
	check_error("adamw.gradnorm", "adamw.gradnorm", adamw->norm_times, norm, TESS_F64,
	            STEPS_MAX);
	for (size_t i = 0; i < tess_safetensors_count(golden); i++) {
		const struct tess_slice *s = tess_safetensors_at(golden, i);
		int64_t n = (int64_t)s->bytes / 4;
		float *have;

		if (strncmp(s->name, "adamw.param.", 12))
			continue;
		found++;
		have = calloc((size_t)n, sizeof *have);
		HOLDS(!tess_trainer_gather(
			t, TESS_WEIGHT, tess_trainer_find_tensor(t, s->name + 12), 0, n, 0, have));
		check_error(s->name, s->name, 3, have, TESS_F32, n);
		free(have);
	}
	HOLDS(found == 2);
	tess_trainer_close(t);
	tess_mesh_close(mesh);
	return TESS_OK;
}

static const struct tess_trainer_options golden_adamw = { .size = sizeof golden_adamw,
	                                                  .threads = 1,
	                                                  .beta1 = 0.9,
	                                                  .beta2 = 0.95,
	                                                  .eps = 1e-8,
	                                                  .weight_decay = 0.1,
	                                                  .clip = 1 };

START_TEST(ten_steps_of_adamw)
{
	struct tess_trainer_options options = golden_adamw;
	struct job one = {
		.options = golden_adamw, .micro = &golden_batch, .nmicro = 1, .steps = 3, .lr = 1e-2
	};

	adamw = &adamw_families[_i];
	open_golden_of(adamw->name);
	read_golden_batch();
	spawn_ranks(1, check_adamw, &options);
	run_on(&one, "tp", 1);
	expect_bits_on_meshes(&one);
	free_training_job(&one);
	close_golden_of();
}
END_TEST

/* ---- micro-batches --------------------------------------------------------------------------- */

/* Sequences of several lengths, with labels that do not count. */
static const int64_t odd_lengths[] = { 7, 40, 1, 33, 64, 2 };
static int32_t odd_ids[147], odd_labels[147];

static void draw_odd_batch(void)
{
	for (int i = 0; i < 147; i++) {
		odd_ids[i] = (i * 37 + 11) % 90;
		odd_labels[i] = i % 5 == 3 ? -100 : odd_ids[i];
	}
}

/* Twice the same batch: half the gradient of each, added, is that of one, to the last bit. */
START_TEST(halves_add_up)
{
	const struct tess_batch two[2] = { golden_batch, golden_batch };
	struct job one = { .micro = &golden_batch, .nmicro = 1 },
		   both = { .micro = two, .nmicro = 2 };

	open_golden_of("llama");
	read_golden_batch();
	run_on(&one, "tp", 1);
	run_on(&both, "tp", 1);
	ck_assert_uint_eq(one.nbytes, both.nbytes);
	ck_assert(!memcmp(one.bytes, both.bytes, one.nbytes));
	ck_assert(one.loss[0] == both.loss[0] && one.norm[0] == both.norm[0]);
	free_training_job(&one);
	free_training_job(&both);
	close_golden_of();
}
END_TEST

/* Three micro-batches, in their order on any mesh, and not in another order. */
START_TEST(micro_batches)
{
	struct tess_batch micro[3];
	struct job one = { .micro = micro, .nmicro = 3 }, other = one;

	draw_odd_batch();
	for (int i = 0, at = 0; i < 3; i++) {
		micro[i] = (struct tess_batch){ 2, odd_lengths + 2 * i, odd_ids + at,
			                        i == 1 ? NULL : odd_labels + at };
		at += (int)(odd_lengths[2 * i] + odd_lengths[2 * i + 1]);
	}
	open_golden_of("llama-odd");
	run_on(&one, "tp", 1);
	expect_bits_on_meshes(&one);
	micro[0] = micro[2];
	micro[2] = (struct tess_batch){ 2, odd_lengths, odd_ids, odd_labels };
	run_on(&other, "tp", 1);
	ck_assert(other.loss[0] == one.loss[0]);
	ck_assert(memcmp(other.bytes, one.bytes, one.nbytes) != 0);
	free_training_job(&one);
	free_training_job(&other);
	close_golden_of();
}
END_TEST

/*
 * What is dropped depends on the seed, the step and the sequence of the step, not on the mesh; and
 * gradients alone are those without dropout.
 */
START_TEST(dropout)
{
	const struct tess_batch two[2] = { golden_batch, golden_batch };
	struct job one = { .options = { .dropout = 0.2, .seed = 3 },
		           .micro = &golden_batch,
		           .nmicro = 1,
		           .steps = 2 },
		   both = one, none = one, seed = one, gradients = one;

	open_golden_of("gpt2");
	read_golden_batch();
	both.micro = two;
	both.nmicro = 2;
	both.lr = 1e-2;
	none.options.dropout = -1;
	seed.options.seed = 4;
	gradients.steps = 0;
	run_on(&one, "tp", 1);
	run_on(&both, "tp", 1);
	run_on(&none, "tp", 1);
	run_on(&seed, "tp", 1);
	run_on(&gradients, "tp", 1);
	ck_assert(none.loss[0] == none.loss[1] && one.loss[0] != one.loss[1]);
	ck_assert(one.loss[0] != none.loss[0] && one.loss[0] != seed.loss[0]);
	ck_assert(one.loss[0] != both.loss[0]);
	ck_assert(gradients.loss[0] == none.loss[0] && gradients.norm[0] == none.norm[0]);
	expect_bits_on_meshes(&both);
	free_training_job(&one);
	free_training_job(&both);
	free_training_job(&none);
	free_training_job(&seed);
	free_training_job(&gradients);
	close_golden_of();
}
END_TEST

/* ---- masters --------------------------------------------------------------------------------- */

/* The weights are the rounded masters; *differ: how many masters have more bits. */
static tess_status compare_masters(struct tess_trainer *t, int64_t *differ)
{
	*differ = 0;
	for (int64_t i = 0; i < tess_trainer_count_tensors(t); i++) {
		int64_t n = tess_trainer_get_tensor(t, i)->size;
		uint16_t *weight = calloc((size_t)n, sizeof *weight);
		float *master = calloc((size_t)n, sizeof *master);

		HOLDS(!tess_trainer_gather(t, TESS_WEIGHT, i, 0, n, -1, weight) &&
		      !tess_trainer_gather(t, TESS_MASTER, i, 0, n, -1, master));
		for (int64_t k = 0; k < n; k++) {
			HOLDS(weight[k] == tess_bf16_round(master[k]));
			*differ += tess_bf16_load(weight[k]) != master[k];
		}
		free(weight);
		free(master);
	}
	return TESS_OK;
}

static tess_status check_masters(struct tess_world *w, void *arg)
{
	struct tess_training_result r = { .size = sizeof r };
	struct tess_mesh *mesh = NULL;
	struct tess_trainer *t = NULL;
	int64_t differ;

	HOLDS(!tess_mesh_open(w, "tp", &mesh) && !tess_trainer_open(mesh, folder, arg, &t));
	HOLDS(!compare_masters(t, &differ) && differ == 0);
	for (int i = 0; i < 3; i++)
		HOLDS(!tess_trainer_step(t, &golden_batch, 1, 1e-4, &r));
	HOLDS(!compare_masters(t, &differ) && differ > 0);
	tess_trainer_close(t);
	tess_mesh_close(mesh);
	return TESS_OK;
}

START_TEST(masters_of_bf16)
{
	struct tess_trainer_options options = golden_adamw;
	struct job one = {
		.options = golden_adamw, .micro = &golden_batch, .nmicro = 1, .steps = 3, .lr = 1e-4
	};

	open_golden_of("llama");
	read_golden_batch();
	close_golden_of();
	open_golden_of("llama-bf16");
	spawn_ranks(2, check_masters, &options);
	run_on(&one, "tp", 1);
	expect_bits_on_meshes(&one);
	free_training_job(&one);
	close_golden_of();
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------- */

static tess_status expect_batch_refused(tess_status st, const char *part)
{
	HOLDS(st == TESS_EINVAL || st == TESS_EMISMATCH);
	HOLDS(strstr(tess_error(), part));
	return TESS_OK;
}

/* A step refuses the batch; the next one runs. */
static tess_status check_refused_batches(struct tess_world *w, void *arg)
{
	static const int64_t one[] = { 3 }, lengths[] = { 3, 3 }, empty[] = { 3, 0 };
	static const int32_t ids[] = { 1, 2, 3, 4, 5, 6 }, bad[] = { 1, 2, 3, 4, 5, 9999 },
			     none[] = { 1, -100, -100, 4, -100, -100 };
	const int32_t rank = tess_world_rank(w);
	const struct {
		struct tess_batch batch;
		const char *part;
	} refused[] = {
		{ { 2, lengths, bad, NULL },
		  "sequence 1: id 9999 at position 2 is outside the vocab" },
		{ { 2, lengths, ids, bad }, "sequence 1: label 9999 at position 2 is outside the" },
		{ { 2, empty, ids, NULL }, "sequence 1 is empty" },
		{ { 2, lengths, ids, none }, "no label of the step counts" },
		{ { 1, one, ids, NULL }, "1 sequences cannot be cut for 2 ranks along dp" },
		{ { 2, lengths, rank == 1 ? bad : ids, NULL }, "rank 1 passes another batch" },
	};
	struct tess_trainer_options balanced = *(const struct tess_trainer_options *)arg;
	struct tess_training_result r = { .size = sizeof r };
	struct tess_mesh *mesh = NULL;
	struct tess_trainer *t = NULL;

	balanced.balance = 1;
	HOLDS(!tess_mesh_open(w, "dp", &mesh));
	HOLDS(tess_trainer_open(mesh, folder, &balanced, &t) == TESS_EINVAL);
	HOLDS(strstr(tess_error(), "the load balancing loss: the model has no experts"));
	HOLDS(!tess_trainer_open(mesh, folder, arg, &t));
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		HOLDS(!expect_batch_refused(tess_trainer_step(t, &refused[i].batch, 1, 1e-2, &r),
		                            refused[i].part));
		HOLDS(!tess_trainer_step(t, &golden_batch, 1, 1e-2, &r));
	}
	tess_trainer_close(t);
	tess_mesh_close(mesh);
	return TESS_OK;
}

START_TEST(refusals)
{
	struct tess_trainer_options options = golden_adamw;

	open_golden_of("llama-odd");
	read_golden_batch();
	spawn_ranks(2, check_refused_batches, &options);
	close_golden_of();
}
END_TEST

/* A step of 1e30 makes weights of which the next loss is not finite: that one changes nothing. */
static tess_status check_odd_loss(struct tess_world *w, void *arg)
{
	struct tess_training_result r = { .size = sizeof r };
	struct tess_trainer_info info = { .size = sizeof info };
	struct tess_mesh *mesh = NULL;
	struct tess_trainer *t = NULL;
	float before[96], after[96];
	int64_t tensor;

	HOLDS(!tess_mesh_open(w, "dp", &mesh) && !tess_trainer_open(mesh, folder, arg, &t));
	tensor = tess_trainer_find_tensor(t, "model.norm.weight");
	HOLDS(!tess_trainer_step(t, &golden_batch, 1, 1e30, &r));
	HOLDS(!tess_trainer_gather(t, TESS_WEIGHT, tensor, 0, 48, -1, before));
	HOLDS(!expect_batch_refused(
		tess_trainer_step(t, &golden_batch, 1, 1e-2, &r),
		"step 2: the loss of sequences 0, 1 of 2 (counted from 0) is not finite"));
	HOLDS(!tess_trainer_gather(t, TESS_WEIGHT, tensor, 0, 48, -1, after));
	HOLDS(!memcmp(before, after, 48 * sizeof *before));
	tess_trainer_get_info(t, &info);
	HOLDS(info.step == 1);
	HOLDS(!tess_trainer_compute_gradients(t, &golden_batch, 1, &r) && isnan(r.loss) &&
	      !r.updated);
	tess_trainer_close(t);
	tess_mesh_close(mesh);
	return TESS_OK;
}

START_TEST(a_loss_that_is_not_finite)
{
	struct tess_trainer_options options = golden_adamw;

	open_golden_of("llama-odd");
	read_golden_batch();
	spawn_ranks(2, check_odd_loss, &options);
	close_golden_of();
}
END_TEST

/* The order of sums is part of the format: bits that other versions must have too. */
START_TEST(bits_are_those_of_other_versions)
{
	static const int64_t lengths[] = { 70, 3, 33 };
	int32_t ids[106];
	const struct tess_batch batch = { 3, lengths, ids, ids };
	struct job one = { .micro = &batch, .nmicro = 1 };
	uint64_t hash = 0xcbf29ce484222325u;

	for (int i = 0; i < 106; i++)
		ids[i] = i * i % 101;
	open_golden_of("llama-odd");
	run_on(&one, "tp", 1);
	for (uint64_t i = 0; i < one.nbytes; i++)
		hash = (hash ^ (unsigned char)one.bytes[i]) * 0x100000001b3u;
	ck_assert_msg(hash == 0x8c0162e060954aa8 && one.loss[0] == 0x1.6d28f374d0c6dp+2,
	              "%#llx, %a", (unsigned long long)hash, one.loss[0]);
	free_training_job(&one);
	close_golden_of();
}
END_TEST

/* Weights that a step has made far too large: each rank names the module that gives Inf. */
static tess_status diverge_on_rank(struct tess_world *w, void *arg)
{
	struct tess_training_result r = { .size = sizeof r };
	struct tess_mesh *mesh = NULL;
	struct tess_trainer *t = NULL;
	tess_status st = tess_mesh_open(w, "dp=2,tp=2", &mesh);

	if (!st)
		st = tess_trainer_open(mesh, folder, arg, &t);
	for (int i = 0; i < 3 && !st; i++)
		st = tess_trainer_step(t, &golden_batch, 1, 1e38, &r);
	ck_assert_int_eq(st, TESS_EINVAL);
	expect_part(tess_error(), "the first value of this step that is not finite");
	tess_trainer_close(t);
	tess_mesh_close(mesh);
	return TESS_OK;
}

/* With TESSERA_CHECK ranks compare what they must hold alike, which replicas need not. */
START_TEST(values_are_checked)
{
	struct tess_trainer_options options = { .size = sizeof options, .threads = 1 };
	struct job one = { .micro = &golden_batch, .nmicro = 1 }, j = one;

	open_golden_of("llama");
	read_golden_batch();
	run_on(&one, "tp", 1);
	tess_option_set("check", "1");
	j.options.plan = "tp+sp";
	run_on(&j, "dp=2,tp=2", 4);
	ck_assert(j.nbytes == one.nbytes && !memcmp(j.bytes, one.bytes, j.nbytes));
	spawn_ranks(4, diverge_on_rank, &options);
	tess_option_set("check", "0");
	free_training_job(&one);
	free_training_job(&j);
	close_golden_of();
}
END_TEST

/* That of two micro-batches is the mean of theirs. */
START_TEST(load_balancing_loss)
{
	struct tess_trainer_options options = { .size = sizeof options, .balance = 0.02 };
	const struct tess_batch halves[] = { { 1, golden_lengths, golden_ids, golden_labels },
		                             { 1, golden_lengths, golden_ids + 32,
		                               golden_labels + 32 } };
	struct job one = { .micro = &golden_batch, .nmicro = 1, .options = options };
	struct job both = { .micro = halves, .nmicro = 2, .options = options }, bare = both;
	struct job half[2] = { one, one };

	options.threads = 1;
	open_golden_of(families[_i]);
	read_golden_batch();
	spawn_ranks(1, check_goldens_by_name, &options);
	run_on(&one, "tp", 1);
	expect_bits_on_meshes(&one);
	run_on(&both, "tp", 1);
	ck_assert_double_gt(both.balance[0], 1);
	for (int i = 0; i < 2; i++) {
		half[i].micro = &halves[i];
		run_on(&half[i], "tp", 1);
		free_training_job(&half[i]);
	}
	ck_assert_double_eq_tol(both.balance[0], (half[0].balance[0] + half[1].balance[0]) / 2,
	                        1e-9);
	bare.options.balance = 0;
	run_on(&bare, "tp", 1);
	ck_assert_double_eq_tol(both.loss[0], bare.loss[0] + 0.02 * both.balance[0], 1e-9);
	free_training_job(&one);
	free_training_job(&both);
	free_training_job(&bare);
	close_golden_of();
}
END_TEST

START_TEST(learning_rates)
{
	const struct tess_schedule cosine = { TESS_COSINE, 0, 1, 0.1, 4, 12 }, flat = { .lr = 3 },
				   short_one = { TESS_COSINE, 0, 1, 0.1, 4, 2 };
	static const double want[] = { 0.25, 0.5, 0.75, 1, 1 };

	for (int i = 0; i < 5; i++)
		ck_assert(tess_schedule_get(&cosine, i) == want[i]);
	ck_assert(fabs(tess_schedule_get(&cosine, 8) - 0.55) < 1e-15);
	ck_assert(tess_schedule_get(&cosine, 12) == 0.1 && tess_schedule_get(&cosine, 99) == 0.1);
	ck_assert(tess_schedule_get(&flat, 0) == 3 && tess_schedule_get(&flat, 99) == 3);
	ck_assert(tess_schedule_get(&short_one, 3) == 1 && tess_schedule_get(&short_one, 4) == 0.1);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("training", 60, &r);

	tcase_add_test(t, bits_are_those_of_other_versions);
	tcase_add_test(t, values_are_checked);
	tcase_add_loop_test(t, loss_and_gradients, 0, sizeof families / sizeof *families);
	tcase_add_loop_test(t, ten_steps_of_adamw, 0,
	                    sizeof adamw_families / sizeof *adamw_families);
	tcase_add_test(t, halves_add_up);
	tcase_add_test(t, micro_batches);
	tcase_add_test(t, dropout);
	tcase_add_test(t, masters_of_bf16);
	tcase_add_test(t, refusals);
	tcase_add_test(t, a_loss_that_is_not_finite);
	tcase_add_loop_test(t, load_balancing_loss, BALANCED_AT,
	                    sizeof families / sizeof *families);
	tcase_add_test(t, learning_rates);
	return suite_end(r);
}
