#include "core/base/json.h"
#include "core/base/status.h"
#include "suite.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void refuses(const char *text, size_t len, const char *part)
{
	json_t *root = NULL;

	ck_assert_int_eq(tess_json_parse("config.json", text, len, &root), TESS_EINVAL);
	ck_assert_ptr_null(root);
	ck_assert_msg(!strncmp(tess_error(), "config.json:", 12), "%s", tess_error());
	ck_assert_msg(strstr(tess_error(), part) != NULL, "\"%s\" has no \"%s\"", tess_error(),
	              part);
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
		{ "{'a': 1}", "config.json:1:" },
		{ "[1e400]", "config.json:1:" },
		{ "[99999999999999999999]", "config.json:1:" },
		{ "[NaN]", "config.json:1:" },
	};

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		refuses(bad[i][0], strlen(bad[i][0]), bad[i][1]);
	refuses("{\"a\0b\": 1}", 10, "config.json:1:");
	refuses("[\"\\u0000\"]", 10, "config.json:1:");
}
END_TEST

/* `depth` arrays around a string that has brackets, quotes and escapes of its own. */
static size_t nest(char *text, int depth)
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

	ck_assert_int_eq(tess_json_parse("x", text, nest(text, 64), &root), TESS_OK);
	json_decref(root);
	refuses(text, nest(text, 65), "deeper than 64");
	refuses(text, nest(text, 1 << 20), "deeper than 64");
	memset(text, '{', 1 << 20);
	refuses(text, 1 << 20, "deeper than 64");
	/* the quote after an escaped backslash ends the string, an escaped quote does not */
	memset(text + nest(text, 3) - 3, '[', 100);
	refuses(text, 113, "deeper than 64");
}
END_TEST

START_TEST(loads_files)
{
	char dir[] = "/tmp/tess-json-XXXXXX", path[64], fifo[64];
	json_t *root = NULL;
	FILE *f;

	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/a.json", dir);
	snprintf(fifo, sizeof fifo, "%s/fifo", dir);
	ck_assert_int_eq(tess_json_load(path, 100, &root), TESS_ENOENT);
	ck_assert_ptr_nonnull(strstr(tess_error(), path));
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	fputs("{\"k\": 7}", f);
	fclose(f);
	ck_assert_int_eq(tess_json_load(path, 8, &root), TESS_OK);
	ck_assert_int_eq(json_integer_value(json_object_get(root, "k")), 7);
	json_decref(root);
	root = NULL;
	ck_assert_int_eq(tess_json_load(path, 7, &root), TESS_EINVAL);
	ck_assert_ptr_nonnull(strstr(tess_error(), "8 bytes"));
	ck_assert_int_eq(tess_json_load(dir, 100, &root), TESS_EINVAL);
	ck_assert_ptr_nonnull(strstr(tess_error(), "regular file"));
	ck_assert_int_eq(mkfifo(fifo, 0600), 0);
	ck_assert_int_eq(tess_json_load(fifo, 100, &root), TESS_EINVAL);
	ck_assert_ptr_nonnull(strstr(tess_error(), "regular file"));
	ck_assert_ptr_null(root);
	unlink(path);
	unlink(fifo);
	rmdir(dir);
}
END_TEST

SUITE_MAIN("json", reads, refuses_with_place_and_reason, limits_depth, loads_files)
