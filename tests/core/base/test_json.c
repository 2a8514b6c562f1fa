#include "core/base/json.h"
#include "core/base/line.h"
#include "core/base/status.h"
#include "tests/support/scratch.h"

static void expect_json_refused(const char *text, size_t len, const char *part)
{
	json_t *root = NULL;

	ck_assert_int_eq(tess_json_parse("config.json", text, len, &root), TESS_EINVAL);
	ck_assert_ptr_null(root);
	ck_assert_msg(!strncmp(tess_error(), "config.json:", 12), "%s", tess_error());
	expect_part(tess_error(), part);
}

START_TEST(reads)
{
	const char *text = "{\"a\": [1, 2.5, \"\\u00e9\\\"[{\"], \"b\": null}";
	json_t *root = NULL;

	ck_assert_int_eq(tess_json_parse("x", text, strlen(text), &root), TESS_OK);
	ck_assert_int_eq(json_integer_value(json_array_get(json_object_get(root, "a"), 0)), 1);
	ck_assert_str_eq(json_string_value(json_array_get(json_object_get(root, "a"), 2)),
	                 "\xc3\xa9\"[{");
	json_decref(root);
}
END_TEST

START_TEST(refuses_with_place_and_reason)
{
	static const char *const bad[][2] = {
		{ "{\"a\": 1, \"a\": 2}", "duplicate" },
		{ "{\"a\": {\"b\": 1, \"b\": 1}}", "duplicate" },
		{ "{\"a\": \"\xff\"}", "unable to decode byte 0xff" },
		{ "{\"a\": \"\xc0\x80\"}", "unable to decode byte" },
		{ "{\"a\": \"\xed\xa0\x80\"}", "unable to decode byte" },
		{ "{\"a\": [1, 2", "config.json:1:" },
		{ "{\"a\": \"tex", "config.json:1:" },
		{ "{\"a\": \"tex\\", "config.json:1:" },
		{ "", "config.json:" },
		{ "{} {}", "end of file expected" },
		{ "{\n\n\"a\" 1}", "config.json:3:" },
		{ "{'a': 1}", "; JSON has \"...\" for strings" },
		{ "{\"a\": [1,\n]}", "; JSON has no comma after the last member" },
		{ "{\"a\": 1, }", "; JSON has no comma after the last member" },
		{ "{,}", "near ','" },
		{ "[1e400]", "config.json:1:" },
		{ "[99999999999999999999]", "config.json:1:" },
		{ "[NaN]", "config.json:1:" },
		{ "\xef\xbb\xbf{}", "not valid JSON: it begins with a byte order mark; save" },
	};

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		expect_json_refused(bad[i][0], strlen(bad[i][0]), bad[i][1]);
	expect_json_refused("{\"a\0b\": 1}", 10, "config.json:1:");
	expect_json_refused("[\"\\u0000\"]", 10, "config.json:1:");
}
END_TEST

/* Writes `depth` arrays around a string with brackets, quotes and escapes. */
static size_t nest_arrays(char *text, int depth)
{
	const char *inner = "\"\\\"[[[[\\\\\"";
	char *p = text;

	memset(p, '[', (size_t)depth);
	p += depth;
	p = stpcpy(p, inner);
	memset(p, ']', (size_t)depth);
	return (size_t)(p + depth - text);
}

START_TEST(limits_depth)
{
	static char text[4 << 20];
	json_t *root = NULL;

	ck_assert_int_eq(tess_json_parse("x", text, nest_arrays(text, 64), &root), TESS_OK);
	json_decref(root);
	expect_json_refused(text, nest_arrays(text, 65), "deeper than 64");
	expect_json_refused(text, nest_arrays(text, 1 << 20), "deeper than 64");
	memset(text, '{', 1 << 20);
	expect_json_refused(text, 1 << 20, "deeper than 64");
	/* the quote after an escaped backslash ends the string, an escaped quote does not */
	memset(text + nest_arrays(text, 3) - 3, '[', 100);
	expect_json_refused(text, 113, "deeper than 64");
}
END_TEST

START_TEST(loads_files)
{
	const char *path = scratch_format_path("a.json"), *fifo = scratch_format_path("fifo");
	json_t *root = NULL;

	ck_assert_int_eq(tess_json_load(path, 100, &root), TESS_ENOENT);
	expect_part(tess_error(), path);
	scratch_write_text("a.json", "{\"k\": 7}");
	ck_assert_int_eq(tess_json_load(path, 8, &root), TESS_OK);
	ck_assert_int_eq(json_integer_value(json_object_get(root, "k")), 7);
	json_decref(root);
	root = NULL;
	ck_assert_int_eq(tess_json_load(path, 7, &root), TESS_EINVAL);
	expect_part(tess_error(), "8 bytes");
	ck_assert_int_eq(tess_json_load(scratch, 100, &root), TESS_EINVAL);
	expect_part(tess_error(), "regular file");
	ck_assert_int_eq(mkfifo(fifo, 0600), 0);
	ck_assert_int_eq(tess_json_load(fifo, 100, &root), TESS_EINVAL);
	expect_part(tess_error(), "regular file");
	ck_assert_ptr_null(root);
}
END_TEST

