/*
 * test_plugins.c - defective plugins, and logits from which no token can be chosen. Each gives one
 * message, equal on all ranks. It names the plugin, its function and the module, or the module, the
 * rank and the element.
 */
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "tests/support/spawn.h"
#include "tests/support/suite.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <tessera/tessera.h>

#define MODULE "model.layers.1.mlp.up_proj"

enum { RANKS = 2, RANKS_MAX = 4 };

struct outcome {
	const char *mesh, *plan, *override, *prompt;
	int32_t n; /* number of ranks */
	tess_status st[RANKS_MAX];
	char sentence[RANKS_MAX][1200];
};

struct failure { /* on rank 0: the failure of a request, which is not sent to the other ranks */
	tess_status st;
	char sentence[1024];
};

static int keep_failure(void *self, int64_t i, const struct tess_result *r, const char *text,
                        uint64_t n)
{
	struct failure *f = self;

	(void)i, (void)text, (void)n;
	f->st = r->status;
	if (r->sentence)
		snprintf(f->sentence, sizeof f->sentence, "%s", r->sentence);
	return TESS_GO_ON;
}

static tess_status generate_two_ids(struct tess_session *s, const char *prompt)
{
	struct tess_request ask = {
		.size = sizeof ask, .text = prompt, .ntext = strlen(prompt), .max_tokens = 2
	};
	const struct tess_request *const list[] = { &ask };
	struct failure f = { 0 };
	struct tess_generation how = { .size = sizeof how, .self = &f, .on_end = keep_failure };
	tess_status st = tess_session_generate(s, list, 1, &how);

	return st || !f.st ? st : tess_fail(f.st, "%s", f.sentence);
}

/* Generates on each rank alone: its message must not come from another rank's tess_world_fail. */
static tess_status generate_in_session(struct tess_world *w, void *arg)
{
	struct outcome *o = arg;
	const char *overrides[] = { o->override, NULL };
	struct tess_session_options how = {
		.size = sizeof how, .threads = 1, .plan = o->plan, .overrides = overrides
	};
	struct tess_session *session = NULL;
	int32_t me = tess_world_rank(w);
	struct tess_mesh *mesh = NULL;
	tess_status st = tess_mesh_open(w, o->mesh, &mesh);

	if (!st)
		st = tess_session_open(mesh, SOURCE_ROOT "/data", &how, &session);
	if (!st)
		st = generate_two_ids(session, o->prompt ? o->prompt : "One day");
	o->st[me] = st;
	snprintf(o->sentence[me], sizeof o->sentence[me], "%s", st ? tess_error() : "");
	if (!tess_barrier(tess_world_group(w), "after the failure") && o->prompt && session)
		st = generate_two_ids(session, "One day");
	tess_session_close(session);
	tess_mesh_close(mesh);
	return o->prompt ? st : TESS_OK;
}

static struct outcome generate_on_all_ranks(const char *override, const char *prompt)
{
	struct outcome o = { .mesh = "tp", .n = RANKS, .override = override, .prompt = prompt };

	spawn_ranks(RANKS, generate_in_session, &o);
	return o;
}

/* Checks the message of all ranks; `says`: parts, separated by |. */
static void expect_ranks_say(const struct outcome *o, int n, tess_status why, const char *says)
{
	char parts[512];

	for (int r = 0; r < n; r++) {
		ck_assert_msg(o->st[r] == why, "rank %d: %s: %s", r, tess_status_name(o->st[r]),
		              o->sentence[r]);
		ck_assert_str_eq(o->sentence[r], o->sentence[0]);
		snprintf(parts, sizeof parts, "%s", says);
		for (char *p = strtok(parts, "|"); p; p = strtok(NULL, "|"))
			expect_part(o->sentence[r], p);
	}
}

static void expect_all_say(const struct outcome *o, tess_status why, const char *says)
{
	expect_ranks_say(o, o->n, why, says);
}

