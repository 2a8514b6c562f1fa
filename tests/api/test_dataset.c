/*
 * test_dataset.c - data sets: the ids of their sequences, the order of an epoch, and refused files.
 */
#include "tests/support/scratch.h"

#include <stdbool.h>
#include <stdint.h>
#include <tessera/tessera.h>

enum { VOCABULARY = 512 };

static struct tess_dataset *open_files(const char *const *files, int32_t n,
                                       struct tess_dataset_options options)
{
	struct tess_dataset *d = NULL;

	options.size = sizeof options;
	ck_assert_msg(!tess_dataset_open(files, n, &options, &d), "%s", tess_error());
	return d;
}

static struct tess_dataset *open_data(const char *file, struct tess_dataset_options options)
{
	return open_files(&file, 1, options);
}

static struct tess_dataset_info get_info(const struct tess_dataset *d)
{
	struct tess_dataset_info info;

	tess_dataset_get_info(d, &info);
	return info;
}

static void expect_sequence(const struct tess_dataset *d, int64_t i, const int32_t *ids, int64_t n)
{
	int32_t have[64];
	int64_t nhave = 0;

	ck_assert_msg(!tess_dataset_read(d, i, have, &nhave), "%s", tess_error());
	ck_assert_int_eq(nhave, n);
	for (int64_t k = 0; k < n; k++)
		ck_assert_int_eq(have[k], ids[k]);
}

static void expect_refused(const char *file, struct tess_dataset_options options, const char *part)
{
	struct tess_dataset *d = NULL;

	options.size = sizeof options;
	ck_assert_int_lt(tess_dataset_open(&file, 1, &options, &d), 0);
	ck_assert_ptr_null(d);
	expect_part(tess_error(), part);
}

/* Writes ids 0, 1, ... of 2 or 4 bytes after `header`. */
static const char *write_packed(const char *name, const void *header, size_t nheader, int32_t width,
                                int32_t n)
{
	char bytes[4096];
	size_t len = nheader;

	memcpy(bytes, header, nheader);
	for (int32_t i = 0; i < n; i++, len += (size_t)width) {
		MUST(len + 4 <= sizeof bytes);
		memcpy(bytes + len, &i, (size_t)width);
	}
	return scratch_write(name, bytes, len);
}

/* ---- the order ------------------------------------------------------------------------------- */

START_TEST(each_epoch_has_every_sequence_once)
{
	static const int32_t sizes[] = { 1, 2, 3, 5, 16, 17, 1000 };
	const struct tess_dataset_options two = { .sequence = 2, .vocabulary = 65536 };
	int64_t moved = 0, same_epochs = 0, same_seeds = 0;

	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
		int32_t n = sizes[s];
		struct tess_dataset *d = open_data(write_packed("order.u16", "", 0, 2, 2 * n), two);

		for (int64_t epoch = 0; epoch < 3; epoch++) {
			bool seen[1000] = { false };

			for (int64_t i = 0; i < n; i++) {
				int64_t at = epoch * n + i, k = tess_dataset_shuffle(d, 7, at);

				MUST(k >= 0 && k < n && !seen[k]);
				seen[k] = true;
				if (n < 1000)
					continue;
				moved += k != i;
				same_epochs += k == tess_dataset_shuffle(d, 7, at + n);
				same_seeds += k == tess_dataset_shuffle(d, 8, at);
			}
		}
		tess_dataset_close(d);
	}
	/* of 3000 places about 3 stay by chance */
	ck_assert_int_gt(moved, 2950);
	ck_assert_int_lt(same_epochs, 50);
	ck_assert_int_lt(same_seeds, 50);
}
END_TEST

/* Checks that a run resumed by another version continues in the old order. */
START_TEST(order_never_changes)
{
	static const int64_t want[] = { 334, 104, 827, 159, 754, 480, 108, 173 };
	struct tess_dataset *d =
		open_data(write_packed("kept.u16", "", 0, 2, 2000),
	                  (struct tess_dataset_options){ .sequence = 2, .vocabulary = 65536 });

	for (int64_t i = 0; i < 8; i++)
		ck_assert_int_eq(tess_dataset_shuffle(d, 1, 997 + i), want[i]);
	tess_dataset_close(d);
}
END_TEST

/* ---- packed ids ------------------------------------------------------------------------------ */

