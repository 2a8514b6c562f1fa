#include "foreign.h"

#include <dlfcn.h>
#include <fenv.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REASON = 256 };

const struct tess_option foreign_option = {
	"cuda_libs", "",
	"directories that are searched first for NVIDIA's libraries, separated by colons"
};

struct search {
	const char *name; /* file name */
	void *found;
	char reason[REASON]; /* why an existing file does not open */
};

/*
 * Opens a library and restores denormals: one built with -ffast-math disables them in this thread.
 */
static void open_file(struct search *s, const char *path)
{
	const char *why;
	fenv_t before;

	fegetenv(&before);
	s->found = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	fesetenv(&before);
	why = s->found ? NULL : dlerror();
	if (why && !strstr(why, "No such file"))
		snprintf(s->reason, sizeof s->reason, ": %s", why);
}

static void open_matches(struct search *s, const char *prefix, const char *packages)
{
	char pattern[PATH_MAX];
	glob_t list = { 0 };
	int n = snprintf(pattern, sizeof pattern, "%s/lib*/python3*/%s/nvidia/*/lib/%s", prefix,
	                 packages, s->name);

	if (n < (int)sizeof pattern && !glob(pattern, 0, NULL, &list))
		for (size_t i = 0; i < list.gl_pathc && !s->found; i++)
			open_file(s, list.gl_pathv[i]);
	globfree(&list);
}

static void search_python(struct search *s, const char *prefix)
{
	if (prefix[0] != '/')
		return;
	open_matches(s, prefix, "site-packages");
	if (!s->found)
		open_matches(s, prefix, "dist-packages");
}

/* Calls `visit` with each part of a list that ends with `suffix`, without the suffix. */
static void visit_folders(struct search *s, const char *list, const char *suffix,
                          void (*visit)(struct search *s, const char *folder))
{
	char folder[PATH_MAX];
	size_t len, end = strlen(suffix);

	for (; list && *list && !s->found; list += len + (list[len] == ':')) {
		len = strcspn(list, ":");
		if (len >= sizeof folder || len < end)
			continue;
		snprintf(folder, sizeof folder, "%.*s", (int)len, list);
		if (strcmp(folder + len - end, suffix) != 0)
			continue;
		folder[len - end] = 0;
		visit(s, folder);
	}
}

static void search_folder(struct search *s, const char *folder)
{
	char path[PATH_MAX];

	if (snprintf(path, sizeof path, "%s/%s", folder, s->name) < (int)sizeof path)
		open_file(s, path);
}

static void search_packages(struct search *s)
{
	const char *home = secure_getenv("HOME");
	char local[PATH_MAX];

	visit_folders(s, secure_getenv("VIRTUAL_ENV"), "", search_python);
	visit_folders(s, secure_getenv("CONDA_PREFIX"), "", search_python);
	if (!s->found && home && snprintf(local, sizeof local, "%s/.local", home) < PATH_MAX)
		search_python(s, local);
	visit_folders(s, secure_getenv("PATH"), "/bin", search_python);
}

tess_status foreign_open_library(const struct tess_host *host, const char *const *names, void **out)
{
	const char *folders = host->option("cuda_libs");
	struct search s = { 0 };

	for (int32_t i = 0; names[i] && !s.found; i++) {
		s.name = names[i];
		visit_folders(&s, folders, "", search_folder);
		if (!s.found)
			open_file(&s, s.name);
		if (!s.found)
			search_packages(&s);
	}
	*out = s.found;
	if (s.found)
		return TESS_OK;
	return host->fail(TESS_ENOTSUP,
	                  "%s was not found%s%s, by the loader, or in site-packages/nvidia/*/lib; "
	                  "set TESSERA_CUDA_LIBS to the folder that has it%s",
	                  names[0], *folders ? " in " : "", folders, s.reason);
}

tess_status foreign_find_symbols(const struct tess_host *host, const char *library, void *handle,
                                 const struct foreign_symbol *list)
{
	for (; list->name; list++) {
		void *at = dlsym(handle, list->name);

		if (!at && !list->optional)
			return host->fail(TESS_ENOTSUP, "%s has no %s: it is too old", library,
			                  list->name);
		memcpy(list->to, &at, sizeof at);
	}
	return TESS_OK;
}
