/* product_tensor.c - LINEAR of 9 to 64 rows by bf16 weights: the kernels of multiply_tensor.cuh. */
#include "gpu.h"

#include <stdlib.h>

/* The first compute capability with clusters; minimum stages of a part that a cluster adds. */
enum { CLUSTER_MAJOR = 9, PART_STAGES = 4 };

static int64_t count_running_blocks(const struct gpu *g)
{
	return (int64_t)g->processors * PRODUCT_BLOCKS;
}

/* Allocates the sums of all concurrent blocks, and their counts, which are 0. */
static tess_status open_part_sums(struct gpu *g, const struct tess_op *op)
{
	uint64_t slots = (uint64_t)count_running_blocks(g), bytes = slots * sizeof *g->ended;
	uint64_t sums = slots * PRODUCT_ROWS * PRODUCT_COLUMNS * sizeof *g->sums;
	uint32_t *zeros;
	void *memory = NULL;
	tess_status st;

	if (g->sums)
		return TESS_OK;
	if (g->capturing)
		return cuda_host->fail(TESS_EBUG,
		                       "%s: cuda: an op of a graph adds parts: run it once before "
		                       "it is captured",
		                       op->where);
	zeros = calloc(slots, sizeof *zeros);
	st = zeros ? memory_alloc(g, sums + bytes, &memory)
	           : cuda_host->fail(TESS_ENOMEM, "%s: cuda: out of memory", op->where);
	if (!st)
		st = memory_copy(g, (char *)memory + sums, zeros, bytes, op->stream);
	if (!st) /* any stream may count there */
		st = CUDA_CALL(op->where, cuStreamSynchronize, op->stream);
	free(zeros);
	if (st) {
		memory_free(g, memory);
		return st;
	}
	g->sums = memory;
	g->ended = (uint32_t *)(void *)((char *)memory + sums);
	return TESS_OK;
}

bool product_can_use_tensor(const struct gpu *g, const struct tess_op *op,
                            const struct product_run *r)
{
	if (op->in[0].shape[0] <= MULTIPLY_ROWS || op->in[0].shape[0] > PRODUCT_ROWS ||
	    product_get_math(g->math, op) != MATH_AUTO || !r->len || r->len % 8)
		return false;
	for (int32_t i = 0; i < op->nout; i++) {
		const struct tess_view *w = &op->in[1 + i];

		if (w->dtype != TESS_BF16 || w->stride[1] != 1 ||
		    !is_row_aligned(product_get_weight(w, r), w->stride[0], 2))
			return false;
	}
	return true;
}

/*
 * Returns the parts of K: enough to fill the GPU, but each with so many stages that they take
 * longer than its sums, which grow with the rows.
 */
static int64_t divide_terms(const struct gpu *g, int64_t tiles, struct tensor_args *a)
{
	int64_t stages = tess_up(a->k, STAGE_TERMS), least = a->rows > 32 ? 8 : 4;
	int64_t n = count_running_blocks(g) / tiles;

	n = n < stages / least ? n : stages / least;
	n = n < PRODUCT_PARTS ? n : PRODUCT_PARTS;
	a->part = tess_up(stages, n > 1 ? n : 1) * STAGE_TERMS;
	return tess_up(a->k, a->part);
}

/* Places the tiles of all weights, of `columns` columns each; returns their number. */
static int64_t place_tiles(struct tensor_args *a, int64_t columns)
{
	int64_t tiles = 0;

	if (a->glu)
		return tess_up(a->of[0].columns, columns / 2);
	for (int32_t i = 0; i < a->nweights; i++) {
		a->of[i].first_block = (int32_t)tiles;
		tiles += tess_up(a->of[i].columns, columns);
	}
	return tiles;
}

/*
 * Returns the number of clusters of `n` wide blocks, of `ring` stages each, that run at once; 0 if
 * the GPU has none. All blocks of a cluster run on one GPC, whose multiprocessors n may not divide.
 */
static int64_t count_running_clusters(struct gpu *g, int32_t n, int32_t ring)
{
	int32_t *known = &g->clusters[ring == DEEP_STAGES][n];
	CUlaunchAttribute size = { .id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
		                   .value.clusterDim = { 1, (unsigned)n, 1 } };
	CUlaunchConfig how = { .gridDimX = 1,
		               .gridDimY = (unsigned)n,
		               .gridDimZ = 1,
		               .blockDimX = PRODUCT_THREADS(WIDE_COLUMNS),
		               .blockDimY = 1,
		               .blockDimZ = 1,
		               .sharedMemBytes = (unsigned)(ring * WIDE_BYTES),
		               .attrs = &size,
		               .numAttrs = 1 };
	int count = 0;

	if (*known)
		return *known - 1;
	if (cuda.cuOccupancyMaxActiveClusters(&count, g->kernel[KERNEL_multiply_tensor_wide], &how))
		count = 0;
	*known = 1 + count;
	return count;
}

/*
 * Returns the parts of K of `tiles` wide tiles, each part a block of a cluster: as many as let all
 * tiles run at once; 0 if these are fewer than 4, which narrow tiles outrun. 7 was not measured.
 */
static int32_t divide_clusters(struct gpu *g, int64_t tiles, const struct tensor_args *a)
{
	static const int32_t parts[] = { PRODUCT_PARTS, 6, 5, 4 };
	int64_t stages = tess_up(a->k, STAGE_TERMS);

	for (size_t i = 0; i < sizeof parts / sizeof *parts && g->major >= CLUSTER_MAJOR; i++)
		if (stages >= parts[i] * PART_STAGES &&
		    count_running_clusters(g, parts[i], a->ring) >= tiles)
			return parts[i];
	return 0;
}

