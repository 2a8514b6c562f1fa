/*
 * test_convert.c - tessera convert by its command line: equal files for any number of ranks, values
 * rounded like torch's, other files kept. A refused or killed conversion leaves the old files.
 */
#include "core/base/status.h"
#include "hf/checkpoint.h"
#include "tests/support/command.h"
#include "tests/support/scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>

enum { TEXT = 16384 };

static const char *format_source_path(const char *name)
{
	return format_path_in(SOURCE_ROOT, name);
}

/*
 * Converts a model; returns the exit status. `text`: all output. OUT is a name in the scratch
 * directory.
 */
static int convert_model(const char *model, const char *out, const char *args, char text[TEXT])
{
	return command_run(text, TEXT, "'%s' convert '%s' '%s' %s 2>&1", TESSERA, model,
	                   scratch_format_path(out), args);
}

static void expect_converted(const char *model, const char *out, const char *args)
{
	char text[TEXT];

	ck_assert_msg(!convert_model(model, out, args, text) && !*text, "%s", text);
}

static void expect_same_file(const char *have, const char *want)
{
	char text[TEXT];

	ck_assert_msg(!command_run(text, TEXT, "cmp '%s' '%s' 2>&1", have, want), "%s", text);
}

static void remove_folder(const char *name)
{
	nftw(scratch_format_path(name), scratch_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* Expects no file in the scratch directory whose name begins with `name`. */
static void expect_nothing_left(const char *name)
{
	char text[TEXT];

	command_run(text, TEXT, "ls -d '%s'* 2>/dev/null", scratch_format_path(name));
	ck_assert_str_eq(text, "");
}

/* ---- what is written ------------------------------------------------------------------------- */

/* Compares with transformers' own copies in these dtypes, byte for byte; and converts back. */
START_TEST(bytes_of_transformers)
{
	static const char *const dtypes[] = { "bf16", "f16" };
	static const int ranks[] = { 1, 3, 8 };
	char args[64], name[64], file[96];

	for (int i = 0; i < 2; i++)
		for (int r = 0; r < 3; r++) {
			snprintf(args, sizeof args, "--dtype %s -n %d", dtypes[i], ranks[r]);
			expect_converted(format_data_path(""), "out", args);
			snprintf(file, sizeof file, "tests/data/stories260K-%s/model.safetensors",
			         dtypes[i]);
			expect_same_file(scratch_format_path("out/model.safetensors"),
			                 format_source_path(file));
			expect_same_file(scratch_format_path("out/tokenizer.json"),
			                 format_data_path("tokenizer.json"));
			expect_converted(scratch_format_path("out"), "wide", "--dtype f32 -n 2");
			snprintf(args, sizeof args, "--dtype %s", dtypes[i]);
			snprintf(name, sizeof name, "wide");
			expect_converted(scratch_format_path(name), "again", args);
			expect_same_file(scratch_format_path("again/model.safetensors"),
			                 format_source_path(file));
			remove_folder("out");
			remove_folder("wide");
			remove_folder("again");
		}
}
END_TEST

static void read_digest(const char *model, char digest[80])
{
	char text[TEXT], *at;

	ck_assert_msg(!command_run(text, TEXT,
	                           "'%s' generate '%s' -n 2 --backend loopback --ids 1,403 "
	                           "--max-tokens 8 --temperature 0 --json",
	                           TESSERA, model),
	              "%s", text);
	at = strstr(text, "\"digest\":\"");
	ck_assert_msg(at && sscanf(at, "\"digest\":\"%64[0-9a-f]", digest) == 1, "%s", text);
}

/* Writes files of a maximum size, named and listed like transformers'. */
START_TEST(several_files)
{
	enum { LIMIT = 300000 };
	struct tess_checkpoint *have, *want;
	char digest[80], wanted[80], args[64];
	int64_t elements, bytes;
	json_t *index;
	size_t files;

	snprintf(args, sizeof args, "--max-shard-size %dKB -n 4", LIMIT / 1000);
	expect_converted(format_data_path(""), "files", args);
	index = json_load_file(scratch_format_path("files/model.safetensors.index.json"), 0, NULL);
	ck_assert_int_eq(json_unpack(index, "{s:{s:I, s:I}}", "metadata", "total_parameters",
	                             &elements, "total_size", &bytes),
	                 0);
	ck_assert(elements == 260032 && bytes == 4 * elements);
	ck_assert_int_eq(
		tess_checkpoint_open(scratch_format_path("files"), TESS_CHECKPOINT_WHOLE, &have),
		TESS_OK);
	ck_assert_int_eq(tess_checkpoint_open(format_data_path(""), TESS_CHECKPOINT_WHOLE, &want),
	                 TESS_OK);
	ck_assert_uint_eq(tess_checkpoint_count(have), tess_checkpoint_count(want));
	for (size_t i = 0; i < tess_checkpoint_count(have); i++) {
		const struct tess_slice *a = tess_checkpoint_at(have, i);
		const struct tess_slice *b = tess_checkpoint_at(want, i);

		ck_assert_str_eq(a->name, b->name);
		ck_assert(a->dtype == b->dtype && a->bytes == b->bytes &&
		          !memcmp(a->data, b->data, a->bytes));
	}
	tess_checkpoint_close(have);
	tess_checkpoint_close(want);
	for (files = 1; files < 99; files++) {
		char name[64];
		struct stat about;

		snprintf(name, sizeof name, "files/model-%05zu-of-00004.safetensors", files);
		if (stat(scratch_format_path(name), &about))
			break;
		ck_assert_int_le(about.st_size, LIMIT + 8192);
	}
	ck_assert_uint_eq(files, 5);
	read_digest(format_data_path(""), wanted);
	read_digest(scratch_format_path("files"), digest);
	ck_assert_str_eq(digest, wanted);
	json_decref(index);
}
END_TEST

/* Writes a folder with these tensors; config NULL: a plain one. */
static void write_checkpoint(const char *folder, int32_t n, const struct tess_slice *tensors,
                             const char *config)
{
	char path[64];

	scratch_make_folder(folder);
	snprintf(path, sizeof path, "%s/config.json", folder);
	scratch_write_text(path, config ? config : "{\"model_type\": \"unheard-of\"}");
	snprintf(path, sizeof path, "%s/model.safetensors", folder);
	ck_assert_msg(!tess_safetensors_write(scratch_format_path(path), n, tensors), "%s",
	              tess_error());
}

static const struct {
	uint32_t f32;
	uint16_t bf16, f16; /* rounded like torch's */
} rounded[] = {
	{ 0x00000000, 0x0000, 0x0000 }, { 0x80000000, 0x8000, 0x8000 },
	{ 0x3f800000, 0x3f80, 0x3c00 }, { 0x3f808000, 0x3f80, 0x3c04 },
	{ 0x3f818000, 0x3f82, 0x3c0c }, { 0x3f808001, 0x3f81, 0x3c04 },
	{ 0x3f801000, 0x3f80, 0x3c00 }, { 0x3f803000, 0x3f80, 0x3c02 },
	{ 0x3f801001, 0x3f80, 0x3c01 }, { 0x477fe000, 0x4780, 0x7bff },
	{ 0x477fefff, 0x4780, 0x7bff }, { 0x477ff000, 0x4780, 0x7c00 },
	{ 0x7f7f0000, 0x7f7f, 0x7c00 }, { 0x7f7f7fff, 0x7f7f, 0x7c00 },
	{ 0x7f7f8000, 0x7f80, 0x7c00 }, { 0x7f7fffff, 0x7f80, 0x7c00 },
	{ 0x7f800000, 0x7f80, 0x7c00 }, { 0xff800000, 0xff80, 0xfc00 },
	{ 0x00000001, 0x0000, 0x0000 }, { 0x00008000, 0x0000, 0x0000 },
	{ 0x00018000, 0x0002, 0x0000 }, { 0x007fffff, 0x0080, 0x0000 },
	{ 0x33000000, 0x3300, 0x0000 }, { 0x33000001, 0x3300, 0x0001 },
	{ 0x32ffffff, 0x3300, 0x0000 }, { 0x33c00000, 0x33c0, 0x0002 },
	{ 0x387fc000, 0x3880, 0x03ff }, { 0x387fe000, 0x3880, 0x0400 },
	{ 0x387fffff, 0x3880, 0x0400 }, { 0x38800000, 0x3880, 0x0400 },
	{ 0xb8802000, 0xb880, 0x8401 }, { 0x42f6e979, 0x42f7, 0x57b7 },
};
enum { ROUNDED = sizeof rounded / sizeof *rounded };

static void expect_halves(const struct tess_safetensors *f, const char *name, bool bf16)
{
	const struct tess_slice *s = tess_safetensors_find(f, name);
	const uint16_t *have = s->data;

	ck_assert(s->dtype == (bf16 ? TESS_BF16 : TESS_F16) && s->bytes == 2 * (ROUNDED + 1));
	for (int i = 0; i < ROUNDED; i++)
		ck_assert_msg(have[i] == (bf16 ? rounded[i].bf16 : rounded[i].f16),
		              "%s: %08x: %04x", name, rounded[i].f32, have[i]);
	/* NaN stays NaN */
	ck_assert_int_gt(have[ROUNDED] & 0x7fff, bf16 ? 0x7f80 : 0x7c00);
}

/*
 * Converts hard values from f32 and f64. Other types, and the bias that chooses experts, do not
 * change; new infinities give a warning.
 */
START_TEST(rounds_to_nearest)
{
	static const int64_t n[] = { ROUNDED + 1 }, some[] = { 3 }, none[] = { 0, 4 };
	uint32_t f32[ROUNDED + 1];
	double f64[ROUNDED + 1];
	int64_t ids[] = { 1, -2, INT64_MAX };
	const struct tess_slice tensors[] = {
		{ .name = "f32", .dtype = TESS_F32, .ndim = 1, .shape = n, .data = f32 },
		{ .name = "f64", .dtype = TESS_F64, .ndim = 1, .shape = n, .data = f64 },
		{ .name = "ids", .dtype = TESS_I64, .ndim = 1, .shape = some, .data = ids },
		{ .name = "none", .dtype = TESS_F32, .ndim = 2, .shape = none },
		{ .name = "one", .dtype = TESS_F32, .data = &f32[2] },
		{ .name = "x.gate.e_score_correction_bias",
		  .dtype = TESS_F32,
		  .ndim = 1,
		  .shape = some,
		  .data = f32 },
	};
	char text[TEXT];

	for (int i = 0; i <= ROUNDED; i++) {
		float x;

		f32[i] = i < ROUNDED ? rounded[i].f32 : 0x7f801234;
		memcpy(&x, &f32[i], sizeof x);
		f64[i] = (double)x;
	}
	write_checkpoint("hard", 6, tensors, NULL);
	for (int bf16 = 0; bf16 < 2; bf16++) {
		struct tess_safetensors *f;

		ck_assert_int_eq(convert_model(scratch_format_path("hard"), "soft",
		                               bf16 ? "--dtype bf16 -n 5" : "--dtype f16 -n 1",
		                               text),
		                 0);
		expect_part(text, bf16 ? "became infinite, the first in tensor f"
		                       : "10 values of 10 are too large for the dtype and became "
		                         "infinite, the first in tensor f32");
		ck_assert_int_eq(tess_safetensors_open(
					 scratch_format_path("soft/model.safetensors"), false, &f),
		                 TESS_OK);
		expect_halves(f, "f32", bf16);
		expect_halves(f, "f64", bf16);
		ck_assert(!memcmp(tess_safetensors_find(f, "ids")->data, ids, sizeof ids));
		ck_assert_int_eq(tess_safetensors_find(f, "one")->bytes, 2);
		ck_assert(!memcmp(tess_safetensors_find(f, "x.gate.e_score_correction_bias")->data,
		                  f32, 12));
		tess_safetensors_close(f);
		remove_folder("soft");
	}
}
END_TEST

#define MXFP4 "\"quantization_config\": {\"quant_method\": \"mxfp4\", \"x\": {}}"

/*
 * Checks that config.json has the new dtype, and does not say that weights are quantised; other
 * bytes do not change.
 */
START_TEST(keeps_the_config)
{
	static const struct {
		const char *before, *after;
	} configs[] = {
		{ "{\"model_type\": \"a\", \"dtype\":\"float32\" ,\"eps\":1e-05}\n",
		  "{\"model_type\": \"a\", \"dtype\":\"bfloat16\" ,\"eps\":1e-05}\n" },
		{ "{\"torch_dtype\" : null,\"b\":{\"dtype\": 1},\"model_type\":\"\\\"dtype\\\"\"}",
		  "{\"torch_dtype\" : \"bfloat16\",\"b\":{\"dtype\": 1},"
		  "\"model_type\":\"\\\"dtype\\\"\"}" },
		{ "{\"dtype\":{\"a\": [1, \"}\"]}, \"torch_dtype\":\"x\", \"model_type\":\"a\"}",
		  "{\"dtype\":\"bfloat16\", \"torch_dtype\":\"bfloat16\", \"model_type\":\"a\"}" },
		{ "{\"model_type\": \"a\", " MXFP4 ", \"dtype\": null}",
		  "{\"model_type\": \"a\", \"dtype\": \"bfloat16\"}" },
		{ "{\"dtype\": \"x\", \"model_type\": \"a\" , " MXFP4 " }",
		  "{\"dtype\": \"bfloat16\", \"model_type\": \"a\" }" },
		{ "{" MXFP4 " ,\n \"model_type\": \"a\"}",
		  "{\n  \"torch_dtype\": \"bfloat16\",\"model_type\": \"a\"}" },
		{ "\n{\"model_type\": \"dtype\"}",
		  "\n{\n  \"torch_dtype\": \"bfloat16\",\"model_type\": \"dtype\"}" },
	};
	static const float zero[1];
	const struct tess_slice one = { .name = "a", .dtype = TESS_F32, .data = zero };

	for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
		write_checkpoint("old", 1, &one, configs[i].before);
		expect_converted(scratch_format_path("old"), "new", "--dtype bf16");
		scratch_write_text("wanted", configs[i].after);
		expect_same_file(scratch_format_path("new/config.json"),
		                 scratch_format_path("wanted"));
		expect_converted(scratch_format_path("old"), "same", "");
		expect_same_file(scratch_format_path("same/config.json"),
		                 scratch_format_path("old/config.json"));
		remove_folder("old");
		remove_folder("new");
		remove_folder("same");
	}
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------- */

START_TEST(refuses_outputs)
{
	static const struct {
		const char *out, *says;
	} bad[] = {
		{ "taken", "/taken: exists, and is not empty; nothing is overwritten" },
		{ "taken/file", "/taken/file: exists, and is not a directory" },
		{ "absent/out", "/absent/out: cannot be written: " },
		{ "input/out", "/input/out: is inside the checkpoint that is read" },
		{ "link/out", "/link/out: is inside the checkpoint that is read" },
		{ "input", "/input: is itself the checkpoint that is read" },
		{ "dangling", "/dangling: is a symbolic link to nothing" },
		{ "closed/out", "/closed/out: cannot be written: Permission denied" },
	};
	char text[TEXT];

	ck_assert(
		!command_run(text, TEXT,
	                     "cd '%s' && mkdir taken closed && echo kept >taken/file && cp -r '%s' "
	                     "input && ln -s input link && ln -s nothing dangling && chmod 500 "
	                     "closed && ls -R . >before",
	                     scratch, format_data_path("")));
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		if (!strncmp(bad[i].out, "closed", 6) &&
		    !access(scratch_format_path("closed"), W_OK))
			continue; /* possible for root */
		ck_assert_int_eq(
			convert_model(scratch_format_path("input"), bad[i].out, "-n 2", text), 1);
		expect_part(text, bad[i].says);
	}
	ck_assert_msg(!command_run(text, TEXT,
	                           "cd '%s' && ls -R . | diff before - && cat taken/file", scratch),
	              "%s", text);
	ck_assert_str_eq(text, "kept\n");
	scratch_make_folder("empty"); /* becomes the output */
	expect_converted(format_data_path(""), "empty", "");
	ck_assert_int_eq(access(scratch_format_path("empty/model.safetensors"), F_OK), 0);
}
END_TEST

/* Refuses tensors that would be lost, and values with which nothing can compute. */
START_TEST(refuses_checkpoints)
{
	static const char packed[] = "{\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[8],"
				     "\"data_offsets\":[0,8]}}    ";
	static const float x[2];
	const struct tess_slice two[] = { { .name = "a", .dtype = TESS_F32, .data = x },
		                          { .name = "b", .dtype = TESS_F32, .data = x } };
	char text[TEXT], file[128] = { (char)(sizeof packed - 1) };

	write_checkpoint("some", 2, two, NULL);
	rename(scratch_format_path("some/model.safetensors"),
	       scratch_format_path("some/model-00001-of-00001.safetensors"));
	scratch_write_text("some/model.safetensors.index.json",
	                   "{\"weight_map\": {\"a\": \"model-00001-of-00001.safetensors\"}}");
	ck_assert_int_eq(convert_model(scratch_format_path("some"), "out", "", text), 1);
	expect_part(text, "does not list tensor b of its parts, which would be lost");
	memcpy(file + 8, packed, sizeof packed - 1);
	write_checkpoint("packed", 2, two, NULL);
	scratch_write("packed/model.safetensors", file, 8 + sizeof packed - 1 + 8);
	ck_assert_int_eq(convert_model(scratch_format_path("packed"), "out", "--dtype f32", text),
	                 1);
	expect_part(text, "tensor w: its values are packed as F8_E4M3; use a checkpoint whose");
	expect_nothing_left("out");
	expect_converted(scratch_format_path("packed"), "out", ""); /* copied unchanged */
	ck_assert_int_eq(convert_model(scratch_format_path("absent"), "x", "", text), 1);
	ck_assert_int_eq(convert_model(format_data_path(""), "x", "--dtype f8", text), 2);
	expect_part(text, "--dtype f8: must be f32, bf16 or f16");
	ck_assert_int_eq(convert_model(format_data_path(""), "x", "--max-shard-size 0", text), 2);
	expect_nothing_left("x");
}
END_TEST

/* ---- what is broken off ---------------------------------------------------------------------- */

/* Limits the size of files, in blocks of 512 bytes: an error like a full disk. */
START_TEST(full_disk)
{
	static const int blocks[] = { 1, 100, 1000 };
	char text[TEXT];

	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(command_run(text, TEXT,
		                             "ulimit -f %d; '%s' convert '%s' '%s' -n 3 2>&1",
		                             blocks[i], TESSERA, format_data_path(""),
		                             scratch_format_path("full")),
		                 1);
		expect_part(text, "/model.safetensors: ");
		expect_part(text, "cannot be written: File too large; the limit is ");
		expect_part(text, "raise it with ulimit -f");
		expect_nothing_left("full");
	}
}
END_TEST

