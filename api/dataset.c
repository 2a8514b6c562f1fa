/* dataset.c - sequences of ids for training, from packed files and from JSON lines. */
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/line.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "hf/tokenizer/tokenizer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tessera/dataset.h>
#include <unistd.h>

enum { LLMC_HEADER = 1024, SAMPLES = 64, SAMPLE_BYTES = 4096 };

struct data_file {
	const char *path; /* a copy */
	int fd; /* a packed file; -1: texts */
	int64_t id_bytes, begin; /* begin: bytes before the first id */
	int64_t nids, first, nsequences; /* first: the index of its first sequence */
	int32_t *ids; /* ids of texts */
	int64_t (*run)[2]; /* separate texts: begin and end of each sequence in ids */
};

struct tess_dataset {
	struct tess_dataset_options options;
	struct data_file *file;
	int32_t nfiles;
	struct tess_tokenizer *tokenizer;
	struct tess_dataset_info info;
};

static uint64_t hash_more(uint64_t h, const void *data, size_t len)
{
	const unsigned char *p = data;

	for (size_t i = 0; i < len; i++)
		h = (h ^ p[i]) * 0x100000001b3u; /* FNV-1a */
	return h;
}

static bool ends_with(const char *path, const char *end)
{
	size_t len = strlen(path), n = strlen(end);

	return len > n && !strcmp(path + len - n, end);
}

/* Opens a regular file, since each rank and each resumed run reads it; a FIFO must not block. */
static tess_status open_data_file(const char *path, int *out, int64_t *bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat about;
	tess_status st = TESS_OK;

	if (fd < 0 || fstat(fd, &about))
		st = tess_file_fail_open(path);
	else if (!S_ISREG(about.st_mode))
		st = tess_fail(TESS_EINVAL, "%s: data are read from a regular file", path);
	if (st) {
		if (fd >= 0)
			close(fd);
		return st;
	}
	*out = fd;
	*bytes = (int64_t)about.st_size;
	return TESS_OK;
}

/* ---- packed ids ------------------------------------------------------------------------------ */

