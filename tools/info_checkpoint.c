/* info_checkpoint.c - `tessera info DIR`: describes and checks a checkpoint or a save. */
#include "info.h"

#include "api/save.h"
#include "core/base/status.h"
#include "hf/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct about { /* a checkpoint or a save */
	const char *dir;
	json_t *root, *problems;
	bool failed; /* memory is exhausted */
};

static void set_key(struct about *a, json_t *object, const char *key, json_t *value)
{
	a->failed |= json_object_set_new(object, key, value) != 0;
}

/* Adds a message, unless another check has already added it. */
static void add_problem(void *self, const char *sentence)
{
	struct about *a = self;
	json_t *text = json_string(sentence), *other;
	size_t i;
	bool known = false;

	json_array_foreach(a->problems, i, other)
		known |= json_equal(text, other);
	if (known)
		json_decref(text);
	else
		a->failed |= json_array_append_new(a->problems, text) != 0;
}

/* ---- files ----------------------------------------------------------------------------------- */

static bool is_safetensors(const char *name)
{
	static const char end[] = ".safetensors";
	size_t len = strlen(name);

	return len >= sizeof end && !strcmp(name + len - (sizeof end - 1), end);
}

static void describe_file(struct about *a, json_t *files, const char *name)
{
	char path[PATH_MAX];
	struct tess_safetensors *f;
	struct stat about;
	json_t *o;

	if (snprintf(path, sizeof path, "%s/%s", a->dir, name) >= PATH_MAX || stat(path, &about) ||
	    !S_ISREG(about.st_mode))
		return;
	o = json_pack("{s:s, s:I}", "name", name, "bytes", (json_int_t)about.st_size);
	a->failed |= json_array_append(files, o) != 0;
	if (is_safetensors(name) && tess_safetensors_open(path, true, &f)) {
		add_problem(a, tess_error());
	} else if (is_safetensors(name)) {
		set_key(a, o, "tensors", json_integer((json_int_t)tess_safetensors_count(f)));
		tess_safetensors_close(f);
	}
	json_decref(o);
}

static void describe_files(struct about *a)
{
	struct dirent **entry = NULL;
	int n = scandir(a->dir, &entry, NULL, alphasort);
	json_t *files = json_array();

	a->failed |= n < 0 && errno == ENOMEM;
	for (int i = 0; i < n; i++) {
		if (entry[i]->d_name[0] != '.')
			describe_file(a, files, entry[i]->d_name);
		free(entry[i]);
	}
	free(entry);
	set_key(a, a->root, "files", files);
}

/* ---- the checkpoint -------------------------------------------------------------------------- */

static int64_t count_parameters(const struct tess_slice *s)
{
	int64_t n = 1;

	for (int32_t i = 0; i < s->ndim; i++)
		n *= s->shape[i];
	return n;
}

static void describe_weights(struct about *a, const struct tess_checkpoint *c)
{
	json_t *dtypes = json_object();
	int64_t parameters = 0;

	for (size_t i = 0; i < tess_checkpoint_count(c); i++) {
		const struct tess_slice *s = tess_checkpoint_at(c, i);
		const struct tess_mxfp4 *w = tess_checkpoint_get_mxfp4(c, i);
		const char *type = w ? "MXFP4" : s->type;
		int64_t own = !w               ? count_parameters(s)
		              : s == w->blocks ? 2 * count_parameters(s)
		                               : 0;
		json_int_t n = json_integer_value(json_object_get(dtypes, type));

		set_key(a, dtypes, type, json_integer(n + own));
		parameters += own;
	}
	set_key(a, a->root, "family", json_string(tess_checkpoint_config(c)->type));
	set_key(a, a->root, "parameters", json_integer(parameters));
	set_key(a, a->root, "dtypes", dtypes);
}

/* ---- the save -------------------------------------------------------------------------------- */

static bool has_file(const char *dir, const char *name)
{
	char path[PATH_MAX];
	struct stat about;

	return snprintf(path, sizeof path, "%s/%s", dir, name) < PATH_MAX && !stat(path, &about);
}

/* Compares config.json with the fingerprint in the save. */
static void compare_config(struct about *a, const json_t *state, const struct tess_checkpoint *c)
{
	char hash[17], sentence[PATH_MAX + 64];

	if (tess_save_hash_config(tess_checkpoint_config(c)->root, hash))
		a->failed = true;
	else if (strcmp(hash, json_string_value(json_object_get(state, "config"))) != 0) {
		snprintf(sentence, sizeof sentence, "%s/config.json: differs from the saved one",
		         a->dir);
		add_problem(a, sentence);
	}
}

