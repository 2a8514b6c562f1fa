/*
 * One table of calls that the C API refuses: NULL, negative and huge counts, counts without their
 * list, NaN, indices out of range. Each has to return TESS_EINVAL, or another failure, with a
 * message; a signal fails the row alone.
 */
#include "../unit/suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <tessera/tessera.h>
#include <unistd.h>

static struct { /* what the calls of the table use */
	struct tess_world *world;
	struct tess_group *all;
	struct tess_mesh *mesh;
	struct tess_session *session;
	struct tess_sequence *sequence;
	struct tess_trainer *trainer;
	struct tess_tokenizer *tokenizer;
} on;

static const char *dir;
static int32_t ids[] = { 1, 5, 9 };
static int32_t *made;
static size_t len;
static float numbers[4];
static char *text;
static const char *const files[] = { "x", NULL };
static const float *logits;
static struct tess_generation how = { .size = sizeof how };
static void *nothing; /* where results would go */

#define OUT(type) ((struct type **)&nothing)
#define INPUT(...) (&(struct tess_input){ .sequence = on.sequence, __VA_ARGS__ })
#define OPTIONS(type, ...) (&(struct type){ .size = sizeof(struct type), __VA_ARGS__ })
#define DATASET(...) OPTIONS(tess_dataset_options, .sequence = 8, .vocabulary = 512, __VA_ARGS__)
#define TRAIN(...) tess_trainer_check(OPTIONS(tess_trainer_options, __VA_ARGS__))
#define BATCH(...) (&(struct tess_batch){ __VA_ARGS__ })

static tess_status run_nothing(struct tess_world *w, void *arg)
{
	(void)w, (void)arg;
	return TESS_OK;
}

#define ROW(call) \
	case __COUNTER__ - FIRST: \
		*name = #call; \
		return (call)
enum { FIRST = __COUNTER__ + 1 };

