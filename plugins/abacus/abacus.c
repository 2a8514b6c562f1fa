/* tess-device-abacus.so: computes the ops of Llama in f32, one element at a time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/device.h>

enum { PAGE = 64 }; /* positions of a page of the KV cache */

static const struct tess_host *host;

static float *address_element(const struct tess_view *v, int64_t i, int64_t k)
{
	return (float *)v->data + i * v->stride[0] + k * v->stride[1];
}

static int32_t read_id(const struct tess_view *v, int64_t i)
{
	return ((const int32_t *)v->data)[i];
}

static int64_t get_op_number(const struct tess_op *op, int index)
{
	return (int64_t)op->num[index];
}

/* Views an output as rows and columns: without exact sums a Partial is [1, T, N]. */
static struct tess_view view_rows(const struct tess_view *v)
{
	struct tess_view rows = *v;

	for (int32_t i = 0; v->ndim == 3 && i < 2; i++) {
		rows.shape[i] = v->shape[i + 1];
		rows.stride[i] = v->stride[i + 1];
	}
	return rows;
}

/* Contracts a row over this rank's elements of the contracted axis, those of the terms. */
static float contract_row(const struct tess_op *op, const struct tess_view *w, int64_t t, int64_t j)
{
	float sum = 0;

	for (int32_t i = 0; i < op->ntree; i++) {
		const struct tess_tree *tree = &op->tree[i];

		for (int32_t n = tree->first; n < tree->first + tree->terms; n++)
			for (int64_t k = op->term[n].bound[0];
			     k < op->term[n].bound[tree->hi - tree->lo]; k++)
				sum += *address_element(&op->in[0], t, k) *
				       *address_element(w, j, k);
	}
	return sum;
}

static void perform_linear(const struct tess_op *op)
{
	for (int32_t i = 0; i < op->nout; i++) {
		struct tess_view y = view_rows(&op->out[i]);

		for (int64_t t = 0; t < y.shape[0]; t++)
			for (int64_t j = 0; j < y.shape[1]; j++)
				*address_element(&y, t, j) = contract_row(op, &op->in[1 + i], t, j);
	}
}

/* Looks up rows; an id of another rank gives zeros. */
static void perform_embed(const struct tess_op *op)
{
	const struct tess_view *table = &op->in[1];
	struct tess_view y = view_rows(&op->out[0]);

	for (int64_t t = 0; t < y.shape[0]; t++) {
		int64_t id = read_id(&op->in[0], t) - get_op_number(op, TESS_EMBED_FIRST);

		for (int64_t k = 0; k < y.shape[1]; k++)
			*address_element(&y, t, k) = id >= 0 && id < table->shape[0]
			                                     ? *address_element(table, id, k)
			                                     : 0;
	}
}

static void perform_norm(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *w = &op->in[1];

	for (int64_t t = 0; t < x->shape[0]; t++) {
		float sum = 0;

		for (int64_t k = 0; k < x->shape[1]; k++)
			sum += *address_element(x, t, k) * *address_element(x, t, k);
		sum = 1 / sqrtf(sum / (float)x->shape[1] + (float)op->num[TESS_NORM_EPS]);
		for (int64_t k = 0; k < x->shape[1]; k++)
			*address_element(&op->out[0], t, k) =
				*address_element(x, t, k) * sum * *address_element(w, k, 0);
	}
}

/* Rotates elements i and i + half of each head; the output may be the input. */
static void perform_rope(const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *table = &op->in[2];
	int64_t each = get_op_number(op, TESS_ROPE_HEAD), half = each / 2;

	for (int64_t t = 0; t < x->shape[0]; t++) {
		const float *angle = address_element(table, read_id(&op->in[1], t), 0);

		for (int64_t k = 0; k < x->shape[1]; k++) {
			int64_t i = k % each;
			float a, b;

			if (i >= half)
				continue;
			a = *address_element(x, t, k), b = *address_element(x, t, k + half);
			*address_element(&op->out[0], t, k) = a * angle[i] - b * angle[half + i];
			*address_element(&op->out[0], t, k + half) =
				b * angle[i] + a * angle[half + i];
		}
	}
}

