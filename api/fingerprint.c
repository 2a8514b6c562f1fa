#include "api/fingerprint.h"

#include "core/base/json.h"
#include "core/base/memory_file.h"
#include "core/base/status.h"
#include "core/world/cpus.h"
#include "nn/program/agree.h"
#include "nn/run/options.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What is hashed of the weights of a checkpoint. */
enum weights_hashed {
	HASHES_NO_WEIGHTS, /* all ranks have opened the same files */
	HASHES_SAMPLES, /* the first, middle and last 64 bytes of each tensor */
	HASHES_ALL_WEIGHTS /* TESSERA_CHECK */
};

struct fingerprint {
	const char *dir; /* borrowed; for paths */
	FILE *out; /* writes `pairs`, in the form of tess_group_compare_pairs */
	char *pairs;
	size_t len;
	enum weights_hashed hashed;
};

enum {
	SAMPLED_BYTES = 64,
	SAMPLED_PARTS = 3,
	HASHED_PIECE = 1 << 20,
	HASH_BYTES = 16,
	VALUE_SHOWN = 120
};

#define CHECK_OPTION "TESSERA_CHECK"
#define HASH_MARK "\x01" /* precedes a hash, which messages omit; JSON escapes it */

/* Opens an empty fingerprint. Close it, even after a failure. */
static tess_status open_fingerprint(const char *dir, struct fingerprint *fp)
{
	int32_t graphs;
	bool check = false;
	tess_status st;

	*fp = (struct fingerprint){ .dir = dir };
	st = tess_run_read_options(&check, &graphs);
	fp->hashed = check ? HASHES_ALL_WEIGHTS : HASHES_SAMPLES;
	fp->out = st ? NULL : tess_memory_file_open(&fp->pairs, &fp->len);
	if (!st && (!fp->out || sodium_init() < 0))
		st = tess_fail(TESS_ENOMEM, "%s: out of memory", dir);
	return st;
}

