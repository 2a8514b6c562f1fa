#include "tokens.h"
#include "core/base/status.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <string.h>

const char *tokens_format_path(const char *name)
{
	static char path[4096];
	const char *dir = getenv("TOKENS_DIR");

	ck_assert_msg(dir != NULL, "TOKENS_DIR is not set");
	snprintf(path, sizeof path, "%s/%s", dir, name);
	return path;
}

char *tokens_load_text(const char *path, size_t *len)
{
	FILE *f = fopen(path, "rb");
	char *text;
	long size;

	ck_assert_msg(f != NULL, "%s cannot be read", path);
	fseek(f, 0, SEEK_END);
	size = ftell(f);
	rewind(f);
	text = calloc(1, (size_t)size + 1);
	ck_assert_int_eq(fread(text, 1, (size_t)size, f), size);
	fclose(f);
	*len = (size_t)size;
	return text;
}

json_t *tokens_load_json(const char *path)
{
	json_error_t why;
	json_t *root = json_load_file(path, JSON_ALLOW_NUL, &why);

	ck_assert_msg(root != NULL, "%s: %s", path, why.text);
	return root;
}

size_t tokens_write_utf8(uint32_t cp, char *out)
{
	static const uint32_t lead[] = { 0, 0, 0xc0, 0xe0, 0xf0 };
	size_t n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;

	for (size_t i = n - 1; i > 0; i--, cp >>= 6)
		out[i] = (char)(0x80 | (cp & 0x3f));
	out[0] = (char)(lead[n] | cp);
	return n;
}

/* Makes the character of each byte, and the bytes in the order of their ids. */
static size_t make_gpt2_alphabet(char out[256][4])
{
	static const int runs[][2] = { { 0x21, 0x7e }, { 0xa1, 0xac }, { 0xae, 0xff } };
	bool seen[256] = { false };
	size_t n = 0;
	uint32_t cp = 0x100;

	for (size_t i = 0; i < 3; i++)
		for (int b = runs[i][0]; b <= runs[i][1]; b++, n++) {
			seen[b] = true;
			tokens_write_utf8((uint32_t)b, out[n]);
		}
	for (int b = 0; b < 256; b++)
		if (!seen[b])
			tokens_write_utf8(cp++, out[n++]);
	return n;
}

json_t *tokens_make_gpt2(void)
{
	static const char bytes[] =
		"{'type': 'ByteLevel', 'add_prefix_space': false, 'trim_offsets': true,"
		" 'use_regex': true}";
	char alphabet[256][4] = { 0 }, step[sizeof bytes];
	json_t *vocab = json_object(), *merges = json_array(), *root;
	size_t len, n = make_gpt2_alphabet(alphabet);
	char *text = tokens_load_text(tokens_format_path("gpt2-vocab.bpe"), &len), *rest = text,
	     *line;

	for (size_t i = 0; i < n; i++)
		json_object_set_new(vocab, alphabet[i], json_integer((json_int_t)i));
	strsep(&rest, "\n"); /* the version */
	while ((line = strsep(&rest, "\n"))) {
		char *space = strchr(line, ' '), whole[1024];

		if (!space)
			continue;
		json_array_append_new(merges, json_string(line));
		snprintf(whole, sizeof whole, "%.*s%s", (int)(space - line), line, space + 1);
		json_object_set_new(vocab, whole, json_integer((json_int_t)n++));
	}
	json_object_set_new(vocab, "<|endoftext|>", json_integer((json_int_t)n));
	for (size_t i = 0; i < sizeof bytes; i++)
		step[i] = bytes[i] == '\'' ? '"' : bytes[i];
	root = json_pack("{s:s, s:[{s:i, s:s, s:b}], s:o, s:o, s:o, s:{s:s, s:o, s:o}}", "version",
	                 "1.0", "added_tokens", "id", (int)n, "content", "<|endoftext|>", "special",
	                 1, "pre_tokenizer", json_loads(step, 0, NULL), "post_processor",
	                 json_loads(step, 0, NULL), "decoder", json_loads(step, 0, NULL), "model",
	                 "type", "BPE", "vocab", vocab, "merges", merges);
	ck_assert_ptr_nonnull(root);
	free(text);
	return root;
}