/*
 * Checks that a list of objects that would take gigabytes is refused, unlike a string of that
 * length.
 */
START_TEST(limits_memory)
{
	enum { MANY = 2 << 20, EACH = 3 };
	char *text = malloc(MANY * EACH + 1);
	json_t *root = NULL;

	ck_assert_ptr_nonnull(text);
	for (int i = 0; i < MANY; i++)
		memcpy(text + EACH * i, "{},", EACH);
	text[0] = '[';
	text[MANY * EACH - 1] = ']';
	expect_json_refused(text, MANY * EACH, "MiB of memory; at most 512");
	memset(text, 'x', MANY * EACH);
	text[0] = text[MANY * EACH - 1] = '"';
	memcpy(text, "[\"", 2);
	memcpy(text + MANY * EACH - 2, "\"]", 2);
	ck_assert_int_eq(tess_json_parse("x", text, MANY * EACH, &root), TESS_OK);
	json_decref(root);
	free(text);
}
END_TEST

static tess_status ignore_member(void *self, const char *key, json_t *value)
{
	(void)self;
	(void)key;
	(void)value;
	return TESS_OK;
}

/*
 * Checks that members of one object cost more than values of a list. In __metadata__ of a
 * safetensors file, 700 thousand take 140 MB, and are refused; members of the file's object are
 * read one by one.
 */
START_TEST(limits_memory_of_members)
{
	enum { MANY = 700 * 1000 };
	char *text = malloc(MANY * 16 + 32), *at = stpcpy(text, "{\"m\":");

	for (int i = 0; i < MANY; i++)
		at += sprintf(at, "%c\"%d\":\"\"", i ? ',' : '{', i);
	strcpy(at, "}}");
	ck_assert_int_eq(tess_json_read_members("x", text, strlen(text), ignore_member, NULL),
	                 TESS_EINVAL);
	expect_part(tess_error(), "x: its JSON would take 146 MiB of memory; at most 128 are "
	                          "allowed for a member");
	ck_assert_int_eq(
		tess_json_read_members("x", text + 5, strlen(text) - 6, ignore_member, NULL),
		TESS_OK);
	free(text);
}
END_TEST

START_TEST(parses_lines)
{
	json_t *root = NULL;

	ck_assert_int_eq(tess_json_parse_line("l", "[\"\\u0000\"]\n", 11, &root), TESS_OK);
	ck_assert_int_eq(json_string_length(json_array_get(root, 0)), 1);
	json_decref(root);
	ck_assert_int_eq(tess_json_parse_line("l", "[1,]", 4, &root), TESS_EINVAL);
	ck_assert_msg(strstr(tess_error(), "unexpected token near ']'; JSON has no comma"), "%s",
	              tess_error());
}
END_TEST

START_TEST(reads_lines)
{
	static const char text[] = "one\n\ntw\0o\nlast";
	static const char *const want[] = { "one\n", "\n", "tw\0o\n", "last", "" };
	static const size_t lengths[] = { 4, 1, 5, 4, 0 };
	const char *path = scratch_write("lines", text, sizeof text - 1);
	struct tess_line line = { 0 };
	FILE *f = fopen(path, "r");

	for (int i = 0; i < 5; i++) {
		ck_assert_int_eq(tess_line_read(f, '\n', 5, &line), TESS_OK);
		ck_assert_uint_eq(line.len, lengths[i]);
		ck_assert_mem_eq(line.text, want[i], lengths[i] + 1);
	}
	rewind(f);
	ck_assert_int_eq(tess_line_read(f, '\n', 3, &line), TESS_EINVAL);
	expect_part(tess_error(), "more than 3 bytes, the limit");
	rewind(f);
	ck_assert_int_eq(tess_line_read(f, EOF, 14, &line), TESS_OK);
	ck_assert_uint_eq(line.len, 14);
	rewind(f);
	ck_assert_int_eq(tess_line_read(f, EOF, 13, &line), TESS_EINVAL);
	fclose(f);
	free(line.text);
}
END_TEST

static tess_status append_member(void *self, const char *key, json_t *value)
{
	char *list = self;

	if (!json_is_integer(value))
		return tess_fail(TESS_EINVAL, "member %s", key);
	sprintf(list + strlen(list), "%s=%lld ", key, (long long)json_integer_value(value));
	return TESS_OK;
}

