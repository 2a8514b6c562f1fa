/*
 * test_files.c - files that are not plugins or not trusted, and the order of folders that are
 * searched for plugins.
 */
#include "tests/support/probe.h"

#include <elf.h>

static const uid_t other_uid = 12345;

/*
 * Returns whether owners can be changed, which requires root; otherwise prints that the test is
 * skipped.
 */
static bool can_chown(const char *test)
{
	if (geteuid() == 0)
		return true;
	fprintf(stderr, "files: %s: skipped: files of other owners need root\n", test);
	return false;
}

/* Overwrites bytes of a file in the folder. */
static void patch_file(const char *name, long at, const void *bytes, size_t len)
{
	FILE *f = fopen(format_folder_path(name), "r+b");

	ck_assert_msg(f && !fseek(f, at, SEEK_SET) && fwrite(bytes, 1, len, f) == len && !fclose(f),
	              "%s", format_folder_path(name));
}

static void expect_style_file_refused(const char *status, const char *says)
{
	expect_plugin("style", "good", status, says);
	expect_result(status, format_folder_path("tess-style-good.so"));
	ck_assert(!probed.canary);
}

START_TEST(refuses_what_is_no_shared_object)
{
	make_folder("text");
	scratch_write_text("text/tess-style-good.so", "#!/bin/sh\nexit 1\n");
	expect_style_file_refused("TESS_EABI", "not a shared object: it has no ELF header");
	make_folder("empty");
	scratch_write_text("empty/tess-style-good.so", "");
	expect_style_file_refused("TESS_EABI", "the file is empty");
	make_folder("dangling");
	ck_assert_int_eq(
		symlink("/nowhere/tess-style-good.so", format_folder_path("tess-style-good.so")),
		0);
	expect_style_file_refused("TESS_EINVAL", "a dangling link to /nowhere/tess-style-good.so");
	make_folder("loop");
	ck_assert_int_eq(symlink("tess-style-good.so", format_folder_path("tess-style-good.so")),
	                 0);
	expect_style_file_refused("TESS_EIO", "symbolic links");
	make_folder("folder");
	ck_assert_int_eq(mkdir(format_folder_path("tess-style-good.so"), 0755), 0);
	expect_style_file_refused("TESS_EINVAL", "not a regular file");
	make_folder("pipe");
	ck_assert_int_eq(mkfifo(format_folder_path("tess-style-good.so"), 0644), 0);
	expect_style_file_refused("TESS_EINVAL", "not a regular file");
}
END_TEST

START_TEST(refuses_other_machines)
{
	const unsigned char class32 = ELFCLASS32, big = ELFDATA2MSB;
	Elf64_Half machine = EM_S390, swapped = __builtin_bswap16(EM_S390), type = ET_EXEC;

	make_style_folder("machine", "good");
	patch_file("tess-style-good.so", offsetof(Elf64_Ehdr, e_machine), &machine, sizeof machine);
	expect_style_file_refused("TESS_EABI", "built for s390x (64 bits), this process is ");
	patch_file("tess-style-good.so", EI_DATA, &big, 1);
	patch_file("tess-style-good.so", offsetof(Elf64_Ehdr, e_machine), &swapped, sizeof swapped);
	expect_style_file_refused("TESS_EABI", "built for s390x (64 bits), this process is ");
	install_module("good", "tess-style-good.so");
	patch_file("tess-style-good.so", EI_CLASS, &class32, 1);
	expect_style_file_refused("TESS_EABI", "(32 bits), this process is ");
	install_module("good", "tess-style-good.so");
	patch_file("tess-style-good.so", offsetof(Elf64_Ehdr, e_type), &type, sizeof type);
	expect_style_file_refused("TESS_EABI", "an ELF file, but not a shared object");
}
END_TEST

START_TEST(refuses_truncated_files)
{
	struct stat about;

	make_style_folder("truncated", "good");
	ck_assert_int_eq(stat(format_folder_path("tess-style-good.so"), &about), 0);
	for (off_t len = about.st_size - 1; len > 0; len = len * 3 / 4) {
		ck_assert_int_eq(truncate(format_folder_path("tess-style-good.so"), len), 0);
		probe_plugin("style", "good");
		/* section headers at the end are never read */
		if (len < about.st_size / 2)
			ck_assert_msg(strcmp(probed.status, "TESS_OK") != 0,
			              "%lld bytes were accepted", (long long)len);
		if (len < 64)
			expect_result("TESS_EABI", len < 4 ? "not a shared object" : "truncated: ");
	}
}
END_TEST

