#include "core/registry/returned.h"

#include "core/base/status.h"
#include "core/registry/registry.h"

#include <stdio.h>
#include <string.h>

/* "style rowsplit (/dir/tess-style-rowsplit.so)"; "plugin rowsplit" if no file offers the table. */
static void format_plugin(const void *table, const char *name, char *text, size_t size)
{
	struct tess_plugin_info info;

	for (size_t i = 0; tess_registry_at(i, &info); i++)
		for (size_t k = 0; k < info.noffers; k++)
			if (info.offers[k].table == table) {
				snprintf(text, size, "%s %s (%s)", info.kind, name, info.path);
				return;
			}
	snprintf(text, size, "plugin %s", name);
}

tess_status tess_plugin_check_status(const void *table, const char *name, const char *function,
                                     const char *where, tess_status st)
{
	bool failure = st < TESS_OK && st >= TESS_EBUG;
	char plugin[512];

	format_plugin(table, name, plugin, sizeof plugin);
	if (failure && *tess_error()) /* a style does not always know its module */
		return where && !strncmp(plugin, "style ", 6) && !strstr(tess_error(), where)
		               ? tess_fail_in(st, "%s: style %s", where, name)
		               : st;
	if (failure)
		return tess_fail(
			st,
			"%s%s%s: %s() failed (%s) without a sentence: a bug in the plugin; "
			"fail through host->fail()",
			where ? where : "", where ? ": " : "", plugin, function,
			tess_status_name(st));
	return tess_fail(
		TESS_EABI,
		"%s%s%s: %s() returned %d, which is not a status: a bug in the plugin; return "
		"TESS_OK, or what host->fail() returns",
		where ? where : "", where ? ": " : "", plugin, function, (int)st);
}
