/* pack.c - packs rows of weights into panels: once as stored, or widened for a step of an op. */
#include "pack.h"

#include "lanes.h"

/* Transposes 16 rows of 16 contiguous elements: element (j, k) goes to to[k * 16 + j]. */
LANES_INLINE void transpose_block(const char *from, int64_t row, int32_t dtype, bool widen,
                                  char *to)
{
	struct lanes r[LANES];

	/* two bytes in the upper half; no arithmetic follows */
	for (int j = 0; j < LANES; j++)
		r[j] = lanes_widen(widen || dtype == TESS_F32 ? dtype : TESS_BF16, from + j * row);
	lanes_transpose(r);
	for (int k = 0; k < LANES; k++) {
		if (widen || dtype == TESS_F32)
			lanes_store((float *)to + k * LANES, r[k]);
		else
			lanes_store_upper(to + k * LANES * 2, r[k]);
	}
}

/*
 * Packs `len` elements of K of the panel that starts at row `column`; pads rows with zeros.
 */
LANES_INLINE void pack_panel(const struct tess_view *w, int64_t column, int64_t at, int64_t len,
                             int32_t dtype, bool widen, char *to)
{
	int64_t bytes = (int64_t)tess_width(dtype), out = widen ? 4 : bytes, k = 0, from;
	int64_t rows = w->shape[0] - column < LANES ? w->shape[0] - column : LANES;
	const char *data = w->data;
	float f;

	data += (column * w->stride[0] + at * w->stride[1]) * bytes;
	if (w->stride[1] == 1 && rows == LANES)
		for (; k + LANES <= len; k += LANES)
			transpose_block(data + k * bytes, w->stride[0] * bytes, dtype, widen,
			                to + k * LANES * out);
	for (; k < len; k++) {
		for (int64_t j = 0; j < LANES; j++) {
			char *slot = to + (k * LANES + j) * out;

			from = j * w->stride[0] + k * w->stride[1];
			if (j >= rows) {
				memset(slot, 0, (size_t)out);
			} else if (widen) {
				f = load_weight_element(data, dtype, from);
				memcpy(slot, &f, sizeof f);
			} else {
				memcpy(slot, data + from * bytes, (size_t)bytes);
			}
		}
	}
}

void pack_widened(const struct tess_view *w, int64_t column, int64_t at, int64_t len, float *to)
{
	switch (w->dtype) {
	case TESS_F32:
		pack_panel(w, column, at, len, TESS_F32, true, (char *)to);
		break;
	case TESS_BF16:
		pack_panel(w, column, at, len, TESS_BF16, true, (char *)to);
		break;
	default:
		pack_panel(w, column, at, len, TESS_F16, true, (char *)to);
	}
}

void pack_as_stored(const struct tess_view *w, int64_t column, int64_t at, int64_t len, void *to)
{
	pack_panel(w, column, at, len, TESS_BF16, false, to);
}

LANES_INLINE void pack_contiguous(const char *data, int64_t row, int32_t dtype, int64_t len,
                                  int64_t columns, float *to)
{
	for (int64_t k = 0; k < len; k++, data += row)
		for (int64_t i = 0; i < columns; i += LANES, to += LANES)
			lanes_store(to, lanes_widen(dtype, data + i * (dtype == TESS_F32 ? 4 : 2)));
}

void pack_columns(const struct tess_view *w, int64_t column, int64_t at, int64_t len,
                  int64_t columns, float *to)
{
	int64_t bytes = (int64_t)tess_width(w->dtype), row = w->stride[1] * bytes;
	const char *data = (const char *)w->data + column * bytes + at * row;

	switch (w->dtype) {
	case TESS_F32:
		pack_contiguous(data, row, TESS_F32, len, columns, to);
		break;
	case TESS_BF16:
		pack_contiguous(data, row, TESS_BF16, len, columns, to);
		break;
	default:
		pack_contiguous(data, row, TESS_F16, len, columns, to);
	}
}

void pack_panels(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct pack *p = arg;
	int64_t width = (int64_t)tess_width(p->rows->dtype), pitch = p->panels->stride[0] * width;
	int64_t k = p->rows->shape[1];
	char *to = p->panels->data;

	(void)thread;
	for (int64_t i = lo; i < hi; i++) {
		if (p->rows->dtype == TESS_F32)
			pack_panel(p->rows, i * LANES, 0, k, TESS_F32, false, to + i * pitch);
		else
			pack_panel(p->rows, i * LANES, 0, k, TESS_BF16, false, to + i * pitch);
	}
}
