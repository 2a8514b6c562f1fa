/*
 * test_train_tiles.c - tessera train --tile auto: the tile is that of tessera explain, on ranks of
 * any start, keeps the bits, and a step that does not fit is refused.
 */
#include "train_command.h"

#include <inttypes.h>
#include <jansson.h>

#define SHARED "-n 2 --mesh dp=2 --plan-override 'dp:**=zero3' " SIZES

/* Returns the memory of the fullest rank, as explain finds it. */
static uint64_t explain_memory(const char *args)
{
	char text[TEXT];
	json_t *root;
	json_int_t most;

	ck_assert_msg(!command_run(text, TEXT,
	                           "cd '%s' && '%s' explain '%s' --train --json %s 2>&1", scratch,
	                           TESSERA, format_data_path(""), args),
	              "%s: %s", args, text);
	root = json_loads(text, 0, NULL);
	most = json_integer_value(json_object_get(json_object_get(root, "total"), "total"));
	json_decref(root);
	ck_assert_msg(most > 0, "%s", text);
	return (uint64_t)most;
}

static uint64_t explain_tile(const char *args, uint64_t tile)
{
	char all[512];

	snprintf(all, sizeof all, tile ? SHARED " %s --tile %" PRIu64 : SHARED " %s", args, tile);
	return explain_memory(all);
}

/* Trains two steps; returns the exit status. */
static int train_tiled(char text[TEXT], const char *command, const char *args)
{
	return command_run(text, TEXT,
	                   "cd '%s' && %s '%s' train '%s' --data '" STORIES "' --steps 2 --digest "
	                   "%s 2>&1",
	                   scratch, command, TESSERA, format_data_path(""), args);
}

/* Trains, and expects one line with the tile; writes the digests. Returns the tile; 0: none. */
static uint64_t read_tile(const char *command, const char *args, char digests[160])
{
	static const char said[] = "--tile auto takes a tile of ";
	char text[TEXT];
	const char *at;

	ck_assert_msg(!train_tiled(text, command, args), "%s: %s", args, text);
	at = strstr(text, "losses  ");
	ck_assert_msg(at && strlen(at) >= 2 * 73, "%s", text);
	snprintf(digests, 160, "%.145s", at);
	at = strstr(text, said);
	if (!at)
		return 0;
	ck_assert_int_eq(count_occurrences(text, "--tile auto"), 1);
	return strtoull(at + sizeof said - 1, NULL, 10);
}

/* Checks a limit between a step without tiles and one with small ones; returns the limit. */
static uint64_t check_tile(const char *options, uint64_t *tile, char digests[160])
{
	uint64_t whole = explain_tile(options, 0), least = explain_tile(options, 16384);
	uint64_t memory = (whole + least) / 2;
	char args[512], plain[160];

	ck_assert_msg(least < whole, "%" PRIu64 ", %" PRIu64, least, whole);
	snprintf(args, sizeof args, SHARED " %s --tile auto --memory %" PRIu64, options, memory);
	*tile = read_tile("", args, digests);
	ck_assert_msg(*tile > 0 && explain_tile(options, *tile) <= memory, "%" PRIu64, *tile);
	ck_assert(explain_tile(options, 2 * *tile) > memory);
	ck_assert(explain_memory(args) == explain_tile(options, *tile));
	snprintf(args, sizeof args, SHARED " %s", options);
	read_tile("", args, plain);
	ck_assert_str_eq(digests, plain);
	return memory;
}

START_TEST(fits_with_the_bits)
{
	static const char *const starts[][2] = {
		{ "", "--backend loopback" },
		{ "'" TESSERA "' launch -n 2 --", "" },
	};
	char digests[160], again[160], args[512];
	uint64_t tile, memory = check_tile("", &tile, digests);

	for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
		snprintf(args, sizeof args, SHARED " %s --tile auto --memory %" PRIu64,
		         starts[i][1], memory);
		ck_assert(read_tile(starts[i][0], args, again) == tile);
		if (i == 0) /* launch adds [rank] to lines */
			ck_assert_str_eq(again, digests);
	}
}
END_TEST

START_TEST(counts_files_and_micro_batches)
{
	char digests[160];
	uint64_t tile;

	ck_assert(!setenv("TESSERA_OFFLOAD_MIN", "256", 1));
	check_tile("--offload-optimizer . --offload-weights . --batch 4 --micro-batches 2", &tile,
	           digests);
	ck_assert(!unsetenv("TESSERA_OFFLOAD_MIN"));
}
END_TEST