static const struct defect {
	const char *config, *says;
	tess_status why;
} defects[] = {
	{ "layout=7", "layout() returned 7", TESS_EABI },
	{ "layout=-99", "layout() returned -99", TESS_EABI },
	{ "layout=silent", "layout() failed (TESS_EIO) without a sentence", TESS_EIO },
	{ "partition=7", "partition_param() returned 7", TESS_EABI },
	{ "open=7", "open() returned 7", TESS_EABI },
	{ "input=7", "prepare_input() returned 7", TESS_EABI },
	{ "input=silent", "prepare_input() failed (TESS_EIO) without a sentence", TESS_EIO },
	{ "input=null", "prepare_input() left no value", TESS_EABI },
	{ "output=null", "prepare_output() left no value", TESS_EABI },
	{ "call=7", "compute() returned 7", TESS_EABI },
	{ "call=silent", "compute() failed (TESS_EIO) without a sentence", TESS_EIO },
};

START_TEST(style_is_named)
{
	char override[128], says[256];
	struct outcome o;

	snprintf(override, sizeof override, MODULE "=defective:%s", defects[_i].config);
	snprintf(says, sizeof says, MODULE "|style defective|%s", defects[_i].says);
	o = generate_on_all_ranks(override, NULL);
	expect_all_say(&o, defects[_i].why, says);
	if (!strstr(defects[_i].config, "null"))
		expect_all_say(&o, defects[_i].why, "tess-style-defective.so");
}
END_TEST

START_TEST(device_is_named)
{
	struct outcome o;

	ck_assert(!setenv("TESSERA_DEVICE", "defective", 1));
	ck_assert(!setenv("DEFECT", _i ? "open=silent" : "open=7", 1));
	o = generate_on_all_ranks(NULL, NULL);
	expect_all_say(&o, _i ? TESS_EIO : TESS_EABI,
	               _i ? "device defective|tess-device-defective.so|open() failed (TESS_EIO)"
	                  : "device defective|tess-device-defective.so|open() returned 7");
}
END_TEST

static tess_status call_one_barrier(struct tess_world *w, void *arg)
{
	(void)arg;
	return tess_barrier(tess_world_group(w), "layers.3");
}

START_TEST(backend_is_named)
{
	static const char *const functions[] = { "open", "start", "wait" };
	char defect[32], says[64];

	snprintf(defect, sizeof defect, "%s=%s", functions[_i / 2], _i % 2 ? "silent" : "7");
	snprintf(says, sizeof says, "%s() %s", functions[_i / 2],
	         _i % 2 ? "failed (TESS_EIO) without a sentence" : "returned 7");
	ck_assert(!setenv("TESSERA_BACKEND", "defective", 1));
	ck_assert(!setenv("DEFECT", defect, 1));
	ck_assert_int_eq(tess_world_spawn_threads(RANKS, call_one_barrier, NULL),
	                 _i % 2 ? TESS_EIO : TESS_EABI);
	expect_part(tess_error(), says);
	expect_part(tess_error(), "tess-backend-defective.so");
}
END_TEST

/* ---- plugins of the program ------------------------------------------------------------------ */

static atomic_int nasked; /* ops that the wrapper was asked for */

static tess_status support_nothing(const struct tess_op *op)
{
	(void)op;
	nasked++;
	return TESS_ENOTSUP;
}

static tess_status run_unsupported(void *self, const struct tess_op *op)
{
	(void)self, (void)op;
	return TESS_EBUG;
}

static tess_status wrap_nothing(const char *inner, const struct tess_device **out)
{
	static const struct tess_device table = { .size = sizeof table,
		                                  .supports = support_nothing,
		                                  .run = run_unsupported,
		                                  .exact = 1 };

	(void)inner;
	*out = &table;
	return TESS_OK;
}

static struct tess_backend own_threads; /* copies of loopback and cpu */
static struct tess_device own_cpu;
static const struct tess_device asking = { .size = sizeof asking,
	                                   .name = "asking",
	                                   .wrap = wrap_nothing };
static const struct tess_plugin own = { .abi = TESS_ABI,
	                                .size = sizeof own,
	                                .name = "own",
	                                .version = "1.0",
	                                .license = "MIT",
	                                .backends = TESS_LIST(tess_backend, &own_threads),
	                                .devices = TESS_LIST(tess_device, &own_cpu, &asking) };

