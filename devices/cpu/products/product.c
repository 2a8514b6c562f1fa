#include "product.h"

#include "bf12.h"
#include "pack.h"
#include "quantized.h"
#include "row_tile.h"

/* Elements of panels in place that all tiles use in turn, to load and store chains less often. */
enum { CHUNK = 512 };

struct panels { /* the panels of a weight */
	const char *data;
	int64_t k, panel; /* bytes between elements and between panels */
};

static struct panels get_panels(const struct tess_view *w)
{
	int64_t bytes = get_weight_width(w->dtype);

	if (w->layout == TESS_PANELS)
		return (struct panels){ w->data, LANES * bytes, w->stride[0] * bytes };
	return (struct panels){ w->data, w->stride[1] * bytes, LANES * bytes };
}

/* Returns whether 16 columns are contiguous: in panels, and in rows of [in, out] weights. */
static bool is_in_panels(const struct tess_view *w, int64_t column)
{
	return w->layout == TESS_PANELS || (w->stride[0] == 1 && column + LANES <= w->shape[0]);
}

/* Packs a full tile; the loop over its constant number of rows is unrolled. */
static void pack_whole_tile(const float *const from[TILE_ROWS], int64_t len, float *to)
{
	for (int64_t k = 0; k < len; k++)
		for (int i = 0; i < TILE_ROWS; i++)
			to[k * TILE_ROWS + i] = from[i][k];
}

void product_find_rows(const struct sum_step *s, const float *x, int64_t pitch,
                       const int32_t *index, int64_t first, int64_t n, int64_t rows,
                       const float **row)
{
	for (int64_t i = first; i < first + 2 * n && i < rows; i++) {
		const float *at = x + (index ? index[i] : i) * pitch + s->at;

		if (i < first + n)
			*row++ = at;
		else
			for (int64_t k = 0; k < s->len; k += LANES)
				__builtin_prefetch(at + k);
	}
}

void product_pack(const struct sum_step *s, const float *x, int64_t pitch, const int32_t *index,
                  int64_t rows, float *to)
{
	const float *from[TILE_ROWS];
	int64_t n;

	to += s->before * rows;
	for (int64_t r = 0; r < rows; r += n) {
		n = product_choose_tile_rows(rows - r);
		product_find_rows(s, x, pitch, index, r, n, rows, from);
		if (n == TILE_ROWS) {
			pack_whole_tile(from, s->len, to);
			to += n * s->len;
			continue;
		}
		for (int64_t k = 0; k < s->len; k++)
			for (int64_t i = 0; i < n; i++)
				*to++ = from[i][k];
	}
}

void product_pack_columns(const struct sum_step *s, const float *x, int64_t pitch, int64_t rows,
                          float *to)
{
	float *at = to + s->before * rows;
	int64_t n;

	for (int64_t r = 0; r < rows; r += n) {
		n = product_choose_tile_rows(rows - r);
		for (int64_t k = 0; k < s->len; k++, at += n) {
			const float *from = x + (s->at + k) * pitch + r;

			if (n == TILE_ROWS)
				memcpy(at, from, sizeof *at * TILE_ROWS);
			else
				memcpy(at, from, sizeof *at * (size_t)n);
		}
	}
}

static struct tess_view get_operand(const struct product *p, const struct sum_step *s)
{
	struct tess_view w = p->w;

	if (p->operand) {
		w = p->operand[s->operand];
		w.shape[0] = p->w.shape[0];
		w.shape[1] = p->operand[s->operand].shape[0];
		w.stride[0] = p->operand[s->operand].stride[1];
		w.stride[1] = p->operand[s->operand].stride[0];
	}
	return w;
}

struct group { /* a group of panels, at distances of `apart` panels */
	int64_t column, columns, apart;
	int32_t panels; /* 1 or p->wide */
	bool direct; /* read in place; else packed into `fetched` */
	bool flat; /* fetched as [LEAF][columns] of contiguous columns; else panel by panel */
	float *slots, *fetched;
};

/* Prefetches the memory that store_tile writes after the next step. */
static void prefetch_out(const struct product *p, const struct group *g, int64_t node, int64_t row,
                         int64_t rows)
{
	for (int64_t r = row; r < row + rows; r++) {
		float *out = p->y + node * p->node_pitch + r * p->y_pitch + g->column;

		for (int64_t i = 0; i < g->panels; i++)
			__builtin_prefetch(out + i * g->apart * LANES, 1);
	}
}

