/* info.c - `tessera info`: lists plugins, search directories and options, or a checkpoint. */
#include "info.h"

#include "core/base/option.h"
#include "core/base/status.h"
#include "core/group/choose.h"
#include "core/registry/plugin_call.h"
#include "core/registry/registry.h"
#include "core/world/cpus.h"
#include "core/world/world.h"

#include <ctype.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <tessera/tessera.h>

static void show_names(const struct tess_offer *o)
{
	const char *before = " (";

	printf("%s", o->name);
	for (const char *const *alias = o->aliases; alias && *alias; alias++) {
		printf("%s%s", before, *alias);
		before = ", ";
	}
	printf("%s", *before == ',' ? ")" : "");
}

static const char *get_layout_name(const struct tess_device *d)
{
	return d->layout == TESS_PANELS ? "panels" : "rows";
}

static const char *get_memory_name(const struct tess_device *d)
{
	return d->mem == TESS_HOST ? "host" : d->mem == TESS_CUDA ? "cuda" : "own";
}

/* Returns the device that is offer `i` of the plugin; NULL: not a device, or not usable. */
static const struct tess_device *get_offered_device(const struct tess_plugin_info *p, size_t i)
{
	return p->status || strcmp(p->kind, "device") ? NULL : p->offers[i].table;
}

/* Prints the properties of a device to the end of the line. */
static void show_device(const struct tess_device *d)
{
	int n = d->wrap ? 0 : TESS_PLUGIN_COUNT(d);

	if (d->wrap)
		printf("wraps another device: TESSERA_DEVICE=%s:NAME[:INDEX]\n", d->name);
	else
		printf("%d device%s, %s memory, weights in %s, %s sums\n", n, n == 1 ? "" : "s",
		       get_memory_name(d), get_layout_name(d), d->exact ? "exact" : "fast");
}

static void show_plugin(const struct tess_plugin_info *p)
{
	printf("%s %s %s, ABI %u, %s%s%s\n  %s (%s)\n", p->kind, p->name, p->version, p->abi,
	       p->license, *p->summary ? ": " : "", p->summary, p->path, p->origin);
	for (size_t i = 0; i < p->noffers; i++) {
		printf("    ");
		show_names(&p->offers[i]);
		printf("%s%s\n", *p->offers[i].summary ? ": " : "", p->offers[i].summary);
		if (!get_offered_device(p, i))
			continue;
		printf("      ");
		show_device(get_offered_device(p, i));
	}
	if (*p->why)
		printf("  note: %s\n", p->why);
}

static const struct job_kind {
	const char *name, *text;
	int32_t size;
	bool threads, hosts;
} jobs[] = {
	{ "one_rank", "one rank", 1, false, false },
	{ "threads", "ranks that are threads", 2, true, false },
	{ "processes", "ranks that are processes of this host", 2, false, false },
	{ "hosts", "ranks on several hosts", 2, false, true },
};
enum { JOBS = sizeof jobs / sizeof *jobs };

/* Returns the name of the chosen backend, "" for none; why: the reason. */
static const char *choose_for_job(const struct job_kind *job, char why[static 1024])
{
	struct tess_choice choice;
	const char *name = tess_option_get("backend");
	tess_status st = job->threads ? tess_world_check_threads() : TESS_OK;

	if (!st)
		st = tess_backend_check_device(name, job->size, job->threads, job->hosts);
	if (!st)
		st = tess_backend_choose(name, job->size, job->threads, job->hosts, &choice);
	snprintf(why, 1024, "%s", st ? tess_error() : choice.why);
	return st ? "" : choice.backend->name;
}

/* Returns the backend that moves memory of the device between ranks, "" for none; why: as above. */
static const char *choose_for_device(const struct tess_device *d, char why[static 1024])
{
	struct tess_choice choice;
	tess_status st = tess_backend_choose_for_memory(tess_option_get("backend"), d->mem, 2,
	                                                false, false, &choice);

	snprintf(why, 1024, "%s%s", st ? "through host memory: " : "",
	         st ? tess_error() : choice.why);
	return st ? "" : choice.backend->name;
}

/* Shows the device of TESSERA_DEVICE if it is around another one. */
static void show_wrapped_device(void)
{
	const char *text = tess_option_get("device");
	const struct tess_device *d;
	char name[TESS_DEVICE_NAME];
	int32_t index;

	if (tess_device_name_parse(text, name, &index) || !strchr(name, ':'))
		return;
	printf("\nTESSERA_DEVICE=%s: ", text);
	if (tess_plugin_find_device(name, &d))
		printf("none (%s)\n", tess_error());
	else
		show_device(d);
}