START_TEST(packed_files)
{
	const struct tess_dataset_options three = { .sequence = 3, .vocabulary = VOCABULARY };
	struct tess_dataset_options wide = three;
	uint32_t mark2[256] = { 20240520, 1, 7 }, mark4[256] = { 20240801, 7, 6 };
	const char *const files[] = {
		write_packed("a.bin", "", 0, 2, 8),
		write_packed("b.u32", "", 0, 4, 5),
		write_packed("c.bin", mark2, sizeof mark2, 2, 7),
		write_packed("d.bin", mark4, sizeof mark4, 4, 6),
	};
	struct tess_dataset *d = open_files(files, 4, three);

	/* two of a, one of b, two each of c and d: the rest of a file is no sequence */
	ck_assert_int_eq(get_info(d).sequences, 7);
	ck_assert_int_eq(get_info(d).ids, 21);
	for (int64_t i = 0; i < 7; i++) {
		int32_t first = i == 1 || i == 4 || i == 6 ? 3 : 0;

		expect_sequence(d, i, (int32_t[]){ first, first + 1, first + 2 }, 3);
	}
	tess_dataset_close(d);
	/* more ids than 2 bytes can store */
	wide.vocabulary = 65537;
	d = open_data(write_packed("e.bin", "", 0, 4, 3), wide);
	expect_sequence(d, 0, (int32_t[]){ 0, 1, 2 }, 3);
	tess_dataset_close(d);
	wide.id_bytes = 2;
	d = open_data(write_packed("f.ids", "", 0, 2, 3), wide);
	expect_sequence(d, 0, (int32_t[]){ 0, 1, 2 }, 3);
	tess_dataset_close(d);
}
END_TEST

/* Checks that ids are not read from a mismatched header of llm.c. */
START_TEST(cut_off_files)
{
	const struct tess_dataset_options three = { .sequence = 3, .vocabulary = VOCABULARY };
	uint32_t more[256] = { 20240520, 1, 8 }, later[256] = { 20240801, 8, 7 };

	expect_refused(write_packed("a.bin", more, sizeof more, 2, 7), three,
	               "of version 1 and 8 ids, which does not fit its 1038 bytes: with version 1 "
	               "they are 7 ids");
	expect_refused(write_packed("b.bin", later, sizeof later, 4, 7), three,
	               "of version 8 and 7 ids");
}
END_TEST

START_TEST(hash_tells_data_apart)
{
	const struct tess_dataset_options three = { .sequence = 3, .vocabulary = VOCABULARY };
	struct tess_dataset_options four = three;
	const char *files[] = { write_packed("a.u16", "", 0, 2, 12),
		                write_packed("b.u16", "", 0, 2, 12),
		                write_packed("c.u16", "\1", 2, 2, 11),
		                write_packed("d.u16", "", 0, 2, 13) };
	uint64_t hash[5];

	four.sequence = 4;
	for (int i = 0; i < 5; i++) {
		struct tess_dataset *d = open_data(files[i % 4], i < 4 ? three : four);

		hash[i] = get_info(d).hash;
		tess_dataset_close(d);
	}
	ck_assert(hash[0] == hash[1] && hash[0] != hash[2] && hash[0] != hash[3] &&
	          hash[0] != hash[4]);
}
END_TEST

START_TEST(bad_packed_files)
{
	const struct tess_dataset_options three = { .sequence = 3, .vocabulary = VOCABULARY };
	struct tess_dataset_options few = three, chosen = three;
	const char *file = write_packed("long.u16", "", 0, 2, 9);
	struct tess_dataset *d;
	int32_t ids[3];
	int64_t n;

	few.vocabulary = 4;
	d = open_data(file, few);
	expect_sequence(d, 0, (int32_t[]){ 0, 1, 2 }, 3);
	ck_assert_int_eq(tess_dataset_read(d, 1, ids, &n), TESS_EINVAL);
	expect_part(tess_error(), "long.u16: id 4, number 4 of the file, is outside");
	ck_assert_int_eq(tess_dataset_read(d, 3, ids, &n), TESS_EINVAL);
	expect_part(tess_error(), "3 sequences has no number 3");
	ck_assert_int_eq(truncate(file, 8), 0);
	ck_assert_int_eq(tess_dataset_read(d, 2, ids, &n), TESS_EIO);
	expect_part(tess_error(), "long.u16: cannot be read at byte 12: it has become shorter");
	tess_dataset_close(d);

	expect_refused(scratch_format_path("none.bin"), three, "none.bin: No such file");
	expect_refused(write_packed("odd.u32", "", 0, 2, 3), three,
	               "6 bytes are no whole number of ids of 4 bytes");
	expect_refused(write_packed("short.u16", "", 0, 2, 2), three,
	               "2 ids are less than one sequence of 3");
	expect_refused(scratch_write_text("story.text", "Once upon"), three,
	               "what it holds is not known by its name");
	expect_refused(scratch, three, "read from a regular file");
	expect_refused(write_packed("wide.bin", "", 0, 4, 32), three, "every second id of 2 bytes");
	chosen.id_bytes = 2;
	tess_dataset_close(open_data(scratch_format_path("wide.bin"), chosen));
	chosen.id_bytes = 3;
	expect_refused(scratch_format_path("wide.bin"), chosen, "2 or 4 bytes, not 3");
	few.sequence = 1;
	expect_refused(scratch_format_path("wide.bin"), few, "sequences of 1 ids");
}
END_TEST

/* ---- texts ----------------------------------------------------------------------------------- */