/* Copies a finished tile, or a node of it, to y. */
static void store_tile(const struct product *p, const struct group *g, int64_t node, int64_t row,
                       int64_t rows, const float *tile)
{
	for (int64_t r = row; r < row + rows; r++) {
		float *out = p->y + node * p->node_pitch + r * p->y_pitch;

		for (int64_t i = 0, at = g->column; i < g->panels; i++, tile += LANES) {
			int64_t left = p->w.shape[0] - at;

			if (left >= LANES)
				memcpy(out + at, tile, sizeof(float) * LANES);
			else
				memcpy(out + at, tile, sizeof(float) * (size_t)left);
			at += g->apart * LANES;
		}
	}
}

/* Returns the end of the steps from s on that are run tile by tile, up to `most` elements. */
static const struct sum_step *find_chunk_end(const struct sum_step *s, const struct sum_step *last,
                                             int64_t most)
{
	const struct sum_step *end = s + 1;

	while (end < last && end->before + end->len - s->before <= most)
		end++;
	return end;
}

static void fetch_panels(const struct product *p, const struct group *g, const struct sum_step *s,
                         const struct sum_step *end)
{
	int64_t first = s->before;

	for (; s < end; s++) {
		struct tess_view w = get_operand(p, s);

		if (p->pairs && w.dtype != TESS_BF12) {
			pack_pairs(&w, g->column, g->panels, s->at, s->len,
			           (uint32_t *)g->fetched + (s->before - first) * LANES,
			           LEAF * LANES);
			continue;
		}
		if (g->flat)
			pack_columns(&w, g->column, s->at, s->len, g->columns,
			             g->fetched + (s->before - first) * g->columns);
		for (int32_t i = 0; i < g->panels && !g->flat; i++) {
			float *to = g->fetched + (i * LEAF + s->before - first) * LANES;
			int64_t column = g->column + i * g->apart * LANES;
			const char *panel = (const char *)w.data + column / LANES * w.stride[0];

			if (w.dtype == TESS_BF12 && p->pairs)
				bf12_unpack(panel, w.shape[1], s->at, s->len, to);
			else if (w.dtype == TESS_BF12)
				bf12_widen(panel, w.shape[1], s->at, s->len, to);
			else if (quantized_has(w.dtype))
				quantized_widen(w.dtype, s, panel, to);
			else
				pack_widened(&w, column, s->at, s->len, to);
		}
	}
}

/* Returns whether the columns of a group are contiguous in the rows of all operands. */
static bool is_flat_group(const struct product *p, const struct group *g)
{
	for (const struct sum_step *s = p->sum->step; s < p->sum->step + p->sum->count; s++)
		if (get_operand(p, s).stride[0] != 1)
			return false;
	return g->column + g->columns <= p->w.shape[0];
}

/*
 * Prefetches the share [lo, hi) of `whole` of the columns that the steps from s on are packed from:
 * their rows are far apart, beyond the prefetchers of the processor.
 */
static void prefetch_columns(const struct product *p, const struct group *g,
                             const struct sum_step *s, const struct sum_step *end, int64_t lo,
                             int64_t hi, int64_t whole)
{
	for (; s < end; s++) {
		struct tess_view w = get_operand(p, s);
		int64_t width = (int64_t)tess_width(w.dtype);
		const char *data = w.data;

		data += (g->column + s->at * w.stride[1]) * width;
		for (int64_t k = lo * s->len / whole; k < hi * s->len / whole; k++)
			for (int64_t i = 0; i < g->columns * width; i += 64)
				__builtin_prefetch(data + k * w.stride[1] * width + i, 0, 2);
	}
}

/* Returns the kind of tiles that read the panels of a group. */
static int find_pair_kind(const struct product *p, const struct group *g)
{
	if (!g->direct && p->w.dtype != TESS_BF12)
		return PAIRS_FETCHED;
	return p->rows > TILE_ROWS ? PAIRS_AMONG : PAIRS_ALONE;
}

/* Multiplies a tile of bf16; fetched panels are as large as widened ones, and half full. */
static void multiply_pair_tile(const struct product *p, const struct group *g,
                               const struct sum_step *first, const struct sum_step *end,
                               const char *next, int64_t row, int64_t n)
{
	pair_tile_fn *run = p->pairs->tile[find_pair_kind(p, g)][g->panels > 1][n - 1];
	int64_t pitch = n * g->columns, share = g->direct ? PAIR_BYTES * n / p->rows : 0;
	int64_t bp = LEAF * LANES * (int64_t)sizeof(float);
	float *slot = g->slots + row * g->columns * p->sum->levels;
	const uint32_t *x = (const uint32_t *)p->x;
	struct panels w = get_panels(&p->w);
	const char *b;

	if (g->direct) {
		w.data += g->column / LANES * w.panel;
		bp = w.panel * g->apart;
		next += share * (end[-1].pairs + tess_up(end[-1].len, 2) - first->pairs) * row / n;
	}
	for (const struct sum_step *s = first; s < end; s++) {
		b = g->direct ? w.data + s->at * w.k
		              : (char *)(g->fetched + (s->before - first->before) * LANES);
		if (s->node >= 0)
			prefetch_out(p, g, s->node, row, n);
		run(x + s->pairs * p->rows + row * tess_up(s->len, 2), b, bp,
		    g->direct ? next + (s->pairs - first->pairs) * share : b, share, slot, pitch,
		    s);
		if (s->node >= 0)
			store_tile(p, g, s->node, row, n,
			           slot + (s->level - s->merge - s->trees) * pitch);
	}
}

