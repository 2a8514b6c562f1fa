#include "nn/program/stored.h"

#include "core/base/status.h"

#include <stdio.h>
#include <string.h>

enum { CAPTURES = 8 };

struct capture { /* the text matched by a `*` of a pattern */
	const char *at;
	size_t len;
};

/* Matches a pattern of tess_stored, and captures the texts of each `*` and of the `**`. */
static bool match_name(const char *pattern, const char *name, struct capture *out)
{
	for (int n = 0; n < CAPTURES; pattern++, name++) {
		size_t a = strcspn(pattern, "."), b = strcspn(name, ".");

		if (a == 2 && !strncmp(pattern, "**", 2)) {
			out[n] = (struct capture){ name, strlen(name) };
			return !pattern[2];
		}
		if (a == 1 && *pattern == '*')
			out[n++] = (struct capture){ name, b };
		else if (a != b || strncmp(pattern, name, a))
			return false;
		pattern += a;
		name += b;
		if (!*pattern || !*name)
			return !*pattern && !*name;
	}
	return false;
}

/* Counts the wildcards of a pattern, `*` or `**`. */
static int32_t count_stars(const char *pattern)
{
	int32_t n = 0;

	while (*(pattern += strcspn(pattern, "*"))) {
		pattern += strspn(pattern, "*");
		n++;
	}
	return n;
}

tess_status tess_stored_check(const struct tess_model *model)
{
	for (const struct tess_stored *s = model->stored; s && s->name; s++) {
		int32_t stars = count_stars(s->name);

		if (!s->files || !*s->files)
			return tess_fail(TESS_EABI, "model %s: stored: \"%s\" has no files",
			                 model->name, s->name);
		for (const char *const *file = s->files; *file; file++)
			if (count_stars(*file) != stars)
				return tess_fail(TESS_EABI,
				                 "model %s: stored: \"%s\" has %d times *, and its "
				                 "file \"%s\" %d; a file repeats those of the name "
				                 "in order",
				                 model->name, s->name, (int)stars, *file,
				                 (int)count_stars(*file));
	}
	return TESS_OK;
}

/* Returns `file` with each `*` and `**` replaced by its captured text; NULL: no memory. */
static const char *fill_in(struct tess_arena *arena, const char *file, const struct capture *c)
{
	const char *text = "";

	while (text && *file) {
		size_t n = strcspn(file, "*");

		text = tess_arena_format(arena, "%s%.*s", text, (int)n, file);
		file += n;
		if (!*file)
			break;
		file += strspn(file, "*");
		text = text ? tess_arena_format(arena, "%s%.*s", text, (int)c->len, c->at) : NULL;
		c++;
	}
	return text;
}

static tess_status fill_in_files(struct tess_arena *arena, const struct tess_stored *stored,
                                 const char *name, struct tess_files *out)
{
	struct capture captures[CAPTURES];
	const char **list;
	int32_t n = 0;

	out->nparts = 0;
	if (!match_name(stored->name, name, captures))
		return TESS_OK;
	while (stored->files[n])
		n++;
	list = TESS_NEW(arena, const char *, n);
	for (int32_t i = 0; i < n && list; i++) {
		list[i] = fill_in(arena, stored->files[i], captures);
		if (!list[i])
			return TESS_ENOMEM;
		if (strlen(list[i]) + 20 > TESS_FILE_NAME)
			return tess_fail(TESS_ENOTSUP,
			                 "%s: its name in files, %.100s..., is too "
			                 "long",
			                 name, list[i]);
	}
	*out = (struct tess_files){ n, list && strchr(list[0], '#'), list };
	return list ? TESS_OK : TESS_ENOMEM;
}

/* Returns whether a name of the source begins with the first component of `name`. */
static bool has_component(const struct tess_source *source, const char *name)
{
	size_t lo = 0, hi = source->count, len = strcspn(name, ".") + 1;

	while (lo < hi) {
		size_t at = lo + (hi - lo) / 2;
		int order = strncmp(source->at(source->self, at), name, len);

		if (!order)
			return true;
		if (order < 0)
			lo = at + 1;
		else
			hi = at;
	}
	return false;
}

/*
 * Drops the first component of names if the source lacks it, as in a base model that was saved
 * without its head.
 */
static bool drop_component(const struct tess_source *source, struct tess_files *f)
{
	char text[TESS_FILE_NAME];
	const char *first = tess_files_format(f, 0, 0, text), *rest = strchr(first, '.');

	if (!rest || has_component(source, first) || source->has(source->self, first) ||
	    !source->has(source->self, rest + 1))
		return false;
	for (int32_t i = 0; i < f->nparts; i++)
		f->pattern[i] = strchr(f->pattern[i], '.') + 1;
	return true;
}

tess_status tess_files_find(struct tess_arena *arena, const struct tess_stored *stored,
                            const struct tess_source *source, const char *name,
                            struct tess_files *out)
{
	char text[TESS_FILE_NAME];
	const char **own;

	for (; stored && stored->name && source->has; stored++) {
		tess_status st = fill_in_files(arena, stored, name, out);

		if (st)
			return st;
		if (out->nparts && (source->has(source->self, tess_files_format(out, 0, 0, text)) ||
		                    drop_component(source, out)))
			return TESS_OK;
	}
	own = TESS_NEW(arena, const char *, 1);
	if (!own)
		return TESS_ENOMEM;
	*own = name;
	*out = (struct tess_files){ 1, false, own };
	if (source->has)
		drop_component(source, out);
	return TESS_OK;
}

const char *tess_files_format(const struct tess_files *f, int64_t expert, int32_t part,
                              char text[TESS_FILE_NAME])
{
	const char *pattern = f->pattern[part], *at = strchr(pattern, '#');

	if (!f->by_expert || !at)
		return pattern;
	snprintf(text, TESS_FILE_NAME, "%.*s%lld%s", (int)(at - pattern), pattern,
	         (long long)expert, at + 1);
	return text;
}
