/*
 * test_refusals.c - one table of calls that the C API refuses: NULL, negative and huge counts,
 * counts without their list, NaN, indices out of range. A call that returns a status must fail with
 * a message; others return what their header documents. A signal fails only its row. Each exported
 * function has a row, except those of `accept_anything`.
 */
#include "tests/support/suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <tessera/tessera.h>
#include <unistd.h>

static const char *const accept_anything[] = { "tess_error", "tess_fail", "tess_version",
	                                       "tess_crash_reports_enable" };

static struct { /* objects for the calls of the table */
	struct tess_world *world;
	struct tess_group *all;
	struct tess_mesh *mesh;
	struct tess_dtensor *tensor;
	struct tess_session *session;
	struct tess_sequence *sequence;
	struct tess_trainer *trainer;
	struct tess_tokenizer *tokenizer;
	struct tess_chat *chat;
	struct tess_decode_stream *stream;
	struct tess_dataset *dataset;
	struct tess_explanation *explanation;
	struct tess_values *values;
	struct tess_sampler *sampler;
	struct tess_work *work;
} on;

static const char *dir, *texts;
static int32_t ids[] = { 1, 5, 9 };
static int32_t outside[] = { 1, 512, 9 };
static int32_t number;
static int64_t count;
static int32_t *made;
static size_t len;
static float numbers[512];
static char *text;
static const char *bytes;
static const char *const files[] = { "x", NULL };
static const float *logits;
static const struct tess_request *const requests[] = { NULL };
static const struct tess_coll *const calls[] = { NULL };
static struct tess_generation how = { .size = sizeof how };
static struct tess_session_info info = { .size = sizeof info };
static struct tess_trainer_info trained = { .size = sizeof trained };
static struct tess_dataset_info data;
static int64_t runs[8][2];
static struct tess_weight_storage weights[1];
static struct tess_dtensor_move moves[1];
static const int64_t shape[] = { 2, 3 }, negative[] = { -1, 3 }, large[] = { 1 << 30, 1 << 30 };
static const struct tess_place rows = { .kind = TESS_SHARD };
static const struct tess_chat_message question = { "user", "a", 1 };
static const struct tess_chat_message no_role = { NULL, "a", 1 };
static const struct tess_chat_message no_content = { "user", NULL, 1 };
static const struct tess_chat_message no_utf8 = { "user", "\xff", 1 };
static const struct tess_chat_message large_content = { "user", "a", UINT64_MAX };
static const struct tess_chat_options no_size;
static const struct tess_chat_options both_flags = { .size = sizeof both_flags, .flags = 3 };
static struct tess_chat_text rendered;
static char saved[] = "/tmp/tessera-refusals-XXXXXX";
static void *nothing; /* a place for results */

#define OUT(type) ((struct type **)&nothing)
#define INPUT(...) (&(struct tess_input){ .sequence = on.sequence, __VA_ARGS__ })
#define OPTIONS(type, ...) (&(struct type){ .size = sizeof(struct type), __VA_ARGS__ })
#define SESSION(...) OPTIONS(tess_session_options, __VA_ARGS__)
#define VALUE(...) OPTIONS(tess_value, __VA_ARGS__)
#define DATASET(...) OPTIONS(tess_dataset_options, .sequence = 8, .vocabulary = 512, __VA_ARGS__)
#define STRATEGY(...) OPTIONS(tess_strategy, .plan = "tp", __VA_ARGS__)
#define PLANNER(...) OPTIONS(tess_planner_options, __VA_ARGS__)
#define TRAIN(...) tess_trainer_check(OPTIONS(tess_trainer_options, __VA_ARGS__))
#define GENERATION(...) OPTIONS(tess_generation, __VA_ARGS__)
/* Generates with a request, with the given changes; fails like the request. */
#define REQUEST(...) \
	tess_session_generate( \
		on.session, \
		(const struct tess_request *const[]){ OPTIONS(tess_request, .ids = ids, .nids = 3, \
	                                                      .max_tokens = 1, __VA_ARGS__) }, \
		1, GENERATION(.on_end = fail_as_request))
#define TEXTS(...) \
	.stop_texts = (const char *const[]) \
	{ \
		__VA_ARGS__ \
	}
#define BATCH(...) (&(struct tess_batch){ .nsequences = 1, __VA_ARGS__ })
#define LENGTHS(...) \
	.lengths = (const int64_t[]) \
	{ \
		__VA_ARGS__ \
	}
#define PLACE(...) (&(const struct tess_place){ __VA_ARGS__ })
/* Describes a tensor [2, 3] of f32 that is cut by rows, with the given changes. */
#define SPEC(...) \
	OPTIONS(tess_dtensor_spec, .dtype = TESS_F32, .ndim = 2, .shape = shape, .places = &rows, \
	        __VA_ARGS__)
#define PART(...) \
	.nparts = 1, .parts = &(const struct tess_dtensor_part) \
	{ \
		__VA_ARGS__ \
	}
#define SAMPLING(...) (&(struct tess_sampling){ __VA_ARGS__ })
/* Makes a broadcast of 4 numbers, with the given changes. */
#define COLL(...) \
	OPTIONS(tess_coll, .kind = TESS_BROADCAST, .dtype = TESS_F32, .count = 4, .src = numbers, \
	        .dst = numbers, __VA_ARGS__)

static tess_status run_nothing(struct tess_world *w, void *arg)
{
	(void)w, (void)arg;
	return TESS_OK;
}

static tess_status write_nothing(struct tess_world *w, void *arg, void *result)
{
	(void)w, (void)arg, (void)result;
	return TESS_OK;
}

/* Fails like the request. */
static int fail_as_request(void *self, int64_t i, const struct tess_result *r, const char *end,
                           uint64_t n)
{
	(void)self, (void)i, (void)end, (void)n;
	return r->finish == TESS_FINISH_FAILED ? tess_fail(r->status, "%s", r->sentence) : TESS_OK;
}

static bool is_refusal(tess_status st)
{
	return st < 0 && *tess_error();
}

/* Some fields of OPTIONS are set again. */
#pragma GCC diagnostic ignored "-Woverride-init"

#define CASE(text, correct) \
	case __COUNTER__ - FIRST: \
		*name = text; \
		return !make || (correct)
#define ROW(call) CASE(#call, is_refusal(call))
#define GIVES(value, call) CASE(#call, (call) == (value))
#define NOTHING(call) CASE(#call, ((call), true))
enum { FIRST = __COUNTER__ + 1 };