/*
 * Multiplies rows [row, row + n) of a group, the steps [first, end), and prefetches their share of
 * the elements from `next` on, which are read after these steps.
 */
static void multiply_tile(const struct product *p, const struct group *g,
                          const struct sum_step *first, const struct sum_step *end,
                          const char *next, int64_t row, int64_t n)
{
	int64_t pitch = n * g->columns, bk = LANES * (int64_t)sizeof(float), bp = LEAF * bk;
	bool quantized = g->direct && quantized_has(p->w.dtype), wide = g->panels > 1;
	int32_t dtype = g->direct ? p->w.dtype : TESS_F32;
	float *slot = g->slots + row * g->columns * p->sum->levels;
	int64_t share = 0, before;
	struct panels w = { 0 };
	const float *a;
	const char *b;

	if (g->direct) {
		w = get_panels(&p->w);
		w.data += g->column / LANES * w.panel;
		bk = w.k;
		bp = w.panel * g->apart;
		share = bk * n / p->rows;
		next += share * (end[-1].before + end[-1].len - first->before) * row / n;
	} else if (g->flat) {
		bp = bk;
		bk *= g->panels;
	}
	for (const struct sum_step *s = first; s < end; s++) {
		before = s->before - first->before;
		b = quantized   ? w.data + quantized_get_offset(p->w.dtype, s)
		    : g->direct ? w.data + s->at * bk
		                : (const char *)g->fetched + before * bk;
		a = p->packed ? p->x + s->before * p->rows + row * s->len
		              : p->x + row * p->pitch + s->at;
		if (s->node >= 0)
			prefetch_out(p, g, s->node, row, n);
		if (quantized)
			quantized_find_tile(dtype, p->packed, (int)n, wide)(a, p->pitch, b, bk, bp,
			                                                    slot, pitch, s, s + 1);
		else if (p->packed)
			tile_find_packed(dtype, (int)n, wide)(a, b, bk, bp,
			                                      g->direct ? next + before * share : b,
			                                      share, slot, pitch, s);
		else
			tile_find(dtype, (int)n, wide)(a, p->pitch, b, bk, bp, slot, pitch, s,
			                               s + 1);
		if (s->node >= 0)
			store_tile(p, g, s->node, row, n,
			           slot + (s->level - s->merge - s->trees) * pitch);
	}
}

/*
 * Multiplies all rows of x, in place, by a group that is read directly: one call for all steps of a
 * node, so that loads from memory continue from one step to the next.
 */
static void multiply_in_place(const struct product *p, const struct group *g)
{
	const struct sum_step *last = p->to ? p->to : p->sum->step + p->sum->count, *end;
	bool quantized = quantized_has(p->w.dtype), coded = p->w.dtype == TESS_BF12,
	     wide = g->panels > 1;
	tile_fn *run = quantized ? quantized_find_tile(p->w.dtype, false, (int)p->rows, wide)
	               : coded   ? bf12_find_tile((int)p->rows, wide)
	                         : tile_find(p->w.dtype, (int)p->rows, wide);
	int64_t pitch = p->rows * g->columns, at;
	struct panels w = get_panels(&p->w);

	w.data += g->column / LANES * w.panel;
	for (const struct sum_step *s = p->from ? p->from : p->sum->step; s < last; s = end) {
		for (end = s + 1; end < last && end[-1].node < 0;)
			end++;
		at = quantized ? quantized_get_offset(p->w.dtype, s) : coded ? 0 : s->at * w.k;
		run(p->x + s->at, p->pitch, w.data + at,
		    coded ? bf12_get_offset(p->w.shape[1]) : w.k, w.panel * g->apart, g->slots,
		    pitch, s, end);
		s = end - 1;
		if (s->node >= 0)
			store_tile(p, g, s->node, 0, p->rows,
			           g->slots + (s->level - s->merge - s->trees) * pitch);
	}
}

/* Returns the address that a group reads from step s on; s NULL: the start of the next group. */
static const char *find_next(const struct product *p, const struct group *g,
                             const struct sum_step *s)
{
	struct panels w = get_panels(&p->w);
	int64_t column = g->column;

	if (!s) {
		s = p->from ? p->from : p->sum->step;
		column += column + 2 * g->columns <= p->w.shape[0] ? g->columns : 0;
	}
	return w.data + column / LANES * w.panel + s->at * w.k;
}