static tess_status read_file_bytes(const struct data_file *f, void *out, int64_t len, int64_t at)
{
	char *to = out;

	while (len) {
		ssize_t n = pread(f->fd, to, (size_t)len, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return tess_fail(TESS_EIO, "%s: cannot be read at byte %lld: %s", f->path,
			                 (long long)at,
			                 n ? strerror(errno) : "it has become shorter");
		to += n;
		at += n;
		len -= n;
	}
	return TESS_OK;
}

/* Copies ids from a packed file. */
static tess_status read_packed_ids(const struct data_file *f, int64_t first, int64_t n,
                                   int32_t *ids)
{
	tess_status st = read_file_bytes(f, ids, n * f->id_bytes, f->begin + first * f->id_bytes);
	const uint16_t *narrow = (const uint16_t *)ids;

	if (!st && f->id_bytes == 2) /* widened in place, from the last one */
		for (int64_t i = n; i-- > 0;) {
			uint16_t id;

			memcpy(&id, narrow + i, sizeof id);
			ids[i] = id;
		}
	return st;
}

/* Reads a header of llm.c: 256 numbers, which begin with a mark, a version and a count of ids. */
static tess_status read_llmc_header(struct data_file *f, int64_t bytes)
{
	static const struct {
		uint32_t mark, version;
		int64_t id_bytes;
	} known[] = { { 20240520, 1, 2 }, { 20240801, 7, 4 } };
	uint32_t header[3];
	tess_status st = TESS_OK;

	if (bytes >= LLMC_HEADER)
		st = read_file_bytes(f, header, sizeof header, 0);
	for (size_t i = 0; i < 2 && !st && bytes >= LLMC_HEADER; i++) {
		if (header[0] != known[i].mark)
			continue;
		if (header[1] != known[i].version ||
		    LLMC_HEADER + header[2] * known[i].id_bytes != bytes)
			return tess_fail(
				TESS_EINVAL,
				"%s: has a header of llm.c, of version %u and %u ids, which "
				"does not fit its %lld bytes: with version %u they are %lld "
				"ids; write the file again",
				f->path, header[1], header[2], (long long)bytes, known[i].version,
				(long long)(bytes - LLMC_HEADER) / known[i].id_bytes);
		f->begin = LLMC_HEADER;
		f->id_bytes = known[i].id_bytes;
	}
	return st;
}

/*
 * Fails if every second id of 2 bytes is 0: the file seems to contain ids of 4 bytes, which would
 * be valid in any vocabulary.
 */
static tess_status check_id_bytes(const struct data_file *f)
{
	int32_t ids[256];
	int64_t n = f->nids < 256 ? f->nids : 256, zeros = 0, others = 0;
	tess_status st = read_packed_ids(f, 0, n, ids);

	for (int64_t i = 0; i < n; i++) {
		zeros += i % 2 && !ids[i];
		others += !(i % 2) && ids[i];
	}
	if (!st && n >= 16 && zeros == n / 2 && others)
		return tess_fail(TESS_EINVAL,
		                 "%s: every second id of 2 bytes is 0: it seems to hold ids of 4 "
		                 "bytes; say which (--token-dtype u32 or u16)",
		                 f->path);
	return st;
}

/* Chooses the width of ids by the options, the name of the file, or the vocabulary (guessed). */
static tess_status choose_id_bytes(const struct tess_dataset_options *o, struct data_file *f,
                                   bool *guessed)
{
	*guessed = false;
	if (f->begin)
		return TESS_OK;
	f->id_bytes = ends_with(f->path, ".u32") ? 4 : ends_with(f->path, ".u16") ? 2 : o->id_bytes;
	if (f->id_bytes)
		return TESS_OK;
	if (!ends_with(f->path, ".bin"))
		return tess_fail(
			TESS_EINVAL,
			"%s: what it holds is not known by its name: texts are in .jsonl "
			"files, {\"text\": ...} a line, ids in .bin, .u16 or .u32 files, or "
			"say --token-dtype u16 or u32",
			f->path);
	*guessed = true;
	f->id_bytes = o->vocabulary > 65536 ? 4 : 2;
	return TESS_OK;
}

static tess_status open_packed_file(const struct tess_dataset_options *o, struct data_file *f)
{
	bool guessed;
	int64_t bytes;
	tess_status st = open_data_file(f->path, &f->fd, &bytes);

	if (st)
		return st;
	st = read_llmc_header(f, bytes);
	if (st)
		return st;
	st = choose_id_bytes(o, f, &guessed);
	if (st)
		return st;
	if ((bytes - f->begin) % f->id_bytes)
		return tess_fail(TESS_EINVAL,
		                 "%s: %lld bytes are no whole number of ids of %lld bytes; choose "
		                 "with --token-dtype u16 or u32",
		                 f->path, (long long)bytes, (long long)f->id_bytes);
	f->nids = (bytes - f->begin) / f->id_bytes;
	return guessed && f->id_bytes == 2 ? check_id_bytes(f) : TESS_OK;
}

/* ---- texts ----------------------------------------------------------------------------------- */

/* Makes room for n more ids in *list, whose capacity is `capacity`. */
static tess_status grow_ids(int32_t **list, int64_t *capacity, int64_t nids, int64_t n)
{
	int64_t more = *capacity ? *capacity : 1 << 16;
	int32_t *bigger;

	if (nids + n <= *capacity)
		return TESS_OK;
	while (more < nids + n)
		more *= 2;
	bigger = realloc(*list, (size_t)more * sizeof *bigger);
	if (!bigger)
		return tess_fail(TESS_ENOMEM, "out of memory for %lld ids", (long long)more);
	*list = bigger;
	*capacity = more;
	return TESS_OK;
}

/* Encodes one text; *ids has room for one more id. */
static tess_status encode_text(const struct tess_dataset *d, const char *name, const json_t *o,
                               int32_t **ids, size_t *n)
{
	const json_t *text = json_object_get(o, "text");
	int32_t end = tess_tokenizer_eos(d->tokenizer), *more;
	tess_status st;

	if (!json_is_string(text))
		return tess_fail(TESS_EINVAL, "%s: an object with a \"text\" is needed", name);
	st = tess_tokenizer_encode(d->tokenizer, json_string_value(text), json_string_length(text),
	                           true, ids, n);
	if (st)
		return tess_fail_in(st, "%s", name);
	for (size_t i = 0; i < *n && !st; i++)
		if ((*ids)[i] >= d->options.vocabulary)
			st = tess_fail(TESS_EINVAL,
			               "%s: the tokenizer gives id %d, and the model has ids below "
			               "%lld",
			               name, (int)(*ids)[i], (long long)d->options.vocabulary);
	if (!st && end >= 0 && end < d->options.vocabulary && (!*n || (*ids)[*n - 1] != end)) {
		more = realloc(*ids, (*n + 1) * sizeof *more);
		if (!more) {
			st = tess_fail(TESS_ENOMEM, "%s: out of memory", name);
		} else {
			*ids = more;
			more[(*n)++] = end;
		}
	}
	if (st) {
		free(*ids);
		*ids = NULL;
	}
	return st;
}

/* Cuts text i of a file into sequences of its own; a single id predicts nothing. */
static tess_status add_separate_text(struct tess_dataset *d, struct data_file *f, int64_t n)
{
	int64_t at = f->nids, each = d->options.sequence;

	for (int64_t end = f->nids + n; end - at > 1; at += each) {
		int64_t(*more)[2] = realloc(f->run, (size_t)(f->nsequences + 1) * sizeof *more);

		if (!more)
			return tess_fail(TESS_ENOMEM, "%s: out of memory", f->path);
		f->run = more;
		more[f->nsequences][0] = at;
		more[f->nsequences++][1] = at + each < end ? at + each : end;
	}
	return TESS_OK;
}

static tess_status encode_line(struct tess_dataset *d, struct data_file *f, const char *line,
                               size_t len, int64_t number, int64_t *capacity)
{
	char name[4200];
	json_t *o = NULL;
	int32_t *ids = NULL;
	size_t n = 0;
	tess_status st;

	snprintf(name, sizeof name, "%.4096s: line %lld", f->path, (long long)number);
	st = tess_json_parse_line(name, line, len, &o);
	if (!st)
		st = encode_text(d, name, o, &ids, &n);
	json_decref(o);
	if (!st)
		st = grow_ids(&f->ids, capacity, f->nids, (int64_t)n);
	if (!st)
		memcpy(f->ids + f->nids, ids, n * sizeof *ids);
	free(ids);
	if (!st && d->options.separate)
		st = add_separate_text(d, f, (int64_t)n);
	f->nids += st ? 0 : (int64_t)n;
	return st;
}

/* Reads the lines of `in`, each a text or blank. */
static tess_status encode_lines(struct tess_dataset *d, struct data_file *f, FILE *in)
{
	struct tess_line line = { 0 };
	int64_t capacity = 0, number = 0;
	tess_status st = grow_ids(&f->ids, &capacity, 0, 1); /* before any text, and for 0 ids */

	while (!st) {
		const char *text;

		st = tess_line_read(in, '\n', TESS_LINE_MAX, &line);
		number++;
		if (st)
			tess_fail_in(st, "%s: line %lld", f->path, (long long)number);
		if (st || !line.len)
			break;
		text = line.text;
		if (number == 1 && !strncmp(text, "\xef\xbb\xbf", 3)) /* a byte order mark */
			text += 3;
		if (strspn(text, " \t\r\n") < line.len - (size_t)(text - line.text))
			st = encode_line(d, f, text, line.len - (size_t)(text - line.text), number,
			                 &capacity);
	}
	free(line.text);
	return st;
}

static tess_status open_text_file(struct tess_dataset *d, struct data_file *f)
{
	int64_t bytes;
	FILE *in;
	int fd;
	tess_status st = open_data_file(f->path, &fd, &bytes);

	if (st)
		return st;
	in = fdopen(fd, "r");
	if (!in) {
		close(fd);
		return tess_fail(TESS_EIO, "%s: %s", f->path, strerror(errno));
	}
	if (!d->tokenizer && !d->options.tokenizer)
		st = tess_fail(TESS_EINVAL, "%s: its texts need a tokenizer", f->path);
	else if (!d->tokenizer)
		st = tess_tokenizer_open(d->options.tokenizer, &d->tokenizer);
	if (!st)
		st = encode_lines(d, f, in);
	fclose(in);
	return st;
}

/* ---- the data set ---------------------------------------------------------------------------- */

static tess_status hash_file(const struct data_file *f, uint64_t *hash)
{
	int64_t bytes = f->nids * (f->ids ? (int64_t)sizeof *f->ids : f->id_bytes);
	int64_t n = bytes < SAMPLE_BYTES ? bytes : SAMPLE_BYTES;
	char sample[SAMPLE_BYTES];
	tess_status st = TESS_OK;

	*hash = hash_more(*hash, &f->nids, sizeof f->nids);
	if (f->run)
		*hash = hash_more(*hash, f->run, (size_t)f->nsequences * sizeof *f->run);
	if (f->ids) {
		*hash = hash_more(*hash, f->ids, (size_t)bytes);
		return TESS_OK;
	}
	for (int64_t i = 0; i < SAMPLES && !st; i++) {
		st = read_file_bytes(f, sample, n, f->begin + (bytes - n) / SAMPLES * i);
		*hash = hash_more(*hash, sample, st ? 0 : (size_t)n);
	}
	return st;
}

static tess_status add_data_file(struct tess_dataset *d, const char *path)
{
	struct data_file *f = &d->file[d->nfiles++];
	bool texts = ends_with(path, ".jsonl");
	tess_status st;

	*f = (struct data_file){ .path = strdup(path), .fd = -1, .first = d->info.sequences };
	if (!f->path)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", path);
	st = texts ? open_text_file(d, f) : open_packed_file(&d->options, f);
	if (st)
		return st;
	if (!texts || !d->options.separate)
		f->nsequences = f->nids / d->options.sequence;
	d->info.sequences += f->nsequences;
	d->info.ids += f->run ? f->nids : f->nsequences * d->options.sequence;
	return hash_file(f, &d->info.hash);
}

static tess_status check_dataset_options(const struct tess_dataset_options *o)
{
	if (o->size < sizeof *o)
		return tess_fail(TESS_EINVAL, "a data set: its options have an unknown size");
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

tess_status tess_dataset_open(const char *const *files, int32_t n,
                              const struct tess_dataset_options *options, struct tess_dataset **out)
{
	struct tess_dataset *d;
	tess_status st = TESS_REQUIRE(options, out);

	if (!st)
		st = check_dataset_files(files, n);
	if (!st)
		st = check_dataset_options(options);
	if (st)
		return st;
	d = calloc(1, sizeof *d);
	if (d)
		d->file = calloc((size_t)n + 1, sizeof *d->file);
	if (!d || !d->file) {
		free(d);
		return tess_fail(TESS_ENOMEM, "out of memory");
	}
	d->options = *options;
	d->info.hash = hash_more(0xcbf29ce484222325u, &options->sequence, sizeof options->sequence);
	for (int32_t i = 0; i < n && !st; i++)
		st = add_data_file(d, files[i]);
	if (!st && !d->info.sequences)
		st = tess_fail(TESS_EINVAL,
		               "%s%s: %lld ids are less than one sequence of %lld; use more text, "
		               "or a smaller --sequence",
		               n ? files[0] : "no file", n > 1 ? " and the others" : "",
		               (long long)(n ? d->file[0].nids : 0), (long long)options->sequence);
	tess_tokenizer_close(d->tokenizer);
	d->tokenizer = NULL;
	d->options.tokenizer = NULL;
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

tess_status tess_dataset_read(const struct tess_dataset *d, int64_t i, int32_t *ids, int64_t *n)
{
	tess_status st = TESS_REQUIRE(d, ids, n);
	const struct data_file *f;
	int64_t at, count;

	if (st)
		return st;
	if (i < 0 || i >= d->info.sequences)
		return tess_fail(TESS_EINVAL, "a data set of %lld sequences has no number %lld",
		                 (long long)d->info.sequences, (long long)i);
	for (f = d->file; i >= f->first + f->nsequences;)
		f++;
	count = d->options.sequence;
	at = (i - f->first) * count;
	if (f->run) {
		at = f->run[i - f->first][0];
		count = f->run[i - f->first][1] - at;
	}
	if (f->ids)
		memcpy(ids, f->ids + at, (size_t)count * sizeof *ids);
	else
		st = read_packed_ids(f, at, count, ids);
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
