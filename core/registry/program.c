/* program.c - a plugin whose descriptor is in the program instead of a file. */
#include "core/registry/file.h"

#include "core/base/status.h"

#include <string.h>

/* Makes the file of one kind. common: what the files of all kinds have, with the descriptor. */
static tess_status make_file(struct tess_registry *r, const struct tess_file *common, int32_t kind,
                             struct tess_file **out)
{
	struct tess_file *f = TESS_NEW(&r->arena, struct tess_file, 1);
	tess_status st;

	if (!f)
		return TESS_ENOMEM;
	*f = *common;
	f->kind = kind;
	st = tess_file_check_offers(f, r);
	if (st)
		return st;
	f->stem = f->plugin.name;
	f->name = tess_arena_format(&r->arena, "plugin %s", f->plugin.name);
	*out = f;
	return f->name ? TESS_OK : TESS_ENOMEM;
}

tess_status tess_program_make_files(struct tess_registry *r, const struct tess_plugin *p,
                                    struct tess_file **out)
{
	struct tess_file *files = NULL, **end = &files;
	struct tess_file common = {
		.path = "registered by the program", .why = "", .checked = true, .descriptor = p
	};
	tess_status st = tess_file_check_descriptor(&common, r, p, p->size);

	for (int32_t kind = 0; kind < TESS_PLUGIN_KINDS && !st; kind++) {
		if (!tess_plugin_offers(&common.plugin, kind))
			continue;
		st = make_file(r, &common, kind, end);
		if (!st)
			end = &(*end)->next;
	}
	if (!st && !files)
		st = tess_fail(TESS_EINVAL, "it offers no backend, device, style or model");
	if (!st)
		*out = files;
	return st;
}
