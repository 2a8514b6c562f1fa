/* origin.c - finds the plugin that offers a table, for reports of crashes and messages. */
#include "core/registry/file.h"
#include "core/registry/registry.h"

#include <stdatomic.h>

static const struct tess_registry *_Atomic registry; /* NULL: no plugin was opened */

void tess_registry_set_origins(const struct tess_registry *r)
{
	atomic_store(&registry, r);
}

bool tess_registry_find_origin(const void *table, struct tess_plugin_origin *out)
{
	const struct tess_registry *r = atomic_load(&registry);

	for (const struct tess_file *f = r ? r->opened : NULL; f; f = f->opened)
		for (size_t i = 0; i < f->noffers; i++)
			if (f->offers[i].table == table) {
				*out = (struct tess_plugin_origin){ tess_plugin_kind_names[f->kind],
					                            f->offers[i].name, f->path };
				return true;
			}
	for (const struct tess_wrapper *s = r ? r->wrappers : NULL; s; s = s->next)
		if (table == (const void *)&s->table) {
			tess_registry_find_origin(s->outer, out);
			out->name = s->name;
			return true;
		}
	*out = (struct tess_plugin_origin){ "plugin", "", "" };
	return false;
}
