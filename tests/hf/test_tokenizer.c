#include "core/base/status.h"
#include "tests/support/draw.h"
#include "tests/support/scratch.h"
#include "tokens.h"

static struct tess_tokenizer *open_stories(void)
{
	struct tess_tokenizer *t = NULL;

	ck_assert_msg(!tess_tokenizer_open(format_data_path("."), &t), "%s", tess_error());
	return t;
}

START_TEST(stories_encodes_as_hugging_face_does)
{
	struct tess_tokenizer *t = open_stories();

	tokens_check_vectors(t, tokens_format_path("stories260K-vectors.json"));
	tess_tokenizer_close(t);
}
END_TEST

START_TEST(gpt2_encodes_as_its_own_encoder_does)
{
	struct tess_tokenizer *t = tokens_open(tokens_make_gpt2());

	ck_assert_int_eq(tess_tokenizer_vocab_size(t), 50257);
	tokens_check_vectors(t, tokens_format_path("gpt2-vectors.json"));
	tokens_check_llamacpp(t, tokens_format_path("gpt-2"));
	tess_tokenizer_close(t);
}
END_TEST

/* ---- each step and option -------------------------------------------------------------------- */

static void apply_settings(json_t *root, json_t *set)
{
	const char *key;
	json_t *value;

	json_object_foreach(set, key, value) {
		if (strcmp(key, "added_tokens") == 0)
			json_array_extend(json_object_get(root, key), value);
		else if (strncmp(key, "model.", 6) == 0)
			json_object_set(json_object_get(root, "model"), key + 6, value);
		else
			json_object_set(root, key, value);
	}
}

static size_t load_ids(const json_t *list, int32_t ids[static 32])
{
	for (size_t i = 0; i < json_array_size(list); i++)
		ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
	return json_array_size(list);
}

static void check_variant(json_t *root, json_t *variant)
{
	char *what = json_dumps(json_object_get(variant, "set"), JSON_COMPACT), *text;
	struct tess_tokenizer *t;
	int32_t ids[32];
	json_t *one;
	size_t i, n, len;

	apply_settings(root, json_object_get(variant, "set"));
	t = tokens_open(root);
	json_array_foreach(json_object_get(variant, "encode"), i, one) {
		json_t *from = json_array_get(one, 0);

		tokens_expect(t, what, json_string_value(from), json_string_length(from), true,
		              json_array_get(one, 1));
	}
	json_array_foreach(json_object_get(variant, "decode"), i, one) {
		bool skip = json_is_true(json_array_get(one, 1));

		n = load_ids(json_array_get(one, 0), ids);
		ck_assert_int_eq(tess_tokenizer_decode(t, ids, n, skip, &text, &len), TESS_OK);
		ck_assert_msg(strcmp(text, json_string_value(json_array_get(one, 2))) == 0,
		              "%s: decodes to \"%s\", not \"%s\"", what, text,
		              json_string_value(json_array_get(one, 2)));
		free(text);
		tokens_check_stream(t, ids, n, skip);
	}
	tess_tokenizer_close(t);
	free(what);
}

START_TEST(steps_do_as_in_hugging_face)
{
	json_t *file = tokens_load_json(tokens_format_path("variants.json")),
	       *list = json_object_get(file, "variants"), *variant;
	json_t *gpt2 = tokens_make_gpt2();
	size_t i;

	ck_assert_int_ge(json_array_size(list), 70);
	json_array_foreach(list, i, variant) {
		const char *name = json_string_value(json_object_get(variant, "base"));

		check_variant(strcmp(name, "gpt2") == 0
		                      ? json_deep_copy(gpt2)
		                      : tokens_load_json(format_data_path("tokenizer.json")),
		              variant);
	}
	json_decref(gpt2);
	json_decref(file);
}
END_TEST

/* ---- borders --------------------------------------------------------------------------------- */

