#include "hf/tokenizer/post.h"

#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>

enum { POST_IDS_MAX = 64 }; /* around a text */

static tess_status add_special_ids(const json_t *special, const struct tess_vocab *v,
                                   struct tess_ids *to)
{
	const json_t *ids = json_object_get(special, "ids");
	tess_status st = TESS_OK;
	json_t *id;
	size_t i;

	if (!json_is_array(ids))
		return tess_fail(TESS_EINVAL, "ids: an array was expected");
	json_array_foreach(ids, i, id) {
		json_int_t n = json_integer_value(id);

		if (!json_is_integer(id) || n < 0 || n >= v->n || !v->token[n].len)
			return tess_fail(TESS_EINVAL, "ids[%zu]: no token has this id", i);
		if (to->n == POST_IDS_MAX)
			return tess_fail(TESS_EINVAL, "more than %d ids around a text",
			                 POST_IDS_MAX);
		st = tess_ids_add(to, (int32_t)n);
		if (st)
			return st;
	}
	return st;
}

/* Parses one item of "single"; *text: the sequence was seen. */
static tess_status parse_template_item(const json_t *item, const json_t *specials,
                                       const struct tess_vocab *v, bool *text,
                                       struct tess_post *out)
{
	static const char *const known[] = { "SpecialToken", "Sequence", NULL };
	static const char *const sequences[] = { "A", NULL };
	const json_t *special = json_object_get(item, "SpecialToken"),
		     *sequence = json_object_get(item, "Sequence");
	const char *name;
	tess_status st = tess_keys_check(item, known);
	size_t n;
	int which;

	if (!st && json_object_size(item) != 1)
		st = tess_fail(TESS_EINVAL, "either SpecialToken or Sequence was expected");
	if (st)
		return st;
	if (sequence) {
		st = tess_key_get_choice(sequence, "id", sequences, -1, &which);
		if (!st && *text)
			st = tess_fail(TESS_ENOTSUP, "Sequence: the text may occur only once");
		*text = true;
		return st;
	}
	st = tess_key_get_string(special, "id", &name, &n);
	if (st)
		return st;
	st = add_special_ids(json_object_get(specials, name), v,
	                     *text ? &out->after : &out->before);
	return st ? tess_fail_in(st, "special_tokens: \"%.64s\"", name) : TESS_OK;
}

static tess_status parse_template(const json_t *j, const struct tess_vocab *v,
                                  struct tess_post *out)
{
	static const char *const known[] = { "type", "single", "pair", "special_tokens", NULL };
	const json_t *single = json_object_get(j, "single"),
		     *specials = json_object_get(j, "special_tokens");
	tess_status st = tess_keys_check(j, known);
	bool text = false;
	json_t *item;
	size_t i;

	if (!st && !json_is_array(single))
		st = tess_fail(TESS_EINVAL, "single: an array was expected");
	json_array_foreach(single, i, item) {
		if (st)
			break;
		st = parse_template_item(item, specials, v, &text, out);
		if (st)
			tess_fail_in(st, "single[%zu]", i);
	}
	if (!st && !text)
		st = tess_fail(TESS_EINVAL, "single: the Sequence \"A\" is missing");
	return st;
}

enum { POST_SEQUENCE, POST_TEMPLATE, POST_BYTE_LEVEL };

struct post_parser {
	const struct tess_vocab *vocab;
	struct tess_post *out;
};

static tess_status parse_post_step(void *arg, const json_t *j, int type)
{
	static const char *const byte_level[] = { "type", "add_prefix_space", "trim_offsets",
		                                  "use_regex", NULL };
	const struct post_parser *r = arg;

	if (type == POST_TEMPLATE)
		return parse_template(j, r->vocab, r->out);
	/* ByteLevel only trims the offsets of tokens, which are not computed here */
	return tess_keys_check(j, byte_level);
}

tess_status tess_post_parse(const json_t *j, const struct tess_vocab *v, struct tess_post *out)
{
	static const char *const types[] = { "Sequence", "TemplateProcessing", "ByteLevel", NULL };
	struct post_parser r = { .vocab = v, .out = out };
	tess_status st;

	*out = (struct tess_post){ .bos = -1, .eos = -1 };
	if (!j || json_is_null(j))
		return TESS_OK;
	st = tess_steps_parse(j, "processors", types, parse_post_step, &r);
	return st ? tess_fail_in(st, "post_processor") : TESS_OK;
}

void tess_post_free(struct tess_post *p)
{
	free(p->before.id);
	free(p->after.id);
	*p = (struct tess_post){ 0 };
}

/* ---- tokenizer_config.json ------------------------------------------------------------------- */

/* Reads a token: a string, or an object with its content; null or absent: -1. */
static tess_status read_config_token(const json_t *config, const char *key,
                                     const struct tess_vocab *v, int32_t *out)
{
	const json_t *t = json_object_get(config, key);

	t = json_is_object(t) ? json_object_get(t, "content") : t;
	*out = -1;
	if (!t || json_is_null(t))
		return TESS_OK;
	if (!json_is_string(t))
		return tess_fail(TESS_EINVAL, "%s: a token was expected", key);
	*out = tess_vocab_find(v, json_string_value(t), json_string_length(t));
	if (*out < 0)
		return tess_fail(TESS_EINVAL, "%s: tokenizer.json has no token \"%.64s\"", key,
		                 json_string_value(t));
	return TESS_OK;
}

static bool uses_bos_eos_flags(const char *class)
{
	static const char *const classes[] = {
		"LlamaTokenizer",         "LlamaTokenizerFast",  "CodeLlamaTokenizer",
		"CodeLlamaTokenizerFast", "GemmaTokenizer",      "GemmaTokenizerFast",
		"CohereTokenizer",        "CohereTokenizerFast", NULL
	};

	for (int i = 0; class && classes[i]; i++)
		if (strcmp(class, classes[i]) == 0)
			return true;
	return false;
}

tess_status tess_post_read_config(const json_t *config, const struct tess_vocab *v,
                                  struct tess_post *out)
{
	bool bos, eos;
	tess_status st;

	if (!json_is_object(config))
		return tess_fail(TESS_EINVAL, "an object was expected");
	st = read_config_token(config, "bos_token", v, &out->bos);
	if (!st)
		st = read_config_token(config, "eos_token", v, &out->eos);
	if (!st)
		st = tess_key_get_bool(config, "add_bos_token", true, &bos);
	if (!st)
		st = tess_key_get_bool(config, "add_eos_token", false, &eos);
	if (st ||
	    !uses_bos_eos_flags(json_string_value(json_object_get(config, "tokenizer_class"))))
		return st;
	out->before.n = 0;
	out->after.n = 0;
	if (bos && out->bos >= 0)
		st = tess_ids_add(&out->before, out->bos);
	if (!st && eos && out->eos >= 0)
		st = tess_ids_add(&out->after, out->eos);
	return st;
}