START_TEST(reads_member_by_member)
{
	static const struct {
		const char *text, *list, *why;
	} cases[] = {
		{ "{}", "", NULL },
		{ " {\n} ", "", NULL },
		{ "{\"a\":1,\"b\" : 2\n,\"a\":3}\n", "a=1 b=2 a=3 ", NULL },
		{ "{\"\\u00e9,\\\"{\":1}", "\xc3\xa9,\"{=1 ", NULL },
		{ "", "", "x:1:1: not valid JSON: '{' expected" },
		{ "[]", "", "'{' expected" },
		{ "{", "", "x:1:2: not valid JSON" },
		{ "{\"a\":1", "a=1 ", "x:1:7: not valid JSON: '}' expected" },
		{ "{\"a\":1,\n}", "a=1 ", "x:2:" },
		{ "{\"a\":1}\n{", "a=1 ", "x:2:1: not valid JSON: end of file expected" },
		{ "{\"a\":{\"b\":1,\"b\":1}}", "", "duplicate" },
		{ "{\"a\":1,\"b\":null,\"c\":1}", "a=1 ", "member b" },
		{ "{\"a\\u0000\":1}", "", "not valid JSON" },
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char list[256] = "";
		tess_status st = tess_json_read_members("x", cases[i].text, strlen(cases[i].text),
		                                        append_member, list);

		ck_assert_msg((st == TESS_OK) == !cases[i].why, "%s: %s", cases[i].text,
		              st ? tess_error() : "accepted");
		ck_assert_str_eq(list, cases[i].list);
		ck_assert_msg(!st || strstr(tess_error(), cases[i].why), "%s: %s", cases[i].text,
		              tess_error());
	}
}
END_TEST

/* ---- allocations that fail ------------------------------------------------------------------- */

static int left = -1; /* allocations that succeed; -1: all */
static void *block[64]; /* counted blocks that are not freed yet */

static void *allocate_json_block(size_t bytes)
{
	void *p = left ? malloc(bytes) : NULL;
	size_t i = 0;

	if (left < 0)
		return p;
	left -= left > 0;
	while (block[i])
		i++;
	block[i] = p;
	return p;
}

static void free_json_block(void *p)
{
	for (size_t i = 0; i < sizeof block / sizeof *block; i++)
		block[i] = block[i] == p ? NULL : block[i];
	free(p);
}

/* Uses strings longer than the 16 bytes with which the buffer of a lexer begins. */
START_TEST(fails_without_memory)
{
	static const char text[] = "{\"a key that is long\": 12345678901234567, \"k\": [1.5, "
				   "\"a string that is longer than a buffer\"]}";
	json_t *root = NULL, *right = NULL;
	int failed = 0;

	json_set_alloc_funcs(allocate_json_block, free_json_block);
	ck_assert_int_eq(tess_json_parse("x", text, sizeof text - 1, &right), TESS_OK);
	for (int at = 0; !root; at++) {
		tess_status st;

		left = at;
		st = tess_json_parse("x", text, sizeof text - 1, &root);
		left = -1;
		if (!st)
			break;
		ck_assert_int_eq(st, TESS_ENOMEM);
		ck_assert_str_eq(tess_error(), "x: out of memory");
		ck_assert(tess_json_lacked_memory());
		for (size_t i = 0; i < sizeof block / sizeof *block; i++)
			if (block[i])
				free_json_block(block[i]);
		failed++;
	}
	ck_assert_int_gt(failed, 10);
	ck_assert(json_equal(root, right));
	json_decref(root);
	json_decref(right);
}
END_TEST

START_TEST(builds_all_or_nothing)
{
	json_t *list, *object;

	json_set_alloc_funcs(allocate_json_block, free_json_block);
	tess_json_watch_memory();
	list = json_array();
	object = json_object();
	tess_json_append(&list, json_integer(1));
	tess_json_set(&object, "a", json_integer(2));
	ck_assert_int_eq((int)json_array_size(list), 1);
	ck_assert_int_eq((int)json_object_size(object), 1);
	left = 0;
	tess_json_append(&list, json_integer(2));
	tess_json_set(&object, "b", json_integer(2));
	left = -1;
	tess_json_append(&list, json_integer(3));
	tess_json_set(&object, "c", json_integer(3));
	ck_assert_ptr_null(list);
	ck_assert_ptr_null(object);
}
END_TEST

SCRATCH_MAIN("json", fails_without_memory, builds_all_or_nothing, reads,
             refuses_with_place_and_reason, limits_depth, limits_memory, limits_memory_of_members,
             parses_lines, reads_lines, reads_member_by_member, loads_files)
