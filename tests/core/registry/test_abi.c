/*
 * test_abi.c - plugins with one fault each, and plugins of other releases: they are refused before
 * their code runs.
 */
#include "tests/support/probe.h"

/* Modules built by meson.build; each is installed as tess-style-good.so and opened as "good". */
static const struct {
	const char *module, *status, *says;
	int runs; /* functions that have run: init, once the tables are accepted */
} faults[] = {
	{ "abi", "TESS_EABI", "refused: built for plugin ABI 1, and this is ABI 2 (Tessera 2.", 0 },
	{ "abi-3", "TESS_EABI", "built for plugin ABI 3, and this is ABI 2 (Tessera ", 0 },
	{ "size-zero", "TESS_EABI", "its descriptor has size 0;", 0 },
	{ "size-absurd", "TESS_EABI", "its descriptor has size 1073741824;", 0 },
	{ "size-small", "TESS_EABI", "its descriptor has size 40;", 0 },
	{ "size-beyond", "TESS_EABI", "and ABI 2 requires at least", 0 },
	{ "no-descriptor", "TESS_EABI", "it exports no tess_plugin_v2; use TESS_DEFINE_PLUGIN", 0 },
	{ "function", "TESS_EABI", "its tess_plugin_v2 is not data", 0 },
	{ "tiny", "TESS_EABI", "a symbol of 4 bytes", 0 },
	{ "no-operation", "TESS_EABI", "style good lacks partition_param, which is required", 0 },
	{ "no-layout", "TESS_EABI", "style good lacks layout, which is required", 0 },
	{ "style-size-zero", "TESS_EABI", "a struct tess_style of 0 bytes", 0 },
	{ "style-size-short", "TESS_EABI", "style good lacks partition_param, which is required",
	  0 },
	{ "style-size-absurd", "TESS_EABI", "a struct tess_style of 1048576 bytes", 0 },
	{ "bad-name", "TESS_EINVAL", "the name of a style, \"Bad-Name\", is not [a-z0-9_]+", 0 },
	{ "no-name", "TESS_EINVAL", "the name of a style, \"\", is not [a-z0-9_]+", 0 },
	{ "bad-alias", "TESS_EINVAL", "style good: \"Bad alias\" is not [a-z0-9_]+", 0 },
	{ "bad-plugin-name", "TESS_EINVAL", "the plugin's name, \"../abi\", is not [a-z0-9_]+", 0 },
	{ "twice", "TESS_EINVAL", "it offers the style good twice", 0 },
	{ "alias-twice", "TESS_EINVAL", "it offers the style good_alias twice", 0 },
	{ "no-version", "TESS_EINVAL", "plugin abi has no version", 0 },
	{ "no-license", "TESS_EINVAL", "plugin abi has no license", 0 },
	{ "nothing", "TESS_EINVAL", "it offers no style, as its file name requires", 0 },
	{ "needs", "TESS_EABI", "it needs a newer Tessera: ", 0 },
	{ "needs-nn", "TESS_EABI", "bytes of struct tess_nn", 0 },
	{ "newer-needs", "TESS_EABI", "bytes of struct tess_host", 0 },
	{ "unresolved", "TESS_ENOTSUP", "undefined symbol: tess_nowhere", 0 },
	{ "option-clash", "TESS_EINVAL", "option plugin_path with the preset \"/\" is declared by",
	  0 },
	{ "option-key", "TESS_EINVAL", "option \"ABI_GOOD\": a key of a-z, 0-9 and _", 0 },
	{ "option-null", "TESS_EINVAL", "option 0 has no key", 0 },
	{ "refuses", "TESS_ENOTSUP", "not usable here: no such hardware, sorry", 1 },
	{ "fails", "TESS_ENOTSUP", "its init returned -12 (TESS_EIO) without a sentence", 1 },
	{ "fails-oddly", "TESS_ENOTSUP", "its init returned 7 (unknown status) without a sentence",
	  1 },
};

START_TEST(refuses_each_fault)
{
	char name[64], file[1024];

	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
		snprintf(name, sizeof name, "fault-%s", faults[i].module);
		make_style_folder(name, faults[i].module);
		format_probe_path(file, "%s/tess-style-good.so: ", folder);
		expect_plugin("style", "good", faults[i].status, faults[i].says);
		if (!strncmp(faults[i].module, "abi", 3))
			expect_part(probed.sentence,
			            "); rebuild it with this version's headers: cc ");
		ck_assert_msg(!strncmp(probed.sentence, file, strlen(file)),
		              "\"%s\" does not name the file", probed.sentence);
		ck_assert_msg(probed.canary == faults[i].runs, "%s: %d functions have run",
		              faults[i].module, probed.canary);
	}
}
END_TEST

START_TEST(takes_a_good_one)
{
	static const char *const names[] = { "good", "good_alias", "good_other" };

	make_folder("good");
	install_module("good", "tess-style-family.so");
	for (size_t i = 0; i < 3; i++) {
		expect_plugin("style", names[i], "TESS_OK",
		              "style good, size ours, open NULL, close NULL");
		ck_assert(probed.canary);
	}
	make_folder("plain");
	install_module("no-init", "tess-style-family.so");
	expect_plugin("style", "good", "TESS_OK", "style good");
}
END_TEST

