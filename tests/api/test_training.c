/*
 * test_training.c - steps of training on real groups: losses, gradients and AdamW of the goldens,
 * computed by torch in float64; equal bits on any mesh; micro-batches, masters of bf16 weights;
 * refusals, which change nothing.
 */
#include "tests/support/hash.h"
#include "tests/support/spawn.h"
#include "tests/support/training.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tessera/split.h>
#include <tessera/reduce.h>

/* ---- loss and gradients ---------------------------------------------------------------------- */

static const char *const families[] = { "llama",    "llama-odd", "mistral",     "qwen2",
	                                "qwen3",    "olmo2",     "phi3",        "phi3-partial",
	                                "gemma2",   "gpt2",      "deepseek_v3", "mixtral",
	                                "qwen3_moe" };
enum { BALANCED_AT = 11 }; /* first family with goldens of the load balancing loss */

/*
 * Checks that a family's loss and gradients match its goldens, and have equal bits on all meshes.
 */
static void check_family(const char *family, struct tess_trainer_options options)
{
	struct training_job one = { .micro = &training_batch, .nmicro = 1, .options = options };

	options.threads = 1;
	training_open_golden(family);
	training_read_batch();
	if (!TSAN)
		spawn_ranks(1, training_check_gradients, &options);
	training_run_on(&one, "tp", 1);
	training_expect_bits(&one);
	training_free_job(&one);
	training_close_golden();
}

START_TEST(loss_and_gradients)
{
	check_family(families[_i * THIN],
	             (struct tess_trainer_options){ .size = sizeof(struct tess_trainer_options) });
}
END_TEST

/* ---- steps ----------------------------------------------------------------------------------- */

/*
 * Training cases. gpt2: the gradient of one weight, h.1.mlp.c_fc.weight[2][3], is 2.0e-8 at first,
 * near the eps of AdamW, where an error of 3e-9, a tenth of the tolerance, changes its step by 3 %.
 */
static const struct {
	const char *name;
	double norm_times;
} adamw_families[] = { { "llama", 3 }, { "llama-odd", 3 }, { "gpt2", 4 }, { "mixtral", 3 } };

START_TEST(ten_steps_of_adamw)
{
	struct training_job one = { .options = training_adamw,
		                    .micro = &training_batch,
		                    .nmicro = 1,
		                    .steps = 3,
		                    .lr = 1e-2 };
	double norm_times = adamw_families[_i * THIN].norm_times;

	training_open_golden(adamw_families[_i * THIN].name);
	training_read_batch();
	if (!TSAN)
		spawn_ranks(1, training_check_adamw, &norm_times);
	training_run_on(&one, "tp", 1);
	training_expect_bits(&one);
	training_free_job(&one);
	training_close_golden();
}
END_TEST

/* ---- micro-batches --------------------------------------------------------------------------- */

/* Lengths of sequences, with labels that do not count. */
static const int64_t odd_lengths[] = { 7, 40, 1, 33, 64, 2 };
static int32_t odd_ids[147], odd_labels[147];

static void draw_odd_batch(void)
{
	for (int i = 0; i < 147; i++) {
		odd_ids[i] = (i * 37 + 11) % 90;
		odd_labels[i] = i % 5 == 3 ? -100 : odd_ids[i];
	}
}

/* Checks that half the gradients of a batch, added twice, are its gradient, to the last bit. */
START_TEST(halves_add_up)
{
	const struct tess_batch two[2] = { training_batch, training_batch };
	struct training_job one = { .micro = &training_batch, .nmicro = 1 },
			    both = { .micro = two, .nmicro = 2 };

	training_open_golden("llama");
	training_read_batch();
	training_run_on(&one, "tp", 1);
	training_run_on(&both, "tp", 1);
	ck_assert_uint_eq(one.nbytes, both.nbytes);
	ck_assert(!memcmp(one.bytes, both.bytes, one.nbytes));
	ck_assert(one.loss[0] == both.loss[0] && one.norm[0] == both.norm[0]);
	training_free_job(&one);
	training_free_job(&both);
	training_close_golden();
}
END_TEST

