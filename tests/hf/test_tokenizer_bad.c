/*
 * test_tokenizer_bad.c - wrong or malicious tokenizers: each is refused with the file, the key and
 * the reason.
 */
#include "core/base/status.h"
#include "tests/support/suite.h"
#include "tokens.h"

#include <stdio.h>
#include <string.h>

static const char base_json[] =
	"{\"version\": \"1.0\", \"added_tokens\": [{\"id\": 5, \"content\": \"<s>\", \"special\":"
	" true}],"
	" \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}]},"
	" \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\s+\"}, "
	"\"behavior\": \"Isolated\"},"
	" \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
	"{\"id\": \"<s>\"}},"
	" {\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {\"<s>\": {\"ids\": [5]}}},"
	" \"decoder\": {\"type\": \"Fuse\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0,"
	" \"b\": 1, \"ab\": 2,"
	" \" \": 3, \"abab\": 4}, \"merges\": [\"a b\", [\"ab\", \"ab\"]]}}";

static void expect_tokenizer_refused(const char *text, size_t len, const char *where,
                                     const char *why)
{
	struct tess_tokenizer *t = NULL;
	tess_status st = tess_tokenizer_parse("tok.json", text, len, &t);

	ck_assert_msg(st < 0, "accepted, not refused for \"%s\": %s", why, text);
	ck_assert_ptr_null(t);
	ck_assert_msg(strncmp(tess_error(), "tok.json:", 9) == 0, "%s", tess_error());
	expect_part(tess_error(), where);
	expect_part(tess_error(), why);
}

/* Replaces the value at `path` ("model.vocab.a"; "": none) of the base; NULL: removes the key. */
static char *patch_base(const char *path, const char *value)
{
	json_t *root = json_loads(base_json, 0, NULL), *at = root, *made;
	char keys[128], *rest = keys, *key, *text;

	snprintf(keys, sizeof keys, "%s", path);
	while ((key = strsep(&rest, ".")) && rest)
		at = json_is_array(at) ? json_array_get(at, (size_t)atoi(key))
		                       : json_object_get(at, key);
	made = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
	ck_assert_msg(at != NULL && (made || !value), "the test's own patch of %s: %s", path,
	              value);
	if (!value)
		json_object_del(at, key);
	else if (json_is_array(at))
		json_array_set_new(at, (size_t)atoi(key), made);
	else
		json_object_set_new(at, key, made);
	text = json_dumps(root, 0);
	json_decref(root);
	return text;
}

START_TEST(the_base_is_good)
{
	struct tess_tokenizer *t = NULL;

	ck_assert_msg(!tess_tokenizer_parse("tok.json", base_json, strlen(base_json), &t), "%s",
	              tess_error());
	tess_tokenizer_close(t);
}
END_TEST

START_TEST(texts_that_are_no_json)
{
	char deep[400] = "{\"model\": ";

	memset(deep + 10, '[', 300);
	expect_tokenizer_refused(deep, 310, "tok.json:", "deeper than");
	expect_tokenizer_refused("", 0, "tok.json:", "not valid JSON");
	expect_tokenizer_refused("[]", 2, "tok.json:", "an object was expected");
	for (size_t len = 1; len < sizeof base_json - 1; len += 7)
		expect_tokenizer_refused(base_json, len, "tok.json:", "");
	expect_tokenizer_refused("{\"model\": {\"vocab\": {\"a\": 0, \"a\": 1}}}", 39, "tok.json:1",
	                         "duplicate");
	expect_tokenizer_refused("{\"model\": {\"vocab\": {\"\xff\": 0}}}", 31, "tok.json:1",
	                         "0xff");
	expect_tokenizer_refused("{\"model\": {\"vocab\": {\"\xed\xa0\x80\": 0}}}", 33,
	                         "tok.json:1", "byte");
	expect_tokenizer_refused("{\"model\": {\"vocab\": {\"\\ud800\": 0}}}", 36, "tok.json:1",
	                         "invalid Unicode");
	expect_tokenizer_refused("{\"model\": {\"vocab\": {\"a\": 99999999999999999999}}}", 49,
	                         "tok.json:1", "integer");
}
END_TEST