struct tess_tokenizer *tokens_open(json_t *root)
{
	char *text = json_dumps(root, JSON_COMPACT);
	struct tess_tokenizer *t = NULL;

	ck_assert_msg(!tess_tokenizer_parse("made", text, strlen(text), &t), "%s", tess_error());
	free(text);
	json_decref(root);
	return t;
}

void tokens_expect(const struct tess_tokenizer *t, const char *what, const char *text, size_t len,
                   bool add_special, const json_t *want)
{
	int32_t *ids;
	size_t n;

	ck_assert_msg(!tess_tokenizer_encode(t, text, len, add_special, &ids, &n), "%s",
	              tess_error());
	ck_assert_msg(n == json_array_size(want), "%s: \"%s\": %zu ids, not %zu", what, text, n,
	              json_array_size(want));
	for (size_t i = 0; i < n; i++)
		if (ids[i] != json_integer_value(json_array_get(want, i)))
			ck_abort_msg("%s: \"%s\": id %zu is %d, not %d", what, text, i, ids[i],
			             (int)json_integer_value(json_array_get(want, i)));
	free(ids);
}

void tokens_check_vectors(const struct tess_tokenizer *t, const char *path)
{
	json_t *root = tokens_load_json(path), *cases = json_object_get(root, "cases"), *one;
	size_t i;

	ck_assert_int_ge(json_array_size(cases), 10);
	json_array_foreach(cases, i, one) {
		json_t *text = json_object_get(one, "text"),
		       *bare = json_object_get(one, "ids_no_special");
		const char *s = json_string_value(text);
		size_t len = json_string_length(text);

		tokens_expect(t, path, s, len, true, json_object_get(one, "ids"));
		if (bare)
			tokens_expect(t, path, s, len, false, bare);
	}
	json_decref(root);
}

static json_t *parse_ids(const char *line)
{
	json_t *list = json_array();
	char *end;

	for (long v = strtol(line, &end, 10); end != line; v = strtol(line, &end, 10)) {
		json_array_append_new(list, json_integer(v));
		line = end;
	}
	return list;
}

void tokens_check_llamacpp(const struct tess_tokenizer *t, const char *path)
{
	static const char between[] = "\n__ggml_vocab_test__\n";
	char inp[4096], out[4096], *text, *lines, *rest, *line;
	size_t len, n = 0;

	snprintf(inp, sizeof inp, "%s.inp", path);
	snprintf(out, sizeof out, "%s.out", path);
	text = tokens_load_text(inp, &len);
	rest = lines = tokens_load_text(out, &len);
	for (char *s = text, *next; s; s = next, n++) {
		json_t *want;

		next = strstr(s, between);
		if (next)
			*next = 0;
		line = strsep(&rest, "\n");
		ck_assert_msg(line != NULL, "%s ends after %zu texts", out, n);
		want = parse_ids(line);
		tokens_expect(t, inp, s, strlen(s), false, want);
		json_decref(want);
		next = next ? next + strlen(between) : NULL;
	}
	ck_assert_int_ge(n, 40);
	free(text);
	free(lines);
}

static bool is_utf8(const char *s, size_t n)
{
	json_t *text = json_stringn(s, n);
	bool is = text != NULL;

	json_decref(text);
	return is;
}

void tokens_check_stream(const struct tess_tokenizer *t, const int32_t *ids, size_t n,
                         bool skip_special)
{
	struct tess_decode_stream *d;
	const char *part;
	size_t len, at = 0, got;
	char *whole;

	ck_assert_int_eq(tess_tokenizer_decode(t, ids, n, skip_special, &whole, &len), TESS_OK);
	ck_assert_int_eq(tess_decode_stream_open(t, skip_special, &d), TESS_OK);
	for (size_t i = 0; i <= n; i++) {
		tess_status st = i < n ? tess_decode_stream_push(d, ids[i], &part, &got)
		                       : tess_decode_stream_finish(d, &part, &got);

		MUST(!st && at + got <= len);
		MUST(!got || memcmp(whole + at, part, got) == 0);
		MUST(!got || is_utf8(part, got));
		at += got;
	}
	ck_assert_uint_eq(at, len);
	tess_decode_stream_close(d);
	free(whole);
}
