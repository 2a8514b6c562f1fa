#include "core/registry/plugin_call.h"

#include "core/base/status.h"
#include "core/registry/registry.h"

#include <stdio.h>
#include <string.h>

/* Adds plugin and module to a message of a style or device that lacks them. */
static tess_status name_plugin(const void *table, const char *name, const char *where,
                               tess_status st)
{
	bool placed = !where || strstr(tess_error(), where), named = strstr(tess_error(), name);
	struct tess_plugin_origin origin;

	if ((placed && named) || !tess_registry_find_origin(table, &origin))
		return st;
	if (!strcmp(origin.kind, "device") && !named)
		tess_fail_in(st, "device %s", name);
	else if (!strcmp(origin.kind, "style") && !placed)
		tess_fail_in(st, "style %s", name);
	else if (strcmp(origin.kind, "device") != 0)
		return st;
	return placed ? st : tess_fail_in(st, "%s", where);
}

tess_status tess_plugin_check_status(const void *table, const char *name, const char *function,
                                     const char *where, tess_status st)
{
	bool failure = st < TESS_OK && st >= TESS_EBUG;
	struct tess_plugin_origin origin;
	char plugin[512]; /* "style rowsplit (/dir/tess-style-rowsplit.so)" */

	if (failure && *tess_error())
		return name_plugin(table, name, where, st);
	if (tess_registry_find_origin(table, &origin))
		snprintf(plugin, sizeof plugin, "%s %s (%s)", origin.kind, name, origin.path);
	else
		snprintf(plugin, sizeof plugin, "plugin %s", name);
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
