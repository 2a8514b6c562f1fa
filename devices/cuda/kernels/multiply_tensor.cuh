/*
 * multiply_tensor.cuh - products of 9 to 64 rows on tensor cores: bf16, added in f32. Weights are
 * read once, at the bandwidth of memory.
 *
 * A block has 64 columns, all rows, and a part of K, which is copied 64 terms at a time, five such
 * stages ahead. With many columns it has 128 and all of K, so that fewer blocks read the rows.
 * Shared memory has 16 bytes of row r at place `chunk ^ (r & 7)`, as in attention_tensor.cuh.
 *
 * Two warps have half of the columns each, for the first half of the terms of each stage; two
 * others for the second half. If K has parts, the last block of a tile adds them in order. Columns
 * of a gate and of its factor alternate, 8 of each.
 */

enum { STAGE_ROW = STAGE_TERMS * 2, STAGE_CHUNKS = STAGE_ROW / 16 }; /* bytes; chunks */
enum { AHEAD = 512 }; /* stages of all columns of a block, prefetched to the L2 cache before it waits */

/*
 * Adds 16 terms from chunk 2 * k on of X runs of 16 rows and W runs of 16 columns, which start at
 * `rows` and `columns` in shared memory, to X * 2 * W sums of 16 x 8.
 */
DEVICE void multiply_terms(const char *rows, const char *columns, int k, const int X, const int W,
                           float *sum)
{
	int lane = threadIdx.x % WARP, row = lane & 7, middle = lane / 8 % 2, last = lane / 16;
	const char *x_at = rows + (middle * 8 + row) * STAGE_ROW + (last ^ row ^ k * 2) * 16;
	const char *w_at = columns + (last * 8 + row) * STAGE_ROW + (middle ^ row ^ k * 2) * 16;
	uint32_t x[4][4], w[4];

	EACH(i, X)
		load_straight_matrices(x_at + i * 16 * STAGE_ROW, x[i]);
	EACH(j, W) {
		load_straight_matrices(w_at + j * 16 * STAGE_ROW, w);
		EACH(i, X) {
			float *s = sum + (i * W + j) * 8;

			multiply_matrices(s, x[i], w[0], w[1]);
			multiply_matrices(s + 4, x[i], w[2], w[3]);
		}
	}
}

/* Writes the sums of a warp, in the layout of multiply_terms, to rows of `pitch` from `to` on. */
DEVICE void spread_sums(const float *sum, const int X, const int W, const int pitch, float *to)
{
	int lane = threadIdx.x % WARP;

	EACH(i, X)
		EACH(j, 2 * W)
			EACH(e, 4)
				to[(i * 16 + lane / 4 + e / 2 * 8) * pitch + j * 8 + lane % 4 * 2 +
				   e % 2] = sum[(i * 2 * W + j) * 4 + e];
}

struct product_tile { /* tile of a block */
	int of; /* the weight, or with a GLU the first of both */
	int64_t column; /* the first */
	int64_t at, end; /* range of K */
	float *sums; /* in shared memory: the rows of each half of the terms, with gaps */
	int added; /* the second half and the other parts are added to the first half */
};

DEVICE struct product_tile find_product_tile(const struct tensor_args *a, const int C, float *sums)
{
	struct product_tile t = {
		a->glu ? 0 : a->nweights - 1, 0, (int64_t)blockIdx.y * a->part, 0, sums, 0
	};

	while (t.of > 0 && (int)blockIdx.x < a->of[t.of].first_block)
		t.of--;
	t.column = (int64_t)((int)blockIdx.x - a->of[t.of].first_block) * (a->glu ? C / 2 : C);
	t.end = t.at + a->part < a->k ? t.at + a->part : a->k;
	return t;
}

/* Returns the weights of column v of a tile; NULL if there is none. */
DEVICE const uint16_t *find_product_column(const struct tensor_args *a,
                                           const struct product_tile *t, int v)
{
	int of = a->glu ? v / 8 % 2 : t->of;
	int64_t column = t->column + (a->glu ? v / 16 * 8 + v % 8 : v);

	return column < a->of[of].columns
	               ? (const uint16_t *)a->of[of].w + column * a->of[of].stride[0]
	               : NULL;
}