static const struct {
	const char *path, *value, *where, *why;
} bad[] = {
	/* the file */
	{ "extra", "1", "key \"extra\"", "known: version, truncation" },
	{ "model", "7", "model:", "an object" },
	{ "model", NULL, "model:", "an object" },
	/* the model */
	{ "model.type", "\"Unigram\"",
	  "model: type:", "\"Unigram\" is not supported; supported: BPE" },
	{ "model.type", "\"WordPiece\"", "model: type:", "supported: BPE" },
	{ "model.type", "3", "model: type:", "a name was expected" },
	{ "model.dropout", "0.1", "model: dropout:", "only null" },
	{ "model.end_of_word_suffix", "\"</w>\"", "model: end_of_word_suffix:", "only null" },
	{ "model.continuing_subword_prefix", "\"##\"",
	  "model: continuing_subword_prefix:", "only null" },
	{ "model.unk_token", "\"<unk>\"", "model: unk_token:", "\"<unk>\" is not in vocab" },
	{ "model.unk_token", "0", "model: unk_token:", "a token or null" },
	{ "model.byte_fallback", "1", "model: byte_fallback:", "true or false" },
	{ "model.ignore_merges", "\"yes\"", "model: ignore_merges:", "true or false" },
	{ "model.new_key", "true", "model: key \"new_key\"", "known: type, dropout" },
	/* the vocabulary */
	{ "model.vocab", "[\"a\"]", "model: vocab:", "an object of tokens" },
	{ "model.vocab", NULL, "model: vocab:", "an object of tokens" },
	{ "model.vocab.a", "-1", "vocab: \"a\":", "an id from 0" },
	{ "model.vocab.a", "1.5", "vocab: \"a\":", "an id from 0" },
	{ "model.vocab.a", "\"0\"", "vocab: \"a\":", "an id from 0" },
	{ "model.vocab.a", "4194304", "vocab: \"a\":", "an id from 0 to 4194303" },
	{ "model.vocab.a", "9223372036854775807", "vocab: \"a\":", "an id from 0" },
	{ "model.vocab.a", "1", "model: vocab:", "both have id 1" },
	{ "model.vocab", "{\"\": 0}", "model: vocab:", "empty" },
	/* merges */
	{ "model.merges", "{}", "model: merges:", "an array" },
	{ "model.merges", NULL, "model: merges:", "an array" },
	{ "model.merges.1", "\"a c\"", "model: merges[1]:", "\"c\" is not in vocab" },
	{ "model.merges.1", "\"b a\"", "model: merges[1]:", "\"ba\" is not in vocab" },
	{ "model.merges.1", "\"ab\"", "model: merges[1]:", "was expected" },
	{ "model.merges.1", "\"a b c\"", "model: merges[1]:", "was expected" },
	{ "model.merges.1", "[\"a\"]", "model: merges[1]:", "was expected" },
	{ "model.merges.1", "[\"a\", 1]", "model: merges[1]:", "was expected" },
	{ "model.merges.1", "null", "model: merges[1]:", "was expected" },
	{ "model.merges.1", "\"a \"", "model: merges[1]:", "\"\" is not in vocab" },
	/* added tokens */
	{ "added_tokens", "{}", "added_tokens:", "an array" },
	{ "added_tokens.0.id", "\"5\"", "added_tokens[0]: id:", "a number" },
	{ "added_tokens.0.id", "99999999999", "added_tokens[0]: id:", "a number" },
	{ "added_tokens.0.id", "1", "added_tokens[0]:", "\"b\" and \"<s>\" both have id 1" },
	{ "added_tokens.0.content", "\"ab\"", "added_tokens[0]:", "\"ab\" has id 2 and id 5" },
	{ "added_tokens.0.content", "\"\"", "added_tokens[0]:", "empty" },
	{ "added_tokens.0.content", "null", "added_tokens[0]: content:", "a string" },
	{ "added_tokens.0.special", "\"no\"", "added_tokens[0]: special:", "true or false" },
	{ "added_tokens.0.weight", "1", "added_tokens[0]: key \"weight\"", "known: id" },
	{ "added_tokens.0", "7", "added_tokens[0]: id:", "a number" },
	/* the normalizer */
	{ "normalizer", "{\"type\": \"Precompiled\"}",
	  "normalizer: type:", "supported: Sequence, NFC" },
	{ "normalizer", "[]", "normalizer: type:", "a name" },
	{ "normalizer.normalizers", "{}", "normalizer: normalizers:", "an array" },
	{ "normalizer.normalizers.0", "{\"type\": \"NFC\", \"x\": 1}",
	  "normalizers[0]: NFC: key \"x\"", "known: type" },
	{ "normalizer", "{\"type\": \"Prepend\"}", "normalizer: Prepend: prepend:", "a string" },
	{ "normalizer", "{\"type\": \"Replace\", \"pattern\": \" \", \"content\": \"_\"}",
	  "Replace: pattern:", "an object" },
	{ "normalizer",
	  "{\"type\": \"Replace\", \"pattern\": {\"String\": \"\"}, \"content\": \"_\"}",
	  "Replace: pattern:", "0 bytes" },
	/* the pre-tokenizer, and patterns */
	{ "pre_tokenizer.type", "\"BertPreTokenizer\"",
	  "pre_tokenizer: type:", "supported: Sequence, Split" },
	{ "pre_tokenizer.behavior", "\"Glued\"",
	  "Split: behavior:", "supported: Isolated, Removed" },
	{ "pre_tokenizer.behavior", NULL, "Split: behavior:", "one of Isolated" },
	{ "pre_tokenizer.invert", "0", "Split: invert:", "true or false" },
	{ "pre_tokenizer.pattern", "{}", "Split: pattern:", "either Regex or String" },
	{ "pre_tokenizer.pattern.Regex", "\"(a\"",
	  "Split: pattern:", "missing closing parenthesis" },
	{ "pre_tokenizer.pattern.Regex", "\"[a\"", "Split: pattern:", "missing terminating ]" },
	{ "pre_tokenizer.pattern.Regex", "\"a\\\\\"", "Split: pattern:", "at end of pattern" },
	{ "pre_tokenizer.pattern.Regex", "\"\\\\p{Nonsense}\"",
	  "Split: pattern:", "unknown property" },
	{ "pre_tokenizer.pattern.Regex", "\"\\\\C\"", "pattern, offset 0", "this escape" },
	{ "pre_tokenizer.pattern.Regex", "\"a\\\\h\"", "pattern, offset 1", "this escape" },
	{ "pre_tokenizer.pattern.Regex", "\"(?P<n>a)\"", "pattern, offset 0",
	  "this kind of group" },
	{ "pre_tokenizer.pattern.Regex", "\"(*LIMIT_MATCH=1)a\"", "pattern, offset 0", "(*" },
	{ "pre_tokenizer.pattern.Regex", "\"[a&&b]\"", "pattern, offset 2", "&&" },
	{ "pre_tokenizer.pattern.Regex", "\"a{2,3}+\"", "pattern, offset 1", "this count" },
	{ "pre_tokenizer.pattern.Regex", "\"((a{1,999}){1,999}){1,999}\"",
	  "Split: pattern:", "too large" },
	{ "pre_tokenizer.pattern.Regex", "7", "pattern: Regex:", "a string" },
	{ "pre_tokenizer", "{\"type\": \"Metaspace\", \"replacement\": \"__\"}",
	  "Metaspace: replacement:", "one character" },
	{ "pre_tokenizer",
	  "{\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"often\"}",
	  "Metaspace: prepend_scheme:", "supported: always, first, never" },
	/* the post-processor */
	{ "post_processor.type", "\"BertProcessing\"",
	  "post_processor: type:", "supported: Sequence, Template" },
	{ "post_processor.single", "[]", "TemplateProcessing: single:", "\"A\" is missing" },
	{ "post_processor.single.0", "{\"Sequence\": {\"id\": \"B\"}}",
	  "single[0]: id:", "supported: A" },
	{ "post_processor.single.0", "{\"Sequence\": {\"id\": \"A\"}}", "single[1]:", "only once" },
	{ "post_processor.special_tokens", "{}",
	  "single[0]: special_tokens: \"<s>\": ids:", "an array" },
	{ "post_processor.special_tokens", "{\"<s>\": {\"ids\": [77]}}",
	  "ids[0]:", "no token has this id" },
	/* the decoder */
	{ "decoder.type", "\"WordPiece\"", "decoder: type:", "supported: Sequence, ByteLevel" },
	{ "decoder", "{\"type\": \"Strip\", \"content\": \" \", \"start\": -1, \"stop\": 0}",
	  "Strip: start:", "a number from 0" },
	{ "decoder", "{\"type\": \"Strip\", \"content\": \"ab\"}",
	  "Strip: content:", "one character" },
	{ "decoder", "{\"type\": \"Sequence\"}", "decoder: decoders:", "an array" },
};