/* Reads row i of the table: its text and, with `make`, whether the call behaves as required. */
static bool read_row(int i, bool make, const char **name)
{
	switch (i) {
		/* options */
		GIVES('\0', *tess_option_get(NULL));
		GIVES('\0', *tess_option_get("no_such_key"));
		ROW(tess_option_set(NULL, "1"));
		ROW(tess_option_set("backend", NULL));
		ROW(tess_option_set("no_such_key", "1"));
		ROW(tess_crash_reports_redirect(-1));

		ROW(tess_registry_add(NULL));
		ROW(tess_registry_add(OPTIONS(tess_plugin, .abi = 1)));
		ROW(tess_registry_add(OPTIONS(tess_plugin, .abi = TESS_ABI)));

		/* worlds */
		ROW(tess_world_open(NULL));
		ROW(tess_world_spawn(-1, run_nothing, NULL));
		ROW(tess_world_spawn(0, run_nothing, NULL));
		ROW(tess_world_spawn(INT32_MAX, run_nothing, NULL));
		ROW(tess_world_spawn(1, NULL, NULL));
		ROW(tess_world_spawn_results(0, write_nothing, NULL, numbers, 4));
		ROW(tess_world_spawn_results(1, NULL, NULL, numbers, 4));
		ROW(tess_world_spawn_results(1, write_nothing, NULL, NULL, 4));
		ROW(tess_world_spawn_results(1, write_nothing, NULL, numbers, 0));
		ROW(tess_world_spawn_results(2, write_nothing, NULL, numbers, UINT64_MAX));
		ROW(tess_world_spawn_results(1000, write_nothing, NULL, numbers, UINT64_MAX / 999));
		GIVES(-1, tess_world_rank(NULL));
		GIVES(0, tess_world_size(NULL));
		GIVES('\0', *tess_world_backend(NULL));
		GIVES(NULL, tess_world_group(NULL));
		NOTHING(tess_world_fail(NULL, TESS_EINVAL, "why"));
		NOTHING(tess_world_fail(on.world, TESS_EINVAL, NULL));
		NOTHING(tess_world_close(NULL));

		/* groups */
		GIVES(-1, tess_group_rank(NULL));
		GIVES(0, tess_group_size(NULL));
		GIVES(-1, tess_group_member(NULL, 0));
		GIVES(-1, tess_group_member(on.all, -1));
		GIVES(-1, tess_group_member(on.all, 1));
		GIVES('\0', *tess_group_name(NULL));
		ROW(tess_group_split(NULL, 0, 0, "a", OUT(tess_group)));
		ROW(tess_group_split(on.all, 0, 0, "", OUT(tess_group)));
		ROW(tess_group_split(on.all, 0, 0, "A", OUT(tess_group)));
		ROW(tess_group_split(on.all, 0, 0, "sixteen_letters_", OUT(tess_group)));
		ROW(tess_group_split(on.all, 0, 0, "a", NULL));
		NOTHING(tess_group_close(NULL));
		ROW(tess_group_run(NULL, COLL(0)));
		ROW(tess_group_run(on.all, NULL));
		ROW(tess_group_run(on.all, COLL(.size = 0)));
		ROW(tess_group_run(on.all, COLL(.kind = 0)));
		ROW(tess_group_run(on.all, COLL(.kind = 99)));
		ROW(tess_group_run(on.all, COLL(.dtype = 0)));
		ROW(tess_group_run(on.all, COLL(.mem = 77)));
		ROW(tess_group_run(on.all, COLL(.mem = -1)));
		ROW(tess_group_run(on.all, COLL(.root = 1)));
		ROW(tess_group_run(on.all, COLL(.root = -1)));
		ROW(tess_group_run(on.all, COLL(.kind = TESS_SEND)));
		ROW(tess_group_run(on.all, COLL(.kind = TESS_ALL_REDUCE, .op = 99)));
		ROW(tess_group_run(on.all, COLL(.kind = TESS_ALL_REDUCE, .op = TESS_BXOR)));
		ROW(tess_group_run(on.all, COLL(.count = UINT64_MAX)));
		ROW(tess_group_run(on.all, COLL(.src = NULL)));
		ROW(tess_group_run(on.all, COLL(.dst = NULL)));
		ROW(tess_group_run(on.all, COLL(.dst = numbers + 1)));
		ROW(tess_group_run(on.all, COLL(.dst = (char *)numbers + 1)));
		ROW(tess_group_run(on.all, COLL(.send_counts = (const uint64_t[]){ 4 })));
		ROW(tess_group_run(on.all, COLL(.deadline = -1)));
		ROW(tess_group_start(NULL, COLL(0), OUT(tess_work)));
		ROW(tess_group_start(on.all, NULL, OUT(tess_work)));
		ROW(tess_group_start(on.all, COLL(0), NULL));
		ROW(tess_group_batch(NULL, calls, 1, OUT(tess_work)));
		ROW(tess_group_batch(on.all, NULL, 1, OUT(tess_work)));
		ROW(tess_group_batch(on.all, calls, 1, OUT(tess_work)));
		ROW(tess_group_batch(on.all, calls, 0, NULL));
		ROW(tess_work_test(NULL));
		ROW(tess_work_wait(NULL, 0));
		ROW(tess_work_wait(on.work, -1));
		NOTHING(tess_work_release(NULL));
		ROW(tess_barrier(NULL, "here"));
		ROW(tess_broadcast(NULL, numbers, 4, TESS_F32, 0, "here"));
		ROW(tess_broadcast(on.all, NULL, 4, TESS_F32, 0, "here"));
		ROW(tess_broadcast(on.all, numbers, 4, TESS_F32, 9, "here"));
		ROW(tess_broadcast(on.all, numbers, 4, 99, 0, "here"));
		ROW(tess_all_reduce(NULL, numbers, numbers, 4, TESS_F32, TESS_SUM, "here"));
		ROW(tess_all_reduce(on.all, NULL, numbers, 4, TESS_F32, TESS_SUM, "here"));
		ROW(tess_all_reduce(on.all, numbers, numbers, 4, TESS_F32, -1, "here"));
		ROW(tess_all_gather(NULL, numbers, numbers, 4, TESS_F32, "here"));
		ROW(tess_all_gather(on.all, numbers, NULL, 4, TESS_F32, "here"));
		ROW(tess_all_gather(on.all, numbers, numbers, UINT64_MAX / 4, TESS_F32, "here"));

		/* meshes */
		ROW(tess_mesh_open(NULL, "tp", OUT(tess_mesh)));
		ROW(tess_mesh_open(on.world, NULL, OUT(tess_mesh)));
		ROW(tess_mesh_open(on.world, "tp", NULL));
		ROW(tess_mesh_open(on.world, "", OUT(tess_mesh)));
		ROW(tess_mesh_open(on.world, "tp=0", OUT(tess_mesh)));
		ROW(tess_mesh_open(on.world, "tp=2", OUT(tess_mesh)));
		ROW(tess_mesh_open(on.world, "tp=1,tp=1", OUT(tess_mesh)));
		ROW(tess_mesh_open(on.world, "tp=-1", OUT(tess_mesh)));
		ROW(tess_mesh_open(on.world, "tp=99999999999", OUT(tess_mesh)));
		ROW(tess_mesh_open(on.world, "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q", OUT(tess_mesh)));
		ROW(tess_mesh_count_ranks("tp", NULL));
		ROW(tess_mesh_count_ranks("tp=65536,dp=65536", &number));
		ROW(tess_mesh_slice(NULL, "tp"));
		ROW(tess_mesh_slice(on.mesh, NULL));
		ROW(tess_mesh_slice(on.mesh, "tp,tp"));
		ROW(tess_mesh_slice(on.mesh, "dp"));
		GIVES(NULL, tess_mesh_group(NULL, "tp"));
		GIVES(NULL, tess_mesh_group(on.mesh, NULL));
		GIVES(NULL, tess_mesh_group(on.mesh, "dp"));
		GIVES(0, tess_mesh_size(NULL, "tp"));
		GIVES(0, tess_mesh_size(on.mesh, NULL));
		GIVES(0, tess_mesh_size(on.mesh, "dp"));
		GIVES(-1, tess_mesh_rank(NULL, "tp"));
		GIVES(-1, tess_mesh_rank(on.mesh, NULL));
		GIVES(-1, tess_mesh_rank(on.mesh, "dp"));
		NOTHING(tess_mesh_close(NULL));

		/* distributed tensors */
		ROW(tess_dtensor_from_local(NULL, SPEC(0), numbers, OUT(tess_dtensor)));
		ROW(tess_dtensor_from_local(on.mesh, NULL, numbers, OUT(tess_dtensor)));
		ROW(tess_dtensor_from_local(on.mesh, SPEC(0), numbers, NULL));
		ROW(tess_dtensor_from_local(on.mesh, SPEC(.size = 0), NULL, OUT(tess_dtensor)));
		ROW(tess_dtensor_from_local(on.mesh, SPEC(.dtype = 0), NULL, OUT(tess_dtensor)));
		ROW(tess_dtensor_from_local(on.mesh, SPEC(.dtype = TESS_Q8), NULL,
		                            OUT(tess_dtensor)));
		ROW(tess_dtensor_from_local(on.mesh, SPEC(.ndim = -1), NULL, OUT(tess_dtensor)));
		ROW(tess_dtensor_from_local(on.mesh, SPEC(.ndim = 99), NULL, OUT(tess_dtensor)));
		ROW(tess_dtensor_from_local(on.mesh, SPEC(.shape = NULL), NULL, OUT(tess_dtensor)));
		ROW(tess_dtensor_from_local(on.mesh, SPEC(.shape = negative), NULL,
		                            OUT(tess_dtensor)));
		ROW(tess_dtensor_from_local(on.mesh, SPEC(.shape = large), NULL,
		                            OUT(tess_dtensor)));
		ROW(tess_dtensor_from_local(on.mesh, SPEC(.places = NULL), NULL,
		                            OUT(tess_dtensor)));
		ROW(tess_dtensor_from_local(on.mesh, SPEC(.places = PLACE(0)), NULL,
		                            OUT(tess_dtensor)));
		ROW(tess_dtensor_from_local(on.mesh, SPEC(.places = PLACE(.kind = TESS_STAGE)),
		                            NULL, OUT(tess_dtensor)));
		ROW(tess_dtensor_from_local(on.mesh,
		                            SPEC(.places = PLACE(.kind = TESS_SHARD, .dim = 2)),
		                            NULL, OUT(tess_dtensor)));
		ROW(tess_dtensor_from_local(
			on.mesh, SPEC(.places = PLACE(.kind = TESS_PARTIAL, .op = TESS_BXOR)), NULL,
			OUT(tess_dtensor)));
		ROW(tess_dtensor_from_local(on.mesh, SPEC(.nparts = 1), NULL, OUT(tess_dtensor)));
		ROW(tess_dtensor_from_local(on.mesh, SPEC(.nparts = -1), NULL, OUT(tess_dtensor)));
		ROW(tess_dtensor_from_local(on.mesh, SPEC(PART(.axis = 2, .size = 3)), NULL,
		                            OUT(tess_dtensor)));
		ROW(tess_dtensor_from_local(on.mesh, SPEC(PART(.axis = 1, .size = 2)), NULL,
		                            OUT(tess_dtensor)));
		ROW(tess_dtensor_from_local(on.mesh, SPEC(PART(.axis = 1, .size = 4)), NULL,
		                            OUT(tess_dtensor)));
		ROW(tess_dtensor_from_local(on.mesh, SPEC(PART(.axis = 1, .size = 3, .units = 4)),
		                            NULL, OUT(tess_dtensor)));
		ROW(tess_dtensor_distribute(NULL, SPEC(0), 0, numbers, OUT(tess_dtensor)));
		ROW(tess_dtensor_distribute(on.mesh, NULL, 0, numbers, OUT(tess_dtensor)));
		ROW(tess_dtensor_distribute(on.mesh, SPEC(0), 0, NULL, OUT(tess_dtensor)));
		ROW(tess_dtensor_distribute(on.mesh, SPEC(0), -1, NULL, OUT(tess_dtensor)));
		ROW(tess_dtensor_distribute(on.mesh, SPEC(0), 1, numbers, OUT(tess_dtensor)));
		ROW(tess_dtensor_distribute(on.mesh, SPEC(0), -2, numbers, OUT(tess_dtensor)));
		ROW(tess_dtensor_distribute(on.mesh, SPEC(0), 0, numbers, NULL));
		ROW(tess_dtensor_redistribute(NULL, PLACE(.kind = TESS_SHARD), OUT(tess_dtensor)));
		ROW(tess_dtensor_redistribute(on.tensor, NULL, OUT(tess_dtensor)));
		ROW(tess_dtensor_redistribute(on.tensor, PLACE(.kind = TESS_SHARD), NULL));
		ROW(tess_dtensor_redistribute(on.tensor, PLACE(.kind = TESS_SHARD, .dim = -3),
		                              OUT(tess_dtensor)));
		ROW(tess_dtensor_redistribute(on.tensor, PLACE(.kind = 99), OUT(tess_dtensor)));
		ROW(tess_dtensor_full(NULL, numbers));
		ROW(tess_dtensor_full(on.tensor, NULL));
		ROW(tess_dtensor_list_moves(NULL, PLACE(0), moves, 1, &number));
		ROW(tess_dtensor_list_moves(on.tensor, NULL, moves, 1, &number));
		ROW(tess_dtensor_list_moves(on.tensor, PLACE(0), NULL, 1, &number));
		ROW(tess_dtensor_list_moves(on.tensor, PLACE(0), moves, -1, &number));
		ROW(tess_dtensor_list_moves(on.tensor, PLACE(0), moves, 1, NULL));
		GIVES(NULL, tess_dtensor_local(NULL));
		GIVES(NULL, tess_dtensor_get_spec(NULL));
		ROW(tess_dtensor_get_local_shape(NULL, 0, &count));
		ROW(tess_dtensor_get_local_shape(on.tensor, 1, &count));
		ROW(tess_dtensor_get_local_shape(on.tensor, -2, &count));
		ROW(tess_dtensor_get_local_shape(on.tensor, 0, NULL));
		GIVES(0, tess_dtensor_list_ranges(NULL, 0, 0, runs, 8));
		GIVES(0, tess_dtensor_list_ranges(on.tensor, 9, 0, runs, 8));
		GIVES(0, tess_dtensor_list_ranges(on.tensor, 0, 2, runs, 8));
		GIVES(0, tess_dtensor_list_ranges(on.tensor, 0, -1, runs, 8));
		GIVES(0, tess_dtensor_list_ranges(on.tensor, 0, 0, NULL, 8));
		GIVES(0, tess_dtensor_list_ranges(on.tensor, 0, 0, runs, -1));
		NOTHING(tess_dtensor_free(NULL));

		/* sessions */
		ROW(tess_session_open(NULL, dir, NULL, OUT(tess_session)));
		ROW(tess_session_open(on.mesh, NULL, NULL, OUT(tess_session)));
		ROW(tess_session_open(on.mesh, dir, NULL, NULL));
		ROW(tess_session_open(on.mesh, dir, SESSION(.size = 0), OUT(tess_session)));
		ROW(tess_session_open(on.mesh, dir, SESSION(.positions = -1), OUT(tess_session)));
		ROW(tess_session_open(on.mesh, dir, SESSION(.threads = -1), OUT(tess_session)));
		ROW(tess_session_open(on.mesh, dir, SESSION(.kv_dtype = 99), OUT(tess_session)));
		ROW(tess_session_open(on.mesh, dir, SESSION(.weights = -1), OUT(tess_session)));
		ROW(tess_session_open(on.mesh, dir, SESSION(.math = 99), OUT(tess_session)));
		ROW(tess_session_open(on.mesh, dir, SESSION(.plan = "no_such"), OUT(tess_session)));
		ROW(tess_session_open(on.mesh, dir, SESSION(.offload_weights = 2),
		                      OUT(tess_session)));
		ROW(tess_session_open(on.mesh, dir,
		                      SESSION(.offload_weights = 1, .weights = TESS_Q8),
		                      OUT(tess_session)));
		NOTHING(tess_session_close(NULL));
		NOTHING(tess_session_get_info(NULL, &info));
		NOTHING(tess_session_get_info(on.session, NULL));
		NOTHING(tess_session_get_info(on.session, OPTIONS(tess_session_info, .size = 0)));
		GIVES(0, tess_session_list_weights(NULL, weights, 1));
		GIVES(0, tess_session_list_weights(on.session, NULL, 1));
		GIVES(0, tess_session_list_weights(on.session, weights, -1));
		ROW(tess_session_get_tokenizer(NULL, (const struct tess_tokenizer **)&nothing));
		ROW(tess_session_get_tokenizer(on.session, NULL));
		ROW(tess_session_check(NULL, "tp", 1, NULL, &info));
		ROW(tess_session_check(dir, "tp", -1, NULL, &info));
		ROW(tess_session_check(dir, "tp", INT32_MAX, NULL, &info));
		ROW(tess_session_check(dir, "tp", 1, NULL, NULL));
		ROW(tess_session_check(dir, "tp", 1, NULL, OPTIONS(tess_session_info, .size = 0)));
		ROW(tess_session_check_prompt(NULL, ids, 3));
		ROW(tess_session_check_prompt(&info, NULL, 3));
		ROW(tess_session_check_prompt(&info, ids, -1));
		ROW(tess_session_check_prompt(&info, ids, 0));
		ROW(tess_session_check_prompt(OPTIONS(tess_session_info, .vocabulary = 2), ids, 3));
		ROW(tess_sequence_open(NULL, &on.sequence));
		ROW(tess_sequence_open(on.session, NULL));
		NOTHING(tess_sequence_close(NULL));
		GIVES(NULL, tess_sequence_ids(NULL, &count));
		GIVES(NULL, tess_sequence_ids(on.sequence, NULL));
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
		ROW(tess_session_step(on.session, INPUT(.ids = ids, .n = 3, .nselected = 2), 1, 0,
		                      &logits));
		ROW(tess_session_step(on.session, &(struct tess_input){ .ids = ids, .n = 3 }, 1, 0,
		                      &logits));
		ROW(tess_logits_save(NULL, numbers, 1, 4));
		ROW(tess_logits_save("/tmp/no", NULL, 1, 4));
		ROW(tess_logits_save("/tmp/no", numbers, -1, 4));
		ROW(tess_logits_save("/tmp/no", numbers, 1, 0));
		ROW(tess_logits_save("/tmp/no", numbers, INT64_MAX, 4));
		ROW(tess_logits_check_writable(NULL));
		ROW(tess_logits_check_writable("/no/such/file"));
		ROW(tess_session_generate(NULL, NULL, 0, &how));
		ROW(tess_session_generate(on.session, NULL, 1, &how));
		ROW(tess_session_generate(on.session, requests, 1,
		                          GENERATION(.on_end = fail_as_request)));
		GIVES(TESS_OK, REQUEST(.nstop_texts = 1, TEXTS("a")));
		ROW(REQUEST(.nstop_texts = -1));
		ROW(REQUEST(.nstop_texts = 1));
		ROW(REQUEST(.nstop_texts = 257, TEXTS("a")));
		ROW(REQUEST(.nstop_texts = 2, TEXTS("a", "")));
		ROW(REQUEST(.nstop_texts = 1, TEXTS(NULL)));
		ROW(REQUEST(.nstop_texts = 1, TEXTS("\xc3")));
		ROW(tess_session_generate(on.session, NULL, -1, &how));
		ROW(tess_session_generate(on.session, NULL, INT64_MAX, &how));
		ROW(tess_session_generate(on.session, NULL, 0, NULL));
		ROW(tess_session_generate(on.session, NULL, 0, GENERATION(.size = 0)));
		ROW(tess_session_generate(on.session, NULL, 0, GENERATION(.batch = -1)));
		ROW(tess_session_generate(on.session, NULL, 0, GENERATION(.chunk = -1)));

		/* sampling */
		ROW(tess_sampling_check(NULL));
		ROW(tess_sampling_check(SAMPLING(.temperature = NAN)));
		ROW(tess_sampling_check(SAMPLING(.temperature = -1)));
		ROW(tess_sampling_check(SAMPLING(.top_p = 2)));
		ROW(tess_sampling_check(SAMPLING(.min_p = NAN)));
		ROW(tess_sampling_check(SAMPLING(.repetition_penalty = -1)));
		ROW(tess_sampling_check(SAMPLING(.top_k = -1)));
		ROW(tess_sampler_new(0, OUT(tess_sampler)));
		ROW(tess_sampler_new(-1, OUT(tess_sampler)));
		ROW(tess_sampler_new(INT64_MAX, OUT(tess_sampler)));
		ROW(tess_sampler_new(4, NULL));
		NOTHING(tess_sampler_free(NULL));
		GIVES(-1, tess_sampler_draw(NULL, SAMPLING(0), numbers, ids, 3, 0));
		GIVES(-1, tess_sampler_draw(on.sampler, NULL, numbers, ids, 3, 0));
		GIVES(-1, tess_sampler_draw(on.sampler, SAMPLING(0), NULL, ids, 3, 0));
		GIVES(-1, tess_sampler_draw(on.sampler, SAMPLING(0), numbers, NULL, 3, 0));
		GIVES(-1, tess_sampler_draw(on.sampler, SAMPLING(0), numbers, ids, -1, 0));
		GIVES(-1, tess_sampler_draw(on.sampler, SAMPLING(.temperature = NAN), numbers, ids,
		                            3, 0));

		/* training */
		ROW(TRAIN(.beta1 = NAN));
		ROW(TRAIN(.beta2 = NAN));
		ROW(TRAIN(.eps = NAN));
		ROW(TRAIN(.momentum = NAN));
		ROW(TRAIN(.weight_decay = NAN));
		ROW(TRAIN(.clip = NAN));
		ROW(TRAIN(.balance = NAN));
		ROW(TRAIN(.dropout = NAN));
		ROW(TRAIN(.dropout = 2));
		ROW(TRAIN(.optimizer = -1));
		ROW(TRAIN(.threads = -1));
		ROW(TRAIN(.positions = -1));
		ROW(TRAIN(.math = TESS_F16));
		ROW(TRAIN(.math = TESS_F64));
		ROW(tess_trainer_check(NULL));
		ROW(tess_trainer_check(OPTIONS(tess_trainer_options, .size = 0)));
		ROW(tess_trainer_open(NULL, dir, NULL, OUT(tess_trainer)));
		ROW(tess_trainer_open(on.mesh, NULL, NULL, OUT(tess_trainer)));
		ROW(tess_trainer_open(on.mesh, dir, NULL, NULL));
		ROW(tess_trainer_open(on.mesh, dir, OPTIONS(tess_trainer_options, .size = 0),
		                      OUT(tess_trainer)));
		NOTHING(tess_trainer_close(NULL));
		ROW(tess_trainer_step(NULL, BATCH(.ids = ids, LENGTHS(3)), 1, 1e-3, NULL));
		ROW(tess_trainer_step(on.trainer, NULL, 1, 1e-3, NULL));
		ROW(tess_trainer_step(on.trainer, BATCH(.ids = ids, LENGTHS(3)), -1, 1e-3, NULL));
		ROW(tess_trainer_step(on.trainer, BATCH(.ids = ids, LENGTHS(3)), 0, 1e-3, NULL));
		ROW(tess_trainer_step(on.trainer, BATCH(.ids = ids, LENGTHS(3)), 1, NAN, NULL));
		ROW(tess_trainer_step(on.trainer, BATCH(.ids = ids, LENGTHS(3)), 1, -1, NULL));
		ROW(tess_trainer_step(on.trainer, BATCH(.ids = ids, LENGTHS(3)), 1, INFINITY,
		                      NULL));
		ROW(tess_trainer_step(on.trainer, BATCH(.ids = ids), 1, 1e-3, NULL));
		ROW(tess_trainer_step(on.trainer, BATCH(LENGTHS(3)), 1, 1e-3, NULL));
		ROW(tess_trainer_step(on.trainer, BATCH(.ids = ids, LENGTHS(0)), 1, 1e-3, NULL));
		ROW(tess_trainer_step(on.trainer, BATCH(.ids = ids, LENGTHS(-1)), 1, 1e-3, NULL));
		ROW(tess_trainer_step(on.trainer, BATCH(.ids = ids, LENGTHS(INT64_MAX)), 1, 1e-3,
		                      NULL));
		ROW(tess_trainer_step(on.trainer, BATCH(.ids = outside, LENGTHS(3)), 1, 1e-3,
		                      NULL));
		ROW(tess_trainer_step(on.trainer, BATCH(.ids = ids, .labels = outside, LENGTHS(3)),
		                      1, 1e-3, NULL));
		ROW(tess_trainer_step(on.trainer, BATCH(.nsequences = -1), 1, 1e-3, NULL));
		ROW(tess_trainer_step(on.trainer, BATCH(.nsequences = 0), 1, 1e-3, NULL));
		ROW(tess_trainer_step(on.trainer, BATCH(.ids = ids, LENGTHS(3)), 1, 1e-3,
		                      OPTIONS(tess_training_result, .size = 0)));
		ROW(tess_trainer_compute_gradients(NULL, BATCH(.ids = ids, LENGTHS(3)), 1, NULL));
		ROW(tess_trainer_compute_gradients(on.trainer, NULL, 1, NULL));
		ROW(tess_trainer_compute_gradients(on.trainer, BATCH(.ids = ids), 1, NULL));
		NOTHING(tess_trainer_get_info(NULL, &trained));
		NOTHING(tess_trainer_get_info(on.trainer, NULL));
		NOTHING(tess_trainer_get_info(on.trainer, OPTIONS(tess_trainer_info, .size = 0)));
		GIVES(0, tess_trainer_count_tensors(NULL));
		GIVES(NULL, tess_trainer_get_tensor(NULL, 0));
		GIVES(NULL, tess_trainer_get_tensor(on.trainer, -1));
		GIVES(NULL, tess_trainer_get_tensor(on.trainer, INT64_MAX));
		GIVES(-1, tess_trainer_find_tensor(NULL, "model.norm.weight"));
		GIVES(-1, tess_trainer_find_tensor(on.trainer, NULL));
		GIVES(-1, tess_trainer_find_tensor(on.trainer, "no such tensor"));
		ROW(tess_trainer_gather(NULL, TESS_WEIGHT, 0, 0, 1, 0, numbers));
		ROW(tess_trainer_gather(on.trainer, -1, 0, 0, 1, 0, numbers));
		ROW(tess_trainer_gather(on.trainer, 99, 0, 0, 1, 0, numbers));
		ROW(tess_trainer_gather(on.trainer, TESS_WEIGHT, -1, 0, 1, 0, numbers));
		ROW(tess_trainer_gather(on.trainer, TESS_WEIGHT, INT64_MAX, 0, 1, 0, numbers));
		ROW(tess_trainer_gather(on.trainer, TESS_WEIGHT, 0, -1, 1, 0, numbers));
		ROW(tess_trainer_gather(on.trainer, TESS_WEIGHT, 0, INT64_MAX, 1, 0, numbers));
		ROW(tess_trainer_gather(on.trainer, TESS_WEIGHT, 0, 0, -1, 0, numbers));
		ROW(tess_trainer_gather(on.trainer, TESS_WEIGHT, 0, 0, 1, 9, numbers));
		ROW(tess_trainer_gather(on.trainer, TESS_WEIGHT, 0, 0, 1, 0, NULL));
		ROW(tess_trainer_save(NULL, "/no/such", 0, NULL));
		ROW(tess_trainer_save(on.trainer, NULL, 0, NULL));
		ROW(tess_trainer_save(on.trainer, "/no/such", 0, NULL));
		ROW(tess_trainer_save(on.trainer, saved, -1, NULL));
		ROW(tess_trainer_save(on.trainer, saved, 0, "[]"));
		ROW(tess_trainer_save(on.trainer, saved, 0, "{"));
		ROW(tess_save_find(NULL, &text));
		ROW(tess_save_find(dir, NULL));
		ROW(tess_save_find("/no/such", &text));
		ROW(tess_trainer_load(NULL, saved, &text));
		ROW(tess_trainer_load(on.trainer, NULL, &text));
		ROW(tess_trainer_load(on.trainer, saved, NULL));
		ROW(tess_trainer_load(on.trainer, "/no/such", &text));
		GIVES(true, isnan(tess_schedule_get(NULL, 0)));
		GIVES(true, isnan(tess_schedule_get(&(struct tess_schedule){ .lr = 1 }, -1)));
		GIVES(true, isnan(tess_schedule_get(&(struct tess_schedule){ .kind = 99 }, 0)));

		/* chats */
		ROW(tess_chat_open(NULL, "chatml", OUT(tess_chat)));
		ROW(tess_chat_open(dir, "chatml", NULL));
		ROW(tess_chat_open(dir, "no such", OUT(tess_chat)));
		ROW(tess_chat_open("/no/such", NULL, OUT(tess_chat)));
		NOTHING(tess_chat_close(NULL));
		GIVES(true, !tess_chat_get_name(NULL));
		GIVES(true, !*tess_chat_get_end(NULL));
		GIVES(true, tess_chat_list_names(NULL, 1) == 0);
		GIVES(true, tess_chat_list_names(&bytes, -1) == 0);
		ROW(tess_chat_render(NULL, &question, 1, NULL, &rendered));
		ROW(tess_chat_render(on.chat, NULL, 1, NULL, &rendered));
		ROW(tess_chat_render(on.chat, &question, 0, NULL, &rendered));
		ROW(tess_chat_render(on.chat, &question, -1, NULL, &rendered));
		ROW(tess_chat_render(on.chat, &question, 1, &no_size, &rendered));
		ROW(tess_chat_render(on.chat, &question, 1, &both_flags, &rendered));
		ROW(tess_chat_render(on.chat, &question, 1, NULL, NULL));
		ROW(tess_chat_render(on.chat, &no_role, 1, NULL, &rendered));
		ROW(tess_chat_render(on.chat, &no_content, 1, NULL, &rendered));
		ROW(tess_chat_render(on.chat, &no_utf8, 1, NULL, &rendered));
		ROW(tess_chat_render(on.chat, &large_content, 1, NULL, &rendered));
		ROW(tess_chat_render_row(NULL, "[]", 2, NULL, &rendered));
		ROW(tess_chat_render_row(on.chat, NULL, 2, NULL, &rendered));
		ROW(tess_chat_render_row(on.chat, "[]", 2, NULL, &rendered));
		ROW(tess_chat_render_row(on.chat, "[]", 2, NULL, NULL));
		NOTHING(tess_chat_text_free(NULL));

		/* tokenizers */
		ROW(tess_tokenizer_open(NULL, OUT(tess_tokenizer)));
		ROW(tess_tokenizer_open(dir, NULL));
		ROW(tess_tokenizer_open("/no/such", OUT(tess_tokenizer)));
		NOTHING(tess_tokenizer_close(NULL));
		ROW(tess_tokenizer_encode(NULL, "a", 1, false, &made, &len));
		ROW(tess_tokenizer_encode(on.tokenizer, NULL, 1, false, &made, &len));
		ROW(tess_tokenizer_encode(on.tokenizer, "a", SIZE_MAX, false, &made, &len));
		ROW(tess_tokenizer_encode(on.tokenizer, "\xff", 1, false, &made, &len));
		ROW(tess_tokenizer_encode(on.tokenizer, "a", 1, false, NULL, &len));
		ROW(tess_tokenizer_encode(on.tokenizer, "a", 1, false, &made, NULL));
		ROW(tess_tokenizer_decode(NULL, ids, 1, false, &text, &len));
		ROW(tess_tokenizer_decode(on.tokenizer, NULL, 1, false, &text, &len));
		ROW(tess_tokenizer_decode(on.tokenizer, ids, 1, false, NULL, &len));
		ROW(tess_tokenizer_decode(on.tokenizer, ids, 1, false, &text, NULL));
		ROW(tess_decode_stream_open(NULL, false, OUT(tess_decode_stream)));
		ROW(tess_decode_stream_open(on.tokenizer, false, NULL));
		ROW(tess_decode_stream_push(NULL, 1, &bytes, &len));
		ROW(tess_decode_stream_push(on.stream, 1, NULL, &len));
		ROW(tess_decode_stream_push(on.stream, 1, &bytes, NULL));
		ROW(tess_decode_stream_finish(NULL, &bytes, &len));
		ROW(tess_decode_stream_finish(on.stream, NULL, &len));
		ROW(tess_decode_stream_finish(on.stream, &bytes, NULL));
		ROW((tess_decode_stream_finish(on.stream, &bytes, &len),
		     tess_decode_stream_push(on.stream, 1, &bytes, &len)));
		ROW((tess_decode_stream_finish(on.stream, &bytes, &len),
		     tess_decode_stream_finish(on.stream, &bytes, &len)));
		NOTHING(tess_decode_stream_close(NULL));

		/* data sets */
		ROW(tess_dataset_open(files, -1, DATASET(.id_bytes = 2), OUT(tess_dataset)));
		ROW(tess_dataset_open(NULL, 1, DATASET(.id_bytes = 2), OUT(tess_dataset)));
		ROW(tess_dataset_open(files, 2, DATASET(.id_bytes = 2), OUT(tess_dataset)));
		ROW(tess_dataset_open(files, 1, DATASET(.id_bytes = 3), OUT(tess_dataset)));
		ROW(tess_dataset_open(files, 1, DATASET(.size = 0), OUT(tess_dataset)));
		ROW(tess_dataset_open(files, 1, DATASET(.sequence = 1), OUT(tess_dataset)));
		ROW(tess_dataset_open(files, 1, DATASET(.vocabulary = -1), OUT(tess_dataset)));
		ROW(tess_dataset_open(files, 1, NULL, OUT(tess_dataset)));
		ROW(tess_dataset_open(files, 1, DATASET(.id_bytes = 2), NULL));
		NOTHING(tess_dataset_close(NULL));
		NOTHING(tess_dataset_get_info(NULL, &data));
		NOTHING(tess_dataset_get_info(on.dataset, NULL));
		GIVES(-1, tess_dataset_shuffle(NULL, 0, 0));
		GIVES(-1, tess_dataset_shuffle(on.dataset, 0, -1));
		ROW(tess_dataset_read(NULL, 0, made, &count));
		ROW(tess_dataset_read(on.dataset, -1, ids, &count));
		ROW(tess_dataset_read(on.dataset, INT64_MAX, ids, &count));
		ROW(tess_dataset_read(on.dataset, 0, NULL, &count));
		ROW(tess_dataset_read(on.dataset, 0, ids, NULL));
		ROW(tess_dataset_open(files, 1, DATASET(.tokenizer = dir, .loss = 2),
		                      OUT(tess_dataset)));
		ROW(tess_dataset_read_labels(NULL, 0, made, made, &count));
		ROW(tess_dataset_read_labels(on.dataset, -1, made, made, &count));
		ROW(tess_dataset_read_labels(on.dataset, 0, NULL, made, &count));
		ROW(tess_dataset_read_labels(on.dataset, 0, made, NULL, &count));
		ROW(tess_dataset_read_labels(on.dataset, 0, made, made, NULL));
		NOTHING(tess_dataset_count_labels(NULL, OPTIONS(tess_dataset_labels, 0)));
		NOTHING(tess_dataset_count_labels(on.dataset, NULL));

		/* explain */
		ROW(tess_session_explain(NULL, 1, OUT(tess_explanation)));
		ROW(tess_session_explain(on.session, 1, NULL));
		ROW(tess_session_explain(on.session, 0, OUT(tess_explanation)));
		ROW(tess_session_explain(on.session, INT64_MAX, OUT(tess_explanation)));
		ROW(tess_explain(NULL, "tp", 1, 1, NULL, OUT(tess_explanation)));
		ROW(tess_explain(dir, NULL, 1, 1, NULL, OUT(tess_explanation)));
		ROW(tess_explain(dir, "tp", -1, 1, NULL, OUT(tess_explanation)));
		ROW(tess_explain(dir, "tp", 1, -1, NULL, OUT(tess_explanation)));
		ROW(tess_explain(dir, "tp", 1, INT64_MAX, NULL, OUT(tess_explanation)));
		ROW(tess_explain(dir, "tp", 1, 1, SESSION(.size = 0), OUT(tess_explanation)));
		ROW(tess_explain(dir, "tp", 1, 1, SESSION(.positions = -1), OUT(tess_explanation)));
		ROW(tess_explain(dir, "tp", 1, 1, NULL, NULL));
		ROW(tess_explain_training(NULL, "tp", 1, 1, 8, NULL, OUT(tess_explanation)));
		ROW(tess_explain_training(dir, NULL, 1, 1, 8, NULL, OUT(tess_explanation)));
		ROW(tess_explain_training(dir, "tp", 1, -1, 8, NULL, OUT(tess_explanation)));
		ROW(tess_explain_training(dir, "tp", 1, 0, 8, NULL, OUT(tess_explanation)));
		ROW(tess_explain_training(dir, "tp", 1, 1, -1, NULL, OUT(tess_explanation)));
		ROW(tess_explain_training(dir, "tp", 1, INT64_MAX, INT64_MAX, NULL,
		                          OUT(tess_explanation)));
		ROW(tess_explain_training(dir, "tp", 1, 1, 8, NULL, NULL));
		GIVES(0, tess_explanation_shard(NULL, 0, 0, NULL));
		GIVES(0, tess_explanation_shard(on.explanation, -1, 0, NULL));
		GIVES(0, tess_explanation_shard(on.explanation, INT32_MAX, 0, NULL));
		GIVES(0, tess_explanation_shard(on.explanation, 0, -1, NULL));
		GIVES(0, tess_explanation_shard(on.explanation, 0, 1, NULL));
		GIVES(0, tess_explanation_list_ranges(NULL, 0, 0, 0, runs, 1));
		GIVES(0, tess_explanation_list_ranges(on.explanation, INT32_MAX, 0, 0, runs, 1));
		GIVES(0, tess_explanation_list_ranges(on.explanation, 0, 1, 0, runs, 1));
		GIVES(0, tess_explanation_list_ranges(on.explanation, 0, 0, -1, runs, 1));
		GIVES(0, tess_explanation_list_ranges(on.explanation, 0, 0, 9, runs, 1));
		GIVES(0, tess_explanation_list_ranges(on.explanation, 0, 0, 0, NULL, 1));
		GIVES(0, tess_explanation_list_ranges(on.explanation, 0, 0, 0, runs, -1));
		ROW(tess_explanation_fit(NULL, 1, 0));
		ROW(tess_explanation_fit(on.explanation, 0, 0));
		ROW(tess_explanation_fit(on.explanation, 1, -1));
		ROW(tess_explanation_format(NULL, TESS_EXPLAIN_TEXT, "x", 0, &text));
		ROW(tess_explanation_format(on.explanation, TESS_EXPLAIN_SVG + 1, "x", 0, &text));
		ROW(tess_explanation_format(on.explanation, -1, "x", 0, &text));
		ROW(tess_explanation_format(on.explanation, TESS_EXPLAIN_TEXT, NULL, 0, &text));
		ROW(tess_explanation_format(on.explanation, TESS_EXPLAIN_TEXT, "x", -1, &text));
		ROW(tess_explanation_format(on.explanation, TESS_EXPLAIN_TEXT, "x", 0, NULL));
		ROW(tess_explanation_list_weights(NULL, 0, NULL));
		ROW(tess_explanation_list_weights(on.explanation, 0, NULL));
		ROW(tess_explanation_list_weights(on.explanation, 1, weights));
		NOTHING(tess_explanation_free(NULL));
		ROW(tess_pipeline_open(NULL, 2, 2, OUT(tess_pipeline)));
		ROW(tess_pipeline_open("1f1b", -1, 2, OUT(tess_pipeline)));
		ROW(tess_pipeline_open("1f1b", INT32_MAX, 2, OUT(tess_pipeline)));
		ROW(tess_pipeline_open("1f1b", 2, INT32_MAX, OUT(tess_pipeline)));
		ROW(tess_pipeline_open("interleaved:-1", 2, 2, OUT(tess_pipeline)));
		ROW(tess_pipeline_open("1f1b", 2, 2, NULL));
		ROW(tess_pipeline_parse(NULL, "0F0,0B0", 7, 0, 0, OUT(tess_pipeline)));
		ROW(tess_pipeline_parse("x", NULL, 7, 0, 0, OUT(tess_pipeline)));
		ROW(tess_pipeline_parse("x", "0F0,0B0", 0, 0, 0, OUT(tess_pipeline)));
		ROW(tess_pipeline_parse("x", "0F0,0B0", 7, -1, 0, OUT(tess_pipeline)));
		ROW(tess_pipeline_parse("x", "0F0,0B0", 7, 0, 0, NULL));
		ROW(tess_pipeline_check(NULL));
		ROW(tess_pipeline_check(
			&(struct tess_pipeline){ "x", 1, 1, 1, 0, NULL, NULL, NULL }));
		ROW(tess_pipeline_simulate(NULL, NULL, OUT(tess_timeline)));
		ROW(tess_pipeline_read_times(NULL, "x", OUT(tess_pipeline_times)));
		ROW(tess_timeline_format(NULL, TESS_TIMELINE_TEXT, &text));
		NOTHING(tess_pipeline_close(NULL));
		NOTHING(tess_timeline_free(NULL));
		ROW(tess_values_new(NULL));
		ROW(tess_values_add(NULL, VALUE(.name = "x")));
		ROW(tess_values_add(on.values, NULL));
		ROW(tess_values_add(on.values, &(struct tess_value){ 0 }));
		ROW(tess_values_add(on.values, VALUE(.dtype = TESS_F32)));
		ROW(tess_values_add(on.values, VALUE(.name = "", .dtype = TESS_F32)));
		ROW(tess_values_add(on.values, VALUE(.name = "x", .dtype = 0)));
		ROW(tess_values_add(on.values, VALUE(.name = "x", .dtype = 99)));
		ROW(tess_values_add(on.values, VALUE(.name = "x", .dtype = TESS_F32, .ndim = -1)));
		ROW(tess_values_add(on.values, VALUE(.name = "x", .dtype = TESS_F32, .ndim = 9)));
		ROW(tess_values_add(on.values, VALUE(.name = "x", .dtype = TESS_F32, .ndim = 1,
		                                     .shape = { 2 })));
		ROW(tess_values_add(on.values, VALUE(.name = "x", .dtype = TESS_F32, .ndim = 1,
		                                     .data = numbers, .shape = { -1 })));
		ROW(tess_values_add(on.values, VALUE(.name = "x", .dtype = TESS_F32, .ndim = 2,
		                                     .data = numbers, .shape = { INT64_MAX, 4 })));
		ROW(tess_values_add(on.values,
		                    VALUE(.name = "number", .dtype = TESS_F32, .data = numbers)));
		GIVES(0, tess_values_count(NULL));
		ROW(tess_values_get(NULL, 0, VALUE(0)));
		ROW(tess_values_get(on.values, 0, NULL));
		ROW(tess_values_get(on.values, 0, &(struct tess_value){ 0 }));
		ROW(tess_values_get(on.values, -1, VALUE(0)));
		ROW(tess_values_get(on.values, 1, VALUE(0)));
		GIVES(-1, tess_values_find(NULL, "number"));
		GIVES(-1, tess_values_find(on.values, NULL));
		GIVES(-1, tess_values_find(on.values, "x"));
		GIVES(-1, tess_value_find_rank(NULL, 0, 0));
		GIVES(-1, tess_value_find_rank(VALUE(.holders = "1:0:"), 0, 0));
		GIVES('\0', *tess_values_get_numerics(NULL));
		ROW(tess_values_load(NULL, OUT(tess_values)));
		ROW(tess_values_load("/no/such/file", OUT(tess_values)));
		ROW(tess_values_load("/no/such/file", NULL));
		ROW(tess_values_save(NULL, "/no/such/file"));
		ROW(tess_values_save(on.values, NULL));
		ROW(tess_values_save(on.values, "/no/such/file"));
		NOTHING(tess_values_free(NULL));
		ROW(tess_session_take_values(NULL, OUT(tess_values)));
		ROW(tess_session_take_values(on.session, NULL));
		ROW(tess_session_take_values(on.session, OUT(tess_values)));
		ROW(tess_trainer_take_values(NULL, OUT(tess_values)));
		ROW(tess_trainer_take_values(on.trainer, NULL));
		ROW(tess_trainer_take_values(on.trainer, OUT(tess_values)));
		ROW(tess_values_compare(NULL, on.values, 0, OUT(tess_comparison)));
		ROW(tess_values_compare(on.values, NULL, 0, OUT(tess_comparison)));
		ROW(tess_values_compare(on.values, on.values, 0, NULL));
		ROW(tess_values_compare(on.values, on.values, -2, OUT(tess_comparison)));
		ROW(tess_values_compare(on.values, on.values, NAN, OUT(tess_comparison)));
		ROW(tess_values_compare(on.values, on.values, INFINITY, OUT(tess_comparison)));
		NOTHING(tess_comparison_free(NULL));
		ROW(tess_strategy_read("{}", NULL));
		ROW(tess_strategy_read("{\"plan\": 1}", OUT(tess_strategy)));
		NOTHING(tess_strategy_free(NULL));
		ROW(tess_strategy_check_ranks(NULL, 1));
		ROW(tess_strategy_check_ranks(STRATEGY(.mesh = "tp=2"), 3));
		ROW(tess_strategy_format(NULL, (char **)&nothing));
		ROW(tess_strategy_format(STRATEGY(.plan = NULL), (char **)&nothing));
		ROW(tess_strategy_format(STRATEGY(.threads = 0), NULL));
		ROW(tess_strategy_write(NULL, "/no/such/file"));
		ROW(tess_strategy_write(STRATEGY(.threads = 0), NULL));
		ROW(tess_planner_open(NULL, PLANNER(.machine = "h100"), OUT(tess_planner)));
		ROW(tess_planner_open(dir, NULL, OUT(tess_planner)));
		ROW(tess_planner_open(dir, PLANNER(.machine = NULL), OUT(tess_planner)));
		ROW(tess_planner_open(dir, PLANNER(.machine = "h100"), NULL));
		ROW(tess_planner_open(dir, PLANNER(.machine = "h100", .math = TESS_BF16),
		                      OUT(tess_planner)));
		ROW(tess_planner_open(dir, PLANNER(.machine = "h100", .math = TESS_F16),
		                      OUT(tess_planner)));
		ROW(tess_planner_forecast(NULL, STRATEGY(.mesh = "tp=2"),
		                          (const struct tess_forecast **)&nothing));
		ROW(tess_planner_search(NULL, 1, 1, (const struct tess_forecast *const **)&nothing,
		                        &number));
		ROW(tess_planner_explore(NULL, 1, 1, (const struct tess_forecast *const **)&nothing,
		                         &number));
		NOTHING(tess_planner_close(NULL));
		ROW(tess_strategy_write(STRATEGY(.threads = 0), "/no/such/file"));
	default:
		*name = "";
		return true;
	}
}

