#include "product.h"

#include "pack.h"

struct panels { /* where the panels of a weight are */
	const char *data;
	int64_t k, panel; /* bytes between elements and between panels */
};

static struct panels get_panels(const struct tess_view *w)
{
	int64_t bytes = (int64_t)tess_width(w->dtype);

	if (w->layout == TESS_PANELS)
		return (struct panels){ w->data, LANES * bytes, w->stride[0] * bytes };
	return (struct panels){ w->data, w->stride[1] * bytes, LANES * bytes };
}

/* Whether 16 columns are contiguous: in panels, and in rows of [in, out] weights. */
static bool is_in_panels(const struct tess_view *w, int64_t column)
{
	return w->layout == TESS_PANELS || (w->stride[0] == 1 && column + LANES <= w->shape[0]);
}

void product_pack(const struct sum_step *s, const float *x, int64_t pitch, const int32_t *index,
                  int64_t rows, float *to)
{
	const float *from[TILE_ROWS];
	int64_t n;

	to += s->before * rows;
	for (int64_t r = 0; r < rows; r += n) {
		n = product_choose_tile_rows(rows - r);
		for (int64_t i = 0; i < n; i++)
			from[i] = x + (index ? index[r + i] : r + i) * pitch + s->at;
		for (int64_t k = 0; k < s->len; k++)
			for (int64_t i = 0; i < n; i++)
				*to++ = from[i][k];
	}
}

/* Copies a finished tile, or a node of it, to y. */
static void store_tile(const struct product *p, int64_t node, int64_t row, int64_t rows,
                       int64_t column, int64_t columns, const float *tile)
{
	float *out = p->y + node * p->node_pitch + row * p->y_pitch + column;
	int64_t left = p->w.shape[0] - column;

	for (int64_t r = 0; r < rows; r++)
		memcpy(out + r * p->y_pitch, tile + r * columns,
		       sizeof(float) * (size_t)(left < columns ? left : columns));
}

/* All rows times `panels` panels from `column` on, 1 or p->wide. */
static void multiply_panels(const struct product *p, int64_t column, int32_t panels, float *slots)
{
	int64_t columns = panels * LANES, pitch = p->rows * columns, n, bk, bp;
	float *fetched = slots + p->sum->levels * p->rows * p->wide * LANES, *slot;
	bool direct = is_in_panels(&p->w, column + columns - LANES);
	struct panels w = get_panels(&p->w);
	const float *a;
	const char *b;

	w.data += column / LANES * w.panel;
	for (const struct sum_step *s = p->sum->step; s < p->sum->step + p->sum->count; s++) {
		b = w.data + s->at * w.k;
		bk = w.k;
		bp = w.panel;
		if (!direct) {
			pack_widened(&p->w, column, s->at, s->len, fetched);
			b = (const char *)fetched;
			bk = LANES * (int64_t)sizeof(float);
			bp = 0;
		}
		for (int64_t r = 0; r < p->rows; r += n) {
			n = product_choose_tile_rows(p->rows - r);
			a = p->packed ? p->x + s->before * p->rows + r * s->len
			              : p->x + r * p->pitch + s->at;
			slot = slots + r * columns;
			tile_find(direct ? p->w.dtype : TESS_F32, p->packed, (int)n,
			          panels > 1)(a, p->pitch, b, bk, bp, slot, pitch, s);
			if (s->node >= 0)
				store_tile(p, s->node, r, n, column, columns,
				           slot + (s->level - s->merge - s->trees) * pitch);
		}
	}
}

void product_multiply(const struct product *p, int64_t group, float *scratch)
{
	int64_t column = group * p->wide * LANES, end = column + p->wide * LANES;

	if (tess_up(p->w.shape[0], LANES) * LANES >= end && is_in_panels(&p->w, end - LANES)) {
		multiply_panels(p, column, p->wide, scratch);
		return;
	}
	for (; column < end && column < p->w.shape[0]; column += LANES)
		multiply_panels(p, column, 1, scratch);
}