START_TEST(refused_with_key_and_reason)
{
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		char *text = patch_base(bad[i].path, bad[i].value);

		expect_tokenizer_refused(text, strlen(text), bad[i].where, bad[i].why);
		free(text);
	}
}
END_TEST

START_TEST(too_many_steps)
{
	char text[4096] = "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}";
	char *whole;

	for (int i = 0; i < 64; i++)
		strcat(text, ", {\"type\": \"NFC\"}");
	strcat(text, "]}");
	whole = patch_base("normalizer", text);
	expect_tokenizer_refused(whole, strlen(whole),
	                         "normalizer: normalizers[64]:", "more than 64 steps");
	free(whole);
}
END_TEST

/* Opens the patched base and encodes `text`. */
static tess_status encode_with_patch(const char *path, const char *value, const char *text,
                                     size_t len)
{
	char *whole = patch_base(path, value);
	struct tess_tokenizer *t = NULL;
	int32_t *ids = NULL;
	tess_status st;
	size_t n;

	ck_assert_msg(!tess_tokenizer_parse("tok.json", whole, strlen(whole), &t), "%s",
	              tess_error());
	st = tess_tokenizer_encode(t, text, len, true, &ids, &n);
	tess_tokenizer_close(t);
	free(whole);
	free(ids);
	return st;
}