/*
 * Divides into wide tiles, which read x half as often, if they fill the GPU; returns whether they
 * do. Parts with all shared memory of a multiprocessor come first.
 */
static bool divide_wide(struct gpu *g, struct tensor_args *a, struct launch *l)
{
	int64_t tiles = place_tiles(a, WIDE_COLUMNS), stages;
	int32_t parts;

	if (a->rows <= 32)
		return false;
	a->ring = DEEP_STAGES;
	parts = divide_clusters(g, tiles, a);
	if (!parts) {
		a->ring = WIDE_STAGES;
		parts = divide_clusters(g, tiles, a);
	}
	if (!parts && tiles * 5 < (int64_t)g->processors * 8)
		return false;
	a->part = tess_up(tess_up(a->k, STAGE_TERMS), parts ? parts : 1) * STAGE_TERMS;
	stages = a->part / STAGE_TERMS < a->ring ? a->part / STAGE_TERMS : a->ring;
	l->kernel = KERNEL_multiply_tensor_wide;
	l->threads = PRODUCT_THREADS(WIDE_COLUMNS);
	l->shared = (int32_t)(stages > WIDE_STAGES ? stages : WIDE_STAGES) * WIDE_BYTES;
	l->blocks[0] = tiles;
	l->blocks[1] = tess_up(a->k, a->part);
	l->cluster = l->blocks[1] > 1 ? (int32_t)l->blocks[1] : 0;
	return true;
}

/* Divides into tiles of 64 columns, whose parts the last block adds. */
static tess_status divide_narrow(struct gpu *g, const struct tess_op *op, struct tensor_args *a,
                                 struct launch *l)
{
	l->kernel = a->rows > 32   ? KERNEL_multiply_tensor_64
	            : a->rows > 16 ? KERNEL_multiply_tensor_32
	                           : KERNEL_multiply_tensor_16;
	l->threads = PRODUCT_THREADS(PRODUCT_COLUMNS);
	l->shared = PRODUCT_BYTES;
	l->blocks[0] = place_tiles(a, PRODUCT_COLUMNS);
	if (!l->blocks[0])
		return TESS_OK;
	l->blocks[1] = divide_terms(g, l->blocks[0], a);
	return l->blocks[1] > 1 ? open_part_sums(g, op) : TESS_OK;
}

static tess_status launch_tiles(struct gpu *g, const struct tess_op *op, struct tensor_args *a)
{
	struct launch l = { .blocks = { 0, 0, 1 }, .args = a };
	tess_status st = divide_wide(g, a, &l) ? TESS_OK : divide_narrow(g, op, a, &l);

	a->sums = g->sums;
	a->ended = g->ended;
	return st ? st : op_launch(g, op, l);
}

/* Places the GLU's output in scratch memory, after x if that is there. */
static tess_status place_glu(struct gpu *g, const struct tess_op *glu, const void *x,
                             uint64_t bytes, struct handover *to)
{
	const struct scratch *s = g->scratch;
	uint64_t at = s ? (uint64_t)((uintptr_t)x - (uintptr_t)s->data) : 0;
	float *none = NULL;

	at = s && at < s->bytes ? at + bytes : 0;
	return handover_round_rows(g, glu, (uint64_t)tess_up((int64_t)at, 256) * 256, &none, to);
}

/* Multiplies by weights [from, from + n), with a GLU by both. */
static tess_status multiply_weights(struct gpu *g, const struct tess_op *op,
                                    const struct product_run *r, int32_t from, int32_t n,
                                    struct tensor_args a)
{
	a.nweights = n;
	a.wide = 1;
	for (int32_t i = 0; i < n; i++) {
		struct multiplied *m = &a.of[i];

		*m = product_describe_weight(op, r, from + i, 0);
		a.wide &= is_row_aligned(m->y, m->y_pitch, sizeof(float)) &&
		          (!m->more || is_row_aligned(m->more, m->more_pitch, sizeof(float)));
	}
	return launch_tiles(g, op, &a);
}

tess_status product_multiply_tensor(struct gpu *g, const struct tess_op *op,
                                    const struct product_run *r)
{
	const struct tess_op *glu = handover_get_halved_glu(g, op);
	struct tensor_args a = { .k = r->len, .rows = (int32_t)op->in[0].shape[0] };
	struct product_run with = *r;
	const void *x = NULL;
	tess_status st = product_round_x(g, op, r, &x, &a.x_pitch);

	a.x = x;
	product_set_add(op, &with);
	if (glu && !st) {
		a.activation = (int32_t)glu->num[TESS_GLU_ACTIVATION];
		a.glu_pitch = glu->out[0].shape[1];
		st = place_glu(g, glu, x, (uint64_t)(a.rows * a.x_pitch * 2), r->to);
		a.glu = r->to->rounded;
	}
	for (int32_t i = 0; i < op->nout && !st; i += MULTIPLY_WEIGHTS)
		st = multiply_weights(
			g, op, &with, i,
			op->nout - i < MULTIPLY_WEIGHTS ? op->nout - i : MULTIPLY_WEIGHTS, a);
	if (glu || with.add)
		r->to->op = op->next->next;
	return st;
}
