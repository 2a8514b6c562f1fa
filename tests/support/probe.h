/* probe.h - runs abi-probe, as a separate process, on plugins in a folder of the test. */
#ifndef TESS_TESTS_SUPPORT_PROBE_H
#define TESS_TESTS_SUPPORT_PROBE_H

#include "command.h"
#include "scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>

static struct {
	char text[1 << 16]; /* also lists the plugins of the build and of an installed prefix */
	char stderr_text[8192];
	char *status, *sentence; /* the first two lines of text */
	int canary; /* functions of the plugin that have run */
} probed; /* output of the last probe */
static char folder[1024]; /* folder for the plugins of this test */

static inline const char *require_env(const char *name)
{
	const char *value = getenv(name);

	ck_assert_msg(value != NULL, "%s is not set; run this test with meson", name);
	return value;
}

static inline const char *format_probe_path(char path[static 1024], const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	ck_assert_int_lt(vsnprintf(path, 1024, fmt, ap), 1024);
	va_end(ap);
	return path;
}

static inline const char *format_folder_path(const char *name)
{
	return format_path_in(folder, name);
}

static inline void make_folder(const char *name)
{
	format_probe_path(folder, "%s/%s", scratch, name);
	ck_assert_msg(!mkdir(folder, 0755), "%s: %s", folder, strerror(errno));
}

static inline void copy_file(const char *from, const char *to, mode_t mode)
{
	int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, mode);
	char block[65536];
	ssize_t n;

	ck_assert_msg(in >= 0 && out >= 0, "%s -> %s: %s", from, to, strerror(errno));
	while ((n = read(in, block, sizeof block)) > 0)
		ck_assert_int_eq(write(out, block, (size_t)n), n);
	ck_assert_int_eq(n, 0);
	fchmod(out, mode);
	close(in);
	close(out);
}

/* Copies a file of the folder that the environment variable names into the test's folder. */
static inline void install_file(const char *variable, const char *file, const char *as)
{
	copy_file(format_path_in(require_env(variable), file), format_folder_path(as), 0755);
}

/* Puts the module abi-<module>.so into the folder, under the name `as`. */
static inline void install_module(const char *module, const char *as)
{
	char file[1024];

	install_file("ABI_DIR", format_probe_path(file, "abi-%s.so", module), as);
}

/* Returns the number of functions of plugins that have written to this file. */
static inline int count_canaries(const char *path)
{
	struct stat about;

	return stat(path, &about) ? 0 : (int)about.st_size;
}

/*
 * Runs abi-probe, from `library_path` if it is there, with these directories; `kind` NULL: lists
 * all files.
 */
static inline void probe_plugin_in(const char *plugin_path, const char *library_path,
                                   const char *kind, const char *name)
{
	char words[512] = "", own[1024] = "";
	int status;

	if (kind)
		snprintf(words, sizeof words, "'%s' '%s'", kind, name);
	unlink(scratch_format_path("canary"));
	setenv("TESS_CANARY", scratch_format_path("canary"), 1);
	if (plugin_path)
		setenv("TESSERA_PLUGIN_PATH", plugin_path, 1);
	else
		unsetenv("TESSERA_PLUGIN_PATH");
	if (library_path)
		format_probe_path(own, "%s/abi-probe", library_path);
	status = command_run(probed.text, sizeof probed.text, "%s%s '%s/abi-probe' %s 2>'%s'",
	                     library_path ? "LD_LIBRARY_PATH=" : "",
	                     library_path ? library_path : "",
	                     access(own, X_OK) ? require_env("ABI_DIR") : library_path, words,
	                     scratch_format_path("stderr"));
	command_run(probed.stderr_text, sizeof probed.stderr_text, "cat '%s'",
	            scratch_format_path("stderr"));
	ck_assert_msg(strlen(probed.text) < sizeof probed.text - 1, "abi-probe: text is cut off");
	ck_assert_msg(!status, "abi-probe: exit status %d: %s", status, probed.stderr_text);
	probed.canary = count_canaries(scratch_format_path("canary"));
	probed.status = probed.text;
	probed.sentence = strchr(probed.text, '\n');
	ck_assert_msg(probed.sentence != NULL, "abi-probe printed \"%s\"", probed.text);
	*probed.sentence++ = '\0';
}

/* Makes a new folder with a style named "good" that may be faulty. */
static inline void make_style_folder(const char *name, const char *module)
{
	make_folder(name);
	install_module(module, "tess-style-good.so");
}

static inline void probe_plugin(const char *kind, const char *name)
{
	probe_plugin_in(folder, NULL, kind, name);
}

static inline void expect_result(const char *status, const char *part)
{
	ck_assert_msg(!strcmp(probed.status, status), "%s, not %s: %s", probed.status, status,
	              probed.sentence);
	expect_part(probed.sentence, part);
}

/* Probes, and expects this status and a message with this part. */
static inline void expect_plugin_in(const char *plugin_path, const char *library_path,
                                    const char *kind, const char *name, const char *status,
                                    const char *part)
{
	probe_plugin_in(plugin_path, library_path, kind, name);
	expect_result(status, part);
}

static inline void expect_plugin(const char *kind, const char *name, const char *status,
                                 const char *part)
{
	expect_plugin_in(folder, NULL, kind, name, status, part);
}

#endif