/* Encodes texts by the tokenizer, each with the id that ends it; *n: number of ids. */
static int32_t *encode_texts(const char *const *texts, int64_t *lengths, int64_t *n)
{
	struct tess_tokenizer *t;
	int32_t *all = calloc(512, sizeof *all), *ids;
	size_t len;

	ck_assert_int_eq(tess_tokenizer_open(format_data_path(""), &t), TESS_OK);
	for (*n = 0; *texts; texts++) {
		ck_assert_int_eq(tess_tokenizer_encode(t, *texts, strlen(*texts), true, &ids, &len),
		                 TESS_OK);
		MUST(len && ids[0] == 1);
		memcpy(all + *n, ids, len * sizeof *ids);
		all[*n + (int64_t)len] = 2; /* </s> */
		*lengths++ = (int64_t)len + 1;
		*n += (int64_t)len + 1;
		free(ids);
	}
	tess_tokenizer_close(t);
	return all;
}

START_TEST(texts)
{
	static const char *const list[] = { "Once upon a time", "", "Lily ran.", NULL };
	char dir[1024];
	struct tess_dataset_options options = { .sequence = 4, .vocabulary = VOCABULARY };
	int64_t lengths[3], n, at = 0, i = 0;
	int32_t *all = encode_texts(list, lengths, &n);
	const char *file = scratch_write_text(
		"a.jsonl", "\xef\xbb\xbf{\"text\": \"Once upon a time\", \"id\": 1}\n\n"
			   "{\"text\": \"\"}\n{\"text\": \"Lily ran.\"}");
	struct tess_dataset *d;

	snprintf(dir, sizeof dir, "%s", format_data_path(""));
	options.tokenizer = dir;
	d = open_data(file, options);
	ck_assert_int_eq(get_info(d).sequences, n / 4);
	for (i = 0; i < n / 4; i++)
		expect_sequence(d, i, all + 4 * i, 4);
	tess_dataset_close(d);
	options.separate = 1;
	d = open_data(file, options);
	i = 0;
	for (int k = 0; k < 3; at += lengths[k++])
		for (int64_t done = 0; lengths[k] - done > 1; done += 4)
			expect_sequence(d, i++, all + at + done,
			                lengths[k] - done < 4 ? lengths[k] - done : 4);
	ck_assert_int_eq(get_info(d).sequences, i);
	tess_dataset_close(d);
	free(all);
}
END_TEST

/* Checks that U+0000 in a text is a character. */
START_TEST(text_with_nul)
{
	char dir[1024];
	struct tess_dataset_options options = { .sequence = 3, .vocabulary = VOCABULARY };
	struct tess_tokenizer *t;
	struct tess_dataset *d;
	int32_t *ids;
	size_t n;

	snprintf(dir, sizeof dir, "%s", format_data_path(""));
	options.tokenizer = dir;
	ck_assert(!tess_tokenizer_open(dir, &t));
	ck_assert(!tess_tokenizer_encode(t, "a\0b", 3, true, &ids, &n) && n > 3);
	d = open_data(scratch_write_text("nul.jsonl", "{\"text\": \"a\\u0000b\"}\n"), options);
	ck_assert_int_eq(get_info(d).sequences, ((int64_t)n + 1) / 3);
	expect_sequence(d, 0, ids, 3);
	tess_dataset_close(d);
	tess_tokenizer_close(t);
	free(ids);
}
END_TEST

/* Checks that pipes are refused: opening one must not block on a writer. */
START_TEST(pipes)
{
	static const char *const names[] = { "pipe.bin", "pipe.u16", "pipe.u32", "pipe.jsonl" };
	const struct tess_dataset_options options = { .sequence = 4, .vocabulary = VOCABULARY };

	for (int i = 0; i < 4; i++) {
		const char *path = scratch_format_path(names[i]);

		ck_assert_int_eq(mkfifo(path, 0600), 0);
		expect_refused(path, options, ": data are read from a regular file");
	}
}
END_TEST

START_TEST(bad_texts)
{
	char dir[1024];
	struct tess_dataset_options options = { .sequence = 4, .vocabulary = VOCABULARY };

	snprintf(dir, sizeof dir, "%s", format_data_path(""));
	expect_refused(scratch_write_text("a.jsonl", "{\"text\": \"a\"}\n"), options,
	               "a.jsonl: its texts need a tokenizer");
	options.tokenizer = dir;
	expect_refused(scratch_write_text("b.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \n"), options,
	               "b.jsonl: line 3:");
	expect_refused(scratch_write_text("c.jsonl", "{\"text\": \"a\"}\n{\"prompt\": \"a\"}\n"),
	               options, "c.jsonl: line 2: an object with a \"text\", with \"prompt\"");
	expect_refused(scratch_write_text("d.jsonl", ""), options,
	               "d.jsonl: 0 ids are less than one sequence of 4");
	options.vocabulary = 100;
	expect_refused(scratch_write_text("e.jsonl", "{\"text\": \"Once upon a time\"}\n"), options,
	               "e.jsonl: line 1: the tokenizer gives id ");
}
END_TEST

SCRATCH_MAIN("dataset", each_epoch_has_every_sequence_once, order_never_changes, packed_files,
             cut_off_files, hash_tells_data_apart, bad_packed_files, texts, text_with_nul, pipes,
             bad_texts)
