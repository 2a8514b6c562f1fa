/* parts.h - finds and reads the rows of a weight that a rank holds, in the files. */
#ifndef TESS_NN_PARTS_H
#define TESS_NN_PARTS_H

#include "nn/program/program.h"
#include "nn/program/source.h"

struct tess_part_file { /* a tensor of the checkpoint that stores a matrix or a vector */
	struct tess_view view; /* the matrix; data: those of the tensor from find() */
	uint64_t at; /* bytes of other experts in the tensor before the matrix */
	char text[TESS_FILE_NAME];
	const char *name;
};

struct tess_part { /* the part of a weight, or of one of its experts, that this rank holds */
	const struct tess_weight *w;
	int32_t axis, out, nfiles; /* axis of the weight that is axis 0 here; axis of the outs */
	int64_t rows, cols;
	int32_t dtype; /* of rows that tess_parts_view_rows returns */
	struct tess_part_file *file; /* [nfiles]: fused parts of the out dim */
	bool scattered; /* several ranges, unaligned, or not in memory: rows must be gathered */
};

struct tess_parts { /* finds one part at a time */
	const struct tess_program *p;
	const struct tess_source *source;
	int32_t rank;
	struct tess_run *run[2]; /* ranges of each axis of the current part */
	struct tess_part_file *file; /* files of the current part */
	bool unmapped; /* data are read from files, even if these are mapped */
	void *dense, *blocks; /* gathered rows; those in MXFP4 that are widened */
	size_t dense_bytes, blocks_bytes;
};

/* Opens *l, which borrows the program and the source. Close it even after a failure. */
tess_status tess_parts_open(struct tess_parts *l, const struct tess_program *p,
                            const struct tess_source *source, int32_t rank);
void tess_parts_close(struct tess_parts *l);

/* Finds the part of a weight, or of its expert `expert`. *p is valid until the next call. */
tess_status tess_parts_find(struct tess_parts *l, const struct tess_weight *w, int64_t expert,
                            struct tess_part *p);
/* Views rows [from, from + n) in the mapping, or gathers them, valid until the next call. */
tess_status tess_parts_view_rows(struct tess_parts *l, const struct tess_part *p, int64_t from,
                                 int64_t n, struct tess_view *out);
/* Copies rows [from, from + n) to `to`, dense and in the dtype of the part. */
tess_status tess_parts_copy_rows(struct tess_parts *l, const struct tess_part *p, int64_t from,
                                 int64_t n, void *to);
/*
 * Advises how rows [from, from + n) in the files will be used: TESS_ADVISE_... Small gaps between
 * their ranges, which other ranks may hold, are included.
 */
void tess_parts_advise(struct tess_parts *l, const struct tess_part *p, int64_t from, int64_t n,
                       int32_t advice);
/* Drops the mapped pages of its files, which will not be read again soon. */
void tess_parts_drop(const struct tess_parts *l, const struct tess_part *p);

#endif