static void close_fingerprint(struct fingerprint *fp)
{
	if (fp->out)
		fclose(fp->out);
	free(fp->pairs);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

struct hashed_file {
	char path[PATH_MAX];
	int fd;
	unsigned char *buffer; /* [HASHED_PIECE] */
	crypto_generichash_state hash;
};

/* Opens a file to hash. TESS_ENOENT: no such file. */
static tess_status open_hashed_file(const char *dir, const char *name, struct hashed_file *f)
{
	struct stat about;

	snprintf(f->path, sizeof f->path, "%s/%s", dir, name);
	f->buffer = NULL;
	f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (f->fd < 0)
		return tess_fail(errno == ENOENT ? TESS_ENOENT : TESS_EIO, "%s: %s", f->path,
		                 strerror(errno));
	if (!fstat(f->fd, &about) && !S_ISREG(about.st_mode))
		return tess_fail(TESS_EINVAL, "%s: not a regular file", f->path);
	f->buffer = malloc(HASHED_PIECE);
	return f->buffer ? TESS_OK : tess_fail(TESS_ENOMEM, "%s: out of memory", f->path);
}

static void close_hashed_file(struct hashed_file *f)
{
	if (f->fd >= 0)
		close(f->fd);
	free(f->buffer);
}

/* Hashes up to `n` bytes from `at`, until the end of the file. */
static tess_status hash_range(struct hashed_file *f, uint64_t at, uint64_t n)
{
	ssize_t got = 1;

	while (n && got) {
		got = pread(f->fd, f->buffer, n < HASHED_PIECE ? n : HASHED_PIECE, (off_t)at);
		if (got < 0 && errno != EINTR)
			return tess_fail(TESS_EIO, "%s: %s", f->path, strerror(errno));
		if (got < 0)
			continue;
		crypto_generichash_update(&f->hash, f->buffer, (unsigned long long)got);
		at += (uint64_t)got;
		n -= (uint64_t)got;
	}
	return TESS_OK;
}

/* Writes the hash that ends a value. */
static void write_hash(struct fingerprint *fp, struct hashed_file *f)
{
	unsigned char hash[HASH_BYTES];
	char hex[2 * HASH_BYTES + 1];

	crypto_generichash_final(&f->hash, hash, sizeof hash);
	fprintf(fp->out, HASH_MARK "%s%c", sodium_bin2hex(hex, sizeof hex, hash, sizeof hash), 0);
}

/* Adds all bytes of a file in the directory; nothing if the file is absent. */
static tess_status add_hashed_file(struct fingerprint *fp, const char *file)
{
	struct hashed_file f;
	tess_status st = open_hashed_file(fp->dir, file, &f);

	if (!st) {
		crypto_generichash_init(&f.hash, NULL, 0, HASH_BYTES);
		st = hash_range(&f, 0, INT64_MAX);
		fprintf(fp->out, "%s%c", file, 0);
		write_hash(fp, &f);
	}
	close_hashed_file(&f);
	return st == TESS_ENOENT ? TESS_OK : st;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Writes a layout: "F32 [512, 64] at byte 0". */
static void write_layout(struct fingerprint *fp, const struct tess_slice *s)
{
	fprintf(fp->out, "%s [", s->type);
	for (int32_t i = 0; i < s->ndim; i++)
		fprintf(fp->out, "%s%" PRId64, i ? ", " : "", s->shape[i]);
	fprintf(fp->out, "]");
	fprintf(fp->out, " at byte %" PRIu64, s->begin);
}

/* Returns the offset in a tensor of part i of its sample. */
static uint64_t find_sample(const struct tess_slice *s, int i)
{
	return s->bytes > SAMPLED_BYTES
	               ? (s->bytes - SAMPLED_BYTES) * (uint64_t)i / (SAMPLED_PARTS - 1)
	               : 0;
}

static tess_status add_tensor_pair(struct fingerprint *fp, struct hashed_file *f, const char *file,
                                   uint64_t begin, const struct tess_slice *s)
{
	tess_status st = TESS_OK;

	crypto_generichash_init(&f->hash, NULL, 0, HASH_BYTES);
	if (fp->hashed == HASHES_ALL_WEIGHTS)
		st = hash_range(f, begin, s->bytes);
	for (int i = 0; i < SAMPLED_PARTS && fp->hashed == HASHES_SAMPLES && !st; i++)
		st = hash_range(f, begin + find_sample(s, i),
		                s->bytes < SAMPLED_BYTES ? s->bytes : SAMPLED_BYTES);
	fprintf(fp->out, "%s: tensor %s%c", file, s->name, 0);
	write_layout(fp, s);
	write_hash(fp, f);
	return st;
}

/* Starts to read the samples, so that a rank does not wait for one at a time. */
static void prefetch_samples(const struct hashed_file *f, const struct tess_safetensors *in)
{
	posix_fadvise(f->fd, 0, 0, POSIX_FADV_RANDOM); /* no read-ahead */
	for (size_t i = 0; i < tess_safetensors_count(in); i++) {
		const struct tess_slice *s = tess_safetensors_at(in, i);
		uint64_t begin = tess_safetensors_data_start(in) + s->begin;

		for (int k = 0; k < SAMPLED_PARTS; k++)
			posix_fadvise(f->fd, (off_t)(begin + find_sample(s, k)), SAMPLED_BYTES,
			              POSIX_FADV_WILLNEED);
	}
}

/* Adds the tensors of a file. Reads it by its path, to touch no page of a mapping. */
static tess_status add_tensors(struct fingerprint *fp, const struct tess_safetensors *in)
{
	const char *file = strrchr(tess_safetensors_path(in), '/') + 1;
	struct hashed_file f = { .fd = -1 };
	tess_status st = TESS_OK;

	if (fp->hashed != HASHES_NO_WEIGHTS)
		st = open_hashed_file(fp->dir, file, &f);
	if (!st && fp->hashed == HASHES_SAMPLES)
		prefetch_samples(&f, in);
	for (size_t i = 0; i < tess_safetensors_count(in) && !st; i++) {
		const struct tess_slice *s = tess_safetensors_at(in, i);

		st = add_tensor_pair(fp, &f, file, tess_safetensors_data_start(in) + s->begin, s);
	}
	close_hashed_file(&f);
	return st;
}

/* ---- configurations -------------------------------------------------------------------------- */

/* Adds the keys in the order of their names. */
static tess_status add_json_keys(struct fingerprint *fp, const char *file, const json_t *root)
{
	char *text = json_dumps(root, JSON_SORT_KEYS | JSON_COMPACT);
	json_t *sorted = NULL, *value;
	tess_status st = text ? tess_json_parse(file, text, strlen(text), &sorted)
	                      : tess_fail(TESS_ENOMEM, "%s: out of memory", file);
	const char *key;

	free(text);
	json_object_foreach(sorted, key, value) {
		text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
		fprintf(fp->out, "%s: %s%c%s%c", file, key, 0, text ? text : "", 0);
		if (!text)
			st = tess_fail(TESS_ENOMEM, "%s: out of memory", file);
		free(text);
	}
	json_decref(sorted);
	return st;
}

static tess_status add_checkpoint(struct fingerprint *fp, const struct tess_checkpoint *c)
{
	const json_t *generation = tess_checkpoint_generation_root(c);
	tess_status st;

	fprintf(fp->out, CHECK_OPTION "%c%d%c", 0, fp->hashed == HASHES_ALL_WEIGHTS, 0);
	st = add_json_keys(fp, "config.json", tess_checkpoint_config(c)->root);
	if (!st && generation)
		st = add_json_keys(fp, "generation_config.json", generation);
	for (size_t i = 0; !st && i < tess_checkpoint_count_parts(c); i++)
		st = add_tensors(fp, tess_checkpoint_part(c, i));
	return st;
}

/* ---- files that ranks share ------------------------------------------------------------------ */

struct files_id { /* of the files of a checkpoint on a host, as they were opened */
	int64_t word[2];
};

static struct files_id identify_files(const struct tess_checkpoint *c)
{
	crypto_generichash_state hash;
	char host[TESS_HOST_ID];
	struct files_id id;

	tess_host_read_id(host);
	crypto_generichash_init(&hash, NULL, 0, sizeof id);
	crypto_generichash_update(&hash, (const void *)host, sizeof host);
	for (size_t i = 0; i < tess_checkpoint_count_parts(c); i++) {
		const struct stat *s = tess_safetensors_stat(tess_checkpoint_part(c, i));
		const int64_t about[] = { (int64_t)s->st_dev, (int64_t)s->st_ino, s->st_size,
			                  s->st_mtim.tv_sec,  s->st_mtim.tv_nsec, s->st_ctim.tv_sec,
			                  s->st_ctim.tv_nsec };

		crypto_generichash_update(&hash, (const void *)about, sizeof about);
	}
	crypto_generichash_final(&hash, (void *)&id, sizeof id);
	return id;
}

/*
 * Collective. Finds whether all ranks have opened the same files. Apart from its time, sampling
 * costs huge pages: Linux does not put them around pages that were read one by one.
 */
static tess_status find_shared_files(const struct tess_checkpoint *c, struct tess_group *g,
                                     const char *where, bool *out)
{
	const struct files_id mine = identify_files(c);
	int32_t n = tess_group_size(g);
	struct files_id *all = calloc((size_t)n, sizeof *all);
	tess_status st = all ? tess_all_gather(g, &mine, all, 2, TESS_I64, where)
	                     : tess_fail(TESS_ENOMEM, "%s: out of memory", where);

	*out = !st;
	for (int32_t r = 0; r < n && *out; r++)
		*out = !memcmp(&mine, &all[r], sizeof mine);
	free(all);
	return st;
}

/* ---- comparison ------------------------------------------------------------------------------ */

/* Returns the length of a value without its hash; -1: no hash. */
static int measure_layout(const char *value)
{
	const char *mark = value ? strstr(value, HASH_MARK) : NULL;

	return mark ? (int)(mark - value) : -1;
}

static tess_status explain_fingerprint(void *arg, struct tess_difference *d)
{
	static const char hint[] = "copy the checkpoint of one rank to the nodes of all others";
	const struct fingerprint *fp = arg;
	const char *dots = "";
	int mine = measure_layout(d->mine), theirs = measure_layout(d->theirs);

	if (!strcmp(d->name, CHECK_OPTION))
		return tess_fail(TESS_EMISMATCH, "%s is %s, but %s on rank %d", d->name, d->mine,
		                 d->theirs, (int)d->rank);
	if (!d->mine)
		return tess_fail(TESS_EMISMATCH, "%s/%.300s: is absent, but not on rank %d; %s",
		                 fp->dir, d->name, (int)d->rank, hint);
	if (!d->theirs)
		return tess_fail(TESS_EMISMATCH, "%s/%.300s: is absent on rank %d; %s", fp->dir,
		                 d->name, (int)d->rank, hint);
	if (mine >= 0 && mine == theirs && !strncmp(d->mine, d->theirs, (size_t)mine))
		return tess_fail(TESS_EMISMATCH,
		                 "%s/%.300s: its bytes differ from those on rank "
		                 "%d; %s",
		                 fp->dir, d->name, (int)d->rank, hint);
	if (mine < 0)
		dots = tess_difference_skip_common(d);
	return tess_fail(TESS_EMISMATCH, "%s/%.300s: is %s%.*s, but %s%.*s on rank %d; %s", fp->dir,
	                 d->name, dots, mine < 0 ? VALUE_SHOWN : mine, d->mine, dots,
	                 theirs < 0 ? VALUE_SHOWN : theirs, d->theirs, (int)d->rank, hint);
}

/* Collective. Compares the fingerprints of all ranks, except empty ones. */
static tess_status compare_fingerprints(struct fingerprint *fp, struct tess_group *g,
                                        tess_status st, const char *where)
{
	if (!st && fp->out && (fflush(fp->out) || ferror(fp->out)))
		st = tess_fail(TESS_ENOMEM, "%s: out of memory", fp->dir);
	st = tess_group_agree_status(g, st, where);
	return st ? st
	          : tess_group_compare_pairs(g, fp->pairs, fp->len, where, explain_fingerprint, fp);
}

tess_status tess_checkpoint_compare(const struct tess_checkpoint *c, struct tess_group *g,
                                    tess_status st, const char *where)
{
	struct fingerprint fp = { 0 };
	bool shared = false;

	if (tess_group_size(g) == 1)
		return tess_group_agree_status(g, st, where);
	if (!st)
		st = open_fingerprint(tess_checkpoint_dir(c), &fp);
	st = tess_group_agree_status(g, st, where);
	if (!st)
		st = find_shared_files(c, g, where, &shared);
	if (shared && fp.hashed == HASHES_SAMPLES)
		fp.hashed = HASHES_NO_WEIGHTS;
	if (!st)
		st = compare_fingerprints(&fp, g, add_checkpoint(&fp, c), where);
	close_fingerprint(&fp);
	return st;
}

tess_status tess_files_compare(const char *dir, const char *const *files, int32_t n,
                               struct tess_group *g, tess_status st, const char *where)
{
	struct fingerprint fp = { 0 };

	if (!st && tess_group_size(g) > 1)
		st = open_fingerprint(dir, &fp);
	for (int32_t i = 0; i < n && !st && fp.out; i++)
		st = add_hashed_file(&fp, files[i]);
	st = compare_fingerprints(&fp, g, st, where);
	close_fingerprint(&fp);
	return st;
}