/* Compares the ids of a text, and the id of each character; null: the character was removed. */
static void check_borders(const struct tess_tokenizer *t, const json_t *one)
{
	const json_t *text = json_array_get(one, 0), *want = json_array_get(one, 2), *id;
	const char *s = json_string_value(text);
	struct tess_token_border border[256];
	size_t len = json_string_length(text), nborders = 0, n, i;
	int32_t *ids;

	for (i = 0; i < len; i++)
		if ((s[i] & 0xc0) != 0x80)
			border[nborders++] = (struct tess_token_border){ .at = i };
	ck_assert_uint_eq(nborders, json_array_size(want));
	border[nborders++].at = len;
	ck_assert(!tess_tokenizer_encode_borders(t, s, len, border, nborders, &ids, &n));
	ck_assert_uint_eq(n, json_array_size(json_array_get(one, 1)));
	json_array_foreach(json_array_get(one, 1), i, id)
		ck_assert_int_eq(ids[i], json_integer_value(id));
	json_array_foreach(want, i, id) {
		ck_assert_msg(json_is_null(id) ||
		                      border[i].ends_after == (size_t)json_integer_value(id),
		              "\"%s\", character %zu: id %zu, not %lld", s, i, border[i].ends_after,
		              json_integer_value(id));
		ck_assert(border[i].begins_at - border[i].ends_after <= 1);
	}
	ck_assert(border[i].ends_after == n && border[i].begins_at == n);
	free(ids);
}

START_TEST(ids_at_borders)
{
	json_t *file = tokens_load_json(tokens_format_path("borders.json")),
	       *list = json_object_get(file, "variants"), *variant, *one;
	size_t i, k;

	ck_assert_int_ge(json_array_size(list), 5);
	json_array_foreach(list, i, variant) {
		const char *name = json_string_value(json_object_get(variant, "base"));
		json_t *root = strcmp(name, "gpt2") == 0
		                       ? tokens_make_gpt2()
		                       : tokens_load_json(format_data_path("tokenizer.json"));
		struct tess_tokenizer *t;

		apply_settings(root, json_object_get(variant, "set"));
		t = tokens_open(root);
		json_array_foreach(json_object_get(variant, "texts"), k, one)
			check_borders(t, one);
		tess_tokenizer_close(t);
	}
	json_decref(file);
}
END_TEST

/* ---- properties ------------------------------------------------------------------------------ */

/* Makes random text of all planes, with spaces and repetitions. */
static size_t make_random_text(uint64_t *seed, char *out, size_t capacity)
{
	static const uint32_t planes[][2] = { { 0x20, 0x5f },     { 0x20, 0x5f },
		                              { 0x20, 0x5f },     { 0x9, 5 },
		                              { 0xa0, 0x500 },    { 0x900, 0x2000 },
		                              { 0x3000, 0xa000 }, { 0x10000, 0x20000 } };
	size_t n = 0;

	for (size_t words = draw_below(seed, 20); words && n + 40 < capacity; words--) {
		const uint32_t *plane = planes[draw_below(seed, 8)];

		for (uint32_t k = draw_below(seed, 8); k; k--) {
			uint32_t cp = plane[0] + draw_below(seed, plane[1]);

			if (cp == 0x2581 || (cp >= 0xd800 && cp < 0xe000))
				continue;
			n += tokens_write_utf8(cp, out + n);
		}
		if (draw_below(seed, 2))
			out[n++] = ' ';
	}
	return n;
}

static void check_round_trips(const struct tess_tokenizer *t)
{
	uint64_t seed = 1;
	char in[2048], *out;
	size_t len, back, n;
	int32_t *ids;

	for (int i = 0; i < 1000; i++) {
		len = make_random_text(&seed, in, sizeof in);
		ck_assert_msg(!tess_tokenizer_encode(t, in, len, true, &ids, &n), "%s",
		              tess_error());
		ck_assert_int_eq(tess_tokenizer_decode(t, ids, n, true, &out, &back), TESS_OK);
		ck_assert_uint_eq(back, len);
		ck_assert_mem_eq(in, out, len);
		tokens_check_stream(t, ids, n, true);
		free(ids);
		free(out);
	}
}

START_TEST(text_comes_back)
{
	struct tess_tokenizer *stories = open_stories(), *gpt2 = tokens_open(tokens_make_gpt2());

	check_round_trips(stories);
	check_round_trips(gpt2);
	tess_tokenizer_close(stories);
	tess_tokenizer_close(gpt2);
}
END_TEST

