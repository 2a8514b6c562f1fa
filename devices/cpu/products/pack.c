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

/* Joins 32 contiguous elements to 16 words. */
LANES_INLINE void join_row(const char *from, int32_t dtype, uint32_t *to)
{
	float x[2 * LANES];

	if (dtype == TESS_BF16) {
		memcpy(to, from, 4 * LANES);
		return;
	}
	lanes_store(x, lanes_widen(dtype, from));
	lanes_store(x + LANES, lanes_widen(dtype, from + LANES * (dtype == TESS_F32 ? 4 : 2)));
	CPU_LANES
	for (int i = 0; i < LANES; i++)
		to[i] = pack_join(x[2 * i], x[2 * i + 1]);
}

/* Packs the words of 32 contiguous elements of 16 rows. */
LANES_INLINE void transpose_pairs(const char *from, int64_t row, int32_t dtype, uint32_t *to)
{
	struct lanes r[LANES];
	uint32_t word[LANES];

	for (int j = 0; j < LANES; j++) {
		join_row(from + j * row, dtype, word);
		r[j] = lanes_load(word);
	}
	lanes_transpose(r);
	for (int k = 0; k < LANES; k++)
		lanes_store((float *)to + k * LANES, r[k]);
}

/* Packs words from pair `k` on, one by one; pads rows with zeros. */
static void pack_single_pairs(const struct tess_view *w, int64_t column, int64_t at, int64_t len,
                              int64_t k, uint32_t *to)
{
	int64_t rows = w->shape[0] - column < LANES ? w->shape[0] - column : LANES, from;
	float x[2];

	for (to += k * LANES; 2 * k < len; k++) {
		for (int64_t j = 0; j < LANES; j++) {
			from = (column + j) * w->stride[0] + (at + 2 * k) * w->stride[1];
			x[0] = j < rows ? load_weight_element(w->data, w->dtype, from) : 0;
			x[1] = j < rows && 2 * k + 1 < len
			               ? load_weight_element(w->data, w->dtype, from + w->stride[1])
			               : 0;
			*to++ = pack_join(x[0], x[1]);
		}
	}
}

/* Packs words of panels of contiguous columns; `row` bytes between elements of K. */
LANES_INLINE void join_columns(const char *data, int64_t row, int32_t dtype, int64_t len,
                               int64_t panels, uint32_t *to, int64_t pitch)
{
	int64_t width = LANES * (dtype == TESS_F32 ? 4 : 2);
	float x[2][LANES] = { 0 };

	for (int64_t k = 0; 2 * k < len; k++, data += 2 * row) {
		bool two = 2 * k + 1 < len;

		for (int64_t p = 0; p < panels; p++) {
			uint32_t *word = to + p * pitch + k * LANES;

			lanes_store(x[0], lanes_widen(dtype, data + p * width));
			lanes_store(x[1], two ? lanes_widen(dtype, data + row + p * width)
			                      : lanes_set_zero());
			CPU_LANES
			for (int j = 0; j < LANES; j++)
				word[j] = pack_join(x[0][j], x[1][j]);
		}
	}
}

LANES_INLINE void pack_typed_pairs(const struct tess_view *w, int64_t column, int64_t panels,
                                   int64_t at, int64_t len, int32_t dtype, uint32_t *to,
                                   int64_t pitch)
{
	int64_t bytes = (int64_t)tess_width(dtype), row = w->stride[0] * bytes, k;
	const char *data = (const char *)w->data + column * row + at * w->stride[1] * bytes;

	if (w->stride[0] == 1 && column + panels * LANES <= w->shape[0]) {
		join_columns(data, w->stride[1] * bytes, dtype, len, panels, to, pitch);
		return;
	}
	for (int64_t p = 0; p < panels; p++, column += LANES, data += LANES * row, to += pitch) {
		k = 0;
		if (w->stride[1] == 1 && column + LANES <= w->shape[0])
			for (; 2 * (k + LANES) <= len; k += LANES)
				transpose_pairs(data + 2 * k * bytes, row, dtype, to + k * LANES);
		pack_single_pairs(w, column, at, len, k, to);
	}
}

void pack_pairs(const struct tess_view *w, int64_t column, int64_t panels, int64_t at, int64_t len,
                uint32_t *to, int64_t pitch)
{
	switch (w->dtype) {
	case TESS_F32:
		pack_typed_pairs(w, column, panels, at, len, TESS_F32, to, pitch);
		break;
	case TESS_BF16:
		pack_typed_pairs(w, column, panels, at, len, TESS_BF16, to, pitch);
		break;
	default:
		pack_typed_pairs(w, column, panels, at, len, TESS_F16, to, pitch);
	}
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