/* Writes a checkpoint of tens of MB, of zeros that occupy no blocks. */
static void write_large_checkpoint(void)
{
	enum { ELEMENTS = 16 << 20 };
	char header[96] = "";
	int fd, len;

	scratch_make_folder("large");
	scratch_write_text("large/config.json", "{\"model_type\": \"a\"}");
	len = snprintf(header + 8, sizeof header - 8,
	               "{\"w\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":[0,%d]}}",
	               ELEMENTS, 4 * ELEMENTS);
	header[0] = (char)len;
	fd = open(scratch_format_path("large/model.safetensors"), O_WRONLY | O_CREAT, 0600);
	ck_assert(fd >= 0 && write(fd, header, 8 + (size_t)len) == 8 + len &&
	          !ftruncate(fd, 8 + len + 4L * ELEMENTS));
	close(fd);
}

/*
 * Converts the large checkpoint for `milliseconds`; returns the signal that ended it, or its
 * status.
 */
static int stop_conversion(int sig, int milliseconds)
{
	sigset_t both;
	int status;
	pid_t pid;

	/* until exec() the child has the handlers of Check, which kill the test as well */
	sigemptyset(&both);
	sigaddset(&both, SIGINT);
	sigaddset(&both, SIGTERM);
	sigprocmask(SIG_BLOCK, &both, NULL);
	pid = fork();
	if (!pid) {
		signal(SIGINT, SIG_DFL);
		signal(SIGTERM, SIG_DFL);
		sigprocmask(SIG_UNBLOCK, &both, NULL);
		freopen("/dev/null", "w", stderr);
		execl(TESSERA, TESSERA, "convert", scratch_format_path("large"),
		      scratch_format_path("stopped"), "--dtype", "bf16", "-n", "2", (char *)NULL);
		_exit(99);
	}
	sigprocmask(SIG_UNBLOCK, &both, NULL);
	usleep((useconds_t)milliseconds * 1000);
	kill(pid, sig);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

/*
 * Checks that the output is complete or absent, whenever the conversion ends; a handled signal
 * leaves nothing.
 */
START_TEST(whole_or_absent)
{
	static const int signals[] = { SIGKILL, SIGINT, SIGTERM };
	char text[TEXT];

	write_large_checkpoint();
	for (int i = 0; i < 24; i++) {
		int sig = signals[i % 3], status = stop_conversion(sig, i * 4);
		bool there = !access(scratch_format_path("stopped"), F_OK);
		struct stat about;

		ck_assert_msg(status == 0 || status == 1000 + sig || status == 128 + sig, "%d",
		              status);
		ck_assert(there || status);
		if (there) {
			ck_assert(!stat(scratch_format_path("stopped/model.safetensors"), &about) &&
			          about.st_size > 32 << 20);
			ck_assert(!access(scratch_format_path("stopped/config.json"), F_OK));
			ck_assert_msg(!command_run(text, TEXT,
			                           "cd '%s' && tail -c 33554432 "
			                           "stopped/model.safetensors | cmp -n 33554432 - "
			                           "/dev/zero 2>&1",
			                           scratch),
			              "%s", text);
			remove_folder("stopped");
		}
		if (sig != SIGKILL && status == 128 + sig)
			expect_nothing_left("stopped");
		command_run(text, TEXT, "rm -rf '%s'*", scratch_format_path("stopped."));
	}
}
END_TEST

SCRATCH_MAIN("convert", bytes_of_transformers, several_files, rounds_to_nearest, keeps_the_config,
             refuses_outputs, refuses_checkpoints, full_disk, whole_or_absent)
