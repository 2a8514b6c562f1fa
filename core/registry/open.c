/* open.c - maps, checks, pins and initialises a plugin: the only dlopen() of plugins. */
#include "core/registry/file.h"

#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/base/thread.h"
#include "core/registry/plugin_call.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <string.h>

/*
 * Maps a file. Its constructors run with all signals blocked, as init() does, so that threads that
 * it starts leave signals to the program. Restores denormals, which a library built with
 * -ffast-math turns off.
 */
static void *map_file(const char *path, const char *real, int flags)
{
	struct tess_plugin_frame frame;
	struct tess_thread_state before;
	void *file;
	int why;

	tess_thread_state_save(&before, TESS_STATE_ALL);
	tess_signals_block();
	errno = 0;
	tess_plugin_enter(&frame, NULL, NULL, path, NULL, 0);
	file = dlopen(real, RTLD_NOW | RTLD_LOCAL | flags);
	why = errno;
	tess_plugin_leave(&frame);
	tess_thread_state_restore(&before);
	errno = why;
	return file;
}

/* Finds the descriptor that this object itself defines, and the size of its symbol. */
static tess_status find_descriptor(void *file, const struct tess_plugin **descriptor,
                                   uint64_t *size)
{
	struct link_map *own = NULL, *where = NULL;
	void *at = dlsym(file, "tess_plugin_v2");
	const ElfW(Sym) *symbol = NULL;
	Dl_info info;

	if (!at)
		at = dlsym(file, "tess_plugin_v1"); /* check_descriptor refuses its ABI */
	if (!at)
		return tess_fail(TESS_EABI, "it exports no tess_plugin_v2; use TESS_DEFINE_PLUGIN");
	if (dlinfo(file, RTLD_DI_LINKMAP, &own) ||
	    !dladdr1(at, &info, (void **)&where, RTLD_DL_LINKMAP) || where != own)
		return tess_fail(
			TESS_EABI,
			"it exports no tess_plugin_v2 of its own; the one found is that of %s",
			where ? where->l_name : "another object");
	if (!dladdr1(at, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol ||
	    info.dli_saddr != at || ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT)
		return tess_fail(TESS_EABI,
		                 "its tess_plugin_v2 is not data; use TESS_DEFINE_PLUGIN");
	*descriptor = at;
	*size = symbol->st_size;
	return TESS_OK;
}

/* Declares the plugin's options as one table, under its file name. */
static tess_status declare_options(const struct tess_file *f, struct tess_arena *a)
{
	const struct tess_option *const *list = f->plugin.options;
	struct tess_option *table;
	size_t n = 0;

	while (list && list[n])
		n++;
	table = TESS_NEW(a, struct tess_option, n + 1);
	if (!table)
		return TESS_ENOMEM;
	for (size_t i = 0; i < n; i++) {
		if (!list[i]->key)
			return tess_fail(TESS_EINVAL, "option %zu has no key", i);
		table[i] = *list[i];
	}
	return tess_option_add(f->name, table);
}

static tess_status call_plugin_init(struct tess_file *f, const struct tess_host *host)
{
	tess_status st = TESS_OK;

	tess_fail(TESS_OK, "%s", "");
	if (f->plugin.init)
		st = TESS_PLUGIN_NOTED(TESS_STATE_ALL, NULL, "init", tess_file_get_label(f), NULL,
		                       0, (tess_signals_block(), f->plugin.init(host)));
	f->initialised = st == TESS_OK;
	if (f->initialised)
		return TESS_OK;
	if (st > TESS_OK || !*tess_error())
		tess_fail(st, "its init returned %d (%s) without a sentence: a bug in the plugin",
		          st, tess_status_name(st));
	return TESS_ENOTSUP;
}

/* A file may have several names (links) and several kinds. */
tess_status tess_file_initialise(struct tess_file *f, struct tess_registry *r)
{
	const struct tess_file *opened_before = r->opened;
	tess_status st;

	while (opened_before && opened_before->descriptor != f->descriptor)
		opened_before = opened_before->opened;
	f->opened = r->opened;
	r->opened = f;
	tess_registry_set_origins(r);
	if (opened_before)
		return opened_before->status
		               ? tess_fail(opened_before->status, "%s", opened_before->why)
		               : TESS_OK;
	st = declare_options(f, &r->arena);
	return st ? st : call_plugin_init(f, &r->host);
}

static tess_status load_plugin(struct tess_file *f, struct tess_registry *r)
{
	const struct tess_plugin *descriptor = NULL;
	char real[PATH_MAX];
	uint64_t size = 0;
	void *file;
	tess_status st;

	st = tess_file_check_trust(f->path, f->dir, real);
	if (!st)
		st = tess_file_check_elf(real);
	if (st)
		return st;
	file = map_file(f->path, real, 0);
	if (!file && errno == ENOMEM)
		return tess_fail(TESS_ENOMEM, "the loader has no memory");
	if (!file)
		return tess_fail(TESS_ENOTSUP, "the loader reports: %s", dlerror());
	st = find_descriptor(file, &descriptor, &size);
	if (!st)
		st = tess_file_check_descriptor(f, r, descriptor, size);
	if (!st)
		st = tess_file_check_offers(f, r);
	if (!st && !map_file(f->path, real, RTLD_NOLOAD | RTLD_NODELETE))
		st = tess_fail(TESS_EIO, "it cannot be pinned: %s", dlerror());
	if (st) {
		dlclose(file);
		return st;
	}
	f->descriptor = descriptor;
	return tess_file_initialise(f, r);
}

void tess_file_open(struct tess_file *f, struct tess_registry *r)
{
	f->checked = true;
	f->status = load_plugin(f, r);
	if (!f->status) {
		tess_log(TESS_DEBUG, "registry", "opened %s", f->path);
		return;
	}
	tess_fail_in(f->status,
	             f->status == TESS_ENOTSUP || f->status == TESS_ENOMEM ? "%s: not usable here"
	                                                                   : "%s: refused",
	             f->path);
	f->why = tess_arena_copy(&r->arena, tess_error(), strlen(tess_error()));
	if (!f->why) {
		f->status = TESS_ENOMEM;
		f->why = "out of memory";
	}
	tess_log(TESS_INFO, "registry", "%s", f->why);
}