/* Makes call i of the table; *name NULL: there are fewer. */
static tess_status make_call(int i, const char **name)
{
	*name = NULL;
	switch (i) {
		ROW(tess_option_set(NULL, "1"));
		ROW(tess_option_set("backend", NULL));
		ROW(tess_option_set("no_such_key", "1"));
		ROW(tess_world_spawn(-1, run_nothing, NULL));
		ROW(tess_world_spawn(0, run_nothing, NULL));
		ROW(tess_world_spawn(INT32_MAX, run_nothing, NULL));
		ROW(tess_world_spawn(1, NULL, NULL));
		ROW(tess_mesh_open(NULL, "tp", OUT(tess_mesh)));
		ROW(tess_mesh_open(on.world, NULL, OUT(tess_mesh)));
		ROW(tess_mesh_open(on.world, "tp=-1", OUT(tess_mesh)));
		ROW(tess_mesh_open(on.world, "tp=99999999999", OUT(tess_mesh)));
		ROW(tess_session_open(NULL, dir, NULL, OUT(tess_session)));
		ROW(tess_session_open(on.mesh, NULL, NULL, OUT(tess_session)));
		ROW(tess_session_open(on.mesh, dir, &(struct tess_session_options){ 0 },
		                      OUT(tess_session)));
		ROW(tess_session_open(on.mesh, dir, OPTIONS(tess_session_options, .positions = -1),
		                      OUT(tess_session)));
		ROW(tess_session_open(on.mesh, dir, OPTIONS(tess_session_options, .threads = -1),
		                      OUT(tess_session)));
		ROW(tess_session_check(NULL, "tp", 1, NULL, OPTIONS(tess_session_info, .zero = 0)));
		ROW(tess_session_check(dir, "tp", -1, NULL, OPTIONS(tess_session_info, .zero = 0)));
		ROW(tess_session_check_prompt(NULL, ids, 3));
		ROW(tess_session_check_prompt(OPTIONS(tess_session_info, .vocabulary = 9), NULL,
		                              3));
		ROW(tess_session_check_prompt(OPTIONS(tess_session_info, .vocabulary = 9), ids,
		                              -1));
		ROW(tess_session_check_prompt(OPTIONS(tess_session_info, .vocabulary = 2), ids, 3));
		ROW(tess_sequence_open(NULL, &on.sequence));
		ROW(tess_session_step(NULL, INPUT(.ids = ids, .n = 3), 1, 0, &logits));
		ROW(tess_session_step(on.session, NULL, 1, 0, &logits));
		ROW(tess_session_step(on.session, INPUT(.ids = ids, .n = 3), -1, 0, &logits));
		ROW(tess_session_step(on.session, INPUT(.ids = ids, .n = 3), 1, 7, &logits));
		ROW(tess_session_step(on.session, INPUT(.ids = ids, .n = 3), 1, -2, &logits));
		ROW(tess_session_step(on.session, INPUT(.ids = ids, .n = 3), 1, 0, NULL));
		ROW(tess_session_step(on.session, INPUT(.n = 3), 1, 0, &logits));
		ROW(tess_session_step(on.session, INPUT(.ids = ids, .n = -3), 1, 0, &logits));
		ROW(tess_session_step(on.session, INPUT(.ids = ids, .n = INT64_MAX), 1, 0,
		                      &logits));
		ROW(tess_session_step(on.session, INPUT(.ids = ids, .n = 3, .nselected = -1), 1, 0,
		                      &logits));
		ROW(tess_logits_save(NULL, numbers, 1, 4));
		ROW(tess_logits_save("/tmp/no", NULL, 1, 4));
		ROW(tess_logits_save("/tmp/no", numbers, -1, 4));
		ROW(tess_logits_save("/tmp/no", numbers, INT64_MAX, 4));
		ROW(tess_session_generate(NULL, NULL, 0, &how));
		ROW(tess_session_generate(on.session, NULL, 1, &how));
		ROW(tess_session_generate(on.session, NULL, -1, &how));
		ROW(tess_session_generate(on.session, NULL, INT64_MAX, &how));
		ROW(tess_session_generate(on.session, NULL, 0, NULL));
		ROW(tess_session_generate(on.session, NULL, 0, &(struct tess_generation){ 0 }));
		ROW(tess_session_generate(on.session, NULL, 0,
		                          OPTIONS(tess_generation, .batch = -1)));
		ROW(tess_session_generate(on.session, NULL, 0,
		                          OPTIONS(tess_generation, .chunk = -1)));
		ROW(tess_dataset_open(files, -1, DATASET(.id_bytes = 2), OUT(tess_dataset)));
		ROW(tess_dataset_open(NULL, 1, DATASET(.id_bytes = 2), OUT(tess_dataset)));
		ROW(tess_dataset_open(files, 2, DATASET(.id_bytes = 2), OUT(tess_dataset)));
		ROW(tess_dataset_open(files, 1, DATASET(.id_bytes = 3), OUT(tess_dataset)));
		ROW(tess_dataset_open(files, 1, NULL, OUT(tess_dataset)));
		ROW(TRAIN(.beta1 = NAN));
		ROW(TRAIN(.beta2 = NAN));
		ROW(TRAIN(.eps = NAN));
		ROW(TRAIN(.momentum = NAN));
		ROW(TRAIN(.weight_decay = NAN));
		ROW(TRAIN(.clip = NAN));
		ROW(TRAIN(.balance = NAN));
		ROW(TRAIN(.dropout = NAN));
		ROW(TRAIN(.dropout = 2));
		ROW(TRAIN(.threads = -1));
		ROW(TRAIN(.positions = -1));
		ROW(tess_trainer_check(NULL));
		ROW(tess_trainer_check(&(struct tess_trainer_options){ 0 }));
		ROW(tess_trainer_open(NULL, dir, NULL, OUT(tess_trainer)));
		ROW(tess_trainer_open(on.mesh, NULL, NULL, OUT(tess_trainer)));
		ROW(tess_trainer_step(NULL, BATCH(.nsequences = 1), 1, 1e-3, NULL));
		ROW(tess_trainer_step(on.trainer, NULL, 1, 1e-3, NULL));
		ROW(tess_trainer_step(on.trainer, BATCH(.nsequences = 1), -1, 1e-3, NULL));
		ROW(tess_trainer_step(on.trainer, BATCH(.nsequences = 1), 1, 1e-3, NULL));
		ROW(tess_trainer_step(on.trainer, BATCH(.nsequences = -1), 1, 1e-3, NULL));
		ROW(tess_trainer_gather(NULL, TESS_WEIGHT, 0, 0, 1, 0, numbers));
		ROW(tess_trainer_gather(on.trainer, TESS_WEIGHT, -1, 0, 1, 0, numbers));
		ROW(tess_trainer_gather(on.trainer, TESS_WEIGHT, INT64_MAX, 0, 1, 0, numbers));
		ROW(tess_trainer_gather(on.trainer, TESS_WEIGHT, 0, -1, 1, 0, numbers));
		ROW(tess_trainer_gather(on.trainer, TESS_WEIGHT, 0, INT64_MAX, 1, 0, numbers));
		ROW(tess_trainer_gather(on.trainer, TESS_WEIGHT, 0, 0, 1, 9, numbers));
		ROW(tess_trainer_gather(on.trainer, TESS_WEIGHT, 0, 0, 1, 0, NULL));
		ROW(tess_tokenizer_open(NULL, OUT(tess_tokenizer)));
		ROW(tess_tokenizer_encode(NULL, "a", 1, false, &made, &len));
		ROW(tess_tokenizer_encode(on.tokenizer, NULL, 1, false, &made, &len));
		ROW(tess_tokenizer_decode(on.tokenizer, NULL, 1, false, &text, &len));
		ROW(tess_explain(NULL, "tp", 1, 1, NULL, OUT(tess_explanation)));
		ROW(tess_explain(dir, "tp", -1, 1, NULL, OUT(tess_explanation)));
		ROW(tess_explain(dir, "tp", 1, -1, NULL, OUT(tess_explanation)));
		ROW(tess_explain_training(dir, "tp", 1, -1, 8, NULL, OUT(tess_explanation)));
		ROW(tess_sampling_check(NULL));
		ROW(tess_sampling_check(&(struct tess_sampling){ .temperature = NAN }));
		ROW(tess_sampling_check(&(struct tess_sampling){ .top_k = -1 }));
		ROW(tess_barrier(NULL, "here"));
		ROW(tess_broadcast(on.all, NULL, 4, TESS_F32, 0, "here"));
		ROW(tess_broadcast(on.all, numbers, 4, TESS_F32, 9, "here"));
		ROW(tess_broadcast(on.all, numbers, 4, 99, 0, "here"));
		ROW(tess_group_run(on.all, NULL));
	default:
		return TESS_OK;
	}
}

