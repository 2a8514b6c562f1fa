/* test_registry.c - the registry in one process: many threads, order of calls, closing. */
#include "core/base/status.h"
#include "core/registry/plugin_call.h"
#include "core/registry/registry.h"
#include "tests/support/probe.h"

#include <pthread.h>
#include <tessera/tessera.h>

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

/* ---- plugins of the program ------------------------------------------------------------------ */

static int inits, quits;

static tess_status take_layout(const struct tess_site *s, struct tess_io *io)
{
	(void)s, (void)io;
	return 7;
}

static tess_status take_param(const struct tess_site *s, const struct tess_param *p,
                              struct tess_param_place *place)
{
	(void)s, (void)p, (void)place;
	return TESS_OK;
}

static struct tess_tensor *record_nothing(struct tess_nn *nn, struct tess_tensor *ids)
{
	(void)nn;
	return ids;
}

static tess_status count_init(const struct tess_host *host)
{
	inits++;
	return *host->option("mine_fails") == '1' ? host->fail(TESS_ENOTSUP, "no hardware")
	                                          : TESS_OK;
}

static void count_quit(void)
{
	quits++;
}

#define STYLE(its_name, its_aliases) \
	{ \
		.size = sizeof(struct tess_style), .name = its_name, .aliases = its_aliases, \
		.layout = take_layout, .partition_param = take_param \
	}
#define PLUGIN(its_name, ...) \
	{ \
		.abi = TESS_ABI, .size = sizeof(struct tess_plugin), .name = its_name, \
		.version = "1", .license = "MIT", __VA_ARGS__ \
	}

static const char *const aliases[] = { "own", NULL };
static const struct tess_style mine = STYLE("mine", aliases), second = STYLE("second", NULL),
			       alias_taken = STYLE("good_alias", NULL),
			       own_taken = STYLE("own", NULL), odd = STYLE("Odd", NULL),
			       unable = { .size = sizeof unable, .name = "unable" };
static const struct tess_model my_model = { .size = sizeof my_model,
	                                    .name = "my_model",
	                                    .types = (const char *const[]){ "mine", NULL },
	                                    .forward = record_nothing };
static void do_nothing(void)
{
}

#define NOTHING(op) .op = (__typeof__(((struct tess_backend *)0)->op))do_nothing
static const struct tess_backend my_backend = { .size = sizeof my_backend,
	                                        .name = "my_backend",
	                                        .reach = TESS_REACH_HOST,
	                                        NOTHING(supports),
	                                        NOTHING(open),
	                                        NOTHING(start),
	                                        NOTHING(test),
	                                        NOTHING(wait),
	                                        NOTHING(release),
	                                        NOTHING(close) };
static const struct tess_option fails = { "mine_fails", "0", "whether init fails" };
static const struct tess_plugin plugin =
	PLUGIN("mine", .styles = TESS_LIST(tess_style, &mine, &second),
               .models = TESS_LIST(tess_model, &my_model),
               .backends = TESS_LIST(tess_backend, &my_backend),
               .options = TESS_LIST(tess_option, &fails), .init = count_init, .quit = count_quit);

static void expect_addition_refused(const struct tess_plugin *p, tess_status why, const char *part)
{
	ck_assert_int_eq(tess_registry_add(p), why);
	expect_part(tess_error(), "registered by the program: ");
	expect_part(tess_error(), part);
}

/* before: whether the program registers before the first lookup. */
START_TEST(adds_plugins_of_the_program)
{
	const struct tess_style *style = NULL;
	const struct tess_backend *backend = NULL;
	const struct tess_model *model = NULL;
	struct tess_plugin_info p;
	size_t n = 0, nown = 0;

	register_folder(_i ? "program-after" : "program-before");
	if (_i)
		ck_assert(!tess_plugin_find_style("good", &style));
	ck_assert_msg(!tess_registry_add(&plugin), "%s", tess_error());
	ck_assert_msg(!tess_registry_add(&plugin), "%s", tess_error()); /* does nothing */
	ck_assert_int_eq(inits, 1);
	ck_assert(!tess_plugin_find_style("own", &style) && !strcmp(style->name, "mine"));
	ck_assert(!tess_plugin_find_style("good", &style) && !strcmp(style->name, "good"));
	ck_assert(!tess_plugin_find_model("mine", &model) && model->forward == record_nothing);
	ck_assert_int_eq(tess_registry_open_all(), TESS_OK);
	for (; tess_registry_at(n, &p); n++)
		if (!strcmp(p.origin, "program")) {
			nown += p.noffers;
			ck_assert(!strcmp(p.path, "registered by the program") && !p.status &&
			          !*p.why);
		}
	ck_assert_uint_eq(nown, 4);
	ck_assert(!tess_plugin_find_backend("my_backend", &backend) &&
	          backend->reach == TESS_REACH_HOST);
	ck_assert_int_eq(tess_plugin_find_backend("my_backend:shm", &backend), TESS_EINVAL);
	ck_assert_int_eq(tess_plugin_find_backend("mine", &backend), TESS_ENOENT);
	ck_assert(!tess_plugin_find_style("mine", &style));
	ck_assert_int_eq(TESS_PLUGIN_CALL(style, "lm_head", layout, NULL, NULL), TESS_EABI);
	expect_part(tess_error(),
	            "lm_head: style mine (registered by the program): layout() returned 7");
	tess_registry_quit();
	ck_assert_int_eq(quits, 1);
}
END_TEST

