#include "hf/tokenizer/tokenizer.h"

#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "hf/tokenizer/stages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { TOKENIZER_BYTES_MAX = 1 << 28, CONFIG_BYTES_MAX = 1 << 24 };

/* ---- open ------------------------------------------------------------------------------------ */

static tess_status parse_tokens(struct tess_tokenizer *t, const json_t *root)
{
	const json_t *list = json_object_get(root, "added_tokens"),
		     *model = json_object_get(root, "model");
	struct tess_scan *scan = NULL;
	size_t added, ids;
	tess_status st;

	if (!json_is_object(model))
		return tess_fail(TESS_EINVAL, "model: an object was expected");
	st = tess_added_count(list, &added, &ids);
	if (st)
		return st;
	st = tess_vocab_parse(json_object_get(model, "vocab"), added, ids, &t->vocab);
	if (st)
		return tess_fail_in(st, "model");
	st = tess_scan_open(&scan);
	if (!st)
		st = tess_added_parse(list, &t->normalizer, scan, &t->vocab, &t->added);
	tess_scan_close(scan);
	if (st)
		return st;
	st = tess_bpe_parse(model, &t->vocab, &t->bpe);
	return st ? tess_fail_in(st, "model") : TESS_OK;
}

/* Checks the type of the model first: errors in another type's keys do not matter. */
static tess_status check_model_type(const json_t *root)
{
	static const char *const types[] = { "BPE", NULL };
	tess_status st;
	int type;

	st = tess_key_get_choice(json_object_get(root, "model"), "type", types, 0, &type);
	return st ? tess_fail_in(st, "model") : TESS_OK;
}

static tess_status parse_tokenizer(const char *name, const json_t *root, struct tess_tokenizer *t)
{
	static const char *const known[] = {
		"version",       "truncation",     "padding", "added_tokens", "normalizer",
		"pre_tokenizer", "post_processor", "decoder", "model",        NULL
	};
	tess_status st = tess_keys_check(root, known);

	for (int i = 1; i < 3 && !st; i++) /* transformers also sets both on each call */
		if (json_is_object(json_object_get(root, known[i])))
			tess_log(TESS_INFO, "tokenizer", "%s: %s is not applied", name, known[i]);
	if (!st)
		st = check_model_type(root);
	if (!st)
		st = tess_normalizer_parse(json_object_get(root, "normalizer"), &t->normalizer);
	if (!st)
		st = tess_pretokenizer_parse(json_object_get(root, "pre_tokenizer"), &t->pre);
	if (!st)
		st = tess_decoder_parse(json_object_get(root, "decoder"), &t->decoder);
	if (!st)
		st = parse_tokens(t, root);
	if (!st)
		st = tess_post_parse(json_object_get(root, "post_processor"), &t->vocab, &t->post);
	return st ? tess_fail_in(st, "%s", name) : TESS_OK;
}

static tess_status open_tokenizer_json(const char *name, json_t *root, struct tess_tokenizer **out)
{
	struct tess_tokenizer *t = calloc(1, sizeof *t);
	tess_status st = t ? parse_tokenizer(name, root, t)
	                   : tess_fail(TESS_ENOMEM, "%s: out of memory", name);

	if (st)
		tess_tokenizer_close(t);
	else
		*out = t;
	json_decref(root);
	return st;
}

tess_status tess_tokenizer_parse(const char *name, const char *json, size_t len,
                                 struct tess_tokenizer **out)
{
	json_t *root;
	tess_status st = tess_json_parse(name, json, len, &root);

	return st ? st : open_tokenizer_json(name, root, out);
}

/* Opens the tokenizer of `root`, completed by tokenizer_config.json if that exists. */
static tess_status open_with_config(const char *name, json_t *root, const char *path,
                                    struct tess_tokenizer **out)
{
	struct tess_tokenizer *t = NULL;
	json_t *config = NULL;
	tess_status st = tess_json_load_as_real(path, CONFIG_BYTES_MAX, &config);

	if (st && st != TESS_ENOENT)
		return json_decref(root), st;
	st = config ? tess_added_extend(root, config) : TESS_OK;
	if (st)
		json_decref(root);
	else
		st = open_tokenizer_json(name, root, &t);
	if (!st && config) {
		st = tess_post_read_config(config, &t->vocab, &t->post);
		st = st ? tess_fail_in(st, "%s", path) : st;
	}
	json_decref(config);
	if (st)
		tess_tokenizer_close(t);
	else
		*out = t;
	return st;
}

tess_status tess_tokenizer_open(const char *path, struct tess_tokenizer **out)
{
	char *file = NULL, *config = NULL;
	const char *slash = path ? strrchr(path, '/') : NULL;
	struct stat about;
	bool dir = path && !stat(path, &about) && S_ISDIR(about.st_mode);
	int stem = dir ? (int)strlen(path) : slash ? (int)(slash - path) : 1;
	tess_status st = TESS_REQUIRE(path, out);
	json_t *root;

	if (st)
		return st;
	if (asprintf(&file, dir ? "%s/tokenizer.json" : "%s", path) < 0)
		file = NULL;
	if (asprintf(&config, "%.*s/tokenizer_config.json", stem, dir || slash ? path : ".") < 0)
		config = NULL;
	st = file && config ? tess_json_load(file, TOKENIZER_BYTES_MAX, &root)
	                    : tess_fail(TESS_ENOMEM, "out of memory");
	if (!st)
		st = open_with_config(file, root, config, out);
	free(file);
	free(config);
	return st;
}