START_TEST(says_which_library_is_missing)
{
	make_style_folder("missing", "borrowed");
	expect_plugin_in(folder, folder, "style", "good", "TESS_ENOTSUP",
	                 "not usable here: the loader reports: libtess-abi-dependency.so: ");
	ck_assert(!probed.canary);
}
END_TEST

START_TEST(refuses_what_is_world_writable)
{
	make_style_folder("open-file", "good");
	chmod(format_folder_path("tess-style-good.so"), 0757);
	expect_style_file_refused("TESS_EPERM",
	                          "tess-style-good.so is world-writable; chmod o-w it");
	make_style_folder("open-folder", "good");
	chmod(folder, 0777);
	expect_style_file_refused("TESS_EPERM", "open-folder is world-writable");
	chmod(folder, 01777);
	expect_style_file_refused("TESS_EPERM", "open-folder is world-writable");
	chmod(folder, 0755);
	expect_plugin("style", "good", "TESS_OK", "style good");
}
END_TEST

/* Checks the file, then its folder. */
START_TEST(refuses_what_another_group_may_write)
{
	static const char *const said[] = {
		"tess-style-good.so is writable by group 12345, which is not yours; chmod g-w it",
		"group is writable by group 12345, which is not yours; chmod g-w it",
	};
	char what[1024];

	make_style_folder("group", "good");
	for (int i = 0; i < 2; i++) {
		strcpy(what, i ? folder : format_folder_path("tess-style-good.so"));
		ck_assert_int_eq(chmod(what, 0775), 0);
		expect_plugin("style", "good", "TESS_OK", "style good");
		if (!can_chown("refuses_what_another_group_may_write"))
			continue;
		ck_assert_int_eq(chown(what, 0, other_uid), 0);
		ck_assert_int_eq(chmod(what, 0775), 0);
		expect_style_file_refused("TESS_EPERM", said[i]);
		ck_assert_int_eq(chmod(what, 0755), 0);
	}
}
END_TEST

/* Checks that a world-writable ancestor is refused too, unless it is sticky like /tmp. */
START_TEST(checks_ancestors)
{
	char outer[1024];

	make_folder("outer");
	strcpy(outer, folder);
	make_style_folder("outer/inner", "good");
	chmod(outer, 0777);
	expect_style_file_refused("TESS_EPERM", "outer is world-writable");
	chmod(outer, 01777);
	expect_plugin("style", "good", "TESS_OK", "style good");
}
END_TEST

/* Checks both the target of a link and the folder of the link. */
START_TEST(checks_both_ends_of_links)
{
	char outer[1024];

	make_style_folder("target", "good");
	strcpy(outer, format_folder_path("tess-style-good.so"));
	make_folder("links");
	ck_assert_int_eq(symlink(outer, format_folder_path("tess-style-good.so")), 0);
	expect_plugin("style", "good", "TESS_OK", "style good");
	chmod(outer, 0757);
	expect_style_file_refused("TESS_EPERM", "target/tess-style-good.so is world-writable");
	chmod(outer, 0755);
	chmod(folder, 01777);
	expect_style_file_refused("TESS_EPERM", "links is world-writable");
}
END_TEST

/* Installs a relocated program, and next to it tessera-2/, which the user has not named. */
static void install_program(const char *name, char program[static 1024])
{
	make_folder(name);
	strcpy(program, folder);
	install_file("ABI_DIR", "abi-probe", "abi-probe");
	format_probe_path(folder, "%s/tessera-2", program);
	ck_assert_int_eq(mkdir(folder, 0755), 0);
	install_module("good", "tess-style-good.so");
}

START_TEST(finds_what_lies_beside_the_program)
{
	char program[1024];

	install_program("installed", program);
	expect_plugin_in(NULL, program, "style", "good", "TESS_OK", "style good");
	expect_plugin_in(NULL, program, NULL, NULL, "TESS_OK", "(beside the program)");
	unlink(format_folder_path("tess-style-good.so"));
	expect_plugin_in(NULL, program, "style", "good", "TESS_ENOENT",
	                 "no file has a style good in ");
	expect_result("TESS_ENOENT", folder);
}
END_TEST