/* Runs a call in a process of its own; returns whether it behaves as required. */
static bool is_correct_call(int i)
{
	const char *name;
	pid_t child = fork();
	int status;

	if (!child) {
		bool correct;

		tess_fail(TESS_OK, "%s", "");
		correct = read_row(i, true, &name);
		if (!correct)
			fprintf(stderr, "row %d: %s: not refused\n", i + 1, name);
		_exit(!correct);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	if (WIFSIGNALED(status))
		fprintf(stderr, "row %d: signal %d\n", i + 1, WTERMSIG(status));
	return !status;
}

enum { ROWS = __COUNTER__ - FIRST };

static tess_status open_handles(struct tess_world *w)
{
	tess_status st = tess_mesh_open(w, "tp", &on.mesh);

	on.world = w;
	on.all = tess_world_group(w);
	if (st || (st = tess_session_open(on.mesh, dir, NULL, &on.session)) ||
	    (st = tess_dtensor_from_local(on.mesh, SPEC(0), NULL, &on.tensor)) ||
	    (st = tess_sequence_open(on.session, &on.sequence)) ||
	    (st = tess_trainer_open(on.mesh, dir, NULL, &on.trainer)) ||
	    (st = tess_tokenizer_open(dir, &on.tokenizer)) ||
	    (st = tess_chat_open(dir, "chatml", &on.chat)) ||
	    (st = tess_decode_stream_open(on.tokenizer, true, &on.stream)) ||
	    (st = tess_dataset_open(&texts, 1, DATASET(.tokenizer = dir), &on.dataset)) ||
	    (st = tess_explain(dir, "tp", 1, 1, NULL, &on.explanation)) ||
	    (st = tess_values_new(&on.values)) ||
	    (st = tess_values_add(on.values,
	                          VALUE(.name = "number", .dtype = TESS_F32, .data = numbers))) ||
	    (st = tess_sampler_new(512, &on.sampler)))
		return st;
	return tess_group_start(on.all, COLL(.root = 0), &on.work);
}

static tess_status make_all_calls(struct tess_world *w, void *arg)
{
	int *faults = arg;
	tess_status st = open_handles(w);

	for (int i = 0; i < ROWS && !st; i++)
		*faults += !is_correct_call(i);
	tess_work_release(on.work);
	tess_sampler_free(on.sampler);
	tess_explanation_free(on.explanation);
	tess_values_free(on.values);
	tess_dataset_close(on.dataset);
	tess_decode_stream_close(on.stream);
	tess_tokenizer_close(on.tokenizer);
	tess_chat_close(on.chat);
	tess_trainer_close(on.trainer);
	tess_session_close(on.session);
	tess_dtensor_free(on.tensor);
	tess_mesh_close(on.mesh);
	return st;
}

START_TEST(calls_are_refused)
{
	static char path[4096];
	int faults = 0;

	snprintf(path, sizeof path, "%s/texts/stories.jsonl", dir);
	texts = path;
	ck_assert(mkdtemp(saved));
	ck_assert_msg(!tess_world_spawn(1, make_all_calls, &faults), "%s", tess_error());
	ck_assert_int_eq(rmdir(saved), 0); /* nothing was saved */
	ck_assert_int_eq(faults, 0);
}
END_TEST

static bool has_row(const char *function)
{
	char call[160];
	const char *name;

	for (size_t i = 0; i < sizeof accept_anything / sizeof *accept_anything; i++)
		if (!strcmp(function, accept_anything[i]))
			return true;
	snprintf(call, sizeof call, "%s(", function);
	for (int i = 0; i < ROWS; i++) {
		read_row(i, false, &name);
		if (strstr(name, call))
			return true;
	}
	return false;
}

START_TEST(functions_have_rows)
{
	char word[128];
	FILE *f = fopen(getenv("LIBRARY_MAP"), "r");
	int n = 0;

	ck_assert(f);
	while (fscanf(f, "%*[^a-z]%127[a-z0-9_]", word) == 1)
		if (!strncmp(word, "tess_", 5)) {
			ck_assert_msg(has_row(word), "%s has no row in the table", word);
			n++;
		}
	fclose(f);
	ck_assert_int_gt(n, 80);
}
END_TEST

/* ---- handles that are closed while they are used --------------------------------------------- */

enum {
	CLOSE_SESSION,
	CLOSE_SEQUENCE,
	CLOSE_MESH,
	CLOSE_MESH_GROUP,
	CLOSE_WORLD_GROUP,
	CLOSE_WORLD
};
static const char *const close_messages[] = { "inside a callback",  "inside a callback",
	                                      "tess_mesh_close: ",  "tess_group_close: ",
	                                      "tess_group_close: ", "tess_world_close: " };

struct closing {
	int what;
	struct tess_world *world;
	struct tess_mesh *mesh;
	struct tess_session *session;
	struct tess_sequence *sequence;
};

static int close_in_callback(void *self, int64_t i, int32_t id, const float *row, const char *piece,
                             uint64_t n)
{
	struct closing *c = self;

	(void)i, (void)id, (void)row, (void)piece, (void)n;
	if (c->what == CLOSE_SESSION)
		tess_session_close(c->session);
	else if (c->what == CLOSE_SEQUENCE)
		tess_sequence_close(c->sequence);
	else if (c->what == CLOSE_MESH)
		tess_mesh_close(c->mesh);
	else if (c->what == CLOSE_MESH_GROUP)
		tess_group_close(tess_mesh_group(c->mesh, "dp"));
	else if (c->what == CLOSE_WORLD_GROUP)
		tess_group_close(tess_world_group(c->world));
	else
		tess_world_close(c->world);
	return TESS_GO_ON;
}

static tess_status close_while_generating(struct tess_world *w, void *arg)
{
	struct closing c = { .what = *(int *)arg, .world = w };
	const struct tess_request request = {
		.size = sizeof request, .ids = ids, .nids = 3, .max_tokens = 3
	};
	tess_status st = tess_mesh_open(w, "dp=1,tp", &c.mesh), closing;

	if (!st)
		st = tess_session_open(c.mesh, dir, NULL, &c.session);
	if (!st)
		st = tess_sequence_open(c.session, &c.sequence);
	if (!st)
		st = tess_session_generate(c.session, (const struct tess_request *[]){ &request },
		                           1,
		                           GENERATION(.self = &c, .on_token = close_in_callback));
	closing = st ? st : tess_fail(TESS_EBUG, "closing was not refused");
	tess_sequence_close(c.sequence);
	tess_session_close(c.session);
	tess_mesh_close(c.mesh);
	return closing;
}

/* Checks that each refused close fails the generation, and leaves the memory in use. */
START_TEST(closes_are_refused)
{
	struct tess_world *w;
	int what = _i;
	tess_status st;

	if (what != CLOSE_WORLD) {
		st = tess_world_spawn(1 + what % 2, close_while_generating, &what);
	} else {
		ck_assert(!tess_world_open(&w));
		st = close_while_generating(w, &what);
		tess_world_close(w);
	}
	ck_assert_int_eq(st, TESS_EINVAL);
	expect_part(tess_error(), close_messages[what]);
}
END_TEST

int main(void)
{
	SRunner *runner;
	TCase *tcase = suite_begin("refusals", 120, &runner);

	dir = getenv("DATA_DIR");
	tcase_add_test(tcase, calls_are_refused);
	tcase_add_test(tcase, functions_have_rows);
	tcase_add_loop_test(tcase, closes_are_refused, 0, CLOSE_WORLD + 1);
	return suite_end(runner);
}