void tess_tokenizer_close(struct tess_tokenizer *t)
{
	if (!t)
		return;
	tess_normalizer_free(&t->normalizer);
	tess_pretokenizer_free(&t->pre);
	tess_decoder_free(&t->decoder);
	tess_added_free(&t->added);
	tess_vocab_free(&t->vocab);
	tess_bpe_free(&t->bpe);
	tess_post_free(&t->post);
	free(t);
}

/* ---- decode ---------------------------------------------------------------------------------- */

struct tess_decode_stream {
	const struct tess_tokenizer *t;
	struct tess_decoding pipe;
	bool skip_special, ended;
};

tess_status tess_decode_stream_open(const struct tess_tokenizer *t, bool skip_special,
                                    struct tess_decode_stream **out)
{
	tess_status st = TESS_REQUIRE(t, out);
	struct tess_decode_stream *d;

	if (st)
		return st;
	d = calloc(1, sizeof *d);
	st = d ? tess_decoding_open(&t->decoder, &d->pipe)
	       : tess_fail(TESS_ENOMEM, "out of memory");
	if (st) {
		free(d);
		return st;
	}
	d->t = t;
	d->skip_special = skip_special;
	*out = d;
	return TESS_OK;
}

static tess_status decode_id(struct tess_decode_stream *d, int32_t id)
{
	const struct tess_vocab *v = &d->t->vocab;
	const struct tess_token *token =
		tess_tokenizer_id_to_token(d->t, id) ? &v->token[id] : NULL;
	tess_status st = TESS_OK;

	if (token && !(d->skip_special && token->special))
		st = tess_decoding_push(&d->pipe, v->text.data + token->decoded_at,
		                        token->decoded_len);
	return st ? tess_fail_in(st, "decoding id %d", id) : TESS_OK;
}

tess_status tess_decode_stream_follow(struct tess_decode_stream *d, const int32_t *ids, int64_t n)
{
	tess_status st = TESS_OK;

	for (int64_t i = 0; i < n && !st; i++) {
		st = decode_id(d, ids[i]);
		d->pipe.out.len = 0;
	}
	return st ? st : tess_decoding_drop(&d->pipe);
}

static tess_status fail_ended(void)
{
	return tess_fail(TESS_EINVAL, "a decode stream that has ended takes no call but close");
}

tess_status tess_decode_stream_push(struct tess_decode_stream *d, int32_t id, const char **bytes,
                                    size_t *n)
{
	tess_status st = TESS_REQUIRE(d, bytes, n);

	if (!st && d->ended)
		st = fail_ended();
	if (st)
		return st;
	d->pipe.out.len = 0;
	st = decode_id(d, id);
	if (st)
		return st;
	*bytes = d->pipe.out.data;
	*n = d->pipe.out.len;
	return TESS_OK;
}

tess_status tess_decode_stream_finish(struct tess_decode_stream *d, const char **bytes, size_t *n)
{
	tess_status st = TESS_REQUIRE(d, bytes, n);

	if (!st && d->ended)
		st = fail_ended();
	if (st)
		return st;
	d->ended = true;
	d->pipe.out.len = 0;
	st = tess_decoding_end(&d->pipe);
	if (st)
		return tess_fail_in(st, "decoding the end of a text");
	*bytes = d->pipe.out.data;
	*n = d->pipe.out.len;
	return TESS_OK;
}

void tess_decode_stream_close(struct tess_decode_stream *d)
{
	if (!d)
		return;
	tess_decoding_close(&d->pipe);
	free(d);
}

tess_status tess_tokenizer_decode(const struct tess_tokenizer *t, const int32_t *ids, size_t n,
                                  bool skip_special, char **text, size_t *len)
{
	struct tess_decode_stream *d = NULL;
	tess_status st = TESS_REQUIRE(t, text, len);

	if (!st && n)
		st = TESS_REQUIRE(ids);
	if (!st)
		st = tess_decode_stream_open(t, skip_special, &d);

	for (size_t i = 0; i < n && !st; i++)
		st = decode_id(d, ids[i]);
	if (!st)
		st = tess_decoding_end(&d->pipe);
	if (!st)
		st = tess_text_add(&d->pipe.out, "", 1);
	if (!st) {
		*text = d->pipe.out.data;
		*len = d->pipe.out.len - 1;
		d->pipe.out = (struct tess_text){ 0 };
	}
	tess_decode_stream_close(d);
	return st;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

int32_t tess_tokenizer_vocab_size(const struct tess_tokenizer *t)
{
	return t->vocab.n;
}

const char *tess_tokenizer_id_to_token(const struct tess_tokenizer *t, int32_t id)
{
	const struct tess_vocab *v = &t->vocab;

	return id >= 0 && id < v->n && v->token[id].len ? v->text.data + v->token[id].at : NULL;
}

int32_t tess_tokenizer_token_to_id(const struct tess_tokenizer *t, const char *token)
{
	return tess_vocab_find(&t->vocab, token, strlen(token));
}

bool tess_tokenizer_is_special(const struct tess_tokenizer *t, int32_t id)
{
	return tess_tokenizer_id_to_token(t, id) && t->vocab.token[id].special;
}

int32_t tess_tokenizer_bos(const struct tess_tokenizer *t)
{
	return t->post.bos;
}

int32_t tess_tokenizer_eos(const struct tess_tokenizer *t)
{
	return t->post.eos;
}
