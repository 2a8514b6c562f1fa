/* new.c - `tessera new`: writes a plugin to start from, with its test. */
#include "new.h"

#include "core/base/status.h"
#include "core/registry/registry.h"
#include "tools/tool.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_MAX_LENGTH = 40 };

struct new_plugin {
	const struct new_kind *kind;
	const char *name, *out; /* out: the directory */
};

static tess_status find_taken_backend(const char *name)
{
	const struct tess_backend *table;

	return tess_plugin_find_backend(name, &table);
}

static tess_status find_taken_device(const char *name)
{
	const struct tess_device *table;

	return tess_plugin_find_device(name, &table);
}

static tess_status find_taken_style(const char *name)
{
	const struct tess_style *table;

	return tess_plugin_find_style(name, &table);
}

static tess_status find_taken_model(const char *name)
{
	const struct tess_model *table;

	return tess_plugin_find_model(name, &table);
}

static const struct new_kind {
	const char *name, *plugin; /* plugin: the text in plugins/ that has the name replaced */
	tess_status (*find)(const char *name);
	const char *libraries; /* for the linker */
	const char *use; /* a command that uses the plugin; %s: its name */
} kinds[] = {
	{ "style", "rowsplit", find_taken_style, "",
	  "tessera generate MODEL -n 2 --plan-override 'model.layers.*.mlp.down_proj=%s' --prompt "
	  "Hello" },
	{ "backend", "pipes", find_taken_backend, "",
	  "tessera generate MODEL -n 2 --backend %s --prompt Hello" },
	{ "device", "abacus", find_taken_device, " -lm",
	  "tessera generate MODEL -n 2 --device %s --prompt Hello" },
	{ "model", "fable", find_taken_model, "",
	  "tessera explain MODEL -n 2  # whose config.json has the model_type %s" },
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ---- names ----------------------------------------------------------------------------------- */

static tess_status find_kind_named(const char *name, const struct new_kind **out)
{
	for (int i = 0; i < KINDS; i++)
		if (!strcmp(kinds[i].name, name)) {
			*out = &kinds[i];
			return TESS_OK;
		}
	return tess_fail(TESS_EINVAL,
	                 "\"%s\" is no kind of plugin; use style, backend, device or "
	                 "model",
	                 name);
}

/* Checks a name by the rule of plugins; C needs a letter first. */
static tess_status check_plugin_name(const struct new_plugin *p)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
	tess_status st;

	if (!islower((unsigned char)*p->name) || p->name[strspn(p->name, letters)] ||
	    strlen(p->name) > NAME_MAX_LENGTH || !strcmp(p->name, "tess"))
		return tess_fail(TESS_EINVAL,
		                 "\"%s\" is no name of a plugin; use a-z, 0-9 and _, a letter "
		                 "first, at most %d characters, not tess",
		                 p->name, (int)NAME_MAX_LENGTH);
	st = p->kind->find(p->name);
	if (st == TESS_ENOENT) /* of this name */
		return TESS_OK;
	return tess_fail(TESS_EINVAL,
	                 "there is a %s %s already (`tessera info` lists them); use "
	                 "another name",
	                 p->kind->name, p->name);
}

/* ---- texts ----------------------------------------------------------------------------------- */

enum { IN_CODE, IN_STRING, IN_COMMENT, IN_SCRIPT };

/* Returns what `at` is in, after the character there. */
static int update_state(int state, const char *at)
{
	if (state == IN_CODE && *at == '"')
		return IN_STRING;
	if (state == IN_CODE && at[0] == '/' && at[1] == '*')
		return IN_COMMENT;
	if ((state == IN_STRING && *at == '"') ||
	    (state == IN_COMMENT && at[0] == '*' && at[1] == '/'))
		return IN_CODE;
	return state;
}

static bool is_word_part(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

/* Returns whether the n characters at `at` of a line are a whole word. */
static bool is_whole_word(const char *line, const char *at, size_t n)
{
	return (at == line || !is_word_part(at[-1])) && !is_word_part(at[n]);
}

/*
 * Writes a line with the name replaced. A whole word of C code gets the kind too, so that the name
 * may be a keyword.
 */
static void write_line(FILE *f, const struct new_plugin *p, const char *line, int *state)
{
	const char *old = p->kind->plugin, *at = line;
	size_t n = strlen(old);

	while (*at) {
		if (!strncmp(at, old, n)) {
			bool word = *state == IN_CODE && is_whole_word(line, at, n);

			fprintf(f, "%s%s%s", p->name, word ? "_" : "", word ? p->kind->name : "");
			at += n;
			continue;
		}
		*state = update_state(*state, at);
		if (*at == '\\' && at[1])
			fputc(*at++, f);
		fputc(*at++, f);
	}
	fputc('\n', f);
}

/* Formats the path of a text, with the name replaced. */
static tess_status format_new_path(const struct new_plugin *p, const struct new_text *t,
                                   char path[static PATH_MAX])
{
	const char *old = p->kind->plugin, *at = strstr(t->file, old);
	int before = at ? (int)(at - t->file) : (int)strlen(t->file);

	if (snprintf(path, PATH_MAX, "%s/%.*s%s%s", p->out, before, t->file, at ? p->name : "",
	             at ? at + strlen(old) : "") >= PATH_MAX)
		return tess_fail(TESS_EINVAL, "%s: the path is too long", p->out);
	return TESS_OK;
}

static tess_status write_new_file(const struct new_plugin *p, const struct new_text *t)
{
	size_t len = strlen(t->file);
	bool code = len > 2 && !strcmp(t->file + len - 2, ".c"), bad;
	bool is_script = !strcmp(t->file, "check");
	char path[PATH_MAX];
	int state = code ? IN_CODE : IN_SCRIPT, fd;
	tess_status st = format_new_path(p, t, path);
	FILE *f;

	if (st)
		return st;
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, is_script ? 0777 : 0666);
	f = fd < 0 ? NULL : fdopen(fd, "w");
	if (!f)
		return tess_fail(TESS_EIO, "%s cannot be created: %s", path, strerror(errno));
	for (const char *const *line = t->line; *line; line++)
		write_line(f, p, *line, &state);
	bad = ferror(f);
	if (fclose(f) || bad)
		return tess_fail(TESS_EIO, "%s cannot be written: %s", path, strerror(errno));
	printf("%s\n", path);
	return TESS_OK;
}

