/* dataset.c - sequences of ids for training, from packed files and from texts. */
#include "api/dataset.h"
#include "core/base/hash.h"
#include "core/base/sized.h"
#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SAMPLES = 64, SAMPLE_BYTES = 4096 };

struct tess_dataset {
	struct tess_dataset_options options;
	struct tess_data_file *file;
	int32_t nfiles;
	struct tess_dataset_info info;
};

/* ---- the data set ---------------------------------------------------------------------------- */

static tess_status hash_file(const struct tess_data_file *f, uint64_t *hash)
{
	int64_t bytes = f->nids * (f->ids ? (int64_t)sizeof *f->ids : f->id_bytes);
	int64_t n = bytes < SAMPLE_BYTES ? bytes : SAMPLE_BYTES;
	char sample[SAMPLE_BYTES];
	tess_status st = TESS_OK;

	*hash = tess_hash_bytes(*hash, &f->nids, sizeof f->nids);
	if (f->run)
		*hash = tess_hash_bytes(*hash, f->run, (size_t)f->nsequences * sizeof *f->run);
	if (f->ids) {
		*hash = tess_hash_bytes(*hash, f->ids, (size_t)bytes);
		if (f->counts)
			*hash = tess_hash_bytes(*hash, f->counts, (size_t)f->nids);
		return TESS_OK;
	}
	for (int64_t i = 0; i < SAMPLES && !st; i++) {
		st = tess_data_file_read_bytes(f, sample, n, f->begin + (bytes - n) / SAMPLES * i);
		*hash = tess_hash_bytes(*hash, sample, st ? 0 : (size_t)n);
	}
	return st;
}

/* Returns whether a file has texts, not ids. */
static bool has_texts(const char *path)
{
	return tess_data_name_ends(path, ".jsonl") || tess_data_name_ends(path, ".txt");
}

static int64_t count_file_ids(const struct tess_data_file *f, int64_t sequence)
{
	int64_t n = f->run ? 0 : f->nsequences * sequence;

	for (int64_t i = 0; f->run && i < f->nsequences; i++)
		n += f->run[i][1] - f->run[i][0];
	return n;
}

static tess_status add_data_file(struct tess_dataset *d, struct tess_data_encoder *e,
                                 const char *path)
{
	struct tess_data_file *f = &d->file[d->nfiles++];
	tess_status st;

	*f = (struct tess_data_file){ .path = strdup(path), .fd = -1, .first = d->info.sequences };
	if (!f->path)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", path);
	if (has_texts(path)) {
		st = tess_texts_open(&d->options, e, f);
	} else {
		st = tess_packed_open(&d->options, f);
		f->nsequences = st ? 0 : f->nids / d->options.sequence;
	}
	if (st)
		return st;
	d->info.sequences += f->nsequences;
	d->info.ids += count_file_ids(f, d->options.sequence);
	return hash_file(f, &d->info.hash);
}

static tess_status check_dataset_options(const struct tess_dataset_options *o)
{
	if (o->sequence < 2 || o->sequence > INT32_MAX)
		return tess_fail(TESS_EINVAL,
		                 "sequences of %lld ids: they need 2 or more, as each id is "
		                 "predicted from those before it",
		                 (long long)o->sequence);
	if (o->vocabulary < 1 || o->vocabulary > INT32_MAX)
		return tess_fail(TESS_EINVAL, "a data set: a vocabulary of %lld ids",
		                 (long long)o->vocabulary);
	if (o->id_bytes && o->id_bytes != 2 && o->id_bytes != 4)
		return tess_fail(TESS_EINVAL, "packed ids have 2 or 4 bytes, not %d",
		                 (int)o->id_bytes);
	if (o->loss != TESS_LOSS_AUTO && o->loss != TESS_LOSS_ALL)
		return tess_fail(TESS_EINVAL,
		                 "a data set: loss %d; use TESS_LOSS_AUTO or TESS_LOSS_ALL",
		                 (int)o->loss);
	return TESS_OK;
}

