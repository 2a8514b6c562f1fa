/*
 * multiply_tensor.cuh - products of 9 to 64 rows on tensor cores: bf16, added in f32. Weights are
 * read once, at the bandwidth of memory.
 *
 * A block has C columns, all rows, and a part of K, which is copied 64 terms at a time, several
 * such stages ahead. C is 64, or 128 with more than 32 rows, so that fewer blocks read the rows.
 * Shared memory has 16 bytes of row r at place `chunk ^ (r & 7)`, as in attention_tensor.cuh.
 *
 * A warp has 32 columns, for one half of the terms of each stage. If K has parts, they are added in
 * order: by the last block of a tile, or on GPUs from 9.0 on by a cluster of its blocks, which read
 * each other's shared memory; each writes some of the rows. Columns of a gate and of its factor
 * alternate, 8 of each.
 */

enum { STAGE_ROW = STAGE_TERMS * 2, STAGE_CHUNKS = STAGE_ROW / 16 }; /* bytes; chunks */

/* Rows or columns whose chunks the threads copy at a time; rows of a run, four sums a thread. */
#define COPIED_ROWS(C) (PRODUCT_THREADS(C) / STAGE_CHUNKS)
enum { WARP_COLUMNS = 32, RUN_ROWS = 8, COPIED_COLUMNS = STAGE_CHUNKS / 2 };

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
	int row, row_end; /* rows that this block writes */
	float *sums; /* in shared memory: the rows of each half of the terms, with gaps */
	int added; /* the second half and the other parts are added to the first half */
	int peers; /* blocks of the cluster, whose first halves are the parts; 1: none */
};