/* Checks that three micro-batches are added in order on any mesh, and differ in another order. */
START_TEST(micro_batches)
{
	struct tess_batch micro[3];
	struct training_job one = { .micro = micro, .nmicro = 3 }, other = one;

	draw_odd_batch();
	for (int i = 0, at = 0; i < 3; i++) {
		micro[i] = (struct tess_batch){ 2, odd_lengths + 2 * i, odd_ids + at,
			                        i == 1 ? NULL : odd_labels + at };
		at += (int)(odd_lengths[2 * i] + odd_lengths[2 * i + 1]);
	}
	training_open_golden("llama-odd");
	training_run_on(&one, "tp", 1);
	training_expect_bits(&one);
	micro[0] = micro[2];
	micro[2] = (struct tess_batch){ 2, odd_lengths, odd_ids, odd_labels };
	training_run_on(&other, "tp", 1);
	ck_assert(other.loss[0] == one.loss[0]);
	ck_assert(memcmp(other.bytes, one.bytes, one.nbytes) != 0);
	training_free_job(&one);
	training_free_job(&other);
	training_close_golden();
}
END_TEST

/*
 * Checks that dropout depends on the seed, the step and the sequence of the step, not on the mesh;
 * and that gradients alone are without dropout.
 */
START_TEST(dropout)
{
	const struct tess_batch two[2] = { training_batch, training_batch };
	struct training_job one = { .options = { .dropout = 0.2, .seed = 3 },
		                    .micro = &training_batch,
		                    .nmicro = 1,
		                    .steps = 2 },
			    both = one, none = one, seed = one, gradients = one;

	training_open_golden("gpt2");
	training_read_batch();
	both.micro = two;
	both.nmicro = 2;
	both.lr = 1e-2;
	none.options.dropout = -1;
	seed.options.seed = 4;
	gradients.steps = 0;
	training_run_on(&one, "tp", 1);
	training_run_on(&both, "tp", 1);
	training_run_on(&none, "tp", 1);
	training_run_on(&seed, "tp", 1);
	training_run_on(&gradients, "tp", 1);
	ck_assert(none.loss[0] == none.loss[1] && one.loss[0] != one.loss[1]);
	ck_assert(one.loss[0] != none.loss[0] && one.loss[0] != seed.loss[0]);
	ck_assert(one.loss[0] != both.loss[0]);
	ck_assert(gradients.loss[0] == none.loss[0] && gradients.norm[0] == none.norm[0]);
	training_expect_bits(&both);
	training_free_job(&one);
	training_free_job(&both);
	training_free_job(&none);
	training_free_job(&seed);
	training_free_job(&gradients);
	training_close_golden();
}
END_TEST

/* ---- masters --------------------------------------------------------------------------------- */

/* Checks that the weights are the rounded masters; *differ: number of masters with more bits. */
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

	HOLDS(!tess_mesh_open(w, "tp", &mesh) &&
	      !tess_trainer_open(mesh, training_folder, arg, &t));
	HOLDS(!compare_masters(t, &differ) && differ == 0);
	for (int i = 0; i < 3; i++)
		HOLDS(!tess_trainer_step(t, &training_batch, 1, 1e-4, &r));
	HOLDS(!compare_masters(t, &differ) && differ > 0);
	tess_trainer_close(t);
	tess_mesh_close(mesh);
	return TESS_OK;
}

START_TEST(masters_of_bf16)
{
	struct tess_trainer_options options = training_adamw;
	struct training_job one = { .options = training_adamw,
		                    .micro = &training_batch,
		                    .nmicro = 1,
		                    .steps = 3,
		                    .lr = 1e-4 };

	training_open_golden("llama");
	training_read_batch();
	training_close_golden();
	training_open_golden("llama-bf16");
	spawn_ranks(2, check_masters, &options);
	training_run_on(&one, "tp", 1);
	training_expect_bits(&one);
	training_free_job(&one);
	training_close_golden();
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------- */

static tess_status expect_batch_refused(tess_status st, const char *part)
{
	HOLDS(st == TESS_EINVAL || st == TESS_EMISMATCH);
	HOLDS(strstr(tess_error(), part));
	return TESS_OK;
}

/* Checks that a step refuses the batch, and that the next one runs. */
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
	HOLDS(tess_trainer_open(mesh, training_folder, &balanced, &t) == TESS_EINVAL);
	HOLDS(strstr(tess_error(), "the load balancing loss: the model has no experts"));
	HOLDS(!tess_trainer_open(mesh, training_folder, arg, &t));
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		HOLDS(!expect_batch_refused(tess_trainer_step(t, &refused[i].batch, 1, 1e-2, &r),
		                            refused[i].part));
		HOLDS(!tess_trainer_step(t, &training_batch, 1, 1e-2, &r));
	}
	tess_trainer_close(t);
	tess_mesh_close(mesh);
	return TESS_OK;
}