/* Returns whether the columns of a panel are complete rows, usable in place for few rows of x. */
static bool is_in_rows(const struct product *p, int64_t column)
{
	return !p->packed && p->w.layout == TESS_ROWS && p->w.stride[1] == 1 &&
	       column + LANES <= p->w.shape[0];
}

/* Multiplies all rows of x by 16 rows of the weight, and prefetches the next rows. */
static void multiply_in_rows(const struct product *p, int64_t column, float *slots)
{
	const struct group g = { .column = column, .panels = 1, .apart = 1 };
	const struct sum_step *last = p->to ? p->to : p->sum->step + p->sum->count;
	int64_t width = (int64_t)tess_width(p->w.dtype), row = p->w.stride[0] * width;
	int64_t ahead = column + 2 * LANES <= p->w.shape[0] ? LANES * row : 0;
	int64_t pitch = p->rows * LANES;
	const char *w = (const char *)p->w.data + column * row;
	row_tile_fn *tile = row_tile_find(p->w.dtype, (int)p->rows);

	for (const struct sum_step *s = p->from ? p->from : p->sum->step; s < last; s++) {
		tile(p->x + s->at, p->pitch, w + s->at * width, row, ahead, slots, pitch, s);
		if (s->node >= 0)
			store_tile(p, &g, s->node, 0, p->rows,
			           slots + (s->level - s->merge - s->trees) * pitch);
	}
}

/* Returns whether the panels up to that at `column` are read in place. */
static bool is_read_directly(const struct product *p, int64_t column)
{
	if (p->pairs)
		return p->w.layout == TESS_PANELS && p->w.dtype != TESS_BF12;
	if (p->w.dtype == TESS_BF12)
		return !p->packed;
	return (p->w.layout == TESS_PANELS &&
	        (!quantized_has(p->w.dtype) || p->rows <= QUANTIZED_ROWS)) ||
	       (!p->packed && is_in_panels(&p->w, column));
}

/* Multiplies all rows by `panels` panels from `column` on, 1 or p->wide. */
static void multiply_panels(const struct product *p, int64_t column, int32_t panels, int64_t apart,
                            float *slots, float *fetched)
{
	struct group g = {
		.column = column, .columns = panels * LANES, .apart = apart, .panels = panels
	};
	const struct sum_step *last = p->to ? p->to : p->sum->step + p->sum->count, *end, *next;
	const char *ahead = NULL;
	int64_t n, most;

	g.direct = is_read_directly(p, column + g.columns - LANES);
	g.flat = !g.direct && !p->pairs && is_flat_group(p, &g);
	most = g.direct ? CHUNK : LEAF;
	g.slots = slots;
	g.fetched = fetched;
	if (g.direct && !p->packed) {
		multiply_in_place(p, &g);
		return;
	}
	for (const struct sum_step *s = p->from ? p->from : p->sum->step; s < last; s = end) {
		end = find_chunk_end(s, last, most);
		next = end < last ? find_chunk_end(end, last, most) : end;
		if (g.direct)
			ahead = find_next(p, &g, end < last ? end : NULL);
		else
			fetch_panels(p, &g, s, end);
		for (int64_t r = 0; r < p->rows; r += n) {
			n = product_choose_tile_rows(p->rows - r);
			if (g.flat)
				prefetch_columns(p, &g, end, next, r, r + n, p->rows);
			if (p->pairs)
				multiply_pair_tile(p, &g, s, end, ahead, r, n);
			else
				multiply_tile(p, &g, s, end, ahead, r, n);
		}
	}
}

void product_multiply(const struct product *p, int64_t group, float *scratch)
{
	int64_t column = group * p->wide * LANES, end = column + p->wide * LANES;
	int64_t slots = p->sum->levels * p->rows * LANES, panels = tess_up(p->w.shape[0], LANES);
	float *fetched = p->fetched ? p->fetched : scratch + slots * p->wide;

	if (p->run && group < panels / (p->wide * p->run) * p->run) {
		column = (group / p->run * p->wide * p->run + group % p->run) * LANES;
		multiply_panels(p, column, p->wide, p->run, scratch, fetched);
		return;
	}
	if (panels * LANES >= end && (p->packed || is_in_panels(&p->w, end - LANES))) {
		multiply_panels(p, column, p->wide, 1, scratch, fetched);
		return;
	}
	for (; column < end && column < p->w.shape[0]; column += LANES, scratch += slots) {
		if (is_in_rows(p, column))
			multiply_in_rows(p, column, scratch);
		else
			multiply_panels(p, column, 1, 1, scratch, fetched);
	}
}