START_TEST(no_tile_is_needed)
{
	char text[TEXT];

	ck_assert_msg(!train_tiled(text, "", SHARED " --tile auto --memory 1G"), "%s", text);
	ck_assert_int_eq(count_occurrences(text, "tessera train: --tile auto takes no tiles: "), 1);
}
END_TEST

START_TEST(warns_of_weights_above_the_tile)
{
	char text[TEXT];

	ck_assert_msg(!train_tiled(text, "", SHARED " --tile 64KiB"), "%s", text);
	ck_assert_msg(!strstr(text, "warning"), "%s", text);
	ck_assert_msg(!train_tiled(text, "", SHARED " --tile 100"), "%s", text);
	expect_part(text, "train: warning: tile 100 is too small for model.");
	ck_assert_int_eq(count_occurrences(text, ": its smallest part needs "), 1);
}
END_TEST

/* Trains a golden for a step on ids of its scratch file; writes all that is printed. */
static void train_golden(char text[TEXT], const char *golden, const char *tile)
{
	ck_assert_msg(
		!command_run(text, TEXT,
	                     "cd '%s' && '%s' train '" SOURCE_ROOT
	                     "/tests/data/goldens/%s' --data ids.u16 --steps 1 --digest " SHARED
	                     " %s 2>&1",
	                     scratch, TESSERA, golden, tile),
		"%s", text);
	ck_assert_msg(strstr(text, "losses  "), "%s", text);
}

/*
 * Checks that train and explain name the weight without parts that exceeds the tile the most, and
 * that the bits stay.
 */
START_TEST(weights_without_parts)
{
	static const struct {
		const char *golden, *widest;
		int bytes;
	} cases[] = {
		{ "mixtral", "model.layers.0.mlp.experts.gate_up_proj", 196608 },
		{ "deepseek_v3", "model.layers.1.mlp.experts.gate_up_proj", 98304 },
	};
	uint16_t ids[400];
	char plain[TEXT], text[TEXT], part[256];

	for (int i = 0; i < 400; i++)
		ids[i] = (uint16_t)(i * 37 % 64);
	scratch_write("ids.u16", ids, sizeof ids);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		train_golden(plain, cases[i].golden, "");
		train_golden(text, cases[i].golden, "--tile 4096");
		snprintf(part, sizeof part,
		         "tile 4096 is too small for %s: its smallest part needs %d ",
		         cases[i].widest, cases[i].bytes);
		expect_part(text, part);
		ck_assert_int_eq(strncmp(strstr(text, "losses  "), strstr(plain, "losses  "), 145),
		                 0);
		ck_assert(!command_run(text, TEXT,
		                       "'%s' explain --train '" SOURCE_ROOT
		                       "/tests/data/goldens/%s' " SHARED " --tile 4096",
		                       TESSERA, cases[i].golden));
		snprintf(part, sizeof part, "; %s has no parts that are so small: %.3g MiB",
		         cases[i].widest, cases[i].bytes / 1048576.0);
		expect_part(text, part);
	}
}
END_TEST

START_TEST(refusals)
{
	char text[TEXT];

	expect_failed(SHARED " --tile auto", 2,
	              "--tile auto needs the memory of a rank: --memory SIZE");
	expect_failed(SHARED " --memory 1G", 2, "--memory is what --tile auto keeps to; add that");
	expect_failed(SHARED " --tile 4KiB --memory 1G", 2, "or leave out --memory");
	expect_failed(SHARED " --tile auto --memory 1000000", 1, " bytes more than --memory; use ");
	ck_assert_int_ne(train_tiled(text, "'" TESSERA "' launch -n 2 --",
	                             SHARED " --tile auto --memory 1000000"),
	                 0);
	expect_part(text, "--tile auto: rank 0 needs at least ");
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("train_tiles", 120, &r);
	int failed;

	scratch_make();
	tcase_add_test(t, fits_with_the_bits);
	tcase_add_test(t, counts_files_and_micro_batches);
	tcase_add_test(t, no_tile_is_needed);
	tcase_add_test(t, warns_of_weights_above_the_tile);
	tcase_add_test(t, weights_without_parts);
	tcase_add_test(t, refusals);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}