START_TEST(refuses_other_owners)
{
	char program[1024];

	if (!can_chown("refuses_other_owners"))
		return;
	install_program("owners", program);
	ck_assert_int_eq(chown(format_folder_path("tess-style-good.so"), other_uid, other_uid), 0);
	expect_plugin_in(NULL, program, "style", "good", "TESS_EPERM",
	                 "tess-style-good.so belongs to user 12345, which is neither root nor you");
	ck_assert(!probed.canary);
	/* a warning only: the user has named the folder */
	expect_plugin("style", "good", "TESS_OK", "style good");
	expect_part(probed.stderr_text,
	            "tess-style-good.so belongs to user 12345; it is trusted because ");
}
END_TEST

START_TEST(refuses_folders_of_other_owners)
{
	char program[1024], probe[1024];

	if (!can_chown("refuses_folders_of_other_owners"))
		return;
	install_program("owner-folder", program);
	ck_assert_int_eq(chown(folder, other_uid, other_uid), 0);
	expect_plugin_in(NULL, program, "style", "good", "TESS_EPERM",
	                 "tessera-2 belongs to user 12345");
	ck_assert(!probed.canary);
	/* the owner of the running program is trusted */
	format_probe_path(probe, "%s/abi-probe", program);
	ck_assert_int_eq(chown(probe, other_uid, other_uid), 0);
	expect_plugin_in(NULL, program, "style", "good", "TESS_OK", "style good");
}
END_TEST

START_TEST(shadows_by_order_of_directories)
{
	char path[4096], first[1024], program[1024];

	install_program("shadow", program);
	make_folder("first");
	strcpy(first, folder);
	install_module("no-operation", "tess-style-good.so");
	make_style_folder("second", "good");
	install_module("model", "tess-model-abi.so");
	snprintf(path, sizeof path, "%s:%s", folder, first);
	expect_plugin_in(path, program, "style", "good", "TESS_OK", "style good");
	snprintf(path, sizeof path, "%s:relative::%s:/nowhere/at/all", first, folder);
	expect_plugin_in(path, program, "style", "good", "TESS_EABI",
	                 "first/tess-style-good.so: refused: ");
	expect_plugin_in(path, program, "model", "abi_model", "TESS_OK", "model abi");
	expect_plugin_in(path, program, NULL, NULL, "TESS_OK",
	                 "second/tess-style-good.so: shadowed by ");
	expect_result("TESS_OK", "tessera-2/tess-style-good.so: shadowed by ");
	probe_plugin_in(path, program, "style", "unheard_of");
	ck_assert_ptr_null(strstr(probed.sentence, "relative"));
	expect_part(probed.stderr_text, "TESSERA_PLUGIN_PATH: \"relative\" is ignored");
	expect_part(probed.stderr_text, "/nowhere/at/all (TESSERA_PLUGIN_PATH): No such file");
	expect_result("TESS_ENOENT", "/nowhere/at/all");
}
END_TEST

START_TEST(requires_names_of_files)
{
	static const char *const names[] = {
		"tess-style-Good.so", "tess-style-.so", "tess-styles-good.so", "tess-good.so",
		"tess-style-a-b.so",  "tess-style.so",  "tess-style-a.b.so",
	};

	make_folder("names");
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		install_module("good", names[i]);
	install_module("good", "libgood.so");
	install_module("good", "tess-style-good.so.1");
	expect_plugin("style", "good", "TESS_ENOENT", "no file has a style good");
	ck_assert(!probed.canary);
	probe_plugin(NULL, NULL);
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		expect_result("TESS_OK", names[i]);
	expect_result("TESS_OK", "refused: a plugin is named tess-KIND-NAME.so");
	expect_result("TESS_OK", "libgood.so: refused: a plugin is named");
	ck_assert_ptr_null(strstr(probed.sentence, ".so.1"));
	ck_assert(!probed.canary);
}
END_TEST

SCRATCH_MAIN("files", refuses_what_is_no_shared_object, refuses_other_machines,
             refuses_truncated_files, says_which_library_is_missing, refuses_what_is_world_writable,
             refuses_what_another_group_may_write, checks_ancestors, checks_both_ends_of_links,
             finds_what_lies_beside_the_program, refuses_other_owners,
             refuses_folders_of_other_owners, shadows_by_order_of_directories,
             requires_names_of_files)
