/*
 * Checkpoints and logits made by transformers in float64: generate --logits on the real device,
 * greedy ids, and one digest for every number of ranks that the geometry allows; every other
 * number is refused, and the possible ones are named.
 */
#include "../unit/command.h"
#include "../unit/suite.h"
#include "hf/safetensors.h"

#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tessera/tessera.h>
#include <unistd.h>

enum { TOKENS = 24, RANKS_MAX = 10 };

static const char *const names[] = { "llama", "llama-odd", "llama-bf16" };
/*
 * The digest of prompt 1: another digest means another order of sums, which changes the
 * specification.
 */
static const char *const digests[] = {
	"b580d3ea196d7115cec5f19fe9b8bdb5be01042d34e790226e7e80f413b533e5",
	"21c5c437f9c4964ebffbf0291326e2d11c124550c31394112e542d8c45fa9063",
	"9d3956f484f182b93703d4a6808e33165df81323ca9c310b291fd4b445d6ae67"
};

static json_t *load_golden_json(const char *name, const char *file)
{
	char path[512];
	json_t *o;

	snprintf(path, sizeof path, "%s/tests/data/goldens/%s/%s", SOURCE_ROOT, name, file);
	o = json_load_file(path, 0, NULL);
	ck_assert(o != NULL);
	return o;
}

static struct tess_safetensors *load_goldens(const char *name)
{
	char path[512];
	struct tess_safetensors *f;

	snprintf(path, sizeof path, "%s/tests/data/goldens/%s/golden.safetensors", SOURCE_ROOT,
	         name);
	ck_assert_msg(!tess_safetensors_open(path, false, &f), "%s", tess_error());
	return f;
}

static const struct tess_slice *find_golden_tensor(const struct tess_safetensors *f,
                                                   const char *fmt, int prompt)
{
	const struct tess_slice *s;
	char key[64];

	snprintf(key, sizeof key, fmt, prompt);
	s = tess_safetensors_find(f, key);
	ck_assert_msg(s != NULL, "%s is missing", key);
	return s;
}

/* Runs the command with `ids`: its exit status in *status, its stderr in `said`. */
static json_t *run_generate_json(const char *name, const struct tess_slice *ids, int ranks,
                                 const char *more, int *status, char said[1024])
{
	char command[4096], errors[64] = "/tmp/test_goldens.XXXXXX";
	int fd = mkstemp(errors);
	json_t *o;
	size_t n;
	FILE *f;

	ck_assert(fd >= 0);
	snprintf(
		command, sizeof command,
		"'%s' generate '%s/tests/data/goldens/%s' -n %d --backend loopback --temperature 0 "
		"--ignore-eos --max-tokens %d --json %s 2>%s --ids ",
		TESSERA, SOURCE_ROOT, name, ranks, TOKENS, more, errors);
	for (int64_t i = 0; i < ids->shape[0]; i++)
		snprintf(command + strlen(command), sizeof command - strlen(command), "%s%lld",
		         i ? "," : "", (long long)((const int64_t *)ids->data)[i]);
	f = popen(command, "r");
	o = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL);
	*status = pclose(f);
	f = fdopen(fd, "r");
	n = fread(said, 1, 1023, f);
	said[n] = 0;
	fclose(f);
	unlink(errors);
	return o;
}

static double get_torch_error(const json_t *about, int prompt)
{
	char key[64];

	snprintf(key, sizeof key, "prompt%d.logits", prompt);
	return json_real_value(json_array_get(
		json_object_get(json_object_get(about, "float32_torch_error_max_abs_and_relative"),
	                        key),
		0));
}

