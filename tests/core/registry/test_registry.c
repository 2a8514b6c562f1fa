/* test_registry.c - the registry in one process: many threads, order of calls, closing. */
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "tests/support/probe.h"

#include <pthread.h>

#undef fail /* Check's macro; struct tess_host has a member of this name */

/* Makes the folder of plugins: a family of styles, a backend and a model. */
static void register_folder(const char *name)
{
	make_style_folder(name, "good");
	install_module("alias", "tess-style-alias.so");
	install_module("abi", "tess-style-abi.so");
	install_module("idle", "tess-backend-idle.so");
	install_module("model", "tess-model-abi.so");
	setenv("TESS_CANARY", format_folder_path("canary"), 1);
	setenv("TESSERA_PLUGIN_PATH", folder, 1);
}

static void *look_up_plugins(void *unused)
{
	const struct tess_backend *backend;
	const struct tess_style *style;
	const struct tess_model *model;

	(void)unused;
	for (int i = 0; i < 200; i++) {
		if (tess_plugin_find_style("good_alias", &style) ||
		    strcmp(style->name, "good") != 0)
			return "style";
		if (tess_plugin_find_style("good_other", &style) != TESS_EINVAL ||
		    !strstr(tess_error(), "two files"))
			return "clash";
		if (tess_plugin_find_style("unheard_of", &style) != TESS_ENOENT)
			return "none";
		if (tess_plugin_find_backend("idle", &backend) ||
		    strcmp(backend->name, "idle") != 0)
			return "backend";
		if (tess_plugin_find_model("abi_model", &model) || strcmp(model->name, "abi") != 0)
			return "model";
	}
	return NULL;
}

START_TEST(serves_many_threads)
{
	const struct tess_style *first = NULL, *second = NULL;
	pthread_t threads[8];
	void *wrong;

	register_folder("threads");
	for (int i = 0; i < 8; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, look_up_plugins, NULL), 0);
	for (int i = 0; i < 8; i++) {
		pthread_join(threads[i], &wrong);
		ck_assert_msg(!wrong, "%s", (const char *)wrong);
	}
	ck_assert(!tess_plugin_find_style("good", &first) &&
	          !tess_plugin_find_style("good_alias", &second));
	ck_assert_ptr_eq(first, second);
	/* init of the two files of styles, once each; the third was refused */
	ck_assert_int_eq(count_canaries(format_folder_path("canary")), 2);
}
END_TEST

START_TEST(lists_what_it_knows)
{
	const char *path = NULL, *origin = NULL;
	struct tess_plugin_info p;
	size_t n = 0, taken = 0;

	register_folder("list");
	ck_assert(!tess_registry_at(0, &p));
	ck_assert_int_eq(tess_registry_open_all(), TESS_OK);
	for (; tess_registry_at(n, &p); n++) {
		if (strncmp(p.path, folder, strlen(folder)) != 0)
			continue;
		ck_assert_str_eq(p.origin, "TESSERA_PLUGIN_PATH");
		ck_assert(p.status == TESS_OK || *p.why);
		taken += p.status == TESS_OK;
		if (!strstr(p.path, "tess-style-abi.so"))
			continue;
		ck_assert_int_eq(p.status, TESS_EABI);
		ck_assert_uint_eq(p.abi, 1);
		ck_assert_uint_eq(p.noffers, 0);
		ck_assert_str_eq(p.name, "");
	}
	ck_assert_uint_eq(taken, 4);
	ck_assert(tess_registry_dir_at(0, &path, &origin));
	ck_assert_str_eq(path, folder);
	ck_assert_str_eq(origin, "TESSERA_PLUGIN_PATH");
}
END_TEST

START_TEST(quits_once)
{
	const struct tess_style *style;

	register_folder("quit");
	ck_assert(!tess_plugin_find_style("good", &style));
	tess_registry_quit();
	tess_registry_quit();
	ck_assert_int_eq(count_canaries(format_folder_path("canary")), 4);
}
END_TEST

START_TEST(hands_out_the_host_table)
{
	const struct tess_host *host = tess_registry_host();

	ck_assert(host->size == sizeof *host && host->abi == TESS_ABI);
	ck_assert(host->fail && host->log && host->option && !host->redistribute && !host->call);
	ck_assert_int_eq(host->fail(TESS_EIO, "%s", "said"), TESS_EIO);
	ck_assert_str_eq(tess_error(), "said");
	ck_assert_str_eq(host->option("log"),
	                 getenv("TESSERA_LOG") ? getenv("TESSERA_LOG") : "warn");
}
END_TEST

START_TEST(knows_which_options_belong_to_plugins)
{
	const struct tess_backend *backend;

	register_folder("may-read");
	ck_assert(!tess_plugin_find_backend("idle", &backend));
	ck_assert(tess_registry_may_declare("good_speed") && tess_registry_may_declare("good"));
	ck_assert(!tess_registry_may_declare("goodness") && !tess_registry_may_declare("goo"));
	ck_assert(!tess_registry_may_declare("idle_speed"));
}
END_TEST

SCRATCH_MAIN("registry", serves_many_threads, lists_what_it_knows, quits_once,
             hands_out_the_host_table, knows_which_options_belong_to_plugins)