/*
 * Returns whether the ids after the first `at` give the rest of the text, unless a character is
 * cut.
 */
static bool is_continued_at(const struct tess_tokenizer *t, const int32_t *ids, size_t n, size_t at)
{
	char *whole, *begin, text[4096];
	size_t len, from, got, have;
	struct tess_decode_stream *d;
	const char *part;
	bool cut;

	ck_assert(!tess_tokenizer_decode(t, ids, n, true, &whole, &len) &&
	          !tess_tokenizer_decode(t, ids, at, true, &begin, &from));
	cut = from > len || memcmp(whole, begin, from) != 0;
	have = cut ? 0 : from;
	ck_assert(!tess_decode_stream_open(t, true, &d) &&
	          !tess_decode_stream_follow(d, ids, (int64_t)at));
	for (size_t i = at; i <= n; i++) {
		ck_assert(i < n ? !tess_decode_stream_push(d, ids[i], &part, &got)
		                : !tess_decode_stream_finish(d, &part, &got));
		ck_assert_uint_le(have + got, sizeof text);
		if (got)
			memcpy(text + have, part, got);
		have += got;
	}
	ck_assert_msg(cut || (have == len && !memcmp(text + from, whole + from, len - from)),
	              "\"%s\", of which \"%s\" is known: \"%.*s\"", whole, begin,
	              (int)(have - from), text + from);
	tess_decode_stream_close(d);
	free(whole);
	free(begin);
	return !cut;
}

START_TEST(texts_are_continued)
{
	struct tess_tokenizer *each[] = { open_stories(), tokens_open(tokens_make_gpt2()) };
	uint64_t seed = 5;
	char in[2048];

	for (int k = 0; k < 2; k++) {
		size_t n, count = 0, all = 0;
		int32_t *ids;

		for (int i = 0; i < 300; i++) {
			size_t len = make_random_text(&seed, in, sizeof in);

			ck_assert(!tess_tokenizer_encode(each[k], in, len, true, &ids, &n));
			for (size_t at = 0; at <= n; at += 1 + n / 8, all++)
				count += is_continued_at(each[k], ids, n, at);
			free(ids);
		}
		ck_assert_msg(count > all / 2, "%zu of %zu", count, all);
		tess_tokenizer_close(each[k]);
	}
}
END_TEST

static void check_random_streams(const struct tess_tokenizer *t, uint32_t ids_below)
{
	uint64_t seed = 2;
	int32_t ids[40];

	for (int i = 0; i < 2000; i++) {
		size_t n = draw_below(&seed, 40);

		for (size_t k = 0; k < n; k++)
			ids[k] = (int32_t)draw_below(&seed, ids_below) - 3;
		tokens_check_stream(t, ids, n, i % 2);
	}
}

START_TEST(any_ids_stream_to_the_text_they_decode_to)
{
	struct tess_tokenizer *stories = open_stories(), *gpt2 = tokens_open(tokens_make_gpt2());

	check_random_streams(stories, 600);
	check_random_streams(gpt2, 50300);
	check_random_streams(gpt2, 300);
	tess_tokenizer_close(stories);
	tess_tokenizer_close(gpt2);
}
END_TEST

/* Encodes a megabyte of one `unit`, less with a sanitizer, within the timeout of the test. */
static void expect_quick(const struct tess_tokenizer *t, const char *first, const char *unit,
                         const char *last)
{
	size_t len = strlen(first), step = strlen(unit), n;
	char *text = malloc(1100000);
	int32_t *ids;

	memcpy(text, first, len);
	for (; len < 1000000 / THIN; len += step)
		memcpy(text + len, unit, step);
	memcpy(text + len, last, strlen(last));
	len += strlen(last);
	ck_assert_msg(!tess_tokenizer_encode(t, text, len, false, &ids, &n), "%s", tess_error());
	ck_assert_uint_gt(n, 1000);
	free(ids);
	free(text);
}