/* Checks that only fields known on both sides are passed. */
START_TEST(mixes_releases)
{
	make_folder("newer");
	install_module("newer", "tess-style-newer.so");
	expect_plugin("style", "good", "TESS_OK", "style good, size ours");
	make_folder("older");
	install_module("older", "tess-style-older.so");
	expect_plugin("style", "good_alias", "TESS_OK",
	              "style good, size ours, open NULL, close NULL");
}
END_TEST

START_TEST(refuses_a_name_of_two_files)
{
	make_folder("clash");
	install_module("good", "tess-style-b.so");
	install_module("alias", "tess-style-a.so");
	expect_plugin("style", "good_other", "TESS_EINVAL",
	              "style good_other: refused: two files offer it, ");
	expect_part(probed.sentence, "tess-style-a.so and ");
	expect_part(probed.sentence, "tess-style-b.so; ");
	expect_plugin("style", "other", "TESS_OK", "style other");
	expect_plugin(NULL, NULL, "TESS_OK", "style good_other: refused: two files offer it, ");
}
END_TEST

START_TEST(takes_one_file_of_two_names_once)
{
	make_folder("twins");
	install_module("good", "tess-style-a.so");
	ck_assert_int_eq(symlink("tess-style-a.so", format_folder_path("tess-style-b.so")), 0);
	expect_plugin("style", "good", "TESS_OK", "style good");
	ck_assert_int_eq(probed.canary, 3); /* init, layout and quit, once each */
}
END_TEST

START_TEST(borrows_no_descriptor)
{
	make_style_folder("borrowed", "borrowed");
	install_file("ABI_DIR", "libtess-abi-dependency.so", "libtess-abi-dependency.so");
	expect_plugin_in(folder, folder, "style", "good", "TESS_EABI",
	                 "no tess_plugin_v2 of its own; the one found is that of ");
	expect_part(probed.sentence, "libtess-abi-dependency.so");
}
END_TEST

START_TEST(opens_backends_by_file)
{
	make_folder("backends");
	install_module("idle", "tess-backend-idle.so");
	expect_plugin("backend", "idle", "TESS_OK", "backend idle");
	expect_plugin("backend", "idel", "TESS_ENOENT",
	              "backend idel: not found: no tess-backend-idel.so in ");
	expect_result("TESS_ENOENT", folder);
	expect_result("TESS_ENOENT", "; did you mean idle?");
	expect_plugin("backend", "IDLE", "TESS_ENOENT", "; did you mean idle?");
	expect_plugin("backend", "", "TESS_ENOENT",
	              "the name of the backend is empty; name one, or unset TESSERA_BACKEND");
	expect_plugin("device", "idle", "TESS_ENOENT", "no tess-device-idle.so in ");
	install_module("idle-no-wait", "tess-backend-idle.so");
	expect_plugin("backend", "idle", "TESS_EABI", "backend idle lacks wait, which is required");
	install_module("idle-other-name", "tess-backend-idle.so");
	expect_plugin("backend", "idle", "TESS_EINVAL", "name the file tess-backend-busy.so");
	install_module("good", "tess-backend-idle.so");
	expect_plugin("backend", "idle", "TESS_EINVAL",
	              "it offers no backend, as its file name requires");
	ck_assert(!probed.canary);
}
END_TEST

START_TEST(finds_models_by_type)
{
	make_folder("models");
	install_module("model", "tess-model-abi.so");
	expect_plugin("model", "abi_model", "TESS_OK", "model abi");
	expect_plugin("model", "abi-Model.2", "TESS_OK", "model abi");
	expect_plugin("model", "abi_modell", "TESS_ENOENT", "did you mean abi_model?");
	expect_plugin("model", "abi", "TESS_ENOENT",
	              "model abi: not found: no file has a model of type \"abi\" in ");
	install_module("model-no-type", "tess-model-abi.so");
	expect_plugin("model", "abi", "TESS_EINVAL", "model abi has no model_type");
	install_module("model-bad-type", "tess-model-abi.so");
	expect_plugin("model", "abi", "TESS_EINVAL", "\"../x\" is not [A-Za-z0-9_.-]+");
}
END_TEST

START_TEST(asks_what_was_meant)
{
	make_folder("near");
	install_module("good", "tess-style-family.so");
	install_module("abi", "tess-style-fresh.so");
	expect_plugin("style", "good_alia", "TESS_ENOENT",
	              "style good_alia: not found: no file has a style good_alia in ");
	expect_result("TESS_ENOENT", "; did you mean good_alias?");
	expect_result("TESS_ENOENT", "; 1 style file was refused; `tessera info` has the reasons");
	probe_plugin("style", "unheard_of");
	ck_assert_ptr_null(strstr(probed.sentence, "did you mean"));
}
END_TEST

SCRATCH_MAIN("abi", refuses_each_fault, takes_a_good_one, mixes_releases,
             refuses_a_name_of_two_files, takes_one_file_of_two_names_once, borrows_no_descriptor,
             opens_backends_by_file, finds_models_by_type, asks_what_was_meant)