/* In a process of its own; returns whether the call was refused. */
static bool refuses_call(int i)
{
	pid_t child = fork();
	int status;

	if (!child) {
		const char *name;

		tess_fail(TESS_OK, "%s", "");
		_exit(make_call(i, &name) < 0 && *tess_error() ? 0 : 1);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	if (status)
		fprintf(stderr, "call %d of the table: %s %d\n", i + 1,
		        WIFSIGNALED(status) ? "signal" : "accepted",
		        WIFSIGNALED(status) ? WTERMSIG(status) : 0);
	return !status;
}

enum { ROWS = __COUNTER__ - FIRST };

static tess_status call_all(struct tess_world *w, void *arg)
{
	int *faults = arg;
	tess_status st = tess_mesh_open(w, "tp", &on.mesh);

	on.world = w;
	on.all = tess_world_group(w);
	if (st || (st = tess_session_open(on.mesh, dir, NULL, &on.session)) ||
	    (st = tess_sequence_open(on.session, &on.sequence)) ||
	    (st = tess_trainer_open(on.mesh, dir, NULL, &on.trainer)) ||
	    (st = tess_tokenizer_open(dir, &on.tokenizer)))
		return st;
	for (int i = 0; i < ROWS; i++)
		*faults += !refuses_call(i);
	tess_tokenizer_close(on.tokenizer);
	tess_trainer_close(on.trainer);
	tess_session_close(on.session);
	tess_mesh_close(on.mesh);
	return TESS_OK;
}

START_TEST(calls_are_refused)
{
	int faults = 0;

	dir = getenv("DATA_DIR");
	ck_assert_msg(!tess_world_spawn(1, call_all, &faults), "%s", tess_error());
	ck_assert_int_eq(faults, 0);
}
END_TEST

SUITE_MAIN("refusals", calls_are_refused)
