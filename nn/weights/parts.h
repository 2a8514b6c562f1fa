/* parts.h - the rows that a rank holds of a weight, as files store them. */
#ifndef TESS_NN_PARTS_H
#define TESS_NN_PARTS_H

#include "nn/program/program.h"
#include "nn/program/source.h"

struct tess_part_file { /* a matrix, or a vector, that is stored in it */
	struct tess_view view; /* its data: all that find() gave */
	uint64_t at; /* bytes of it before the matrix, of other experts */
	char text[TESS_FILE_NAME];
	const char *name;
};

struct tess_part { /* what this rank holds of a weight, or of one of its experts */
	const struct tess_weight *w;
	int32_t axis, out, nfiles; /* its first axis; which of its axes is the out dim's */
	int64_t rows, cols;
	int32_t dtype;
	struct tess_part_file *file; /* [nfiles]: the parts of the out dim */
	bool scattered; /* several runs, unaligned, or not in memory: must be gathered */
};

struct tess_parts { /* finds parts, one after the other */
	const struct tess_program *p;
	const struct tess_source *source;
	int32_t rank;
	struct tess_run *run[2]; /* of the axes of the current part */
	struct tess_part_file *file; /* that it is stored in */
	void *dense; /* gathered rows; dense_bytes */
	size_t dense_bytes;
};

/* The program and the source must outlive *l. Close it even if this fails. */
tess_status tess_parts_open(struct tess_parts *l, const struct tess_program *p,
                            const struct tess_source *source, int32_t rank);
void tess_parts_close(struct tess_parts *l);

/* The expert's part of a weight of several, else the weight's; *p is used until the next call. */
tess_status tess_parts_find(struct tess_parts *l, const struct tess_weight *w, int64_t expert,
                            struct tess_part *p);
/* Rows [from, from + n) of the part: in the mapping, or gathered until the next call. */
tess_status tess_parts_view_rows(struct tess_parts *l, const struct tess_part *p, int64_t from,
                                 int64_t n, struct tess_view *out);
/* The pages of its files will not be read again soon. */
void tess_parts_drop(const struct tess_parts *l, const struct tess_part *p);

#endif