/* Returns element i of a key or value. A page has keys [heads, d, 64], values [heads, 64, d]. */
static float *locate_cached(const struct tess_op *op, int64_t slot, int64_t p, int64_t kv,
                            int64_t i, int value)
{
	const int64_t *pages = (const int64_t *)op->in[5].data + slot * op->in[5].stride[0];
	int64_t d = get_op_number(op, TESS_ATTENTION_HEAD);
	float *page = (float *)(uintptr_t)(pages[p / PAGE] +
	                                   get_op_number(op, value ? TESS_ATTENTION_VALUES
	                                                           : TESS_ATTENTION_KEYS));

	return value ? page + (kv * PAGE + p % PAGE) * d + i
	             : page + (kv * d + i) * PAGE + p % PAGE;
}

/* Attends with one query head of row t: softmax over positions up to its own, sum of values. */
static void attend_query_head(const struct tess_op *op, int64_t t, int64_t h, float *score)
{
	int64_t slot = read_id(&op->in[4], t), own = read_id(&op->in[3], t),
		d = get_op_number(op, TESS_ATTENTION_HEAD),
		lo = get_op_number(op, TESS_ATTENTION_FIRST),
		group = get_op_number(op, TESS_ATTENTION_GROUP), kv = (lo + h) / group - lo / group;
	float most = -INFINITY, sum = 0;

	for (int64_t p = 0; p <= own; p++) {
		score[p] = 0;
		for (int64_t i = 0; i < d; i++)
			score[p] += *address_element(&op->in[0], t, h * d + i) *
			            *locate_cached(op, slot, p, kv, i, 0);
		score[p] *= (float)op->num[TESS_ATTENTION_SCALE];
		most = fmaxf(most, score[p]);
	}
	for (int64_t p = 0; p <= own; p++)
		sum += score[p] = expf(score[p] - most);
	for (int64_t i = 0; i < d; i++) {
		float y = 0;

		for (int64_t p = 0; p <= own; p++)
			y += score[p] / sum * *locate_cached(op, slot, p, kv, i, 1);
		*address_element(&op->out[0], t, h * d + i) = y;
	}
}

/* Stores the keys and values of all rows first: a row may attend to another row of this step. */
static tess_status perform_attention(const struct tess_op *op)
{
	const struct tess_view *q = &op->in[0], *k = &op->in[1], *v = &op->in[2];
	int64_t d = get_op_number(op, TESS_ATTENTION_HEAD), longest = 0;
	float *score;

	for (int64_t t = 0; t < q->shape[0]; t++) {
		int64_t p = read_id(&op->in[3], t), slot = read_id(&op->in[4], t);

		longest = p > longest ? p : longest;
		for (int64_t i = 0; i < k->shape[1]; i++) {
			*locate_cached(op, slot, p, i / d, i % d, 0) = *address_element(k, t, i);
			*locate_cached(op, slot, p, i / d, i % d, 1) = *address_element(v, t, i);
		}
	}
	score = malloc(((size_t)longest + 1) * sizeof *score);
	if (!score)
		return host->fail(TESS_ENOMEM, "%s: abacus: out of memory", op->where);
	for (int64_t t = 0; t < q->shape[0]; t++)
		for (int64_t h = 0; h < q->shape[1] / d; h++)
			attend_query_head(op, t, h, score);
	free(score);
	return TESS_OK;
}

/* Performs GLU, ADD, SELECT_ROWS and COPY on rows. */
static void perform_elements(const struct tess_op *op)
{
	struct tess_view y = view_rows(&op->out[0]), x = view_rows(&op->in[0]);

	for (int64_t t = 0; t < y.shape[0]; t++) {
		int64_t row = op->kind == TESS_OP_SELECT_ROWS ? read_id(&op->in[1], t) : t;

		for (int64_t k = 0; k < y.shape[1]; k++) {
			float a = *address_element(&x, row, k);

			if (op->kind == TESS_OP_GLU)
				a = a / (1 + expf(-a)) * *address_element(&op->in[1], t, k);
			else if (op->kind == TESS_OP_ADD)
				a += *address_element(&op->in[1], t, k);
			*address_element(&y, t, k) = a;
		}
	}
}

static tess_status abacus_run(void *self, const struct tess_op *op)
{
	(void)self;
	switch (op->kind) {
	case TESS_OP_LINEAR:
		perform_linear(op);
		return TESS_OK;
	case TESS_OP_EMBED:
		perform_embed(op);
		return TESS_OK;
	case TESS_OP_NORM:
		perform_norm(op);
		return TESS_OK;
	case TESS_OP_ROPE:
		perform_rope(op);
		return TESS_OK;
	case TESS_OP_ATTENTION:
		return perform_attention(op);
	default:
		perform_elements(op);
		return TESS_OK;
	}
}

