/* dataset.h - the files of a data set, and the ids of their rows. */
#ifndef TESS_API_DATASET_H
#define TESS_API_DATASET_H

#include "hf/tokenizer/tokenizer.h"

#include <stdbool.h>
#include <stdio.h>
#include <tessera/chat.h>
#include <tessera/dataset.h>

/* ---- files (dataset_packed.c, dataset_texts.c) ----------------------------------------------- */

struct tess_data_file {
	const char *path; /* a copy */
	int fd; /* a packed file; -1: texts */
	int64_t id_bytes, begin; /* begin: bytes before the first id */
	int64_t nids, first, nsequences; /* first: the index of its first sequence */
	int32_t *ids; /* ids of texts */
	unsigned char *counts; /* [nids], 1: loss counts on the id; NULL: on all */
	int64_t (*run)[2]; /* begin and end of each sequence in ids; NULL: equal lengths */
	int64_t capacity; /* of ids */
	int32_t kind; /* of all rows: TESS_ROW_TEXT, ...; 0: none yet */
	int64_t nrows, nskipped, ncounted; /* ncounted: ids on which loss counts */
};

struct tess_data_encoder { /* opened by the first row that needs them */
	struct tess_tokenizer *tokenizer;
	struct tess_chat *chat;
};

bool tess_data_name_ends(const char *path, const char *end);

/* Opens a regular file, since each rank and each resumed run reads it. */
tess_status tess_data_file_open(const char *path, int *out, int64_t *bytes);
tess_status tess_data_file_read_bytes(const struct tess_data_file *f, void *out, int64_t len,
                                      int64_t at);

tess_status tess_packed_open(const struct tess_dataset_options *o, struct tess_data_file *f);
/* Copies ids from a packed file. */
tess_status tess_packed_read_ids(const struct tess_data_file *f, int64_t first, int64_t n,
                                 int32_t *ids);

/* Reads and encodes the texts of f->path, and cuts them into sequences. */
tess_status tess_texts_open(const struct tess_dataset_options *o, struct tess_data_encoder *e,
                            struct tess_data_file *f);

/* ---- rows (dataset_row.c) -------------------------------------------------------------------- */

enum { TESS_ROW_TEXT = 1, TESS_ROW_COMPLETION, TESS_ROW_CHAT };

struct tess_data_row {
	int32_t kind;
	int32_t *ids;
	size_t n;
	unsigned char *counts; /* [n], 1: loss counts on the id; NULL: on all */
};

/*
 * Encode a text, or a row of a JSON lines file. Messages begin with `name`. Free *out with
 * tess_data_row_free, also after a failure.
 */
tess_status tess_data_row_encode_text(const struct tess_dataset_options *o,
                                      struct tess_data_encoder *e, const char *name,
                                      const char *text, size_t len, struct tess_data_row *out);
tess_status tess_data_row_encode_json(const struct tess_dataset_options *o,
                                      struct tess_data_encoder *e, const char *name,
                                      const char *line, size_t len, struct tess_data_row *out);
void tess_data_row_free(struct tess_data_row *r);

#endif
