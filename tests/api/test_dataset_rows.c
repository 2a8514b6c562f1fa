/*
 * test_dataset_rows.c - rows of data sets: ids and labels of completions and conversations, as trl
 * has them; texts; rows that are skipped or refused.
 */
#include "tests/hf/tokens.h"
#include "tests/support/draw.h"
#include "tests/support/scratch.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <tessera/tessera.h>

enum { VOCABULARY = 60000, LONGEST = 1024 };

/* Writes tokenizer.json and tokenizer_config.json of a case into the scratch directory. */
static void write_tokenizer(const json_t *about)
{
	const char *base = json_string_value(json_object_get(about, "base")), *key;
	json_t *root = !strcmp(base, "gpt2") ? tokens_make_gpt2()
	                                     : tokens_load_json(format_data_path("tokenizer.json"));
	json_t *config = json_object(), *value;
	char *text;

	json_object_foreach(json_object_get(about, "set"), key, value) {
		if (!strcmp(key, "added_tokens"))
			json_array_extend(json_object_get(root, key), value);
		else
			json_object_set(root, key, value);
	}
	json_object_set(config, "bos_token", json_object_get(about, "bos"));
	json_object_set(config, "eos_token", json_object_get(about, "eos"));
	text = json_dumps(root, JSON_COMPACT);
	scratch_write_text("tokenizer.json", text);
	free(text);
	text = json_dumps(config, JSON_COMPACT);
	scratch_write_text("tokenizer_config.json", text);
	free(text);
	json_decref(root);
	json_decref(config);
}

static struct tess_dataset *open_rows(const char *name, const char *text,
                                      struct tess_dataset_options options)
{
	const char *file = scratch_write_text(name, text);
	struct tess_dataset *d = NULL;

	options.size = sizeof options;
	options.tokenizer = scratch;
	options.vocabulary = VOCABULARY;
	ck_assert_msg(!tess_dataset_open(&file, 1, &options, &d), "%s", tess_error());
	return d;
}

static void expect_refused_rows(const char *name, const char *text,
                                struct tess_dataset_options options, const char *part)
{
	const char *file = scratch_write_text(name, text);
	struct tess_dataset *d = NULL;

	options.size = sizeof options;
	options.tokenizer = scratch;
	options.vocabulary = VOCABULARY;
	ck_assert_int_lt(tess_dataset_open(&file, 1, &options, &d), 0);
	ck_assert_ptr_null(d);
	expect_part(tess_error(), part);
}

static struct tess_dataset_labels count_labels(const struct tess_dataset *d)
{
	struct tess_dataset_labels l = { .size = sizeof l };

	tess_dataset_count_labels(d, &l);
	return l;
}

/* ---- goldens --------------------------------------------------------------------------------- */

/* Compares sequence i with a golden row: the row, its ids, and 1 for each that counts. */
static void check_golden_row(const struct tess_dataset *d, int64_t i, const json_t *row,
                             bool masked)
{
	const json_t *want = json_array_get(row, 1), *counts = json_array_get(row, 2);
	char *text = json_dumps(json_array_get(row, 0), 0);
	int32_t ids[LONGEST], labels[LONGEST];
	int64_t n;

	ck_assert(!tess_dataset_read_labels(d, i, ids, labels, &n));
	ck_assert_msg((size_t)n == json_array_size(want), "%s: %lld ids", text, (long long)n);
	for (int64_t k = 0; k < n; k++) {
		int32_t id = (int32_t)json_integer_value(json_array_get(want, (size_t)k));
		bool counted = !masked || json_integer_value(json_array_get(counts, (size_t)k));

		ck_assert_msg(ids[k] == id, "%s: id %lld: %d, not %d", text, (long long)k, ids[k],
		              id);
		ck_assert_msg(labels[k] == (counted ? id : -100), "%s: label %lld: %d", text,
		              (long long)k, labels[k]);
	}
	free(text);
}

static bool has_label(const json_t *row)
{
	const json_t *counts = json_array_get(row, 2);
	bool has = false;

	for (size_t i = 1; i < json_array_size(counts); i++)
		has |= json_integer_value(json_array_get(counts, i)) != 0;
	return has;
}

