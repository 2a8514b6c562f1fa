/*
 * tessera/dataset.h - the sequences of ids that a model is trained on, from files: packed ids, and
 * JSON lines of texts.
 *
 * Packed: unsigned ids of 2 or 4 bytes, little endian, one after the other (nanoGPT's .bin), or
 * after the header of 1024 bytes that llm.c writes. They are read when they are asked for. Each
 * file is cut into sequences of the same length; what is left at its end is not used.
 *
 * JSON lines, files whose name ends with .jsonl: an object {"text": "..."} a line, which opening
 * encodes. The ids that the tokenizer puts around a text, and the one that ends a text where it
 * puts none there, are part of it. The texts of a file are one run of ids, cut as packed ones are;
 * or each is a sequence by itself, cut where it is longer.
 */
#ifndef TESSERA_DATASET_H
#define TESSERA_DATASET_H

#include <tessera/plugin.h>

TESS_BEGIN

struct tess_dataset;

struct tess_dataset_options {
	uint32_t size;
	/* of packed ids: 2, 4; 0: by the file's name (.u16, .u32), its header or the vocabulary */
	int32_t id_bytes;
	int32_t separate; /* 1: each text is a sequence by itself */
	int32_t reserved;
	int64_t sequence; /* ids of a sequence, 2 or more; with `separate`, at most */
	int64_t vocabulary; /* ids are below it */
	const char *tokenizer; /* a directory with a tokenizer.json, for texts; or NULL */
};
TESS_TIGHT(tess_dataset_options, tokenizer);

struct tess_dataset_info {
	int64_t sequences, ids; /* ids: those of all sequences */
	uint64_t hash; /* of the sequences; of large files, of parts of them */
};

/*
 * Opens `n` files, whose sequences come one after the other. TESS_EINVAL: they have none; a line is
 * no text; n is negative or lacks its list. Sentences name the file and the line. *out is yours:
 * tess_dataset_close. An open data set may be used by any number of threads.
 */
tess_status tess_dataset_open(const char *const *files, int32_t n,
                              const struct tess_dataset_options *options,
                              struct tess_dataset **out);
void tess_dataset_get_info(const struct tess_dataset *d, struct tess_dataset_info *out);
/*
 * The sequence that is `position` places from the beginning of an endless order, in which each
 * epoch (position / sequences) has all of them, shuffled by seed and epoch. -1: position < 0.
 */
int64_t tess_dataset_shuffle(const struct tess_dataset *d, uint64_t seed, int64_t position);
/*
 * Reads sequence i into ids[sequence]; *n: how many ids it has. TESS_EINVAL: an id is outside of
 * the vocabulary; TESS_EIO: the file cannot be read, or has become shorter.
 */
tess_status tess_dataset_read(const struct tess_dataset *d, int64_t i, int32_t *ids, int64_t *n);
/* NULL: nothing. */
void tess_dataset_close(struct tess_dataset *d);

TESS_END
#endif