/* Returns whether abacus computes an op, by its kind and numbers. */
static int computes_op(const struct tess_op *op)
{
	switch (op->kind) {
	case TESS_OP_LINEAR:
	case TESS_OP_EMBED:
	case TESS_OP_ADD:
	case TESS_OP_COPY:
	case TESS_OP_SELECT_ROWS:
		return 1;
	case TESS_OP_NORM:
		return op->num[TESS_NORM_KIND] == TESS_RMS && op->num[TESS_NORM_RUN] == 0 &&
		       op->num[TESS_NORM_OFFSET] == 0;
	case TESS_OP_ROPE:
		return op->num[TESS_ROPE_WIDTH] == op->num[TESS_ROPE_HEAD] &&
		       op->num[TESS_ROPE_INTERLEAVED] == 0 && op->num[TESS_ROPE_INVERSE] == 0;
	case TESS_OP_ATTENTION:
		return op->in[2].ndim && op->in[5].ndim && op->num[TESS_ATTENTION_WINDOW] == 0 &&
		       op->num[TESS_ATTENTION_SOFTCAP] == 0 &&
		       op->num[TESS_ATTENTION_DTYPE] == TESS_F32 &&
		       op->num[TESS_ATTENTION_RATE] == 0;
	case TESS_OP_GLU:
		return op->nin == 2 && op->num[TESS_GLU_ACTIVATION] == TESS_SILU;
	default:
		return 0;
	}
}

static tess_status abacus_supports(const struct tess_op *op)
{
	if (!computes_op(op))
		return host->fail(TESS_ENOTSUP, "%s: abacus: an op of kind %d, or its numbers",
		                  op->where, (int)op->kind);
	for (int32_t i = 0; i < op->nin; i++)
		if (op->in[i].ndim && op->in[i].dtype != TESS_F32 && op->in[i].dtype != TESS_I32 &&
		    op->in[i].dtype != TESS_I64)
			return host->fail(TESS_ENOTSUP,
			                  "%s: abacus: weights that are not f32; tessera "
			                  "convert --dtype f32 makes them so",
			                  op->where);
	return TESS_OK;
}

static int32_t abacus_count(void)
{
	return 1;
}

static tess_status abacus_open(int32_t index, int32_t nthreads, void **self)
{
	(void)index, (void)nthreads;
	*self = NULL;
	return TESS_OK;
}

static tess_status abacus_alloc(void *self, uint64_t bytes, void **out)
{
	(void)self;
	*out = aligned_alloc(64, (bytes + 63) / 64 * 64);
	return *out ? TESS_OK : host->fail(TESS_ENOMEM, "abacus: out of memory");
}

static void abacus_free(void *self, void *p)
{
	(void)self;
	free(p);
}

static tess_status abacus_pack(void *self, const struct tess_view *rows, struct tess_view *panels)
{
	(void)self, (void)rows, (void)panels;
	return host->fail(TESS_ENOTSUP, "abacus: weights stay in rows");
}

static tess_status abacus_copy(void *self, void *dst, const void *src, uint64_t bytes, void *stream)
{
	(void)self, (void)stream;
	memcpy(dst, src, bytes);
	return TESS_OK;
}

static tess_status abacus_sync(void *self, void *stream)
{
	(void)self, (void)stream;
	return TESS_OK;
}

static void abacus_close(void *self)
{
	(void)self;
}

static const struct tess_device abacus = {
	.size = sizeof abacus,
	.mem = TESS_HOST,
	.name = "abacus",
	.summary = "the ops of Llama in f32, one element at a time",
	.layout = TESS_ROWS,
	.count = abacus_count,
	.supports = abacus_supports,
	.open = abacus_open,
	.alloc = abacus_alloc,
	.free = abacus_free,
	.run = abacus_run,
	.pack = abacus_pack,
	.copy = abacus_copy,
	.sync = abacus_sync,
	.close = abacus_close,
};

static tess_status init_plugin(const struct tess_host *h)
{
	host = h;
	return TESS_OK;
}

TESS_DEFINE_PLUGIN("abacus", "1.0", "Apache-2.0", .devices = TESS_LIST(tess_device, &abacus),
                   .init = init_plugin);