static tess_status check_dataset_files(const char *const *files, int32_t n)
{
	if (n < 0 || (n && !files))
		return tess_fail(TESS_EINVAL,
		                 "a data set of %d files%s; give a list and its length", (int)n,
		                 files ? "" : " without a list");
	for (int32_t i = 0; i < n; i++)
		if (!files[i])
			return tess_fail(TESS_EINVAL, "a data set: file %d is NULL", (int)i);
	return TESS_OK;
}

/* Explains a data set without sequences, of files [0, n). */
static tess_status fail_empty(const struct tess_dataset *d, const char *const *files, int32_t n)
{
	const char *more = n > 1 ? " and the others" : "";
	int64_t nrows = 0, nskipped = 0;

	for (int32_t i = 0; i < n; i++) {
		nrows += d->file[i].nrows;
		nskipped += d->file[i].nskipped;
	}
	if (nrows && nskipped == nrows)
		return tess_fail(TESS_EINVAL, "%s%s: in no row is there an id that loss counts on",
		                 files[0], more);
	return tess_fail(TESS_EINVAL,
	                 "%s%s: %lld ids are less than one sequence of %lld; use more text, "
	                 "or a smaller --sequence",
	                 n ? files[0] : "no file", more, (long long)(n ? d->file[0].nids : 0),
	                 (long long)d->options.sequence);
}

static tess_status open_dataset_files(struct tess_dataset *d, const char *const *files, int32_t n)
{
	struct tess_data_encoder e = { 0 };
	tess_status st = TESS_OK;

	d->info.hash =
		tess_hash_bytes(TESS_HASH_EMPTY, &d->options.sequence, sizeof d->options.sequence);
	for (int32_t i = 0; i < n && !st; i++)
		st = add_data_file(d, &e, files[i]);
	if (!st && !d->info.sequences)
		st = fail_empty(d, files, n);
	tess_tokenizer_close(e.tokenizer);
	tess_chat_close(e.chat);
	d->options.tokenizer = d->options.chat_template = NULL;
	return st;
}

tess_status tess_dataset_open(const char *const *files, int32_t n,
                              const struct tess_dataset_options *options, struct tess_dataset **out)
{
	struct tess_dataset_options o = { 0 };
	struct tess_dataset *d;
	tess_status st = TESS_REQUIRE(options, out);

	if (!st)
		st = check_dataset_files(files, n);
	if (!st)
		st = tess_sized_copy("tess_dataset_options", options, &o, sizeof o);
	if (!st)
		st = check_dataset_options(&o);
	if (st)
		return st;
	d = calloc(1, sizeof *d);
	if (d)
		d->file = calloc((size_t)n + 1, sizeof *d->file);
	if (!d || !d->file) {
		free(d);
		return tess_fail(TESS_ENOMEM, "out of memory");
	}
	d->options = o;
	st = open_dataset_files(d, files, n);
	if (st)
		tess_dataset_close(d);
	else
		*out = d;
	return st;
}

void tess_dataset_close(struct tess_dataset *d)
{
	if (!d)
		return;
	for (int32_t i = 0; i < d->nfiles; i++) {
		if (d->file[i].fd >= 0)
			close(d->file[i].fd);
		free(d->file[i].ids);
		free(d->file[i].counts);
		free(d->file[i].run);
		free((char *)d->file[i].path);
	}
	free(d->file);
	free(d);
}

void tess_dataset_get_info(const struct tess_dataset *d, struct tess_dataset_info *out)
{
	if (!TESS_REQUIRE(d, out))
		*out = d->info;
}

void tess_dataset_count_labels(const struct tess_dataset *d, struct tess_dataset_labels *out)
{
	struct tess_dataset_labels all = { 0 };

	if (TESS_REQUIRE(d, out))
		return;
	for (int32_t i = 0; i < d->nfiles; i++) {
		const struct tess_data_file *f = &d->file[i];

		all.masked |= f->counts != NULL;
		all.rows += f->nrows;
		all.skipped += f->nskipped;
		all.ids += f->ids ? f->nids : 0;
		all.counted += f->ncounted;
	}
	all.size = out->size;
	memcpy(out, &all, out->size < sizeof all ? out->size : sizeof all);
}