DEVICE struct product_tile find_product_tile(const struct tensor_args *a, const int C, float *sums)
{
	struct product_tile t = { a->glu ? 0 : a->nweights - 1,
		                  0,
		                  (int64_t)blockIdx.y * a->part,
		                  0,
		                  0,
		                  a->rows,
		                  sums,
		                  0,
		                  1 };

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

/* Prefetches the first 8 stages to the L2 cache: a line of a column is one. */
DEVICE void prefetch_stages(const struct product_tile *t, const uint16_t *const *w)
{
	int64_t at = t->at + (int)threadIdx.x % STAGE_CHUNKS * STAGE_TERMS;

	EACH(j, COPIED_COLUMNS)
		if (w[j] && at < t->end)
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
	EACH(j, COPIED_COLUMNS) {
		int inside = there && w[j];

		copy_async(stage + j * COPIED_ROWS(C) * STAGE_ROW, inside ? w[j] + at : a->x,
		           inside ? 16 : 0);
	}
	stage += C * STAGE_ROW;
	EACH(i, X * 16 / COPIED_ROWS(C)) {
		int row = r + i * COPIED_ROWS(C), inside = there && row < a->rows;

		copy_async(stage + i * COPIED_ROWS(C) * STAGE_ROW,
		           inside ? a->x + row * a->x_pitch + at : a->x, inside ? 16 : 0);
	}
}

enum { RUNS_LOADED = 4 }; /* whose addends are loaded before the parts are added */
enum { RUN_BYTES = PRODUCT_PARTS * PRODUCT_COLUMNS * RUN_ROWS * 4 }; /* bytes of all parts */
enum { RUNS_AHEAD = 4 }; /* copied while the parts of one run are added */

DEVICE int find_run_row(int i, const int C)
{
	return i * RUN_ROWS + (int)threadIdx.x * 4 / C;
}

DEVICE int find_run_column(const int C)
{
	return (int)threadIdx.x * 4 % C;
}

/* Adds the other halves and the later parts of four sums of the tile. */
DEVICE void add_quad(struct quad q, float *v)
{
	EACH(i, 4)
		v[i] += unpack_float(q.at[i]);
}

/* Reads four sums of row r from column c of the tile on. */
DEVICE void read_sums(const struct product_tile *t, const int X, const int C, int r, int c,
                      float *v)
{
	const float *from = t->sums + r * (C + SUMS_GAP) + c;

	if (C == WIDE_COLUMNS && t->peers > 1) {
		widen_quad(load_peer_quad(from, 0), PORT_F32, v);
		EACH(p, PRODUCT_PARTS)
			if (p && p < t->peers)
				add_quad(load_peer_quad(from, p), v);
		return;
	}
	widen_quad(load_quad(from), PORT_F32, v);
	if (!t->added)
		add_quad(load_quad(from + X * 16 * (C + SUMS_GAP)), v);
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
			if (p && p < (int)gridDim.y)
				add_quad(load_quad(run + (p * MULTIPLY_THREADS + threadIdx.x) * 16),
				         v);
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

/* Loads the addends of a run, if it is whole and there are any; else they are 0. */
DEVICE void load_added(const struct tensor_args *a, const struct product_tile *t, int i,
                       const int C, float *added)
{
	const struct multiplied *m = &a->of[t->of];
	int r = find_run_row(i, C);

	EACH(j, 4)
		added[j] = 0.0f;
	if (m->more && r < t->row_end && is_run_whole(a, t, C))
		widen_quad(load_quad(m->more + r * m->more_pitch + t->column + find_run_column(C)),
		           PORT_F32, added);
}

/* Writes run i with columns beyond the last, or with rows that are not aligned. */
DEVICE void write_narrow_run(const struct tensor_args *a, const struct product_tile *t, int i,
                             const int X, const int C)
{
	const struct multiplied *m = &a->of[t->of];
	int r = find_run_row(i, C);
	int64_t column = t->column + find_run_column(C);
	float v[4], added[4] = { 0.0f, 0.0f, 0.0f, 0.0f };

	if (r >= t->row_end)
		return;
	read_sums(t, X, C, r, find_run_column(C), v);
	if (m->more)
		load_four(m->more + r * m->more_pitch, column, m->columns, 0, added);
	EACH(j, 4)
		v[j] = v[j] + 0.0f + added[j];
	store_four(m->y + r * m->y_pitch, column, m->columns, 0, v);
}

/* Writes run i plus its addends. */
DEVICE void write_run(const struct tensor_args *a, const struct product_tile *t, int i, const int X,
                      const int C, const float *added)
{
	const struct multiplied *m = &a->of[t->of];
	int r = find_run_row(i, C);
	float v[4];

	if (r >= t->row_end)
		return;
	read_sums(t, X, C, r, find_run_column(C), v);
	EACH(j, 4)
		v[j] = v[j] + 0.0f + added[j];
	store_global_quad(m->y + r * m->y_pitch + t->column + find_run_column(C), pack_quad(v));
}

/* Writes all runs; the addends of the first ones have been loaded. */
DEVICE void write_outs(const struct tensor_args *a, const struct product_tile *t, const int X,
                       const int C, float (*added)[4])
{
	int first = t->row / RUN_ROWS;

	if (!is_run_whole(a, t, C)) {
		UNROLL_BY(1)
		for (int i = first; i * RUN_ROWS < t->row_end; i++)
			write_narrow_run(a, t, i, X, C);
		return;
	}
	EACH(i, RUNS_LOADED)
		write_run(a, t, first + i, X, C, added[i]);
	UNROLL_BY(1)
	for (int i = first + RUNS_LOADED; i * RUN_ROWS < t->row_end; i++) {
		load_added(a, t, i, C, added[0]);
		write_run(a, t, i, X, C, added[0]);
	}
}

/* Writes act(gate) * up in bf16; columns are a multiple of 8. */
DEVICE void write_outs_of_glu(const struct tensor_args *a, const struct product_tile *t,
                              const int X, const int C)
{
	UNROLL_BY(1)
	for (int i = t->row * (C / 8) + threadIdx.x; i < t->row_end * (C / 8);
	     i += PRODUCT_THREADS(C)) {
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

/*
 * Adds the halves of this block's sums, and lets the cluster read them. Each of its blocks writes
 * some runs of rows.
 */
DEVICE void share_halves(struct product_tile *t, const int X)
{
	const int C = WIDE_COLUMNS;
	int c = find_run_column(C);

	UNROLL_BY(2)
	for (int i = 0; i < 2 * X; i++) {
		int r = find_run_row(i, C);
		float v[4];

		read_sums(t, X, C, r, c, v);
		store_quad(t->sums + r * (C + SUMS_GAP) + c, pack_quad(v));
	}
	t->peers = (int)gridDim.y;
	sync_cluster();
}

/* Finds the rows that a block of a cluster writes. */
DEVICE void divide_rows(const struct tensor_args *a, struct product_tile *t, const int X)
{
	int end = 2 * X * ((int)blockIdx.y + 1) / (int)gridDim.y * RUN_ROWS;

	t->row = 2 * X * (int)blockIdx.y / (int)gridDim.y * RUN_ROWS;
	t->row_end = end < a->rows ? end : a->rows;
}

/* Writes the tile, whose other parts the last block adds, or the cluster. */
DEVICE void finish_tile(const struct tensor_args *a, struct product_tile *t, const int X,
                        const int C)
{
	const int wide = C == WIDE_COLUMNS;
	float added[RUNS_LOADED][4];

	if (!wide && gridDim.y > 1 && !share_part(a, t, X))
		return;
	if (wide)
		divide_rows(a, t, X);
	if (!a->glu)
		EACH(i, RUNS_LOADED)
			load_added(a, t, t->row / RUN_ROWS + i, C, added[i]);
	if (wide && gridDim.y > 1)
		share_halves(t, X);
	else if (gridDim.y > 1)
		add_parts(a, t, X);
	if (a->glu)
		write_outs_of_glu(a, t, X, C);
	else
		write_outs(a, t, X, C, added);
	if (wide && gridDim.y > 1)
		sync_cluster(); /* all have read the sums of this block */
}

/* Waits for the oldest stage of a ring. */
DEVICE void wait_for_stage(const int C, int ring)
{
	if (C == PRODUCT_COLUMNS)
		wait_copies(PRODUCT_STAGES - 2);
	else if (ring == WIDE_STAGES)
		wait_copies(WIDE_STAGES - 2);
	else
		wait_copies(DEEP_STAGES - 2);
}

/* Adds the products of all stages of a tile; a warp has the columns from `first` on. */
DEVICE void multiply_stages(const struct tensor_args *a, const struct product_tile *t,
                            const uint16_t *const *w, const int X, const int C, int first,
                            float *sum)
{
	const int bytes = (C + X * 16) * STAGE_ROW; /* bytes of a stage */
	int ring = C == PRODUCT_COLUMNS ? PRODUCT_STAGES : a->ring, used = 0, free = ring - 1;
	int stages = (int)((t->end - t->at + STAGE_TERMS - 1) / STAGE_TERMS);
	int half = threadIdx.x / WARP / (C / WARP_COLUMNS);
	char *stage = (char *)t->sums;

	UNROLL_BY(1)
	for (int s = 0; s < ring - 1; s++) {
		if (s < stages)
			copy_operands(a, t, w, t->at + s * STAGE_TERMS, X, C, stage + s * bytes);
		commit_copies();
	}
	for (int s = 0; s < stages; s++) {
		const char *from = stage + used * bytes;
		int next = s + ring - 1;

		wait_for_stage(C, ring);
		sync_block(); /* the previous stage has been used */
		if (next < stages)
			copy_operands(a, t, w, t->at + next * STAGE_TERMS, X, C,
			              stage + free * bytes);
		commit_copies();
		EACH(k, 2)
			multiply_terms(from + C * STAGE_ROW, from + first * STAGE_ROW, half * 2 + k,
			               X, WARP_COLUMNS / 16, sum);
		free = used;
		used = used + 1 < ring ? used + 1 : 0;
	}
}

DEVICE void multiply_part(const struct tensor_args *a, const int X, const int C)
{
	DYNAMIC_SHARED(shared_stages);
	struct product_tile t = find_product_tile(a, C, shared_stages);
	int warp = threadIdx.x / WARP, first = warp % (C / WARP_COLUMNS) * WARP_COLUMNS;
	int half = warp / (C / WARP_COLUMNS);
	const uint16_t *w[COPIED_COLUMNS];
	float sum[PRODUCT_ROWS / 16 * WARP_COLUMNS / 16 * 8];

	EACH(j, COPIED_COLUMNS)
		w[j] = find_product_column(a, &t,
		                           (int)threadIdx.x / STAGE_CHUNKS + j * COPIED_ROWS(C));
	prefetch_stages(&t, w); /* while the previous kernel ends */
	wait_for_kernels();
	EACH(i, X * WARP_COLUMNS / 2)
		sum[i] = 0.0f;
	multiply_stages(a, &t, w, X, C, first, sum);
	sync_block(); /* the last stage has been used */
	spread_sums(sum, X, WARP_COLUMNS / 16, C + SUMS_GAP,
	            t.sums + half * X * 16 * (C + SUMS_GAP) + first);
	sync_block();
	finish_tile(a, &t, X, C);
}

#define MULTIPLY_TENSOR(name, rows, columns) \
	KERNEL_EARLY(PRODUCT_THREADS(columns), PRODUCT_BLOCKS, multiply_tensor_##name, \
	             tensor_args) \
	{ \
		multiply_part(&a, rows / 16, columns); \
	}

MULTIPLY_TENSOR(16, 16, PRODUCT_COLUMNS)
MULTIPLY_TENSOR(32, 32, PRODUCT_COLUMNS)
MULTIPLY_TENSOR(64, 64, PRODUCT_COLUMNS)
MULTIPLY_TENSOR(wide, 64, WIDE_COLUMNS)
