/*
 * tessera/dataset.h - sequences of ids for training, from files of packed ids or texts.
 *
 * Packed: unsigned little-endian ids of 2 or 4 bytes, one after another (nanoGPT's .bin), or after
 * the header of 1024 bytes that llm.c writes. They are read on request. Each file is cut into
 * sequences of one length; the rest at its end is not used.
 *
 * Texts, which opening encodes: files whose names end with .txt, one text each, or with `separate`
 * one between blank lines; and JSON lines, .jsonl, an object a line, of one kind in a file:
 *
 *  - {"text": "..."}: a text;
 *  - {"prompt": "...", "completion": "..."}: loss counts on the completion only;
 *  - {"messages": [{"role": "user", "content": "..."}, ...]}, or such a list: loss counts on the
 *    answers of the assistant, as tessera/chat.h renders them for training. If prompt and
 *    completion are lists of messages, it counts on the completion.
 *
 * The ids that the tokenizer puts around a text are part of it. If it puts no id after a text or a
 * completion, the id that ends a text is added; a chat template has all ids. Ids and labels are
 * those of `trl`. The rows of a file form one run of ids, which is cut like packed ids. With
 * `separate`, each row is a sequence by itself, and is cut if it is longer. Rows and sequences that
 * have no id on which loss counts are left out.
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

/* On which ids loss counts: those of completions and answers, or all. */
enum { TESS_LOSS_AUTO, TESS_LOSS_ALL };

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
	/* Directory of a tokenizer.json, required for texts, and for messages of a chat template;
	 * else NULL. */
	const char *tokenizer;
	/* Name of a chat template, as tess_chat_open takes it; NULL: that of the directory. */
	const char *chat_template;
	/* TESS_LOSS_AUTO or TESS_LOSS_ALL. */
	int32_t loss;
	int32_t reserved2;
};
TESS_TIGHT(tess_dataset_options, reserved2);

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
 * owns *out: tess_dataset_close. TESS_EINVAL: the files have no sequences, or a row is none of
 * those above, or of another kind than those before it; the message names file and line.
 * TESS_ENOTSUP: the chat template is not known.
 */
tess_status tess_dataset_open(const char *const *files, int32_t n,
                              const struct tess_dataset_options *options,
                              struct tess_dataset **out);

/* Fills in *out. */
void tess_dataset_get_info(const struct tess_dataset *d, struct tess_dataset_info *out);

/* Number of ids of texts on which loss counts. The caller sets size. */
struct tess_dataset_labels {
	/* sizeof(struct tess_dataset_labels). */
	uint32_t size;
	/* 1: some label may be -100. */
	int32_t masked;
	/* Number of rows: texts, completions, conversations. */
	int64_t rows;
	/* Number of rows that were skipped: loss counts on none of their ids. */
	int64_t skipped;
	/* Number of ids of the other rows. */
	int64_t ids;
	/* Number of these ids on which loss counts. */
	int64_t counted;
};
TESS_TIGHT(tess_dataset_labels, counted);

/* Fills in *out, up to out->size. */
void tess_dataset_count_labels(const struct tess_dataset *d, struct tess_dataset_labels *out);

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

/*
 * Reads sequence i like tess_dataset_read, and its labels into labels[sequence]: the id, or -100
 * where loss does not count on it, as in struct tess_batch.
 */
tess_status tess_dataset_read_labels(const struct tess_dataset *d, int64_t i, int32_t *ids,
                                     int32_t *labels, int64_t *n);

/* Closes a data set. NULL is accepted. */
void tess_dataset_close(struct tess_dataset *d);

TESS_END
#endif
