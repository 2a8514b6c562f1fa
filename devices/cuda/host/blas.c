/*
 * blas.c - products by cuBLASLt, whose algorithm for each shape is kept: equal products get equal
 * bits.
 */
#include "gpu.h"

#include <stdlib.h>
#include <string.h>

enum { WORKSPACE_BYTES = 32 << 20, BUCKETS = 64, ALIGN_MAX = 256 };

struct key { /* without gaps, compared as bytes */
	int64_t rows, columns, k, y_pitch, more_pitch, x_stride[2], w_stride[2], w_step, y_step;
	int32_t dtype, half, tf32, adds, x_align, w_align, y_align, more_align, count;
	int32_t apart; /* the addend is not stored in y */
};

struct plan {
	struct plan *next;
	struct key key;
	bool usable; /* false: cuBLASLt does not support it */
	cublasLtMatmulDesc_t product;
	cublasLtMatrixLayout_t w, x, y, more; /* more NULL: y */
	cublasLtMatmulAlgo_t algo;
};

struct blas {
	cublasLtHandle_t handle;
	void *workspace;
	struct plan *bucket[BUCKETS];
};

static tess_status fail_blas(const struct tess_op *op, const char *call, cublasStatus_t why)
{
	return cuda_host->fail(TESS_EDEVICE, "%s: cuda: %s: cuBLASLt status %d", op->where, call,
	                       (int)why);
}

static tess_status open_blas(struct gpu *g, const struct tess_op *op)
{
	struct blas *b = calloc(1, sizeof *b);
	cublasStatus_t result;
	tess_status st;

	if (!b)
		return cuda_host->fail(TESS_ENOMEM, "%s: cuda: out of memory", op->where);
	g->blas = b;
	result = cuda.cublasLtCreate(&b->handle);
	if (result != CUBLAS_STATUS_SUCCESS)
		st = fail_blas(op, "cublasLtCreate", result);
	else
		st = memory_alloc(g, WORKSPACE_BYTES, &b->workspace);
	if (st)
		blas_close(g);
	return st;
}

static void free_plan(struct plan *p)
{
	if (p->product)
		cuda.cublasLtMatmulDescDestroy(p->product);
	if (p->w)
		cuda.cublasLtMatrixLayoutDestroy(p->w);
	if (p->x)
		cuda.cublasLtMatrixLayoutDestroy(p->x);
	if (p->y)
		cuda.cublasLtMatrixLayoutDestroy(p->y);
	if (p->more)
		cuda.cublasLtMatrixLayoutDestroy(p->more);
	free(p);
}

void blas_close(struct gpu *g)
{
	struct blas *b = g->blas;

	if (!b)
		return;
	for (int i = 0; i < BUCKETS; i++) {
		for (struct plan *p = b->bucket[i], *next; p; p = next) {
			next = p->next;
			free_plan(p);
		}
	}
	if (b->handle)
		cuda.cublasLtDestroy(b->handle);
	memory_free(g, b->workspace);
	free(b);
	g->blas = NULL;
}

static int32_t find_alignment(const void *p)
{
	int32_t align = 1;

	while (align < ALIGN_MAX && (uintptr_t)p % (2 * (uintptr_t)align) == 0)
		align *= 2;
	return align;
}

static struct key make_key(const struct product *p)
{
	struct key k;

	memset(&k, 0, sizeof k);
	k.rows = p->rows;
	k.columns = p->columns;
	k.k = p->k;
	k.y_pitch = p->y_pitch;
	memcpy(k.x_stride, p->x_stride, sizeof k.x_stride);
	memcpy(k.w_stride, p->w_stride, sizeof k.w_stride);
	k.dtype = p->dtype;
	k.half = p->half;
	k.tf32 = p->tf32;
	k.adds = p->more != NULL;
	k.apart = p->more && p->more != p->y;
	k.more_pitch = p->more ? p->more_pitch : p->y_pitch;
	k.count = p->count;
	k.w_step = p->w_step;
	k.y_step = p->y_step;
	k.x_align = find_alignment(p->x);
	k.w_align = find_alignment(p->w);
	k.y_align = find_alignment(p->y);
	k.more_align = find_alignment(p->more ? p->more : p->y);
	return k;
}

/* Describes a matrix of `count` products; if equal for all, `step` is 0. */
static cublasStatus_t describe_matrix(cublasLtMatrixLayout_t *out, cudaDataType_t type,
                                      int64_t high, int64_t wide, int64_t pitch, int32_t count,
                                      int64_t step)
{
	cublasStatus_t st =
		cuda.cublasLtMatrixLayoutCreate(out, type, (uint64_t)high, (uint64_t)wide, pitch);

	if (!st && count > 1)
		st = cuda.cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
		                                           &count, sizeof count);
	if (!st && count > 1)
		st = cuda.cublasLtMatrixLayoutSetAttribute(
			*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step);
	return st;
}

/*
 * Describes the product. cuBLASLt's matrices are column-major: y' [columns, rows] = w' x'. W in
 * rows is a transposed [k, columns]; x' is [k, rows], and x stored as [k, rows] is a transposed
 * one.
 */