/* Refuses to overwrite any file, before one is written. */
static tess_status check_paths(const struct new_plugin *p)
{
	struct stat about;
	char path[PATH_MAX];
	tess_status st = TESS_OK;

	for (const struct new_text *t = new_texts; t->plugin && !st; t++) {
		if (strcmp(t->plugin, p->kind->plugin) != 0)
			continue;
		st = format_new_path(p, t, path);
		if (!st && !lstat(path, &about))
			st = tess_fail(TESS_EINVAL,
			               "%s exists, and is not overwritten; use --out DIR", path);
	}
	return st;
}

/* Prints commands that build, test and use the plugin. */
static void print_commands(const struct new_plugin *p)
{
	const char *kind = p->kind->name;

	printf("\nNext:\n"
	       "  cd '%s'\n"
	       "  sh check                                  # builds and tests it\n"
	       "  meson setup build && meson test -C build  # does so with Meson\n"
	       "  cc -std=c11 -O2 -shared -fPIC $(pkg-config --cflags tessera) -o tess-%s-%s.so "
	       "%s.c%s\n"
	       "  TESSERA_PLUGIN_PATH=\"$PWD\" ",
	       p->out, kind, p->name, p->name, p->kind->libraries);
	printf(p->kind->use, p->name);
	printf("\n");
}

static tess_status write_plugin(const struct new_plugin *p)
{
	tess_status st = check_plugin_name(p);

	if (!st)
		st = check_paths(p);
	if (!st && mkdir(p->out, 0777) && errno != EEXIST)
		st = tess_fail(TESS_EIO, "%s cannot be created: %s", p->out, strerror(errno));
	for (const struct new_text *t = new_texts; t->plugin && !st; t++)
		if (!strcmp(t->plugin, p->kind->plugin))
			st = write_new_file(p, t);
	if (!st)
		print_commands(p);
	return st;
}

/* ---- the command ----------------------------------------------------------------------------- */

struct new_options {
	const char *out;
};

static const struct tess_tool_option new_options[] = {
	{ "out", "DIR", "write to DIR (default: ./NAME)", TESS_TOOL_AT(struct new_options, out) },
	{ 0 },
};

static int execute_new(int argc, char **argv)
{
	struct new_options options = { 0 };
	const struct tess_tool_section sections[] = { { "Options", new_options, .to = &options },
		                                      { 0 } };
	struct new_plugin p;
	tess_status st = tess_tool_parse_options(argc, argv, &tess_tool_new, false, sections);

	if (st < 0)
		tess_tool_print_error("new");
	if (st)
		return st < 0 ? 2 : 0;
	if (argc - optind != 2)
		return tess_tool_fail_usage(
			"new", "give a kind (style, backend, device or model) and a name", "");
	if (find_kind_named(argv[optind], &p.kind))
		return tess_tool_fail_usage("new", tess_error(), "");
	p.name = argv[optind + 1];
	p.out = options.out ? options.out : p.name;
	if (!write_plugin(&p))
		return 0;
	tess_tool_print_error("new");
	return 1;
}

const struct tess_tool_command tess_tool_new = {
	"new",
	"write a style, backend, device or model to start from, with its test",
	"style|backend|device|model NAME [options]",
	"Writes one C file that works, and a script and a meson.build, which build it against the\n"
	"installed headers and test it: a row-parallel style, a backend of pipes, a device that\n"
	"computes Llama in f32, or a family of decoders. They are the plugins of the tutorials,\n"
	"under the given name. No file is overwritten.\n"
	"\n"
	"NAME consists of a-z, 0-9 and underscores, and begins with a letter. It is the name in\n"
	"plans, the value of --backend or --device, or the model_type of config.json. The exit\n"
	"status is 0, 1 for a failure, 2 for wrong usage.\n",
	"  tessera new style mine && cd mine && sh check\n"
	"  tessera new backend ring --out plugins/ring\n",
	execute_new,
};