START_TEST(refusals)
{
	struct tess_trainer_options options = training_adamw;

	training_open_golden("llama-odd");
	training_read_batch();
	spawn_ranks(2, check_refused_batches, &options);
	training_close_golden();
}
END_TEST

/* Takes a step of 1e30, whose weights give a non-finite next loss; that step changes nothing. */
static tess_status check_odd_loss(struct tess_world *w, void *arg)
{
	struct tess_training_result r = { .size = sizeof r };
	struct tess_trainer_info info = { .size = sizeof info };
	struct tess_mesh *mesh = NULL;
	struct tess_trainer *t = NULL;
	float before[96], after[96];
	int64_t tensor;

	HOLDS(!tess_mesh_open(w, "dp", &mesh) &&
	      !tess_trainer_open(mesh, training_folder, arg, &t));
	tensor = tess_trainer_find_tensor(t, "model.norm.weight");
	HOLDS(!tess_trainer_step(t, &training_batch, 1, 1e30, &r));
	HOLDS(!tess_trainer_gather(t, TESS_WEIGHT, tensor, 0, 48, -1, before));
	HOLDS(!expect_batch_refused(
		tess_trainer_step(t, &training_batch, 1, 1e-2, &r),
		"step 2: the loss of sequences 0, 1 of 2 (counted from 0) is not finite"));
	HOLDS(!tess_trainer_gather(t, TESS_WEIGHT, tensor, 0, 48, -1, after));
	HOLDS(!memcmp(before, after, 48 * sizeof *before));
	tess_trainer_get_info(t, &info);
	HOLDS(info.step == 1);
	HOLDS(!tess_trainer_compute_gradients(t, &training_batch, 1, &r) && isnan(r.loss) &&
	      !r.updated);
	tess_trainer_close(t);
	tess_mesh_close(mesh);
	return TESS_OK;
}

START_TEST(a_loss_that_is_not_finite)
{
	struct tess_trainer_options options = training_adamw;

	training_open_golden("llama-odd");
	training_read_batch();
	spawn_ranks(2, check_odd_loss, &options);
	training_close_golden();
}
END_TEST

/* Checks bits that other versions must have too: the order of sums is part of the format. */
START_TEST(bits_are_those_of_other_versions)
{
	static const int64_t lengths[] = { 70, 3, 33 };
	int32_t ids[106];
	const struct tess_batch batch = { 3, lengths, ids, ids };
	struct training_job one = { .micro = &batch, .nmicro = 1 };
	uint64_t hash = HASH_BEGIN;

	for (int i = 0; i < 106; i++)
		ids[i] = i * i % 101;
	training_open_golden("llama-odd");
	training_run_on(&one, "tp", 1);
	hash_add_bytes(&hash, one.bytes, one.nbytes);
	ck_assert_msg(hash == 0x8c0162e060954aa8 && one.loss[0] == 0x1.6d28f374d0c6dp+2,
	              "%#llx, %a", (unsigned long long)hash, one.loss[0]);
	training_free_job(&one);
	training_close_golden();
}
END_TEST

/* Checks weights that a step has made far too large: each rank names the module that gives Inf. */
static tess_status diverge_on_rank(struct tess_world *w, void *arg)
{
	struct tess_training_result r = { .size = sizeof r };
	struct tess_mesh *mesh = NULL;
	struct tess_trainer *t = NULL;
	tess_status st = tess_mesh_open(w, "dp=2,tp=2", &mesh);

	if (!st)
		st = tess_trainer_open(mesh, training_folder, arg, &t);
	for (int i = 0; i < 3 && !st; i++)
		st = tess_trainer_step(t, &training_batch, 1, 1e38, &r);
	ck_assert_int_eq(st, TESS_EINVAL);
	expect_part(tess_error(), "the first value of this step that is not finite");
	tess_trainer_close(t);
	tess_mesh_close(mesh);
	return TESS_OK;
}