static cublasStatus_t describe_product(struct plan *p)
{
	const struct key *k = &p->key;
	cudaDataType_t in = k->dtype == TESS_F32 ? CUDA_R_32F : CUDA_R_16BF;
	cudaDataType_t out = k->half ? CUDA_R_16BF : CUDA_R_32F;
	cublasOperation_t turn = k->w_stride[1] == 1 ? CUBLAS_OP_T : CUBLAS_OP_N;
	int64_t high = turn == CUBLAS_OP_T ? k->k : k->columns;
	int64_t wide = turn == CUBLAS_OP_T ? k->columns : k->k;
	int64_t stride = turn == CUBLAS_OP_T ? k->w_stride[0] : k->w_stride[1];
	int64_t ld = wide == 1 ? high : stride; /* a single vector may have any stride */
	cublasOperation_t turn_x = k->x_stride[1] == 1 ? CUBLAS_OP_N : CUBLAS_OP_T;
	int64_t x_high = turn_x == CUBLAS_OP_N ? k->k : k->rows;
	int64_t x_ld = turn_x == CUBLAS_OP_N ? k->x_stride[0] : k->x_stride[1];
	cublasStatus_t st = cuda.cublasLtMatmulDescCreate(
		&p->product, k->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
		CUDA_R_32F);

	if (!st)
		st = cuda.cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSA,
		                                         &turn, sizeof turn);
	if (!st)
		st = cuda.cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSB,
		                                         &turn_x, sizeof turn_x);
	if (!st)
		st = describe_matrix(&p->w, in, high, wide, ld, k->count, k->w_step);
	if (!st)
		st = describe_matrix(&p->x, in, x_high, k->k + k->rows - x_high, x_ld, k->count, 0);
	if (!st)
		st = describe_matrix(&p->y, out, k->columns, k->rows, k->y_pitch, k->count,
		                     k->y_step);
	if (!st && k->apart)
		st = describe_matrix(&p->more, out, k->columns, k->rows, k->more_pitch, k->count,
		                     k->y_step);
	return st;
}

static cublasLtMatrixLayout_t get_added(const struct plan *p)
{
	return p->more ? p->more : p->y;
}

/* Chooses cuBLASLt's first algorithm without atomics: partial sums go through the workspace. */
static cublasStatus_t choose_algorithm(const struct blas *b, struct plan *p)
{
	uint64_t bytes = WORKSPACE_BYTES;
	uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, align[4];
	cublasLtMatmulHeuristicResult_t found;
	cublasLtMatmulPreference_t wish;
	cublasStatus_t st = cuda.cublasLtMatmulPreferenceCreate(&wish);
	const struct {
		cublasLtMatmulPreferenceAttributes_t name;
		const void *value;
		size_t bytes;
	} set[] = {
		{ CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes },
		{ CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction },
		{ CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align[0], sizeof align[0] },
		{ CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align[1], sizeof align[1] },
		{ CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align[3], sizeof align[3] },
		{ CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align[2], sizeof align[2] },
	};
	int n = 0;

	if (st)
		return st;
	align[0] = (uint32_t)p->key.w_align;
	align[1] = (uint32_t)p->key.x_align;
	align[2] = (uint32_t)p->key.y_align;
	align[3] = (uint32_t)p->key.more_align;
	for (size_t i = 0; i < sizeof set / sizeof *set && !st; i++)
		st = cuda.cublasLtMatmulPreferenceSetAttribute(wish, set[i].name, set[i].value,
		                                               set[i].bytes);
	if (!st)
		st = cuda.cublasLtMatmulAlgoGetHeuristic(b->handle, p->product, p->w, p->x,
		                                         get_added(p), p->y, wish, 1, &found, &n);
	cuda.cublasLtMatmulPreferenceDestroy(wish);
	p->usable = !st && n == 1 && found.state == CUBLAS_STATUS_SUCCESS;
	if (p->usable)
		p->algo = found.algo;
	return st == CUBLAS_STATUS_NOT_SUPPORTED ? CUBLAS_STATUS_SUCCESS : st;
}

static tess_status find_plan(struct blas *b, const struct tess_op *op, const struct product *p,
                             struct plan **out)
{
	struct key key = make_key(p);
	struct plan **at = &b->bucket[(key.rows * 7 + key.columns * 3 + key.k) % BUCKETS], *made;
	cublasStatus_t st;

	for (; *at; at = &(*at)->next) {
		if (!memcmp(&(*at)->key, &key, sizeof key)) {
			*out = *at;
			return TESS_OK;
		}
	}
	made = calloc(1, sizeof *made);
	if (!made)
		return cuda_host->fail(TESS_ENOMEM, "%s: cuda: out of memory", op->where);
	made->key = key;
	st = describe_product(made);
	if (!st)
		st = choose_algorithm(b, made);
	if (st) {
		free_plan(made);
		return fail_blas(op, "cublasLtMatmulAlgoGetHeuristic", st);
	}
	*at = *out = made;
	return TESS_OK;
}

tess_status blas_multiply(struct gpu *g, const struct tess_op *op, const struct product *p)
{
	const float one = 1.0f, beta = p->more ? 1.0f : 0.0f;
	const void *more = p->more ? p->more : p->y;
	struct plan *plan = NULL;
	cublasStatus_t result;
	tess_status st = g->blas ? TESS_OK : open_blas(g, op);

	if (!st)
		st = find_plan(g->blas, op, p, &plan);
	if (st)
		return st;
	if (!plan->usable)
		return TESS_ENOTSUP;
	result = cuda.cublasLtMatmul(g->blas->handle, plan->product, &one, p->w, plan->w, p->x,
	                             plan->x, &beta, more, get_added(plan), p->y, plan->y,
	                             &plan->algo, g->blas->workspace, WORKSPACE_BYTES, op->stream);
	return result == CUBLAS_STATUS_SUCCESS ? TESS_OK : fail_blas(op, "cublasLtMatmul", result);
}