static void show_device_choices(void)
{
	struct tess_plugin_info p;
	char why[1024];

	for (size_t i = 0; tess_registry_at(i, &p); i++)
		for (size_t k = 0; k < p.noffers; k++) {
			const struct tess_device *d = get_offered_device(&p, k);
			const char *name;

			if (!d || d->wrap || d->mem == TESS_HOST || TESS_PLUGIN_COUNT(d) < 1)
				continue;
			name = choose_for_device(d, why);
			printf("  memory of device %s: %s (%s)\n", d->name, *name ? name : "none",
			       why);
		}
}

static void show_choices(void)
{
	char why[1024];

	printf("\nTESSERA_BACKEND=%s chooses:\n", tess_option_get("backend"));
	for (int i = 0; i < JOBS; i++) {
		const char *name = choose_for_job(&jobs[i], why);

		printf("  %s: %s (%s)\n", jobs[i].text, *name ? name : "none", why);
	}
	show_device_choices();
}

static json_t *make_choices_json(void)
{
	json_t *choices = json_object();
	char why[1024];

	for (int i = 0; i < JOBS; i++) {
		const char *name = choose_for_job(&jobs[i], why);

		json_object_set_new(choices, jobs[i].name,
		                    json_pack("{s:s, s:s}", "backend", name, "why", why));
	}
	return choices;
}

/* Counts the CPUs that the ranks of this host can use; why: the limit that applies. */
static int count_cpus(char why[static 320])
{
	struct tess_rank_cpus own;
	int32_t cpus;

	tess_rank_cpus_read(&own);
	cpus = tess_rank_cpus_count(&own);
	if (cpus < CPU_COUNT(&own.may_use))
		snprintf(why, 320, "limit of %.4g CPUs in %s", own.quota.cpus, own.quota.file);
	else
		snprintf(why, 320, "affinity of the process");
	return cpus;
}

static void show_cpus(void)
{
	char why[320];
	int cpus = count_cpus(why);

	printf("\nCPUs for the ranks of this host: %d (%s)\n", cpus, why);
}

static json_t *make_cpus_json(void)
{
	char why[320];
	int cpus = count_cpus(why);

	return json_pack("{s:i, s:s}", "count", cpus, "why", why);
}

static void show_plugins(void)
{
	struct tess_plugin_info p;
	const char *path, *origin;
	bool some = false;

	printf("tessera %s, plugin ABI %d\n\n", tess_version(), TESS_ABI);
	for (size_t i = 0; tess_registry_at(i, &p); i++)
		if (p.status == TESS_OK)
			show_plugin(&p);
	for (size_t i = 0; tess_registry_at(i, &p); i++) {
		if (p.status == TESS_OK)
			continue;
		printf("%s%s\n", some ? "  " : "\nnot used:\n  ", p.why);
		some = true;
	}
	show_wrapped_device();
	show_choices();
	show_cpus();
	printf("\nsearched:\n");
	for (size_t i = 0; tess_registry_dir_at(i, &path, &origin); i++)
		printf("  %s (%s)\n", path, origin);
}

static json_t *make_string_list(const char *const *words)
{
	json_t *list = json_array();

	for (; words && *words; words++)
		json_array_append_new(list, json_string(*words));
	return list;
}

static json_t *make_device_json(const struct tess_device *d)
{
	if (d->wrap)
		return json_pack("{s:b}", "wraps", 1);
	return json_pack("{s:i, s:s, s:s, s:b}", "devices", (int)TESS_PLUGIN_COUNT(d), "memory",
	                 get_memory_name(d), "layout", get_layout_name(d), "exact", d->exact);
}

static json_t *make_plugin_json(const struct tess_plugin_info *p)
{
	json_t *offers = json_array();

	for (size_t i = 0; i < p->noffers; i++) {
		const struct tess_offer *o = &p->offers[i];
		const struct tess_device *d = get_offered_device(p, i);
		json_t *offer = json_pack("{s:s, s:s, s:o}", "name", o->name, "summary", o->summary,
		                          "aliases", make_string_list(o->aliases));

		if (d)
			json_object_update_new(offer, make_device_json(d));
		json_array_append_new(offers, offer);
	}
	return json_pack("{s:s, s:s, s:s, s:b, s:s, s:s, s:i, s:s, s:s, s:s, s:s, s:o}", "file",
	                 p->path, "kind", p->kind, "origin", p->origin, "taken",
	                 p->status == TESS_OK, "status", tess_status_name(p->status), "why", p->why,
	                 "abi", (int)p->abi, "name", p->name, "version", p->version, "license",
	                 p->license, "summary", p->summary, "offers", offers);
}