static void describe_save(struct about *a, const struct tess_checkpoint *c)
{
	json_t *state = NULL, *sums, *file;
	int64_t checked = 0, all = 0;
	const char *name;

	if (tess_save_read_state(a->dir, &state)) {
		add_problem(a, tess_error());
		return;
	}
	if (c)
		compare_config(a, state, c);
	a->failed |= tess_save_check(a->dir, state, add_problem, a, &checked) != TESS_OK;
	sums = json_object_get(state, "checksums");
	json_object_foreach(sums, name, file)
		all += (int64_t)json_object_size(file);
	set_key(a, a->root, "step", json_incref(json_object_get(state, "step")));
	set_key(a, a->root, "optimizer", json_incref(json_object_get(state, "optimizer")));
	set_key(a, a->root, "checksums",
	        json_pack("{s:I, s:I}", "tensors", (json_int_t)all, "damaged",
	                  (json_int_t)(all - checked)));
	json_decref(state);
}

/* Names the chat template; one that is not rendered is "unknown", and no template has no key. */
static void describe_chat(struct about *a)
{
	struct tess_chat *chat = NULL;
	tess_status st = tess_chat_open(a->dir, NULL, &chat);

	if (!st)
		set_key(a, a->root, "chat_template", json_string(tess_chat_get_name(chat)));
	else if (st == TESS_ENOTSUP)
		set_key(a, a->root, "chat_template", json_string("unknown"));
	else if (st != TESS_ENOENT)
		add_problem(a, tess_error());
	tess_chat_close(chat);
}

static json_t *describe_directory(const char *dir)
{
	struct about a = { .dir = dir, .root = json_object(), .problems = json_array() };
	struct tess_checkpoint *c = NULL;

	set_key(&a, a.root, "path", json_string(dir));
	if (tess_checkpoint_open(dir, TESS_CHECKPOINT_HEADERS, &c))
		add_problem(&a, tess_error());
	else
		describe_weights(&a, c);
	describe_chat(&a);
	describe_files(&a);
	if (has_file(dir, TESS_SAVED_STATE) || has_file(dir, TESS_SAVED_OPTIMIZER))
		describe_save(&a, c);
	tess_checkpoint_close(c);
	set_key(&a, a.root, "problems", a.problems);
	if (a.failed)
		json_decref(a.root);
	return a.failed ? NULL : a.root;
}

json_t *tess_info_describe(const char *dir)
{
	int64_t step = has_file(dir, "config.json") ? -1 : tess_save_find_step(dir, INT64_MAX);
	json_t *list = json_array();
	char path[PATH_MAX];
	bool failed = false;

	if (step < 0)
		failed = json_array_append_new(list, describe_directory(dir)) != 0;
	for (; step >= 0 && !failed; step = tess_save_find_step(dir, step)) {
		snprintf(path, sizeof path, "%s/step-%lld", dir, (long long)step);
		failed = json_array_append_new(list, describe_directory(path)) != 0;
	}
	if (failed)
		json_decref(list);
	return failed ? NULL : json_pack("{s:o}", "checkpoints", list);
}

/* ---- as text --------------------------------------------------------------------------------- */

static const char *get_member_text(const json_t *o, const char *key)
{
	return json_string_value(json_object_get(o, key));
}

static long long get_member_number(const json_t *o, const char *key)
{
	return (long long)json_integer_value(json_object_get(o, key));
}

static void show_checkpoint(json_t *o)
{
	json_t *dtypes = json_object_get(o, "dtypes"), *sums = json_object_get(o, "checksums");
	json_t *file, *value;
	const char *key;
	size_t i;

	printf("%s\n", get_member_text(o, "path"));
	if (sums)
		printf("  save        step %lld, optimizer %s\n", get_member_number(o, "step"),
		       get_member_text(o, "optimizer"));
	if (dtypes)
		printf("  family      %s\n  parameters  %lld\n", get_member_text(o, "family"),
		       get_member_number(o, "parameters"));
	if (json_object_get(o, "chat_template"))
		printf("  chat        %s\n", get_member_text(o, "chat_template"));
	json_object_foreach(dtypes, key, value)
		printf("  dtype       %s: %lld parameters\n", key,
		       (long long)json_integer_value(value));
	json_array_foreach(json_object_get(o, "files"), i, file) {
		printf("  file        %s: %lld bytes", get_member_text(file, "name"),
		       get_member_number(file, "bytes"));
		if (json_object_get(file, "tensors"))
			printf(", %lld tensors", get_member_number(file, "tensors"));
		printf("\n");
	}
	if (sums)
		printf("  checksums   %lld of %lld tensors match\n",
		       get_member_number(sums, "tensors") - get_member_number(sums, "damaged"),
		       get_member_number(sums, "tensors"));
}

int tess_info_show(json_t *described, bool json)
{
	json_t *o, *text;
	size_t i, k;
	int status = 0;

	if (json) {
		json_dumpf(described, stdout, JSON_INDENT(2));
		putchar('\n');
	}
	json_array_foreach(json_object_get(described, "checkpoints"), i, o) {
		if (!json)
			show_checkpoint(o);
		json_array_foreach(json_object_get(o, "problems"), k, text) {
			fprintf(stderr, "tessera info: %s\n", json_string_value(text));
			status = 1;
		}
	}
	return status;
}