START_TEST(logits)
{
	const char *name = names[_i / 3];
	int prompt = _i % 3, status;
	struct tess_safetensors *g = load_goldens(name), *have;
	const struct tess_slice *ids = find_golden_tensor(g, "prompt%d.ids", prompt),
				*want = find_golden_tensor(g, "prompt%d.logits_f64", prompt);
	const struct tess_slice *greedy = find_golden_tensor(g, "greedy%d.ids", prompt), *rows;
	json_t *about = load_golden_json(name, "golden.json"), *out;
	char said[1024], path[64] = "/tmp/test_goldens.XXXXXX", more[128];
	double error = 0;

	close(mkstemp(path));
	snprintf(more, sizeof more, "--logits %s --prefill-chunk 5", path);
	out = run_generate_json(name, ids, 3, more, &status, said);
	ck_assert_msg(!status && out, "%s", said);
	for (int64_t i = 0; i < greedy->shape[0] && i < TOKENS; i++)
		ck_assert_int_eq(
			json_integer_value(json_array_get(json_object_get(out, "ids"), (size_t)i)),
			((const int64_t *)greedy->data)[i]);
	ck_assert_msg(!tess_safetensors_open(path, false, &have), "%s", tess_error());
	rows = tess_safetensors_find(have, "logits");
	ck_assert(rows && rows->dtype == TESS_F32 && rows->ndim == 2);
	ck_assert_int_eq(rows->shape[0], ids->shape[0] + TOKENS - 1);
	ck_assert_int_eq(rows->shape[1], want->shape[1]);
	for (int64_t i = 0; i < want->shape[0] * want->shape[1]; i++)
		error = fmax(error, fabs((double)((const float *)rows->data)[i] -
		                         (double)((const float *)want->data)[i]));
	ck_assert_msg(error <= 3 * get_torch_error(about, prompt), "error %g, torch float32 %g",
	              error, get_torch_error(about, prompt));
	tess_safetensors_close(have);
	tess_safetensors_close(g);
	unlink(path);
	json_decref(out);
	json_decref(about);
}
END_TEST

START_TEST(every_number_of_ranks)
{
	const char *name = names[_i];
	struct tess_safetensors *g = load_goldens(name);
	const struct tess_slice *ids = find_golden_tensor(g, "prompt%d.ids", 1);
	json_t *config = load_golden_json(name, "config.json"), *first = NULL;
	int heads = (int)json_integer_value(json_object_get(config, "num_attention_heads"));
	char said[1024], want[64];

	snprintf(want, sizeof want, "use 1 to %d", heads);
	for (int n = 1; n <= RANKS_MAX; n++) {
		int status;
		/* on some ranks the head is cut and its table is not */
		const char *plan = n % 2 ? "" : "--plan '{\"lm_head\":\"colwise_rep\"}'";
		json_t *out = run_generate_json(name, ids, n, n > heads ? "" : plan, &status, said);

		if (n > heads) {
			ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1 &&
			                      strstr(said, want),
			              "%d ranks: %s", n, said);
			continue;
		}
		ck_assert_msg(!status && out, "%d ranks: %s", n, said);
		if (!first)
			first = json_incref(out);
		ck_assert_str_eq(json_string_value(json_object_get(out, "digest")), digests[_i]);
		ck_assert_msg(json_equal(json_object_get(out, "digest"),
		                         json_object_get(first, "digest")),
		              "%d ranks", n);
		json_decref(out);
	}
	json_decref(first);
	json_decref(config);
	tess_safetensors_close(g);
}
END_TEST

/* The digest of script/demo, shown in README.md. */
START_TEST(documented_digest)
{
	char said[256];

	ck_assert_int_eq(command_run(said, sizeof said,
	                             "'" TESSERA "' generate '" SOURCE_ROOT
	                             "/data' --prompt 'Once upon a time' --temperature 0 "
	                             "--max-tokens 127 -n 3 --backend loopback --digest "
	                             "2>&1 >/dev/null"),
	                 0);
	expect_part(said, "digest 116fd1c99b8648b2");
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("goldens", 120, &r);

	tcase_add_loop_test(t, logits, 0, 9);
	tcase_add_loop_test(t, every_number_of_ranks, 0, 3);
	tcase_add_test(t, documented_digest);
	srunner_set_fork_status(r, CK_NOFORK);
	return suite_end(r);
}
