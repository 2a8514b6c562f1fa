#include "hf/chat/source.h"

#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/status.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

enum { TEMPLATE_BYTES_MAX = 1 << 20, CHAT_CONFIG_BYTES_MAX = 1 << 24 };

/* ---- the files of a checkpoint --------------------------------------------------------------- */

static tess_status copy_chat_bytes(const char *s, size_t n, char **out)
{
	free(*out);
	*out = malloc(n + 1);
	if (!*out)
		return tess_fail(TESS_ENOMEM, "out of memory");
	memcpy(*out, s, n);
	(*out)[n] = '\0';
	return TESS_OK;
}

static tess_status set_template(const char *file, const char *text, size_t len,
                                struct tess_chat_source *out)
{
	tess_status st = copy_chat_bytes(file, strlen(file), &out->file);

	if (!st)
		st = copy_chat_bytes(text, len, &out->text);
	out->len = len;
	return st;
}

/* Reads chat_template.jinja, the text itself. A missing file is none. */
static tess_status read_template_file(const char *path, struct tess_chat_source *out)
{
	FILE *f = fopen(path, "rbe");
	char *text = f ? malloc(TEMPLATE_BYTES_MAX + 1) : NULL;
	size_t n = text ? fread(text, 1, TEMPLATE_BYTES_MAX + 1, f) : 0;
	tess_status st = TESS_OK;

	if (!f) {
		st = tess_file_fail_open(path);
		return st == TESS_ENOENT ? TESS_OK : st;
	}
	if (!text)
		st = tess_fail(TESS_ENOMEM, "%s: out of memory", path);
	else if (ferror(f))
		st = tess_fail(TESS_EIO, "%s: cannot be read", path);
	else if (n > TEMPLATE_BYTES_MAX)
		st = tess_fail(TESS_EINVAL, "%s: more than %d bytes, the limit", path,
		               TEMPLATE_BYTES_MAX);
	else
		st = tess_file_check_pointer(path, text, n);
	if (!st)
		st = set_template(path, text, n, out);
	fclose(f);
	free(text);
	return st;
}

/* Returns the template at "chat_template": a text, or that named "default" in a list. */
static tess_status get_template(const char *path, const json_t *config, const json_t **out)
{
	const json_t *value = json_object_get(config, "chat_template"), *entry;
	size_t i;

	*out = NULL;
	if (!value || json_is_null(value))
		return TESS_OK;
	if (json_is_string(value))
		*out = value;
	json_array_foreach(value, i, entry) {
		const char *name = json_string_value(json_object_get(entry, "name"));

		if (name && !strcmp(name, "default"))
			*out = json_object_get(entry, "template");
	}
	if (!json_is_string(*out))
		return tess_fail(TESS_EINVAL,
		                 "%s: chat_template: a text, or a list with the name \"default\", "
		                 "was expected",
		                 path);
	return TESS_OK;
}

/* Reads "chat_template" of a JSON file, unless a template is known. A missing file has none. */
static tess_status read_template_key(const char *path, const json_t *config,
                                     struct tess_chat_source *out)
{
	const json_t *text;
	tess_status st = out->file ? TESS_OK : get_template(path, config, &text);

	if (st || out->file || !text)
		return st;
	return set_template(path, json_string_value(text), json_string_length(text), out);
}

/* Copies the token at `key`: a text, or an object with "content"; else "". */
static tess_status read_token(const json_t *config, const char *key, char **out)
{
	const json_t *value = json_object_get(config, key);

	if (json_is_object(value))
		value = json_object_get(value, "content");
	return copy_chat_bytes(json_is_string(value) ? json_string_value(value) : "",
	                       json_string_length(value), out);
}

static tess_status read_config(const char *path, bool tokens, struct tess_chat_source *out)
{
	json_t *config = NULL;
	tess_status st = tess_json_load_as_real(path, CHAT_CONFIG_BYTES_MAX, &config);

	if (st && st != TESS_ENOENT)
		return st;
	st = read_template_key(path, config, out);
	if (!st && tokens)
		st = read_token(config, "bos_token", &out->bos);
	if (!st && tokens)
		st = read_token(config, "eos_token", &out->eos);
	json_decref(config);
	return st;
}

tess_status tess_chat_source_read(const char *dir, struct tess_chat_source *out)
{
	static const char *const names[] = { "chat_template.jinja", "tokenizer_config.json",
		                             "chat_template.json" };
	tess_status st = TESS_OK;

	*out = (struct tess_chat_source){ 0 };
	for (int i = 0; i < 3 && !st; i++) {
		char *path;

		if (asprintf(&path, "%s/%s", dir, names[i]) < 0)
			return tess_fail(TESS_ENOMEM, "out of memory");
		st = i ? read_config(path, i == 1, out) : read_template_file(path, out);
		free(path);
	}
	return st;
}

void tess_chat_source_free(struct tess_chat_source *s)
{
	free(s->file);
	free(s->text);
	free(s->bos);
	free(s->eos);
	*s = (struct tess_chat_source){ 0 };
}

/* ---- which template it is -------------------------------------------------------------------- */

static void hash_template(const char *text, size_t len, char sha256[65])
{
	unsigned char digest[crypto_hash_sha256_BYTES];
	crypto_hash_sha256_state state;
	const unsigned char *s = (const unsigned char *)text;

	crypto_hash_sha256_init(&state);
	if (len && text[len - 1] == '\n') /* one end of a line */
		len -= len > 1 && text[len - 2] == '\r' ? 2 : 1;
	else if (len && text[len - 1] == '\r')
		len--;
	while (len) {
		const unsigned char *end = memchr(s, '\r', len);
		size_t n = end ? (size_t)(end - s) : len;

		crypto_hash_sha256_update(&state, s, n);
		s += n;
		len -= n;
		if (!len)
			break;
		crypto_hash_sha256_update(&state, (const unsigned char *)"\n", 1);
		n = len > 1 && s[1] == '\n' ? 2 : 1;
		s += n;
		len -= n;
	}
	crypto_hash_sha256_final(&state, digest);
	sodium_bin2hex(sha256, 65, digest, sizeof digest);
}

const struct tess_chat_form *tess_chat_recognise(const char *text, size_t len, char sha256[65])
{
	hash_template(text, len, sha256);
	for (int32_t i = 0; i < tess_chat_nforms; i++)
		for (const char *const *known = tess_chat_forms[i].sha256; *known; known++)
			if (!strcmp(*known, sha256))
				return &tess_chat_forms[i];
	return NULL;
}

const struct tess_chat_form *tess_chat_find_form(const char *name)
{
	for (int32_t i = 0; i < tess_chat_nforms; i++)
		if (!strcmp(tess_chat_forms[i].name, name))
			return &tess_chat_forms[i];
	return NULL;
}