START_TEST(no_megabyte_is_slow)
{
	json_t *nfc = tokens_make_gpt2();
	struct tess_tokenizer *stories = open_stories(), *gpt2;

	json_object_set_new(nfc, "normalizer", json_pack("{s:s}", "type", "NFC"));
	gpt2 = tokens_open(nfc);
	for (int i = 0; i < 2; i++) {
		const struct tess_tokenizer *t = i ? gpt2 : stories;

		expect_quick(t, "", " ", "");
		expect_quick(t, "", " ", "x");
		expect_quick(t, "", "a", "");
		expect_quick(t, "", "\n", "x");
		expect_quick(t, "", "the ", "");
		expect_quick(t, "", "<|", "");
		expect_quick(t, "a", "\xcc\x81\xcc\xa3",
		             ""); /* marks whose combining classes fall and rise */
	}
	tess_tokenizer_close(stories);
	tess_tokenizer_close(gpt2);
}
END_TEST

/* ---- the interface --------------------------------------------------------------------------- */

START_TEST(tokens_have_names)
{
	struct tess_tokenizer *t = open_stories();

	ck_assert_int_eq(tess_tokenizer_vocab_size(t), 512);
	ck_assert_str_eq(tess_tokenizer_id_to_token(t, 2), "</s>");
	ck_assert_ptr_null(tess_tokenizer_id_to_token(t, 512));
	ck_assert_ptr_null(tess_tokenizer_id_to_token(t, -1));
	ck_assert_int_eq(tess_tokenizer_token_to_id(t, "<0x41>"), 0x41 + 3);
	ck_assert_int_eq(tess_tokenizer_token_to_id(t, "no such token"), -1);
	ck_assert(tess_tokenizer_is_special(t, 1));
	ck_assert(!tess_tokenizer_is_special(t, 400));
	ck_assert(!tess_tokenizer_is_special(t, 512));
	ck_assert_int_eq(tess_tokenizer_bos(t), 1);
	ck_assert_int_eq(tess_tokenizer_eos(t), 2);
	tess_tokenizer_close(t);
	tess_tokenizer_close(NULL);
	tess_decode_stream_close(NULL);
}
END_TEST

START_TEST(texts_that_are_no_text)
{
	struct tess_tokenizer *t = open_stories();
	int32_t *ids = NULL;
	size_t n = 7;

	ck_assert_int_eq(tess_tokenizer_encode(t, "ab\xc3(", 4, true, &ids, &n), TESS_EINVAL);
	expect_part(tess_error(), "not UTF-8 at its byte 2");
	ck_assert_int_eq(tess_tokenizer_encode(t, "\xed\xa0\x80", 3, true, &ids, &n), TESS_EINVAL);
	ck_assert_ptr_null(ids);
	ck_assert_uint_eq(n, 7);
	ck_assert_int_eq(tess_tokenizer_encode(t, "", 0, false, &ids, &n), TESS_OK);
	ck_assert_ptr_nonnull(ids);
	ck_assert_uint_eq(n, 0);
	free(ids);
	tess_tokenizer_close(t);
}
END_TEST

/* Encodes "x" with data/tokenizer.json and this tokenizer_config.json. */
static tess_status encode_with_config(const char *config, int32_t **ids, size_t *n, int32_t *eos)
{
	struct tess_tokenizer *t = NULL;
	size_t len;
	char *text = tokens_load_text(format_data_path("tokenizer.json"), &len);
	const char *path = scratch_write("tokenizer.json", text, len);
	tess_status st;

	scratch_write_text("tokenizer_config.json", config);
	st = tess_tokenizer_open(path, &t);
	if (!st) {
		ck_assert_int_eq(tess_tokenizer_encode(t, "x", 1, true, ids, n), TESS_OK);
		*eos = tess_tokenizer_eos(t);
	}
	tess_tokenizer_close(t);
	free(text);
	return st;
}