/* Prefetches the first stages: a line of a column is one. */
DEVICE void prefetch_stages(const struct product_tile *t, const uint16_t *const *w, const int C)
{
	int64_t at = t->at + (int)threadIdx.x % STAGE_CHUNKS * STAGE_TERMS;

	EACH(j, C / 16)
		if ((int)threadIdx.x % STAGE_CHUNKS < AHEAD / C && w[j] && at < t->end)
			prefetch_line(w[j] + at);
}

/* Copies the terms from `at` on to a stage: first the C columns, then X runs of 16 rows. */
DEVICE void copy_operands(const struct tensor_args *a, const struct product_tile *t,
                          const uint16_t *const *w, int64_t at, const int X, const int C,
                          char *stage)
{
	int r = threadIdx.x / STAGE_CHUNKS, chunk = threadIdx.x % STAGE_CHUNKS;
	int there = at + chunk * 8 < t->end;

	at += chunk * 8;
	stage += r * STAGE_ROW + (chunk ^ (r & 7)) * 16;
	EACH(j, C / 16) {
		int inside = there && w[j];

		copy_async(stage + j * 16 * STAGE_ROW, inside ? w[j] + at : a->x, inside ? 16 : 0);
	}
	stage += C * STAGE_ROW;
	EACH(i, X) {
		int row = r + i * 16, inside = there && row < a->rows;

		copy_async(stage + i * 16 * STAGE_ROW, inside ? a->x + row * a->x_pitch + at : a->x,
		           inside ? 16 : 0);
	}
}

/* Runs of rows that the sums of a tile are divided into, four sums a thread. */
enum { RUNS = PRODUCT_ROWS * WIDE_COLUMNS / (MULTIPLY_THREADS * 4) }; /* maximum */
enum { RUN_BYTES = PRODUCT_PARTS * MULTIPLY_THREADS * 16 }; /* bytes of all parts */
enum { RUNS_AHEAD = 4 }; /* copied while the parts of one run are added */

DEVICE int find_run_row(int i, const int C)
{
	return i * (MULTIPLY_THREADS * 4 / C) + (int)threadIdx.x * 4 / C;
}

DEVICE int find_run_column(const int C)
{
	return (int)threadIdx.x * 4 % C;
}

/* Reads four sums of row r from column c of the tile on. */
DEVICE void read_sums(const struct product_tile *t, const int X, const int C, int r, int c,
                      float *v)
{
	const float *from = t->sums + r * (C + SUMS_GAP) + c;
	float second[4];

	widen_quad(load_quad(from), PORT_F32, v);
	if (t->added)
		return;
	widen_quad(load_quad(from + X * 16 * (C + SUMS_GAP)), PORT_F32, second);
	EACH(i, 4)
		v[i] += second[i];
}

/* Returns the address of the four sums of part `part` in global memory. */
DEVICE float *find_part(const struct tensor_args *a, int part, int r, int c)
{
	int64_t tile = (int64_t)part * gridDim.x + blockIdx.x;

	return a->sums + (tile * a->rows + r) * PRODUCT_COLUMNS + c;
}

/* Publishes this block's sums. Returns whether this is the last block of the tile. */
DEVICE int share_part(const struct tensor_args *a, const struct product_tile *t, const int X)
{
	uint32_t *ended = (uint32_t *)(t->sums + PRODUCT_BYTES / 4 - 1);
	int c = find_run_column(PRODUCT_COLUMNS);

	UNROLL_BY(2)
	for (int i = 0; i < 2 * X; i++) {
		int r = find_run_row(i, PRODUCT_COLUMNS);
		float v[4];

		read_sums(t, X, PRODUCT_COLUMNS, r, c, v);
		if (r < a->rows)
			store_global_quad(find_part(a, blockIdx.y, r, c), pack_quad(v));
	}
	sync_block();
	if (!threadIdx.x)
		*ended = count_ended(a->ended + blockIdx.x);
	sync_block();
	if (*ended != gridDim.y - 1)
		return 0;
	if (!threadIdx.x)
		a->ended[blockIdx.x] = 0; /* for the next kernel */
	return 1;
}

/* Copies run i of all parts; a thread copies the parts of its own sums. */
DEVICE void copy_parts(const struct tensor_args *a, int i, char *to)
{
	int r = find_run_row(i, PRODUCT_COLUMNS), c = find_run_column(PRODUCT_COLUMNS);

	if (r < a->rows)
		EACH(p, PRODUCT_PARTS)
			if (p < (int)gridDim.y)
				copy_async(to + (p * MULTIPLY_THREADS + threadIdx.x) * 16,
				           find_part(a, p, r, c), 16);
}

