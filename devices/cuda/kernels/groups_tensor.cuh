/*
 * groups_tensor.cuh - products of the listed rows of each expert, or of all rows for each head, on
 * tensor cores: rows and weights in bf16, sums in f32.
 *
 * A block has 128 rows and 128 columns of an expert, a warp 64 x 64 of them. Terms are copied 64 at
 * a time, two such stages ahead. Shared memory has 16 bytes of row r at place `chunk ^ (r & 7)`, as
 * in attention_tensor.cuh. Columns of gate and up alternate, 8 of each, so that a block has both
 * inputs of a column of act(gate) * up.
 *
 * With fewer rows of each expert the bandwidth of memory limits the kernel: a block has 64 columns
 * and 16 to 64 rows at a time, five stages ahead, and the warps of multiply_tensor.cuh. The
 * remaining rows read the weights again, from the L2 cache.
 */

enum { TENSOR_STAGES = 3, TENSOR_SIDE = TENSOR_TILE * STAGE_ROW }; /* bytes */

/* Returns the weights of column v of a tile of `columns`; NULL if there is none. */
DEVICE const uint16_t *find_column(const struct tensor_group_args *a, int64_t tile, int v,
                                   const int columns)
{
	int64_t column = tile * columns + v, row = column;

	if (a->gated) {
		column = tile * (columns / 2) + v / 16 * 8 + v % 8;
		row = column * a->gates.step + v / 8 % 2 * a->gates.up;
	}
	return column < a->n ? a->w + blockIdx.y * a->w_stride[0] + row * a->w_stride[1] : NULL;
}

/* Copies terms [at, at + STAGE_TERMS) of the rows and columns in `from` to a stage. */
DEVICE void copy_terms(const struct tensor_group_args *a, const uint16_t *const *from, int64_t at,
                       char *stage)
{
	int r = threadIdx.x / STAGE_CHUNKS, chunk = threadIdx.x % STAGE_CHUNKS;
	int there = at + chunk * 8 < a->k;

	stage += r * STAGE_ROW + (chunk ^ (r & 7)) * 16;
	EACH(j, 2 * STAGE_CHUNKS) {
		const uint16_t *x = from[r + j * 16];
		int inside = there && x;

		copy_async(stage + j * 16 * STAGE_ROW, inside ? x + at + chunk * 8 : a->x,
		           inside ? 16 : 0);
	}
}

/*
 * Writes rows [from, from + rows) of y: the sums, or act(gate) * up in bf16. `half`: offset of the
 * sums of the other half of the terms, or 0.
 */
DEVICE void write_tile(const struct tensor_group_args *a, const float *sum, const int pitch,
                       const int half, const int wide, int64_t from, int rows, int64_t tile)
{
	const int columns = a->gated ? wide / 2 : wide;

	UNROLL_BY(1)
	for (int i = threadIdx.x; i < rows * columns; i += MULTIPLY_THREADS) {
		int r = i / columns, c = i % columns;
		const float *at = sum + r * pitch + (a->gated ? c / 8 * 16 + c % 8 : c);
		float v = half ? at[0] + at[half] : at[0];
		int64_t column = tile * columns + c,
			y = (from + r) * a->y_pitch + blockIdx.y * a->y_step + column;

		if (column >= a->n)
			continue;
		if (a->gated)
			((uint16_t *)a->y)[y] =
				round_bf16(join_gates(&a->gates, blockIdx.y, column, v,
			                              half ? at[8] + at[half + 8] : at[8]));
		else
			((float *)a->y)[y] = v + 0.0f;
	}
}

/* Multiplies groups. Adjacent blocks have the same weights: `row_blocks` of them share the rows. */
KERNEL(MULTIPLY_THREADS, multiply_groups_bf16, tensor_group_args)
{
	DYNAMIC_SHARED(shared_terms);
	char *stage = (char *)shared_terms;
	/* the starts of the rows and of the columns; NULL: none */
	const uint16_t **begin = (const uint16_t **)(stage + TENSOR_STAGES * 2 * TENSOR_SIDE);
	int64_t e = blockIdx.y, tile = blockIdx.x / a.row_blocks;
	int64_t first = a.begin ? a.begin[e] : 0, end = a.begin ? a.begin[e + 1] : a.rows;
	int r0 = threadIdx.x / WARP / 2 * 64, c0 = threadIdx.x / WARP % 2 * 64;
	int stages = (int)((a.k + STAGE_TERMS - 1) / STAGE_TERMS);

	begin[TENSOR_TILE + threadIdx.x] = find_column(&a, tile, (int)threadIdx.x, TENSOR_TILE);
	for (int64_t from = first + (int64_t)(blockIdx.x % a.row_blocks) * TENSOR_TILE; from < end;
	     from += (int64_t)a.row_blocks * TENSOR_TILE) {
		int rows = end - from < TENSOR_TILE ? (int)(end - from) : TENSOR_TILE;
		int64_t at = from + (int)threadIdx.x;
		float sum[4 * 8 * 4];

		begin[threadIdx.x] =
			at < end ? a.x + (a.row ? a.row[at] : at) * a.x_pitch + e * a.x_step : NULL;
		EACH(i, 4 * 8 * 4)
			sum[i] = 0.0f;
		sync_block(); /* the earlier sums have been written, and the rows have arrived */
		EACH(s, TENSOR_STAGES - 1) {
			if (s < stages)
				copy_terms(&a, begin, s * STAGE_TERMS, stage + s * 2 * TENSOR_SIDE);
			commit_copies();
		}
		for (int s = 0; s < stages; s++) {
			const char *side = stage + s % TENSOR_STAGES * 2 * TENSOR_SIDE;
			int next = s + TENSOR_STAGES - 1;

			wait_copies(TENSOR_STAGES - 2);
			sync_block(); /* the previous stage has been used */
			if (next < stages)
				copy_terms(&a, begin, (int64_t)next * STAGE_TERMS,
				           stage + next % TENSOR_STAGES * 2 * TENSOR_SIDE);
			commit_copies();
			if (r0 >= rows)
				continue;
			EACH(k, STAGE_CHUNKS / 2)
				multiply_terms(side + r0 * STAGE_ROW,
				               side + TENSOR_SIDE + c0 * STAGE_ROW, k, 4, 4, sum);
		}
		wait_copies(0);
		sync_block();
		spread_sums(sum, 4, 4, TENSOR_PITCH, shared_terms + r0 * TENSOR_PITCH + c0);
		sync_block();
		write_tile(&a, shared_terms, TENSOR_PITCH, 0, TENSOR_TILE, from, rows, tile);
	}
}