static void check_case(const json_t *about, int32_t loss)
{
	const json_t *rows = json_object_get(about, "rows"), *row;
	struct tess_dataset_options options = {
		.sequence = LONGEST,
		.separate = 1,
		.loss = loss,
		.chat_template = json_string_value(json_object_get(about, "template")),
	};
	char lines[1 << 14] = "";
	struct tess_dataset *d;
	int64_t n = 0;
	size_t i;

	write_tokenizer(about);
	json_array_foreach(rows, i, row) {
		char *text = json_dumps(json_array_get(row, 0), JSON_COMPACT);

		strcat(strcat(lines, text), "\n");
		free(text);
	}
	d = open_rows("rows.jsonl", lines, options);
	json_array_foreach(rows, i, row) {
		if (loss == TESS_LOSS_ALL || has_label(row))
			check_golden_row(d, n++, row, loss == TESS_LOSS_AUTO);
	}
	ck_assert_int_eq(count_labels(d).rows, json_array_size(rows));
	ck_assert_int_eq(count_labels(d).skipped, (int64_t)json_array_size(rows) - n);
	ck_assert_int_eq(count_labels(d).masked, loss == TESS_LOSS_AUTO);
	tess_dataset_close(d);
}

START_TEST(labels_are_those_of_trl)
{
	json_t *file = tokens_load_json(MASKS "/masks.json"), *about;
	size_t i;

	ck_assert_uint_ge(json_array_size(json_object_get(file, "cases")), 9);
	json_array_foreach(json_object_get(file, "cases"), i, about) {
		check_case(about, TESS_LOSS_AUTO);
		/* their templates of training render these conversations as the others */
		if (!json_object_get(about, "template"))
			check_case(about, TESS_LOSS_ALL);
	}
	json_decref(file);
}
END_TEST

/* ---- sequences ------------------------------------------------------------------------------- */

#define STORIES "{\"base\": \"stories\", \"set\": {}, \"bos\": \"<s>\", \"eos\": \"</s>\"}"

static void write_stories(void)
{
	json_t *about = json_loads(STORIES, 0, NULL);

	write_tokenizer(about);
	json_decref(about);
}

static const struct tess_dataset_options apart = { .sequence = LONGEST, .separate = 1 };

/* Reads all sequences, one after another; *nsequences: their number. */
static int64_t read_all(const struct tess_dataset *d, int32_t *ids, int32_t *labels)
{
	struct tess_dataset_info info;
	int64_t at = 0, n;

	tess_dataset_get_info(d, &info);
	for (int64_t i = 0; i < info.sequences; i++, at += n)
		ck_assert(!tess_dataset_read_labels(d, i, ids + at, labels + at, &n));
	ck_assert_int_eq(info.ids, at);
	return at;
}

/* Rows that are cut, or joined and cut, have the ids and labels of complete rows. */
START_TEST(cut_rows_keep_labels)
{
	static const char rows[] =
		"{\"prompt\": \"Once upon a time, there was a little girl\", \"completion\": \" "
		"named Lily.\"}\n{\"prompt\": \"\", \"completion\": \"One day\"}\n{\"prompt\": "
		"\"She loved to play outside in the park and in the\", \"completion\": \" sun\"}\n";
	int32_t ids[3][LONGEST], labels[3][LONGEST];
	struct tess_dataset *d;
	int64_t n, have, dropped = 0;

	write_stories();
	d = open_rows("rows.jsonl", rows, apart);
	n = read_all(d, ids[0], labels[0]);
	tess_dataset_close(d);
	for (int64_t length = 2; length < 20; length++) {
		struct tess_dataset_info info;

		d = open_rows("rows.jsonl", rows,
		              (struct tess_dataset_options){ .sequence = length });
		have = read_all(d, ids[1], labels[1]);
		tess_dataset_get_info(d, &info);
		tess_dataset_close(d);
		/* sequences of the joined rows, without those that have no label */
		for (int64_t at = 0, to = 0; at + length <= n; at += length) {
			int64_t k = 1;

			while (k < length && labels[0][at + k] == -100)
				k++;
			dropped += k == length;
			if (k == length)
				continue;
			ck_assert_mem_eq(ids[1] + to, ids[0] + at, (size_t)length * sizeof **ids);
			ck_assert_mem_eq(labels[1] + to, labels[0] + at,
			                 (size_t)length * sizeof **ids);
			to += length;
			have -= length;
		}
		ck_assert_int_eq(have, 0);
	}
	ck_assert_int_gt(dropped, 20);
}
END_TEST