static json_t *make_plugins_json(void)
{
	json_t *plugins = json_array(), *dirs = json_array();
	struct tess_plugin_info p;
	const char *path, *origin;

	for (size_t i = 0; tess_registry_at(i, &p); i++)
		json_array_append_new(plugins, make_plugin_json(&p));
	for (size_t i = 0; tess_registry_dir_at(i, &path, &origin); i++)
		json_array_append_new(dirs,
		                      json_pack("{s:s, s:s}", "path", path, "origin", origin));
	return json_pack("{s:s, s:i, s:o, s:o, s:o, s:o}", "version", tess_version(), "abi",
	                 TESS_ABI, "plugins", plugins, "directories", dirs, "choices",
	                 make_choices_json(), "cpus", make_cpus_json());
}

static const char *format_variable_name(const char *key, char text[static 80])
{
	snprintf(text, 80, "TESSERA_%s", key);
	for (char *p = text; *p; p++)
		*p = (char)toupper((unsigned char)*p);
	return text;
}

static void show_options(void)
{
	struct tess_option_info o;
	char variable[80];

	for (size_t i = 0; tess_option_at(i, &o); i++)
		printf("%s=%s (%s)\n    %s\n", format_variable_name(o.key, variable), o.value,
		       o.origin, o.help);
}

static json_t *make_options_json(void)
{
	json_t *list = json_array();
	struct tess_option_info o;
	char variable[80];

	for (size_t i = 0; tess_option_at(i, &o); i++)
		json_array_append_new(list,
		                      json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "key", o.key,
		                                "variable", format_variable_name(o.key, variable),
		                                "value", o.value, "origin", o.origin, "default",
		                                o.preset, "help", o.help, "owner", o.owner));
	return json_pack("{s:o}", "options", list);
}

static bool show_json(json_t *object)
{
	if (!object)
		return false;
	json_dumpf(object, stdout, JSON_INDENT(2));
	putchar('\n');
	json_decref(object);
	return true;
}

/* Prints a checkpoint directory, and returns the exit status. */
static int show_directory(const char *dir, bool json)
{
	json_t *described = tess_info_describe(dir);
	int status = described ? tess_info_show(described, json) : 1;

	if (!described)
		fprintf(stderr, "tessera info: out of memory\n");
	json_decref(described);
	return status;
}

struct info_options {
	bool options, json;
};

#define AT(member) TESS_TOOL_AT(struct info_options, member)

static const struct tess_tool_option info_options[] = {
	{ "options", NULL, "list the variables TESSERA_<KEY> with values and origins",
	  AT(options) },
	{ "json", NULL, "print one JSON object", AT(json) },
	{ 0 },
};

static int execute_info(int argc, char **argv)
{
	struct info_options a = { 0 };
	bool done = true;
	const struct tess_tool_section sections[] = { { "Options", info_options, .to = &a },
		                                      { 0 } };
	tess_status st = tess_tool_parse_options(argc, argv, &tess_tool_info, false, sections);

	if (st < 0)
		tess_tool_print_error("info");
	if (st)
		return st < 0 ? 2 : 0;
	if (optind < argc && (a.options || optind + 1 < argc)) {
		fprintf(stderr,
		        "tessera info: unexpected argument \"%s\"; see tessera info --help\n",
		        argv[a.options ? optind : optind + 1]);
		return 2;
	}
	if (optind < argc)
		return show_directory(argv[optind], a.json);
	if (tess_tool_declare_options() || tess_registry_open_all()) {
		tess_tool_print_error("info");
		return 1;
	}
	if (a.json)
		done = show_json(a.options ? make_options_json() : make_plugins_json());
	else if (a.options)
		show_options();
	else
		show_plugins();
	if (!done)
		fprintf(stderr, "tessera info: out of memory\n");
	return done ? 0 : 1;
}

const struct tess_tool_command tess_tool_info = {
	"info",
	"list plugins and options, or describe and check a checkpoint",
	"[DIR] [options]",
	"Lists the plugins: backends, devices, styles and models with their files, and the\n"
	"files that are not used, with the reason. Then shows which backend a job gets, and\n"
	"why, and how many CPUs its ranks can use.\n"
	"\n"
	"With DIR, describes a checkpoint instead, a save of tessera train, or all saves in a\n"
	"folder: family, parameters, dtypes and files. Verifies the checksums of a save. The exit\n"
	"status is 1 if a file is damaged, cut off or missing.\n",
	"  tessera info\n"
	"  tessera info --options\n"
	"  tessera info out/step-200\n"
	"  TESSERA_PLUGIN_PATH=/home/me/plugins tessera info --json\n",
	execute_info,
};