/* Copies the terms from `at` on to a stage: first the columns, then X runs of 16 rows. */
DEVICE void copy_listed_terms(const struct tensor_group_args *a, const uint16_t *const *w,
                              const uint16_t *const *x, int64_t at, const int X, char *stage)
{
	int r = threadIdx.x / STAGE_CHUNKS, chunk = threadIdx.x % STAGE_CHUNKS;
	int there = at + chunk * 8 < a->k;

	at += chunk * 8;
	stage += r * STAGE_ROW + (chunk ^ (r & 7)) * 16;
	EACH(j, LISTED_COLUMNS / 16) {
		int inside = there && w[j];

		copy_async(stage + j * 16 * STAGE_ROW, inside ? w[j] + at : a->x, inside ? 16 : 0);
	}
	stage += LISTED_COLUMNS * STAGE_ROW;
	EACH(i, X) {
		int inside = there && x[i];

		copy_async(stage + i * 16 * STAGE_ROW, inside ? x[i] + at : a->x, inside ? 16 : 0);
	}
}

/* Computes the sums of X * 16 rows, which start at x, and the block's columns, in shared memory. */
DEVICE void add_listed_terms(const struct tensor_group_args *a, const uint16_t *const *w,
                             const uint16_t *const *x, const int X, float *shared)
{
	const int bytes = (LISTED_COLUMNS + X * 16) * STAGE_ROW; /* bytes of a stage */
	int warp = threadIdx.x / WARP, half = warp / 2, first = warp % 2 * (LISTED_COLUMNS / 2);
	int stages = (int)((a->k + STAGE_TERMS - 1) / STAGE_TERMS);
	char *stage = (char *)shared;
	float sum[4 * 4 * 4];

	EACH(i, X * 16)
		sum[i] = 0.0f;
	sync_block(); /* the earlier sums have been written */
	EACH(s, LISTED_STAGES - 1) {
		if (s < stages)
			copy_listed_terms(a, w, x, s * STAGE_TERMS, X, stage + s * bytes);
		commit_copies();
	}
	for (int s = 0; s < stages; s++) {
		const char *from = stage + s % LISTED_STAGES * bytes;
		int next = s + LISTED_STAGES - 1;

		wait_copies(LISTED_STAGES - 2);
		sync_block(); /* the previous stage has been used */
		if (next < stages)
			copy_listed_terms(a, w, x, (int64_t)next * STAGE_TERMS, X,
			                  stage + next % LISTED_STAGES * bytes);
		commit_copies();
		EACH(k, 2)
			multiply_terms(from + LISTED_COLUMNS * STAGE_ROW, from + first * STAGE_ROW,
			               half * 2 + k, X, 2, sum);
	}
	sync_block(); /* the last stage has been used */
	spread_sums(sum, X, 2, LISTED_PITCH, shared + half * X * 16 * LISTED_PITCH + first);
	sync_block();
}

DEVICE void multiply_listed_rows(const struct tensor_group_args *a, const int X)
{
	DYNAMIC_SHARED(shared_terms);
	int64_t e = blockIdx.y, from = a->begin ? a->begin[e] : 0;
	int64_t end = a->begin ? a->begin[e + 1] : a->rows;
	int r = threadIdx.x / STAGE_CHUNKS, chunk = threadIdx.x % STAGE_CHUNKS;
	const uint16_t *w[LISTED_COLUMNS / 16], *x[4];

	if (from >= end)
		return;
	EACH(j, LISTED_COLUMNS / 16) {
		w[j] = find_column(a, blockIdx.x, r + j * 16, LISTED_COLUMNS);
		if (w[j] && chunk * STAGE_TERMS < a->k) /* while the rows are being found */
			prefetch_line(w[j] + chunk * STAGE_TERMS);
	}
	for (; from < end; from += X * 16) {
		int rows = end - from < X * 16 ? (int)(end - from) : X * 16;

		EACH(i, X) {
			int64_t at = from + r + i * 16;

			x[i] = at < end ? a->x + (a->row ? a->row[at] : at) * a->x_pitch +
			                          e * a->x_step
			                : NULL;
		}
		add_listed_terms(a, w, x, X, shared_terms);
		write_tile(a, shared_terms, LISTED_PITCH, X * 16 * LISTED_PITCH, LISTED_COLUMNS,
		           from, rows, blockIdx.x);
	}
}

#define MULTIPLY_LISTED(rows) \
	KERNEL(MULTIPLY_THREADS, multiply_groups_##rows, tensor_group_args) \
	{ \
		multiply_listed_rows(&a, rows / 16); \
	}

MULTIPLY_LISTED(16)
MULTIPLY_LISTED(32)
MULTIPLY_LISTED(64)