/* Returns the file of sequence i, and where its ids are: [*at, *at + *n). NULL: it has none. */
static const struct tess_data_file *find_file_of(const struct tess_dataset *d, int64_t i,
                                                 int64_t *at, int64_t *n)
{
	const struct tess_data_file *f = d->file;

	*at = *n = 0;
	if (i < 0 || i >= d->info.sequences) {
		tess_fail(TESS_EINVAL, "a data set of %lld sequences has no number %lld",
		          (long long)d->info.sequences, (long long)i);
		return NULL;
	}
	while (i >= f->first + f->nsequences)
		f++;
	i -= f->first;
	*at = f->run ? f->run[i][0] : i * d->options.sequence;
	*n = f->run ? f->run[i][1] - *at : d->options.sequence;
	return f;
}

tess_status tess_dataset_read(const struct tess_dataset *d, int64_t i, int32_t *ids, int64_t *n)
{
	tess_status st = TESS_REQUIRE(d, ids, n);
	const struct tess_data_file *f;
	int64_t at, count;

	if (st)
		return st;
	f = find_file_of(d, i, &at, &count);
	if (!f)
		return TESS_EINVAL;
	if (f->ids)
		memcpy(ids, f->ids + at, (size_t)count * sizeof *ids);
	else
		st = tess_packed_read_ids(f, at, count, ids);
	for (int64_t k = 0; k < count && !st; k++)
		if (ids[k] < 0 || ids[k] >= d->options.vocabulary)
			st = tess_fail(
				TESS_EINVAL,
				"%s: id %u, number %lld of the file, is outside of the "
				"vocabulary: ids are below %lld; is it of another tokenizer, or "
				"of another --token-dtype?",
				f->path, (unsigned)ids[k], (long long)(at + k),
				(long long)d->options.vocabulary);
	if (!st)
		*n = count;
	return st;
}

tess_status tess_dataset_read_labels(const struct tess_dataset *d, int64_t i, int32_t *ids,
                                     int32_t *labels, int64_t *n)
{
	tess_status st = TESS_REQUIRE(d, ids, labels, n);
	const struct tess_data_file *f;
	int64_t at, count;

	if (!st)
		st = tess_dataset_read(d, i, ids, n);
	if (st)
		return st;
	f = find_file_of(d, i, &at, &count);
	for (int64_t k = 0; f && k < count; k++)
		labels[k] = !f->counts || f->counts[at + k] ? ids[k] : -100;
	return TESS_OK;
}

/* ---- the order ------------------------------------------------------------------------------- */

/* Hashes 64 bits: the final step of SplitMix64. */
static uint64_t scramble_bits(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/*
 * Permutes [0, n) by a Feistel network of 8 rounds over [0, 4^half). Results outside of [0, n) are
 * permuted again until they are inside.
 */
static int64_t permute_position(uint64_t n, uint64_t key, uint64_t x)
{
	uint64_t mask;
	int half = 1;

	while (n > (uint64_t)1 << 2 * half)
		half++;
	mask = ((uint64_t)1 << half) - 1;
	do {
		uint64_t left = x >> half, right = x & mask, was;

		for (uint64_t round = 0; round < 8; round++) {
			was = right;
			right = left ^ (scramble_bits(key ^ (round << 56 | right)) & mask);
			left = was;
		}
		x = left << half | right;
	} while (x >= n);
	return (int64_t)x;
}

int64_t tess_dataset_shuffle(const struct tess_dataset *d, uint64_t seed, int64_t position)
{
	uint64_t n, epoch;

	if (TESS_REQUIRE(d))
		return -1;
	if (position < 0) {
		tess_fail(TESS_EINVAL, "tess_dataset_shuffle: position %lld", (long long)position);
		return -1;
	}
	n = (uint64_t)d->info.sequences;
	epoch = (uint64_t)position / n;
	return permute_position(n, scramble_bits(scramble_bits(seed + 0x9e3779b97f4a7c15u) + epoch),
	                        (uint64_t)position % n);
}