/* Runs a model over a backend and on devices that the program registers, and over a wrapper. */
START_TEST(plugins_of_the_program_run)
{
	static const char *const devices[] = { "own_cpu", "asking:cpu", "asking:own_cpu" },
				 *const names[] = { "own_threads", "faulty:own_threads" };
	const struct tess_backend *threads;
	const struct tess_device *cpu;
	struct outcome o;

	ck_assert(!tess_plugin_find_backend("loopback", &threads));
	ck_assert(!tess_plugin_find_device("cpu", &cpu));
	own_threads = *threads;
	own_threads.name = "own_threads";
	own_cpu = *cpu;
	own_cpu.name = "own_cpu";
	ck_assert_msg(!tess_registry_add(&own), "%s", tess_error());
	for (int i = 0; i < 3; i++) {
		ck_assert(!setenv("TESSERA_DEVICE", devices[i], 1));
		ck_assert(!setenv("TESSERA_BACKEND", names[i % 2], 1));
		o = generate_on_all_ranks(NULL, NULL);
		expect_all_say(&o, TESS_OK, "");
		ck_assert_int_eq(nasked > 0, i > 0);
	}
	ck_assert(!setenv("TESSERA_DEVICE", "askin:cpu", 1));
	o = generate_on_all_ranks(NULL, NULL);
	expect_all_say(&o, TESS_ENOENT, "device askin|not found|asking");
}
END_TEST

/* ---- values ---------------------------------------------------------------------------------- */

static const struct {
	const char *check, *override, *says;
	tess_status why;
} bad_values[] = {
	/* "One day" is 3 ids with the initial one: the second last row is row 1 */
	{ "1", MODULE "=defective:drift",
	  MODULE ": call gives|on rank 1 but|on rank 0, at row 1, column 2,|same value; style "
	         "defective (/|/tess-style-defective.so) makes them differ",
	  TESS_EMISMATCH },
	/* columns count in the full value: rank 1 holds the second half of 172 */
	{ "1", MODULE "=defective:nan",
	  MODULE ": call gives NaN on rank 1, at row 1, column 88:|weights, and style defective (/",
	  TESS_EINVAL },
};

START_TEST(bad_value_is_found)
{
	struct outcome o;

	ck_assert(!setenv("TESSERA_CHECK", bad_values[_i].check, 1));
	o = generate_on_all_ranks(bad_values[_i].override, NULL);
	expect_all_say(&o, bad_values[_i].why, bad_values[_i].says);
}
END_TEST

/* Checks that ranks along xp must hold equal pieces of tp: ranks 1 and 3 differ from 0 and 2. */
START_TEST(bad_value_is_found_on_a_mesh)
{
	struct outcome o = { .mesh = "tp=2,xp=2",
		             .n = 4,
		             .plan = "{\"**.up_proj\":\"colwise\",\"**.gate_proj\":\"colwise\","
		                     "\"**.down_proj\":\"rowwise\"}",
		             .override = "xp:" MODULE "=defective:drift" };

	ck_assert(!setenv("TESSERA_CHECK", "1", 1));
	spawn_ranks(4, generate_in_session, &o);
	expect_all_say(&o, TESS_EMISMATCH,
	               MODULE ": call gives|on rank 1 but|on rank 0, at row 1, column 2,");
}
END_TEST

/* Checks that the failure of one request is reported on rank 0. */
START_TEST(request_fails_alone)
{
	struct outcome o = generate_on_all_ranks("model.norm=defective:nan_all", NULL);

	/* logits that are NaN give no token */
	expect_ranks_say(&o, 1, TESS_EINVAL, "512 of the 512 logits|at position 3 |NaN|--check");
	ck_assert_int_eq(o.st[1], TESS_OK);
	/* the session stays usable: generate_in_session() generates again */
	o = generate_on_all_ranks(NULL, "One \xff\xfe");
	expect_ranks_say(&o, 1, TESS_EINVAL, "the text is not UTF-8 at its byte 4");
	ck_assert_int_eq(o.st[1], TESS_OK);
}
END_TEST

int main(void)
{
	SRunner *runner;
	TCase *tcase = suite_begin("plugins", 60, &runner);

	tcase_add_loop_test(tcase, style_is_named, 0, sizeof defects / sizeof *defects);
	tcase_add_loop_test(tcase, device_is_named, 0, 2);
	tcase_add_loop_test(tcase, backend_is_named, 0, 6);
	tcase_add_test(tcase, plugins_of_the_program_run);
	tcase_add_loop_test(tcase, bad_value_is_found, 0, sizeof bad_values / sizeof *bad_values);
	tcase_add_test(tcase, bad_value_is_found_on_a_mesh);
	tcase_add_test(tcase, request_fails_alone);
	return suite_end(runner);
}