START_TEST(config_says_what_begins_and_ends_a_text)
{
	static const struct {
		const char *config;
		int first, last;
		int32_t eos;
	} cases[] = {
		{ "{}", 1, -1, -1 },
		{ "{\"eos_token\": {\"content\": \"</s>\"}, \"model_max_length\": "
		  "1000000000000000019884624838656}",
		  1, -1, 2 },
		{ "{\"tokenizer_class\": \"LlamaTokenizer\", \"bos_token\": \"<s>\", "
		  "\"eos_token\": \"</s>\", "
		  "\"add_bos_token\": false, \"add_eos_token\": true}",
		  -1, 2, 2 },
		{ "{\"tokenizer_class\": \"LlamaTokenizerFast\", \"bos_token\": \"<unk>\"}", 0, -1,
		  -1 },
		{ "{\"tokenizer_class\": \"PreTrainedTokenizerFast\", \"add_bos_token\": false}", 1,
		  -1, -1 },
	};
	int32_t *ids, eos;
	size_t n;

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		ck_assert_msg(!encode_with_config(cases[i].config, &ids, &n, &eos), "%s",
		              tess_error());
		ck_assert_int_eq(eos, cases[i].eos);
		ck_assert_int_eq(ids[0] < 3 ? ids[0] : -1, cases[i].first);
		ck_assert_int_eq(ids[n - 1] < 3 ? ids[n - 1] : -1, cases[i].last);
		free(ids);
	}
	ck_assert_int_eq(encode_with_config("{\"bos_token\": \"no such\"}", &ids, &n, &eos),
	                 TESS_EINVAL);
	expect_part(tess_error(), "tokenizer_config.json: bos_token: ");
	ck_assert_int_eq(encode_with_config("[]", &ids, &n, &eos), TESS_EINVAL);
}
END_TEST

/* Checks that the second token gets the id of the vocabulary; the key only orders them. */
START_TEST(config_adds_tokens)
{
	static const char config[] =
		"{\"added_tokens_decoder\": {\"1\": {\"content\": \"<s>\", \"special\": true}, "
		"\"600\": {\"content\": \"<late>\", \"normalized\": false}, "
		"\"599\": {\"content\": \"\u2581Once\", \"normalized\": false}, "
		"\"513\": {\"content\": \"<|end|>\", \"special\": true}}, "
		"\"eos_token\": \"<|end|>\"}";
	int32_t *ids, eos;
	struct tess_tokenizer *t;
	size_t n;

	ck_assert_msg(!encode_with_config(config, &ids, &n, &eos), "%s", tess_error());
	free(ids);
	ck_assert_int_eq(eos, 512);
	ck_assert_int_eq(tess_tokenizer_open(scratch_format_path("tokenizer.json"), &t), 0);
	ck_assert_int_eq(tess_tokenizer_encode(t, "a<|end|><late>", 14, false, &ids, &n), TESS_OK);
	ck_assert(n >= 3 && ids[n - 2] == 512 && ids[n - 1] == 513);
	ck_assert_int_eq(tess_tokenizer_token_to_id(t, "\u2581Once"), 403);
	ck_assert(tess_tokenizer_is_special(t, 512) && !tess_tokenizer_is_special(t, 513));
	free(ids);
	tess_tokenizer_close(t);
}
END_TEST

START_TEST(no_tokenizer)
{
	struct tess_tokenizer *t = NULL;

	ck_assert_int_eq(tess_tokenizer_open("/nowhere", &t), TESS_ENOENT);
	ck_assert_int_eq(tess_tokenizer_open("/", &t), TESS_ENOENT);
	expect_part(tess_error(), "tokenizer.json");
	scratch_write_text("pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
	ck_assert_int_eq(tess_tokenizer_open(scratch_format_path("pointer"), &t), TESS_EINVAL);
	expect_part(tess_error(), "/pointer: is a pointer of git-lfs");
	ck_assert_ptr_null(t);
}
END_TEST

SCRATCH_MAIN("tokenizer", stories_encodes_as_hugging_face_does,
             gpt2_encodes_as_its_own_encoder_does, steps_do_as_in_hugging_face, ids_at_borders,
             text_comes_back, any_ids_stream_to_the_text_they_decode_to, texts_are_continued,
             no_megabyte_is_slow, tokens_have_names, texts_that_are_no_text,
             config_says_what_begins_and_ends_a_text, config_adds_tokens, no_tokenizer)