static const struct tess_backend idle = { .size = TESS_UPTO(tess_backend, close), .name = "idle" };
static const struct tess_plugin taken = PLUGIN("taken", .styles = TESS_LIST(tess_style, &second,
                                                                            &alias_taken)),
				own = PLUGIN("late", .styles = TESS_LIST(tess_style, &own_taken)),
				none = PLUGIN("none", .summary = "nothing"),
				no_op = PLUGIN("no_op", .styles = TESS_LIST(tess_style, &unable)),
				wrong_name = PLUGIN("odd", .styles = TESS_LIST(tess_style, &odd)),
				old = { .abi = 1, .size = sizeof old },
				lacking = PLUGIN("device",
                                                 .backends = TESS_LIST(tess_backend, &idle));

START_TEST(refuses_plugins_of_the_program)
{
	const struct tess_style *style;

	register_folder("program-refused");
	ck_assert_int_eq(tess_registry_add(NULL), TESS_EINVAL);
	expect_addition_refused(&taken, TESS_EINVAL,
	                        "plugin taken, registered by the program: refused: style "
	                        "good_alias is offered by ");
	expect_part(tess_error(), "tess-style-good.so");
	ck_assert_int_eq(tess_plugin_find_style("second", &style),
	                 TESS_ENOENT); /* nothing remains */
	expect_addition_refused(&none, TESS_EINVAL, "it offers no backend, device, style or model");
	expect_addition_refused(&no_op, TESS_EABI, "style unable lacks layout, which is required");
	expect_addition_refused(&wrong_name, TESS_EINVAL, "\"Odd\"");
	expect_addition_refused(&old, TESS_EABI, "built for plugin ABI 1");
	expect_addition_refused(&lacking, TESS_EABI, "backend idle lacks supports");
	setenv("TESSERA_MINE_FAILS", "1", 1);
	expect_addition_refused(&plugin, TESS_ENOTSUP, "not usable here: no hardware");
	setenv("TESSERA_MINE_FAILS", "0", 1);
	ck_assert_msg(!tess_registry_add(&plugin), "%s", tess_error());
	expect_addition_refused(&own, TESS_EINVAL,
	                        "style own is offered by plugin mine, registered before");
}
END_TEST

static void *add_plugin_on_thread(void *unused)
{
	(void)unused;
	return tess_registry_add(&plugin) ? "add" : NULL;
}

START_TEST(adds_from_many_threads)
{
	pthread_t threads[8];
	void *wrong;

	register_folder("program-threads");
	for (int i = 0; i < 8; i++)
		ck_assert(!pthread_create(&threads[i], NULL,
		                          i % 2 ? look_up_plugins : add_plugin_on_thread, NULL));
	for (int i = 0; i < 8; i++) {
		pthread_join(threads[i], &wrong);
		ck_assert_msg(!wrong, "%s", (const char *)wrong);
	}
	ck_assert_int_eq(inits, 1);
}
END_TEST

int main(void)
{
	SRunner *runner;
	TCase *tcase;
	int failed;

	scratch_make();
	tcase = suite_begin("registry", 120, &runner);
	tcase_add_test(tcase, serves_many_threads);
	tcase_add_test(tcase, lists_what_it_knows);
	tcase_add_test(tcase, quits_once);
	tcase_add_test(tcase, hands_out_the_host_table);
	tcase_add_test(tcase, knows_which_options_belong_to_plugins);
	tcase_add_loop_test(tcase, adds_plugins_of_the_program, 0, 2);
	tcase_add_test(tcase, refuses_plugins_of_the_program);
	tcase_add_test(tcase, adds_from_many_threads);
	failed = suite_end(runner);
	scratch_remove();
	return failed;
}
