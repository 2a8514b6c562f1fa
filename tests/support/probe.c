/*
 * probe.c - the program abi-probe KIND NAME, or abi-probe list: opens one plugin, or lists the
 * state of all files. First line: the status; second: the message, or the opened plugin; list: a
 * line for each file.
 */
#include "core/base/status.h"
#include "core/registry/registry.h"

#include <stdio.h>
#include <string.h>

static tess_status query_style(const char *name)
{
	struct tess_site site = {
		.size = sizeof site, .nranks = 2, .host = tess_registry_host(), .style = name
	};
	const struct tess_style *style;
	struct tess_io io = { 0 };
	tess_status st = tess_plugin_find_style(name, &style);

	if (st)
		return st;
	st = style->layout(&site, &io);
	if (!st)
		printf("TESS_OK\nstyle %s, size %s, open %s, close %s\n", style->name,
		       style->size == sizeof *style ? "ours" : "other",
		       style->open ? "given" : "NULL", style->close ? "given" : "NULL");
	return st;
}

static tess_status query_plugin(const char *kind, const char *name)
{
	const struct tess_backend *backend;
	const struct tess_device *device;
	const struct tess_model *model;
	tess_status st = TESS_EINVAL;

	if (!strcmp(kind, "style"))
		return query_style(name);
	if (!strcmp(kind, "backend") && !(st = tess_plugin_find_backend(name, &backend)))
		printf("TESS_OK\nbackend %s\n", backend->name);
	else if (!strcmp(kind, "device") && !(st = tess_plugin_find_device(name, &device)))
		printf("TESS_OK\ndevice %s\n", device->name);
	else if (!strcmp(kind, "model") && !(st = tess_plugin_find_model(name, &model)))
		printf("TESS_OK\nmodel %s\n", model->name);
	return st;
}

int main(int argc, char **argv)
{
	struct tess_plugin_info p;
	tess_status st;

	if (argc == 3) {
		st = query_plugin(argv[1], argv[2]);
		if (st)
			printf("%s\n%s\n", tess_status_name(st), tess_error());
	} else {
		st = tess_registry_open_all();
		printf("%s\n\n", tess_status_name(st));
		for (size_t i = 0; tess_registry_at(i, &p); i++)
			printf("%s %s %s (%s) %s\n", tess_status_name(p.status), p.kind, p.path,
			       p.origin, p.why);
	}
	tess_registry_quit();
	return 0;
}
