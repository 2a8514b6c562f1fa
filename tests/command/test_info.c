/* test_info.c - tessera info, which lists plugins and options. */
#include "core/base/json.h"
#include "core/base/status.h"
#include "tests/support/probe.h"

/* Reads the output of `tessera info ARGUMENTS`, with stderr if `all`; returns its exit status. */
static int run_info(const char *arguments, bool all, char *out, size_t capacity)
{
	return command_run(out, capacity, "'%s' info %s %s", require_env("TOOL"), arguments,
	                   all ? "2>&1" : "2>/dev/null");
}

static json_t *run_info_json(const char *arguments)
{
	static char text[1 << 20];
	json_t *root = NULL;

	ck_assert_int_eq(run_info(arguments, false, text, sizeof text), 0);
	ck_assert_msg(!tess_json_parse("stdout", text, strlen(text), &root), "%s", tess_error());
	return root;
}

static json_t *find_listed_plugin(json_t *root, const char *path)
{
	json_t *plugin;
	size_t i;

	json_array_foreach(json_object_get(root, "plugins"), i, plugin)
		if (strstr(json_string_value(json_object_get(plugin, "file")), path))
			return plugin;
	ck_abort_msg("%s is not listed", path);
	return NULL;
}

static void install_styles(const char *name)
{
	make_folder(name);
	setenv("TESSERA_PLUGIN_PATH", folder, 1);
	install_module("good", "tess-style-zgood.so");
	install_module("needs", "tess-style-zneeds.so");
}

START_TEST(lists_as_text)
{
	static char text[1 << 20];

	install_styles("text");
	ck_assert_int_eq(run_info("", false, text, sizeof text), 0);
	expect_part(text, "style abi 1.0, ABI 2, Apache-2.0: for tests");
	expect_part(text, "good (good_alias, good_other): for tests");
	expect_part(text, "not used:\n");
	expect_part(text, "tess-style-zneeds.so: refused: it needs a newer Tessera");
	expect_part(text, "(TESSERA_PLUGIN_PATH)");
}
END_TEST

START_TEST(lists_as_json)
{
	json_t *root, *p;

	install_styles("json");
	root = run_info_json("--json");
	ck_assert_int_eq(json_integer_value(json_object_get(root, "abi")), TESS_ABI);
	p = find_listed_plugin(root, format_folder_path("tess-style-zgood.so"));
	ck_assert(json_is_true(json_object_get(p, "taken")));
	ck_assert_str_eq(json_string_value(json_object_get(p, "kind")), "style");
	ck_assert_str_eq(json_string_value(json_object_get(p, "origin")), "TESSERA_PLUGIN_PATH");
	p = find_listed_plugin(root, "/tess-device-cpu.so");
	p = json_array_get(json_object_get(p, "offers"), 0);
	ck_assert_int_eq(json_integer_value(json_object_get(p, "devices")), 1);
	ck_assert_str_eq(json_string_value(json_object_get(p, "memory")), "host");
	ck_assert_str_eq(json_string_value(json_object_get(p, "layout")), "panels");
	ck_assert(json_is_true(json_object_get(p, "exact")));
	p = find_listed_plugin(root, format_folder_path("tess-style-zneeds.so"));
	ck_assert(json_is_false(json_object_get(p, "taken")));
	ck_assert_str_eq(json_string_value(json_object_get(p, "status")), "TESS_EABI");
	expect_part(json_string_value(json_object_get(p, "why")), "newer Tessera");
	json_decref(root);
}
END_TEST

START_TEST(says_what_auto_chooses)
{
	static char text[1 << 20];
	json_t *root, *choice;

	install_styles("choices");
	unsetenv("TESSERA_BACKEND");
	ck_assert_int_eq(run_info("", false, text, sizeof text), 0);
	expect_part(text, "TESSERA_BACKEND=auto chooses:\n");
	expect_part(text,
	            "  one rank: loopback (one rank: the first of TESSERA_BACKENDS that joins "
	            "them)\n");
	root = run_info_json("--json");
	choice = json_object_get(json_object_get(root, "choices"), "processes");
	ck_assert_str_eq(json_string_value(json_object_get(choice, "backend")), "shm");
	json_decref(root);
	setenv("TESSERA_BACKEND", "shn", 1);
	root = run_info_json("--json");
	choice = json_object_get(json_object_get(root, "choices"), "threads");
	ck_assert_str_eq(json_string_value(json_object_get(choice, "backend")), "");
	expect_part(json_string_value(json_object_get(choice, "why")), "did you mean shm");
	json_decref(root);
	setenv("TESSERA_BACKEND", "shm", 1);
	root = run_info_json("--json");
	choice = json_object_get(json_object_get(root, "choices"), "threads");
	ck_assert_str_eq(json_string_value(json_object_get(choice, "backend")), "");
	expect_part(json_string_value(json_object_get(choice, "why")), "shm is for processes");
	choice = json_object_get(json_object_get(root, "choices"), "processes");
	ck_assert_str_eq(json_string_value(json_object_get(choice, "backend")), "shm");
	json_decref(root);
	setenv("TESSERA_BACKEND", "nccl", 1);
	root = run_info_json("--json");
	choice = json_object_get(json_object_get(root, "choices"), "processes");
	ck_assert_str_eq(json_string_value(json_object_get(choice, "backend")), "");
	expect_part(json_string_value(json_object_get(choice, "why")), "memory of device cpu");
	json_decref(root);
}
END_TEST

START_TEST(lists_options)
{
	static char text[1 << 20];
	json_t *root;

	install_styles("options");
	setenv("TESSERA_ABI_GOOD", "7", 1);
	ck_assert_int_eq(run_info("--options", false, text, sizeof text), 0);
	expect_part(text, "TESSERA_ABI_GOOD=7 (environment)\n    for tests\n");
	expect_part(text, "TESSERA_LOG=");
	root = run_info_json("--options --json");
	ck_assert_uint_gt(json_array_size(json_object_get(root, "options")), 5);
	json_decref(root);
}
END_TEST

START_TEST(says_how_it_is_used)
{
	char text[4096];

	ck_assert_int_eq(run_info("--help", false, text, sizeof text), 0);
	expect_part(text, "usage: tessera info");
	ck_assert_int_eq(run_info("--nonsense", true, text, sizeof text), 2);
	ck_assert_int_eq(run_info("--options extra", true, text, sizeof text), 2);
	expect_part(text, "unexpected argument \"extra\"");
	ck_assert_int_eq(run_info("--json > /dev/full", true, text, sizeof text), 1);
	ck_assert_int_eq(run_info("> /dev/full", true, text, sizeof text), 1);
}
END_TEST

SCRATCH_MAIN("info", lists_as_text, lists_as_json, says_what_auto_chooses, lists_options,
             says_how_it_is_used)