/*
 * Checks that ranks with TESSERA_CHECK compare values that must be equal, unlike those of replicas.
 */
START_TEST(values_are_checked)
{
	struct tess_trainer_options options = { .size = sizeof options, .threads = 1 };
	struct training_job one = { .micro = &training_batch, .nmicro = 1 }, j = one;

	training_open_golden("llama");
	training_read_batch();
	training_run_on(&one, "tp", 1);
	tess_option_set("check", "1");
	j.options.plan = "tp+sp";
	training_run_on(&j, "dp=2,tp=2", 4);
	ck_assert(j.nbytes == one.nbytes && !memcmp(j.bytes, one.bytes, j.nbytes));
	spawn_ranks(4, diverge_on_rank, &options);
	tess_option_set("check", "0");
	training_free_job(&one);
	training_free_job(&j);
	training_close_golden();
}
END_TEST

START_TEST(load_balancing_loss)
{
	check_family(families[_i],
	             (struct tess_trainer_options){ .size = sizeof(struct tess_trainer_options),
	                                            .balance = 0.02 });
}
END_TEST

/* Checks that the loss of two micro-batches is the mean of their losses. */
START_TEST(load_balancing_loss_of_micro_batches)
{
	struct tess_trainer_options options = { .size = sizeof options, .balance = 0.02 };
	const struct tess_batch halves[] = {
		{ 1, training_batch.lengths, training_batch.ids, training_batch.labels },
		{ 1, training_batch.lengths, training_batch.ids + 32, training_batch.labels + 32 }
	};
	struct training_job one = { .micro = &training_batch, .nmicro = 1, .options = options };
	struct training_job both = { .micro = halves, .nmicro = 2, .options = options },
			    bare = both;
	struct training_job half[2] = { one, one };

	training_open_golden(families[_i]);
	training_read_batch();
	training_run_on(&both, "tp", 1);
	ck_assert_double_gt(both.balance[0], 1);
	for (int i = 0; i < 2; i++) {
		half[i].micro = &halves[i];
		training_run_on(&half[i], "tp", 1);
		training_free_job(&half[i]);
	}
	ck_assert_double_eq_tol(both.balance[0], (half[0].balance[0] + half[1].balance[0]) / 2,
	                        1e-9);
	bare.options.balance = 0;
	training_run_on(&bare, "tp", 1);
	ck_assert_double_eq_tol(both.loss[0], bare.loss[0] + 0.02 * both.balance[0], 1e-9);
	training_free_job(&both);
	training_free_job(&bare);
	training_close_golden();
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

	tcase_add_test(t, values_are_checked);
	tcase_add_loop_test(t, loss_and_gradients, 0,
	                    (int)tess_up(sizeof families / sizeof *families, THIN));
	tcase_add_loop_test(t, ten_steps_of_adamw, 0,
	                    (int)tess_up(sizeof adamw_families / sizeof *adamw_families, THIN));
	tcase_add_test(t, micro_batches);
	if (THIN > 1 && strcmp(getenv("TESSERA_BACKEND"), "loopback"))
		return suite_end(r); /* with a sanitizer the other tests run once */
	tcase_add_test(t, masters_of_bf16);
	tcase_add_test(t, refusals);
	tcase_add_test(t, a_loss_that_is_not_finite);
	tcase_add_loop_test(t, load_balancing_loss, BALANCED_AT,
	                    TSAN ? BALANCED_AT + 1 : sizeof families / sizeof *families);
	if (TSAN)
		return suite_end(r); /* the others compare jobs of one rank */
	tcase_add_test(t, bits_are_those_of_other_versions);
	tcase_add_test(t, halves_add_up);
	tcase_add_test(t, dropout);
	tcase_add_loop_test(t, load_balancing_loss_of_micro_batches, BALANCED_AT,
	                    sizeof families / sizeof *families);
	tcase_add_test(t, learning_rates);
	return suite_end(r);
}