/* Data of other labels are other data, which no run resumes from. */
START_TEST(hash_has_labels)
{
	static const char *const rows[] = {
		"{\"prompt\": \"Once upon\", \"completion\": \" a time\"}\n",
		"{\"prompt\": \"Once\", \"completion\": \" upon a time\"}\n",
		"{\"text\": \"Once upon a time\"}\n",
	};
	struct tess_dataset_options all = apart;
	struct tess_dataset_info info[4];

	write_stories();
	all.loss = TESS_LOSS_ALL;
	for (int i = 0; i < 4; i++) {
		struct tess_dataset *d = open_rows("rows.jsonl", rows[i % 3], i < 3 ? apart : all);

		tess_dataset_get_info(d, &info[i]);
		ck_assert_int_eq(info[i].ids, info[0].ids);
		tess_dataset_close(d);
	}
	ck_assert(info[0].hash != info[1].hash && info[0].hash != info[2].hash &&
	          info[1].hash != info[2].hash && info[2].hash == info[3].hash);
}
END_TEST

/* ---- plain texts ----------------------------------------------------------------------------- */

static void expect_same_data(const char *text, const char *rows, struct tess_dataset_options o)
{
	struct tess_dataset *d[2] = { open_rows("a.txt", text, o), open_rows("b.jsonl", rows, o) };
	int32_t ids[2][LONGEST], labels[2][LONGEST];
	int64_t n[2];

	for (int i = 0; i < 2; i++)
		n[i] = read_all(d[i], ids[i], labels[i]);
	ck_assert_int_eq(n[0], n[1]);
	ck_assert_mem_eq(ids[0], ids[1], (size_t)n[0] * sizeof **ids);
	ck_assert_mem_eq(ids[0], labels[0], (size_t)n[0] * sizeof **ids);
	for (int i = 0; i < 2; i++)
		tess_dataset_close(d[i]);
}

