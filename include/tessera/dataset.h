/*
 * tessera/dataset.h - sequences of ids for training, from files of packed ids or JSON lines.
 *
 * Packed: unsigned little-endian ids of 2 or 4 bytes, one after another (nanoGPT's .bin), or after
 * the header of 1024 bytes that llm.c writes. They are read on request. Each file is cut into
 * sequences of one length; the rest at its end is not used.
 *
 * JSON lines, files whose names end with .jsonl: one object {"text": "..."} a line, which opening
 * encodes. The ids that the tokenizer puts around a text are part of it. If it puts no id after a
 * text, the id that ends a text is added. The texts of a file form one run of ids, which is cut
 * like packed ids. With `separate`, each text is a sequence by itself, and is cut if it is longer.
 *
 * Example:
 *     static tess_status read_first(const char *file, int32_t ids[128], int64_t *n)
 *     {
 *             const struct tess_dataset_options options = { .size = sizeof options,
 *                                                           .sequence = 128,
 *                                                           .vocabulary = 32000 };
 *             struct tess_dataset *d = NULL;
 *             tess_status st = tess_dataset_open(&file, 1, &options, &d);
 *
 *             st = st ? st : tess_dataset_read(d, tess_dataset_shuffle(d, 7, 0), ids, n);
 *             tess_dataset_close(d);
 *             return st;
 *     }
 */
#ifndef TESSERA_DATASET_H
#define TESSERA_DATASET_H

#include <tessera/plugin.h>

TESS_BEGIN

/* An open data set, immutable. Any number of threads may use it. */
struct tess_dataset;

/* Options of a data set. */
struct tess_dataset_options {
	/* sizeof(struct tess_dataset_options). */
	uint32_t size;
	/* Bytes of a packed id: 2 or 4. 0: by the name of the file (.u16, .u32), its header, or the
	 * vocabulary. */
	int32_t id_bytes;
	/* 1: each text is a sequence by itself. */
	int32_t separate;
	int32_t reserved;
	/* Length of a sequence, 2 or more; with `separate`, the maximum length. Required. */
	int64_t sequence;
	/* Upper bound of the ids, exclusive. Required. */
	int64_t vocabulary;
	/* Directory of a tokenizer.json, required for texts; else NULL. */
	const char *tokenizer;
};
TESS_TIGHT(tess_dataset_options, tokenizer);

/* Size of a data set. */
struct tess_dataset_info {
	/* Number of sequences. */
	int64_t sequences;
	/* Number of ids of all sequences. */
	int64_t ids;
	/* Hash of the sequences; of large files, of parts of them. */
	uint64_t hash;
};

/*
 * Opens `n` files, whose sequences follow one another. options: read during the call. The caller
 * owns *out: tess_dataset_close. TESS_EINVAL: the files have no sequences, or a line is no text;
 * the message names file and line.
 */
tess_status tess_dataset_open(const char *const *files, int32_t n,
                              const struct tess_dataset_options *options,
                              struct tess_dataset **out);

/* Fills in *out. */
void tess_dataset_get_info(const struct tess_dataset *d, struct tess_dataset_info *out);

/*
 * Returns the index of the sequence at `position` of an endless order. Each epoch
 * (position / sequences) contains all sequences, shuffled by seed and epoch. -1: position < 0.
 */
int64_t tess_dataset_shuffle(const struct tess_dataset *d, uint64_t seed, int64_t position);

/*
 * Reads sequence i into ids[sequence], and its length into *n. Reads the file of packed ids.
 * TESS_EINVAL: an id is outside the vocabulary. TESS_EIO: the file cannot be read, or has become
 * shorter.
 */
tess_status tess_dataset_read(const struct tess_dataset *d, int64_t i, int32_t *ids, int64_t *n);

/* Closes a data set. NULL is accepted. */
void tess_dataset_close(struct tess_dataset *d);

TESS_END
#endif