static void expect_text_refused(const char *path, const char *value, const char *text, size_t len,
                                const char *why)
{
	ck_assert_msg(encode_with_patch(path, value, text, len) == TESS_EINVAL, "%s is accepted",
	              value);
	expect_part(tess_error(), "encoding a text: ");
	expect_part(tess_error(), why);
}

/* Checks patterns whose steps double with each character, or grow with the square of the length. */
START_TEST(limits_of_patterns)
{
	static const char *const pattern = "pre_tokenizer.pattern.Regex";
	static char text[1 << 16];

	memset(text, 'a', sizeof text);
	ck_assert_int_eq(encode_with_patch(pattern, "\"(a+)+$|(a*)*b\"", "aaaaaa", 6), TESS_OK);
	ck_assert_int_eq(encode_with_patch(pattern, "\"(a|aa)+\\\\z\"", text, 63), TESS_OK);
	ck_assert_int_eq(encode_with_patch(pattern, "\"a*[bc]?\"", text, sizeof text), TESS_OK);
	expect_text_refused(pattern, "\"a+[bc]\"", text, sizeof text,
	                    "pattern \"a+[bc]\" of tokenizer.json: above the limit of 54194304 "
	                    "steps for a text of 65536 bytes");
	text[63] = 'b';
	expect_text_refused(pattern, "\"(a|aa)+\\\\z\"", text, 64, "pattern \"(a|aa)+\\z\"");
	for (size_t i = 22; i < sizeof text; i += 23)
		text[i] = 'c';
	expect_text_refused(pattern, "\"(?:(a+)+b|a)\"", text, 23000, "steps for a text of 23000");
	expect_text_refused(pattern, "\"(?:(?:aa?){1,9}?){2,}b|a\"", text, 23000, "steps for");
	expect_text_refused("normalizer",
	                    "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \"(a*)*b\"}, "
	                    "\"content\": \"\"}",
	                    text, 23000, "pattern \"(a*)*b\" of tokenizer.json");
}
END_TEST

/* Repeats `step` `n` times, in the Sequence `list`. */
static const char *repeat_step(const char *list, const char *step, int n)
{
	static char text[1 << 14];
	char *to = text + sprintf(text, "{\"type\": \"Sequence\", \"%s\": [", list);

	for (int i = 0; i < n; i++)
		to += sprintf(to, "%s%s", i ? ", " : "", step);
	strcpy(to, "]}");
	return text;
}

#define REPLACE(content) \
	"{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"" content "\"}"

#define TEN "aaaaaaaaaa"
#define HUNDRED TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN

/* Checks short texts that steps lengthen. */
START_TEST(limits_of_growth)
{
	static const char *const bytes = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
					 "\"use_regex\": false}";
	static const char *const most = "make more than 1048832 bytes of a text of 4; use fewer";
	static char text[1 << 18];
	const int32_t ids[2] = { 0, 0 };
	struct tess_tokenizer *t = NULL;
	char *whole;
	size_t len;

	memset(text, 'a', sizeof text);
	expect_text_refused("normalizer", REPLACE(HUNDRED), text, sizeof text,
	                    "a text of more than 16777216 bytes");
	ck_assert_int_eq(encode_with_patch("normalizer",
	                                   repeat_step("normalizers", REPLACE("aa"), 16), "aaaa",
	                                   4),
	                 TESS_OK);
	expect_text_refused("normalizer", repeat_step("normalizers", REPLACE("aa"), 18), "aaaa", 4,
	                    most);
	expect_text_refused("pre_tokenizer", repeat_step("pretokenizers", bytes, 18),
	                    "\xc3\xa9\xc3\xa9", 4, most);
	whole = patch_base("decoder", repeat_step("decoders", REPLACE("aa"), 19));
	ck_assert_int_eq(tess_tokenizer_parse("tok.json", whole, strlen(whole), &t), TESS_OK);
	free(whole);
	ck_assert_int_eq(tess_tokenizer_decode(t, ids, 2, true, &whole, &len), TESS_EINVAL);
	expect_part(tess_error(), "bytes of a text of 2; use fewer");
	tess_tokenizer_close(t);
}
END_TEST

SUITE_MAIN("tokenizer_bad", the_base_is_good, texts_that_are_no_json, refused_with_key_and_reason,
           too_many_steps, limits_of_patterns, limits_of_growth)
