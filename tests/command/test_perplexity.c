/*
 * test_perplexity.c - tessera perplexity by its command line: its number follows from the logits of
 * tessera generate, on any ranks, with windows and several texts; and the cost of 8-bit weights on
 * the shipped texts.
 */
#include "hf/safetensors.h"
#include "tests/support/command.h"
#include "tests/support/scratch.h"

#include <jansson.h>
#include <math.h>
#include <tessera/tessera.h>

static const char *const texts[] = { "Once upon a time there was a cat. It sat on a mat.",
	                             "One day Tom saw a big red ball. \"Hi!\" he said." };

/* Writes texts.jsonl, and one.txt with the first. */
static void write_texts(void)
{
	char path[512];
	FILE *f;

	snprintf(path, sizeof path, "%s/texts.jsonl", scratch);
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	for (int i = 0; i < 2; i++) {
		json_t *o = json_pack("{s:s}", "text", texts[i]);
		char *line = json_dumps(o, 0);

		fprintf(f, "%s\n", line);
		free(line);
		json_decref(o);
	}
	ck_assert_int_eq(fclose(f), 0);
	snprintf(path, sizeof path, "%s/one.txt", scratch);
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	fputs(texts[0], f);
	ck_assert_int_eq(fclose(f), 0);
}

/* Returns the member `name` of the output with `options`. */
static double run_perplexity(const char *name, const char *options)
{
	char out[512];
	json_t *o;
	double value;

	ck_assert_msg(!command_run(out, sizeof out,
	                           "cd '%s' && '%s' perplexity %s/data --json %s 2>&1", scratch,
	                           TESSERA, SOURCE_ROOT, options),
	              "%s: %s", options, out);
	o = json_loads(out, 0, NULL);
	ck_assert_msg(o != NULL, "%s: %s", options, out);
	value = json_number_value(json_object_get(o, name));
	json_decref(o);
	return value;
}

/*
 * Adds the losses of a text, from the logits that generate writes: the sum of -log p of ids 1, 2,
 * ...
 */
static double add_losses(const char *text, int64_t *count)
{
	struct tess_safetensors *f;
	struct tess_tokenizer *t;
	const struct tess_slice *s;
	double sum = 0;
	float *logits;
	int32_t *ids;
	size_t n;
	char path[512], out[512];

	snprintf(path, sizeof path, "%s/logits.safetensors", scratch);
	ck_assert_msg(!command_run(out, sizeof out,
	                           "'%s' generate %s/data --prompt '%s' --max-tokens 0 --logits "
	                           "'%s' 2>&1",
	                           TESSERA, SOURCE_ROOT, text, path),
	              "%s", out);
	ck_assert(!tess_tokenizer_open(SOURCE_ROOT "/data", &t));
	ck_assert(!tess_tokenizer_encode(t, text, strlen(text), true, &ids, &n));
	ck_assert(!tess_safetensors_open(path, false, &f));
	s = tess_safetensors_find(f, "logits");
	ck_assert(s && s->shape[0] == (int64_t)n);
	logits = malloc(s->bytes);
	ck_assert(!tess_safetensors_read(f, s, 0, s->bytes, logits));
	for (size_t i = 0; i + 1 < n; i++) {
		const float *row = logits + i * (size_t)s->shape[1];
		double all = 0;

		for (int64_t k = 0; k < s->shape[1]; k++)
			all += exp((double)row[k]);
		sum += log(all) - (double)row[ids[i + 1]];
	}
	*count += (int64_t)n - 1;
	free(logits);
	free(ids);
	tess_safetensors_close(f);
	tess_tokenizer_close(t);
	return sum;
}

static void mark_texts(void)
{
	char out[512];

	ck_assert_msg(
		!command_run(out, sizeof out,
	                     "cd '%s' && for f in one.txt texts.jsonl; do "
	                     "{ printf '\\357\\273\\277'; cat $f; } >marked.${f#*.}; done 2>&1",
	                     scratch),
		"%s", out);
}

START_TEST(is_that_of_the_logits)
{
	int64_t one = 0, all = 0;
	double first = add_losses(texts[0], &one), want;
	char out[256];

	all = one;
	want = (first + add_losses(texts[1], &all)) / (double)all;
	MUST(fabs(run_perplexity("loss", "--text one.txt") - first / (double)one) < 1e-8);
	MUST(fabs(run_perplexity("loss", "--text texts.jsonl") - want) < 1e-8);
	MUST(fabs(run_perplexity("perplexity", "--text texts.jsonl") - exp(want)) < 1e-7);
	ck_assert_int_eq((int64_t)run_perplexity("tokens", "--text texts.jsonl"), all);
	ck_assert_int_eq((int64_t)run_perplexity("windows", "--text texts.jsonl"), 2);
	/* a byte order mark is not part of the text */
	mark_texts();
	MUST(fabs(run_perplexity("loss", "--text marked.txt") - first / (double)one) < 1e-8);
	MUST(fabs(run_perplexity("loss", "--text marked.jsonl") - want) < 1e-8);
	ck_assert_int_eq((int64_t)run_perplexity("tokens", "--text texts.jsonl --text one.txt"),
	                 all + one);
	/* nor are the bytes of a file changed; U+0000 of a line is a character */
	ck_assert(!command_run(out, sizeof out,
	                       "cd '%s' && printf 'a\\000b' >nul.txt && "
	                       "printf '{\"text\": \"a\\\\u0000b\"}' >nul.jsonl",
	                       scratch));
	MUST(run_perplexity("loss", "--text nul.txt") ==
	     run_perplexity("loss", "--text nul.jsonl"));
	/* windows of two ids: each is predicted from one */
	ck_assert_int_eq((int64_t)run_perplexity("tokens", "--text one.txt --window 2"),
	                 (one + 1) / 2);
	MUST(run_perplexity("loss", "--text one.txt --window 2") > first / (double)one);
}
END_TEST