START_TEST(plain_texts)
{
	static const char text[] = "\xef\xbb\xbf\n \nOnce upon\na time\n\n\t\n\nOne day\n \n";

	write_stories();
	expect_same_data(text, "{\"text\": \"Once upon\\na time\"}\n{\"text\": \"One day\"}\n",
	                 apart);
	expect_same_data(text,
	                 "{\"text\": \"\\n \\nOnce upon\\na time\\n\\n\\t\\n\\nOne day\\n \\n\"}\n",
	                 (struct tess_dataset_options){ .sequence = 4 });
	expect_same_data("No end", "{\"text\": \"No end\"}", apart);
	expect_refused_rows("none.txt", "\n\n", apart,
	                    "none.txt: 0 ids are less than one sequence");
	expect_refused_rows("odd.txt", "One\n\nTwo\n\xff\n", apart,
	                    "odd.txt: line 3: the text is not UTF-8 at its byte 4");
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

START_TEST(rows_without_labels_are_skipped)
{
	static const char rows[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n"
				   "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, "
				   "{\"role\": \"assistant\", \"content\": \"Ho\"}]}\n";
	struct tess_dataset_options zephyr = apart;
	struct tess_dataset *d;

	write_stories();
	zephyr.chat_template = "zephyr";
	d = open_rows("rows.jsonl", rows, zephyr);
	ck_assert_int_eq(count_labels(d).rows, 2);
	ck_assert_int_eq(count_labels(d).skipped, 1);
	ck_assert_int_gt(count_labels(d).counted, 0);
	tess_dataset_close(d);
	expect_refused_rows("skipped.jsonl",
	                    "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n", zephyr,
	                    "skipped.jsonl: in no row is there an id that loss counts on");
}
END_TEST

/* Checks that one message names file, line and cause. */
START_TEST(bad_rows)
{
	static const char text[] = "{\"text\": \"a\"}\n", chat[] = "{\"messages\": []}\n";
	static const struct {
		const char *rows, *part;
	} bad[] = {
		{ "{\"txt\": \"a\"}\n",
		  "line 1: an object with a \"text\", with \"prompt\" and \"completion\", or" },
		{ "{\"prompt\": \"a\"}\n", "line 1: an object with a \"text\"" },
		{ "{\"prompt\": \"a\", \"completion\": 3}\n", "line 1: an object with a \"text\"" },
		{ "{\"prompt\": \"a\", \"completion\": []}\n",
		  "line 1: an object with a \"text\"" },
		{ "7\n", "line 1:1:1: not valid JSON: '[' or '{' expected" },
		{ "{\"text\": \"a\"}\n\n{\"prompt\": \"a\", \"completion\": \"b\"}\n",
		  "line 3: a row with \"prompt\" and \"completion\", after rows with \"text\"" },
		{ "{\"messages\": []}\n", "line 1: a row without messages" },
		{ "{\"messages\": [{\"role\": \"dog\", \"content\": \"a\"}]}\n",
		  "line 1: message 1: " },
		{ "{\"messages\": [{\"role\": \"user\"}]}\n",
		  "line 1: message 1: an object with " },
	};
	struct tess_dataset_options zephyr = apart;
	struct tess_dataset *d;

	write_stories();
	expect_refused_rows("bare.jsonl", chat, apart, "bare.jsonl: line 1: ");
	expect_part(tess_error(), "template");
	zephyr.chat_template = "none";
	expect_refused_rows("named.jsonl", chat, zephyr, "named.jsonl: line 1: ");
	expect_part(tess_error(), "zephyr");
	zephyr.chat_template = "zephyr";
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		expect_refused_rows("bad.jsonl", bad[i].rows, zephyr, bad[i].part);
	zephyr.loss = 2;
	expect_refused_rows("loss.jsonl", text, zephyr,
	                    "loss 2; use TESS_LOSS_AUTO or TESS_LOSS_ALL");
	/* an older caller's options end with `tokenizer` */
	zephyr.size = (uint32_t)offsetof(struct tess_dataset_options, chat_template);
	zephyr.tokenizer = scratch;
	zephyr.vocabulary = VOCABULARY;
	ck_assert(!tess_dataset_open((const char *[]){ scratch_write_text("old.jsonl", text) }, 1,
	                             &zephyr, &d));
	tess_dataset_close(d);
}
END_TEST

/* An id with bytes of the header and of the answer counts. */
START_TEST(ids_across_a_border)
{
	static const char rows[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, "
				   "{\"role\": \"assistant\", \"content\": \"\\n\\nHo\"}]}\n";
	json_t *about = json_loads("{\"base\": \"gpt2\", \"set\": {}, \"eos\": "
	                           "\"<|endoftext|>\"}",
	                           0, NULL);
	struct tess_dataset_options zephyr = apart;
	int32_t ids[LONGEST], labels[LONGEST];
	struct tess_dataset *d;
	int64_t first = 0;

	write_tokenizer(about);
	json_decref(about);
	zephyr.chat_template = "zephyr";
	d = open_rows("rows.jsonl", rows, zephyr);
	read_all(d, ids, labels);
	tess_dataset_close(d);
	while (labels[first] == -100)
		first++;
	ck_assert_int_eq(ids[first], 628); /* two line feeds, the first of the header */
	ck_assert_int_eq(labels[first], 628);
	ck_assert_int_eq(ids[first + 1], 198); /* the second one of the answer */
}
END_TEST

/* Prompts and completions that are lists of messages count on the completion. */
START_TEST(completions_of_messages)
{
	static const char rows[] =
		"{\"prompt\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": "
		"\"assistant\", \"content\": \"Ho\"}, {\"role\": \"user\", \"content\": \"Hum\"}], "
		"\"completion\": [{\"role\": \"assistant\", \"content\": \"Ha\"}]}\n";
	struct tess_dataset_options zephyr = apart;
	int32_t ids[LONGEST], labels[LONGEST];
	struct tess_tokenizer *t = NULL;
	struct tess_dataset *d;
	int64_t n, first = 0;
	size_t len;
	char *text;

	write_stories();
	zephyr.chat_template = "zephyr";
	d = open_rows("rows.jsonl", rows, zephyr);
	n = read_all(d, ids, labels);
	tess_dataset_close(d);
	while (labels[first] == -100)
		first++;
	ck_assert(!tess_tokenizer_open(scratch, &t));
	ck_assert(!tess_tokenizer_decode(t, ids + first, (size_t)(n - first), false, &text, &len));
	ck_assert_str_eq(text, "Ha</s> \n");
	ck_assert_mem_eq(ids + first, labels + first, (size_t)(n - first) * sizeof *ids);
	free(text);
	tess_tokenizer_close(t);
}
END_TEST

SCRATCH_MAIN("dataset_rows", labels_are_those_of_trl, cut_rows_keep_labels, hash_has_labels,
             plain_texts, rows_without_labels_are_skipped, bad_rows, ids_across_a_border,
             completions_of_messages)