/*
 * Replaces this block's sums by the sums of all parts; the copies are stored after them. The loops
 * are not unrolled: each instruction would run once, and be fetched from memory for that.
 */
DEVICE void add_parts(const struct tensor_args *a, struct product_tile *t, const int X)
{
	char *copies = (char *)(t->sums + X * 16 * (PRODUCT_COLUMNS + SUMS_GAP));

	UNROLL_BY(1)
	for (int i = 0; i < RUNS_AHEAD; i++) {
		if (i < 2 * X)
			copy_parts(a, i, copies + i * RUN_BYTES);
		commit_copies();
	}
	UNROLL_BY(1)
	for (int i = 0; i < 2 * X; i++) {
		char *run = copies + i % RUNS_AHEAD * RUN_BYTES;
		float v[4];

		wait_copies(RUNS_AHEAD - 1);
		widen_quad(load_quad(run + threadIdx.x * 16), PORT_F32, v);
		EACH(p, PRODUCT_PARTS)
			if (p && p < (int)gridDim.y) {
				struct quad part =
					load_quad(run + (p * MULTIPLY_THREADS + threadIdx.x) * 16);

				EACH(j, 4)
					v[j] += unpack_float(part.at[j]);
			}
		store_quad(t->sums +
		                   find_run_row(i, PRODUCT_COLUMNS) * (PRODUCT_COLUMNS + SUMS_GAP) +
		                   find_run_column(PRODUCT_COLUMNS),
		           pack_quad(v));
		sync_warp(); /* the run has been used */
		if (i + RUNS_AHEAD < 2 * X)
			copy_parts(a, i + RUNS_AHEAD, run);
		commit_copies();
	}
	t->added = 1;
	sync_block();
}

/* Returns whether the thread's four columns of a row are read and written in one access. */
DEVICE int is_run_whole(const struct tensor_args *a, const struct product_tile *t, const int C)
{
	return a->wide && t->column + find_run_column(C) + 4 <= a->of[t->of].columns;
}

/* Loads the addends of whole runs to registers while the parts are copied. */
DEVICE void load_added(const struct tensor_args *a, const struct product_tile *t, const int X,
                       const int C, float (*added)[4])
{
	const struct multiplied *m = &a->of[t->of];
	int whole = m->more && is_run_whole(a, t, C);

	EACH(i, X * C / 32) {
		int r = find_run_row(i, C);

		EACH(j, 4)
			added[i][j] = 0.0f;
		if (whole && r < a->rows)
			widen_quad(load_quad(m->more + r * m->more_pitch + t->column +
			                     find_run_column(C)),
			           PORT_F32, added[i]);
	}
}

/* Writes runs with columns beyond the last, or with rows that are not aligned. */
DEVICE void write_narrow_outs(const struct tensor_args *a, const struct product_tile *t,
                              const int X, const int C)
{
	const struct multiplied *m = &a->of[t->of];
	int64_t column = t->column + find_run_column(C);

	UNROLL_BY(1)
	for (int i = 0; i < X * C / 32; i++) {
		int r = find_run_row(i, C);
		float v[4], added[4] = { 0.0f, 0.0f, 0.0f, 0.0f };

		if (r >= a->rows)
			continue;
		read_sums(t, X, C, r, find_run_column(C), v);
		if (m->more)
			load_four(m->more + r * m->more_pitch, column, m->columns, 0, added);
		EACH(j, 4)
			v[j] = v[j] + 0.0f + added[j];
		store_four(m->y + r * m->y_pitch, column, m->columns, 0, v);
	}
}

DEVICE void write_outs(const struct tensor_args *a, const struct product_tile *t, const int X,
                       const int C, float (*added)[4])
{
	const struct multiplied *m = &a->of[t->of];

	if (!is_run_whole(a, t, C)) {
		write_narrow_outs(a, t, X, C);
		return;
	}
	EACH(i, X * C / 32) {
		int r = find_run_row(i, C);
		float v[4];

		read_sums(t, X, C, r, find_run_column(C), v);
		EACH(j, 4)
			v[j] = v[j] + 0.0f + added[i][j];
		if (r < a->rows)
			store_global_quad(m->y + r * m->y_pitch + t->column + find_run_column(C),
			                  pack_quad(v));
	}
}

