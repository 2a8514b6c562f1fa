/*
 * The mesh: names for the dimensions in which ranks are laid out. One dimension, over all ranks,
 * for now.
 */
#include "world.h"

#include <core/base/status.h>
#include <stdlib.h>
#include <string.h>

struct tess_mesh {
	struct tess_world *world;
	char name[16];
};

tess_status tess_mesh_open(struct tess_world *w, const char *text, struct tess_mesh **out)
{
	size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_");
	struct tess_mesh *m;
	char *end = NULL;

	if (!len || len >= sizeof m->name || (text[len] && text[len] != '='))
		return tess_fail(
			TESS_EINVAL,
			"the mesh \"%s\" is not of the form tp or tp=%d: one dimension, a name of "
			"a-z 0-9 _ with at most %zu letters",
			text, w->size, sizeof m->name - 1);
	if (text[len] && (strtol(text + len + 1, &end, 10) != w->size || *end || !text[len + 1]))
		return tess_fail(TESS_EINVAL,
		                 "the mesh \"%s\" does not fit a job of %d ranks; use %.*s=%d",
		                 text, w->size, (int)len, text, w->size);
	m = calloc(1, sizeof *m);
	if (!m)
		return tess_fail(TESS_ENOMEM, "no memory for a mesh");
	m->world = w;
	memcpy(m->name, text, len);
	*out = m;
	return TESS_OK;
}

struct tess_group *tess_mesh_group(const struct tess_mesh *m, const char *dim)
{
	return strcmp(m->name, dim) ? NULL : tess_world_group(m->world);
}

void tess_mesh_close(struct tess_mesh *m)
{
	free(m);
}