START_TEST(one_number)
{
	static const char *const ways[] = { "-n 3 --backend loopback",
		                            "-n 2 --backend shm --threads 2",
		                            "-n 4 --mesh dp=2,tp=2",
		                            "-n 2 --backend shm --mesh dp=2" };
	static const char *const weights[] = { "", "--weights q8", "--weights mxfp4" };
	char options[256], out[2][512];

	for (int w = 0; w < 3; w++) {
		for (int i = -1; i < 4; i++) {
			snprintf(options, sizeof options, "--text texts.jsonl --window 9 %s %s",
			         weights[w], i < 0 ? "" : ways[i]);
			ck_assert(!command_run(out[i >= 0], sizeof out[0],
			                       "cd '%s' && '%s' perplexity %s/data %s", scratch,
			                       TESSERA, SOURCE_ROOT, options));
			ck_assert_ptr_nonnull(strstr(out[0], "perplexity "));
			ck_assert_msg(i < 0 || !strcmp(out[0], out[1]), "%s: %s", options, out[1]);
		}
	}
}
END_TEST

/*
 * Checks the numbers of docs/ops.md, whose last digits depend on the math library. With a sanitizer
 * only a few texts are used, with larger differences.
 */
START_TEST(eight_bits_cost_little)
{
	char text[512], options[640];
	double file, q8;

	command_run(text, sizeof text, "head -n %d " SOURCE_ROOT "/data/texts/stories.jsonl >'%s'",
	            THIN > 1 ? 5 : 9999, scratch_format_path("some.jsonl"));
	snprintf(text, sizeof text, "--text '%s' --window 256", scratch_format_path("some.jsonl"));
	file = run_perplexity("perplexity", text);
	snprintf(options, sizeof options, "%s --weights q8", text);
	q8 = run_perplexity("perplexity", options);
	ck_assert_msg(q8 != file && fabs(q8 / file - 1) < (THIN > 1 ? 0.01 : 0.001),
	              "%.9g in 8 bits, %.9g in f32", q8, file);
}
END_TEST

START_TEST(bad_input)
{
	static const struct {
		const char *options, *says;
	} bad[] = {
		{ "", "give --text FILE" },
		{ "--text nowhere", "--text nowhere: No such file" },
		{ "--text one.txt --window 513",
		  "--window 513: a sequence has at most 512 positions" },
		{ "--text one.txt --window 2 --kv-memory 64K",
		  "perplexity: a window of 2 ids needs 0.08 MiB of KV cache, and 0.06 MiB are "
		  "free; use a smaller --window, or a larger --kv-memory\n" },
		{ "--text one.txt --window 1", "--window 1: must be a whole number from 2" },
		{ "--text bad.jsonl -n 2", "--text bad.jsonl: line 2: must be an object with" },
		{ "--text cut.jsonl", "--text cut.jsonl: line 1:1:10: not valid JSON: " },
		{ "--text latin.txt", "--text latin.txt: the text is not UTF-8 at its byte 1" },
		{ "--text one.txt --text empty.txt",
		  "--text empty.txt: no text of two ids or more" },
	};
	char out[1024];

	ck_assert(!command_run(out, sizeof out,
	                       "cd '%s' && : >empty.txt && printf 'a\\377' >latin.txt && "
	                       "printf '{\"text\": \"a b\"}\\n[]\\n' >bad.jsonl && "
	                       "printf '{\"text\": \"\\n' >cut.jsonl",
	                       scratch));
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		ck_assert(command_run(out, sizeof out, "cd '%s' && '%s' perplexity %s/data %s 2>&1",
		                      scratch, TESSERA, SOURCE_ROOT, bad[i].options));
		expect_part(out, bad[i].says);
		ck_assert_int_eq(count_occurrences(out, "\n"), 1);
	}
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("perplexity", 120, &r);
	int failed;

	scratch_make();
	tcase_add_checked_fixture(t, write_texts, NULL);
	tcase_add_test(t, is_that_of_the_logits);
	tcase_add_test(t, one_number);
	tcase_add_test(t, eight_bits_cost_little);
	tcase_add_test(t, bad_input);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}