/* Writes act(gate) * up in bf16; columns are a multiple of 8. */
DEVICE void write_outs_of_glu(const struct tensor_args *a, const struct product_tile *t,
                              const int X, const int C)
{
	UNROLL_BY(1)
	for (int i = threadIdx.x; i < a->rows * (C / 8); i += MULTIPLY_THREADS) {
		int r = i / (C / 8), q = i % (C / 8);
		int c = q / 2 * 16 + q % 2 * 4;
		float gate[4], up[4];

		if (t->column + q * 4 >= a->of[0].columns)
			continue;
		read_sums(t, X, C, r, c, gate);
		read_sums(t, X, C, r, c + 8, up);
		EACH(j, 4)
			gate[j] = activate(a->activation, gate[j] + 0.0f) * (up[j] + 0.0f);
		store_global_pair(a->glu + r * a->glu_pitch + t->column + q * 4,
		                  pack_bf16(gate[0], gate[1]), pack_bf16(gate[2], gate[3]));
	}
}

/* Writes the tile; the last block adds the other parts. */
DEVICE void finish_tile(const struct tensor_args *a, struct product_tile *t, const int X,
                        const int C)
{
	const int parts = C == PRODUCT_COLUMNS && gridDim.y > 1;
	float added[RUNS][4];

	if (parts && !share_part(a, t, X))
		return;
	if (!a->glu)
		load_added(a, t, X, C, added);
	if (parts)
		add_parts(a, t, X);
	if (a->glu)
		write_outs_of_glu(a, t, X, C);
	else
		write_outs(a, t, X, C, added);
}

DEVICE void multiply_part(const struct tensor_args *a, const int X, const int C)
{
	DYNAMIC_SHARED(shared_stages);
	const int bytes = (C + X * 16) * STAGE_ROW; /* bytes of a stage */
	const int ahead = (C == PRODUCT_COLUMNS ? PRODUCT_STAGES : WIDE_STAGES) - 1;
	struct product_tile t = find_product_tile(a, C, shared_stages);
	int warp = threadIdx.x / WARP, half = warp / 2, first = warp % 2 * (C / 2);
	int stages = (int)((t.end - t.at + STAGE_TERMS - 1) / STAGE_TERMS);
	char *stage = (char *)shared_stages;
	const uint16_t *w[WIDE_COLUMNS / 16];
	float sum[4 * WIDE_COLUMNS / 4];

	EACH(j, C / 16)
		w[j] = find_product_column(a, &t, (int)threadIdx.x / STAGE_CHUNKS + j * 16);
	prefetch_stages(&t, w, C); /* while the previous kernel ends */
	wait_for_kernels();
	EACH(i, X * C / 4)
		sum[i] = 0.0f;
	UNROLL_BY(1)
	for (int s = 0; s < ahead; s++) {
		if (s < stages)
			copy_operands(a, &t, w, t.at + s * STAGE_TERMS, X, C, stage + s * bytes);
		commit_copies();
	}
	for (int s = 0; s < stages; s++) {
		const char *from = stage + s % (ahead + 1) * bytes;
		int next = s + ahead;

		if (C == PRODUCT_COLUMNS)
			wait_copies(PRODUCT_STAGES - 2);
		else
			wait_copies(WIDE_STAGES - 2);
		sync_block(); /* the previous stage has been used */
		if (next < stages)
			copy_operands(a, &t, w, t.at + next * STAGE_TERMS, X, C,
			              stage + next % (ahead + 1) * bytes);
		commit_copies();
		EACH(k, 2)
			multiply_terms(from + C * STAGE_ROW, from + first * STAGE_ROW, half * 2 + k,
			               X, C / 32, sum);
	}
	sync_block(); /* the last stage has been used */
	spread_sums(sum, X, C / 32, C + SUMS_GAP, t.sums + half * X * 16 * (C + SUMS_GAP) + first);
	sync_block();
	finish_tile(a, &t, X, C);
}

#define MULTIPLY_TENSOR(name, rows, columns) \
	KERNEL_EARLY(MULTIPLY_THREADS, PRODUCT_BLOCKS, multiply_tensor_##name, tensor_args) \
	{ \
		multiply_part(&a, rows / 16, columns); \
	}

MULTIPLY_TENSOR(16, 16, PRODUCT_COLUMNS)
MULTIPLY_TENSOR(32, 32, PRODUCT_COLUMNS)
MULTIPLY_TENSOR(64, 64, PRODUCT_COLUMNS)
MULTIPLY_TENSOR(wide, 64, WIDE_COLUMNS)
