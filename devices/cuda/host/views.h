/* views.h - compares the memory of views of rows. */
#ifndef CUDA_VIEWS_H
#define CUDA_VIEWS_H

#include <tessera/device.h>

#include <string.h>
#include <tessera/reduce.h>

static inline int64_t count_view_bytes(const struct tess_view *v)
{
	return ((v->shape[0] - 1) * v->stride[0] + v->shape[1]) * (int64_t)tess_width(v->dtype);
}

/* Returns whether two views of rows share no memory, or each element has the same address. */
static inline bool is_apart_or_same(const struct tess_view *a, const struct tess_view *b)
{
	const char *x = a->data, *y = b->data;

	return (x == y && a->stride[0] == b->stride[0] && a->dtype == b->dtype) ||
	       x + count_view_bytes(a) <= y || y + count_view_bytes(b) <= x;
}

static inline bool is_apart(const struct tess_view *a, const struct tess_view *b)
{
	return a->data != b->data && is_apart_or_same(a, b);
}

static inline bool is_same_view(const struct tess_view *a, const struct tess_view *b)
{
	return a->data == b->data && a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1] &&
	       a->stride[0] == b->stride[0];
}

/* Returns a view as rows, also if it is a Partial of one node. */
static inline struct tess_view get_finished_rows(const struct tess_view *v)
{
	struct tess_view rows = *v;

	if (v->ndim == 3 && v->shape[0] == 1) {
		rows.ndim = 2;
		memcpy(rows.shape, v->shape + 1, 2 * sizeof *v->shape);
		memcpy(rows.stride, v->stride + 1, 2 * sizeof *v->stride);
	}
	return rows;
}

#endif
