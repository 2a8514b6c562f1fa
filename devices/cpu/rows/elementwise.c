/* elementwise.c - elementwise ops: EMBED, BIAS, ROPE, GLU, SIGMOID, ADD, SCALE, COPY, gradients. */
#include "elementwise.h"

#include "mathf.h"

enum { SMALL = 1 << 14 }; /* elements of the smallest share: fewer are not worth a thread */

struct rows {
	const struct tess_op *op;
};

/* Runs fn over the rows of in[0], in shares of at least SMALL elements. */
static tess_status run_over_rows(struct cpu *cpu, const struct tess_op *op, pool_fn *fn)
{
	struct rows arg = { op };

	pool_run(cpu->pool, fn, &arg, op->in[0].shape[0], tess_up(SMALL, op->in[0].shape[1] + 1));
	return TESS_OK;
}

/* Defines op `run`, whose rows compute_row(op, t) computes one by one. */
#define DEFINE_ROW_OP(run, compute_row) \
	static void compute_row##s(void *arg, int64_t lo, int64_t hi, int32_t thread) \
	{ \
		(void)thread; \
		for (int64_t t = lo; t < hi; t++) \
			compute_row(((struct rows *)arg)->op, t); \
	} \
	tess_status CPU_NAME(run)(struct cpu * cpu, const struct tess_op *op) \
	{ \
		return run_over_rows(cpu, op, compute_row##s); \
	} \
	struct rows

static void add_bias_row(const struct tess_op *op, int64_t t)
{
	const struct tess_view *b = &op->in[1];
	int64_t columns = op->in[0].shape[1];
	const float *x = get_row(&op->in[0], t);
	float *y = get_row(&op->out[0], t);

	CPU_LANES
	for (int64_t i = 0; i < columns; i++)
		y[i] = x[i] + load_weight_element(b->data, b->dtype, i * b->stride[0]);
}
DEFINE_ROW_OP(run_bias, add_bias_row);

static void sum_row(const struct tess_op *op, int64_t t)
{
	int64_t columns = op->in[0].shape[1];
	const float *a = get_row(&op->in[0], t), *b = get_row(&op->in[1], t);
	float *y = get_row(&op->out[0], t);

	CPU_LANES
	for (int64_t i = 0; i < columns; i++)
		y[i] = a[i] + b[i];
}
DEFINE_ROW_OP(run_add, sum_row);

static void multiply_operands(const struct tess_op *op, int64_t t)
{
	const float *a = get_row(&op->in[0], t), *b = get_row(&op->in[1], t);
	int64_t columns = op->in[0].shape[1];
	float *y = get_row(&op->out[0], t), factor = b[0];

	if (op->in[1].shape[1] == 1) {
		CPU_LANES
		for (int64_t i = 0; i < columns; i++)
			y[i] = a[i] * factor;
	} else {
		CPU_LANES
		for (int64_t i = 0; i < columns; i++)
			y[i] = a[i] * b[i];
	}
}
DEFINE_ROW_OP(run_mul, multiply_operands);

static void clamp_row(const struct tess_op *op, int64_t t)
{
	float low = (float)op->num[TESS_CLAMP_LOW], high = (float)op->num[TESS_CLAMP_HIGH];
	const float *x = get_row(&op->in[0], t);
	float *y = get_row(&op->out[0], t);

	CPU_LANES
	for (int64_t i = 0; i < op->in[0].shape[1]; i++)
		y[i] = x[i] < low ? low : x[i] > high ? high : x[i];
}
DEFINE_ROW_OP(run_clamp, clamp_row);

static void derive_clamp_row(const struct tess_op *op, int64_t t)
{
	float low = (float)op->num[TESS_CLAMP_LOW], high = (float)op->num[TESS_CLAMP_HIGH];
	const float *x = get_row(&op->in[0], t), *g = get_row(&op->in[1], t);
	float *d = get_row(&op->out[0], t);

	CPU_LANES
	for (int64_t i = 0; i < op->in[0].shape[1]; i++)
		d[i] = x[i] < low || x[i] > high ? 0.0f : g[i];
}
DEFINE_ROW_OP(run_clamp_d, derive_clamp_row);

static void scale_row(const struct tess_op *op, int64_t t)
{
	float factor = (float)op->num[TESS_SCALE_FACTOR];
	const float *x = get_row(&op->in[0], t);
	float *y = get_row(&op->out[0], t);

	CPU_LANES
	for (int64_t i = 0; i < op->in[0].shape[1]; i++)
		y[i] = x[i] * factor;
}
DEFINE_ROW_OP(run_scale, scale_row);

static void apply_sigmoid_row(const struct tess_op *op, int64_t t)
{
	const float *x = get_row(&op->in[0], t);
	float *y = get_row(&op->out[0], t);

	CPU_LANES
	for (int64_t i = 0; i < op->in[0].shape[1]; i++)
		y[i] = 1.0f / (1.0f + mathf_exp(-x[i]));
}
DEFINE_ROW_OP(run_sigmoid, apply_sigmoid_row);

static void derive_sigmoid_row(const struct tess_op *op, int64_t t)
{
	const float *y = get_row(&op->in[0], t), *g = get_row(&op->in[1], t);
	float *d = get_row(&op->out[0], t);

	CPU_LANES
	for (int64_t i = 0; i < op->in[0].shape[1]; i++)
		d[i] = g[i] * (y[i] * (1.0f - y[i]));
}
DEFINE_ROW_OP(run_sigmoid_d, derive_sigmoid_row);

static inline float apply_activation(int kind, float a)
{
	float half = a * 0.5f;

	switch (kind) {
	case TESS_SILU:
		return a * (1.0f / (1.0f + mathf_exp(-a)));
	case TESS_GELU:
		return half * (1.0f + mathf_erf(a * 0.70710678f));
	case TESS_GELU_TANH:
		return half * (1.0f + mathf_tanh(0.79788456f * (a + 0.044715f * (a * a * a))));
	case TESS_TANH:
		return mathf_tanh(a);
	default:
		return a < 0.0f ? 0.0f : a;
	}
}

/* Applies a GLU to a row; `kind` is constant after inlining, so the loops have no branch. */
static inline __attribute__((always_inline)) void apply_glu_row(int kind, const float *a,
                                                                const float *b, int64_t n, float *y)
{
	if (b) {
		CPU_LANES
		for (int64_t i = 0; i < n; i++)
			y[i] = apply_activation(kind, a[i]) * b[i];
	} else {
		CPU_LANES
		for (int64_t i = 0; i < n; i++)
			y[i] = apply_activation(kind, a[i]);
	}
}

void glu_row(int kind, const float *a, const float *b, int64_t n, float *y)
{
	switch (kind) {
	case TESS_SILU:
		apply_glu_row(TESS_SILU, a, b, n, y);
		break;
	case TESS_GELU:
		apply_glu_row(TESS_GELU, a, b, n, y);
		break;
	case TESS_GELU_TANH:
		apply_glu_row(TESS_GELU_TANH, a, b, n, y);
		break;
	case TESS_TANH:
		apply_glu_row(TESS_TANH, a, b, n, y);
		break;
	default:
		apply_glu_row(TESS_RELU, a, b, n, y);
	}
}

static void compute_glu_row(const struct tess_op *op, int64_t t)
{
	int64_t n = op->in[0].shape[1];
	const float *a = get_row(&op->in[0], t);
	const float *b = op->nin > 1 ? get_row(&op->in[1], t) : NULL;
	float *y = get_row(&op->out[0], t);

	glu_row((int)op->num[TESS_GLU_ACTIVATION], a, b, n, y);
}
DEFINE_ROW_OP(run_glu, compute_glu_row);

/* Returns u * act'(a). */
static inline float derive_activation(int kind, float a, float u)
{
	float s, t;

	switch (kind) {
	case TESS_SILU:
		s = 1.0f / (1.0f + mathf_exp(-a));
		return u * (s * (1.0f + a * (1.0f - s)));
	case TESS_GELU:
		return u * (0.5f * (1.0f + mathf_erf(a * 0.70710678f)) +
		            a * (0.39894228f * mathf_exp((a * a) * -0.5f)));
	case TESS_GELU_TANH:
		t = mathf_tanh(0.79788456f * (a + 0.044715f * (a * a * a)));
		return u *
		       ((1.0f + t) * 0.5f + ((a * 0.5f) * (1.0f - t * t)) *
		                                    (0.79788456f * (1.0f + 0.134145f * (a * a))));
	case TESS_TANH:
		t = mathf_tanh(a);
		return u * (1.0f - t * t);
	default:
		return a <= 0.0f ? 0.0f : u;
	}
}

/* Computes one row of GLU_D; b and db may be NULL. */
static inline __attribute__((always_inline)) void derive_glu_row(int kind, const float *a,
                                                                 const float *b, const float *g,
                                                                 int64_t n, float *da, float *db)
{
	if (b) {
		CPU_LANES
		for (int64_t i = 0; i < n; i++) {
			float x = a[i], y = g[i], u = y * b[i];

			da[i] = derive_activation(kind, x, u);
			db[i] = y * apply_activation(kind, x);
		}
	} else {
		CPU_LANES
		for (int64_t i = 0; i < n; i++)
			da[i] = derive_activation(kind, a[i], g[i]);
	}
}

void glu_derive_row(int kind, const float *a, const float *b, const float *g, int64_t n, float *da,
                    float *db)
{
	switch (kind) {
	case TESS_SILU:
		derive_glu_row(TESS_SILU, a, b, g, n, da, db);
		break;
	case TESS_GELU:
		derive_glu_row(TESS_GELU, a, b, g, n, da, db);
		break;
	case TESS_GELU_TANH:
		derive_glu_row(TESS_GELU_TANH, a, b, g, n, da, db);
		break;
	case TESS_TANH:
		derive_glu_row(TESS_TANH, a, b, g, n, da, db);
		break;
	default:
		derive_glu_row(TESS_RELU, a, b, g, n, da, db);
	}
}

/* y may be gate_up: each chunk is read before it is written, so the compiler uses vectors. */
void limited_glu_row(const double *num, const float *gate_up, int64_t n, float *y)
{
	enum { CHUNK = 16 };
	float limit = (float)num[TESS_EXPERTS_LIMIT], alpha = (float)num[TESS_EXPERTS_ALPHA];
	float chunk[CHUNK];

	for (int64_t at = 0; at < n; at += CHUNK) {
		int64_t here = n - at < CHUNK ? n - at : CHUNK;
		const float *from = gate_up + 2 * at;

		for (int64_t i = 0; i < here; i++) {
			float a = from[2 * i], b = from[2 * i + 1];

			a = a > limit ? limit : a;
			b = b > limit ? limit : b < -limit ? -limit : b;
			chunk[i] = a / (1.0f + mathf_exp(-(alpha * a))) * (b + 1.0f);
		}
		memcpy(y + at, chunk, (size_t)here * sizeof *y);
	}
}

void limited_glu_derive_row(const double *num, const float *gate_up, const float *g, int64_t n,
                            float *d)
{
	float limit = (float)num[TESS_EXPERTS_LIMIT], alpha = (float)num[TESS_EXPERTS_ALPHA];

	for (int64_t i = 0; i < n; i++) {
		float a = gate_up[2 * i], b = gate_up[2 * i + 1], c = a > limit ? limit : a, s, u;

		u = b > limit ? limit : b < -limit ? -limit : b;
		s = 1.0f / (1.0f + mathf_exp(-(alpha * c)));
		d[2 * i] = a > limit ? 0.0f
		                     : g[i] * (u + 1.0f) * (s * (1.0f + alpha * c * (1.0f - s)));
		d[2 * i + 1] = b > limit || b < -limit ? 0.0f : g[i] * (c * s);
	}
}

static void compute_glu_d_row(const struct tess_op *op, int64_t t)
{
	bool gated = op->in[1].ndim > 0;

	glu_derive_row((int)op->num[TESS_GLU_ACTIVATION], get_row(&op->in[0], t),
	               gated ? get_row(&op->in[1], t) : NULL, get_row(&op->in[2], t),
	               op->in[0].shape[1], get_row(&op->out[0], t),
	               gated ? get_row(&op->out[1], t) : NULL);
}
DEFINE_ROW_OP(run_glu_d, compute_glu_d_row);

/* Rotates pairs: elements i * step and i * step + apart of x; sign of the angle: 1 or -1. */
static inline __attribute__((always_inline)) void rotate_pairs(const float *x, const float *c,
                                                               float sign, int64_t half,
                                                               int64_t step, int64_t apart,
                                                               float *y)
{
	const float *s = c + half;
	float a, b;

	CPU_LANES
	for (int64_t i = 0; i < half; i++) {
		a = x[i * step];
		b = x[i * step + apart];
		y[i * step] = a * c[i] - b * (sign * s[i]);
		y[i * step + apart] = b * c[i] + a * (sign * s[i]);
	}
}

static void rotate_rows(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct tess_op *op = ((struct rows *)arg)->op;
	const int32_t *position = op->in[1].data;
	int64_t each = (int64_t)op->num[TESS_ROPE_HEAD], first = (int64_t)op->num[TESS_ROPE_FIRST];
	int64_t width = (int64_t)op->num[TESS_ROPE_WIDTH], half = width / 2;
	float sign = op->num[TESS_ROPE_INVERSE] != 0 ? -1.0f : 1.0f;

	(void)thread;
	for (int64_t t = lo; t < hi; t++) {
		const float *c = get_row(&op->in[2], position[t]), *x = get_row(&op->in[0], t);
		float *y = get_row(&op->out[0], t);

		if (y != x && width < each)
			memcpy(y, x, sizeof *y * (size_t)op->in[0].shape[1]);
		for (int64_t h = first; h < op->in[0].shape[1]; h += each)
			if (op->num[TESS_ROPE_INTERLEAVED] != 0)
				rotate_pairs(x + h, c, sign, half, 2, 1, y + h);
			else
				rotate_pairs(x + h, c, sign, half, 1, half, y + h);
	}
}

#define run_rope CPU_NAME(run_rope)
tess_status run_rope(struct cpu *cpu, const struct tess_op *op)
{
	const int32_t *position = op->in[1].data;

	for (int64_t t = 0; t < op->in[0].shape[0]; t++)
		if (position[t] < 0 || position[t] >= op->in[2].shape[0])
			return cpu_host->fail(TESS_EINVAL,
			                      "%s: cpu: rope: position %d; the table "
			                      "has %lld",
			                      op->where, (int)position[t],
			                      (long long)op->in[2].shape[0]);
	return run_over_rows(cpu, op, rotate_rows);
}

/* Returns the node of a Partial whose units contain element `id`; -1: none. */
static int64_t find_node(const struct tess_op *op, int64_t id)
{
	struct tess_node node;
	int64_t at, index = 0;

	for (int32_t i = 0; i < op->ntree; i++) {
		const struct tess_tree *t = &op->tree[i];

		for (at = t->lo; tess_node_next(t->n, t->lo, t->hi, &at, &node); index++) {
			for (int32_t j = 0; j < t->terms; j++) {
				const int64_t *bound = op->term[t->first + j].bound - t->lo;

				if (id >= bound[node.lo] && id < bound[node.hi])
					return index;
			}
		}
	}
	return -1;
}

static void look_up_row(const struct tess_view *table, int64_t id, float *y)
{
	int64_t step = table->stride[1], first = id * table->stride[0];

	if (table->layout == TESS_PANELS)
		first = id / LANES * table->stride[0] + id % LANES;
	CPU_LANES
	for (int64_t i = 0; i < table->shape[1]; i++)
		y[i] = load_weight_element(table->data, table->dtype, first + i * step) + 0.0f;
}

static void embed_rows(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct tess_op *op = ((struct rows *)arg)->op;
	const struct tess_view *table = &op->in[1], *y = &op->out[0];
	bool partial = is_partial(op, 2);
	int64_t nodes = partial ? y->shape[0] : 1, node_pitch = partial ? y->stride[0] : 0, id,
		node;

	(void)thread;
	for (int64_t t = lo; t < hi; t++) {
		id = ((const int32_t *)op->in[0].data)[t] - (int64_t)op->num[TESS_EMBED_FIRST];
		node = partial ? find_node(op, id) : 0;
		if (id < 0 || id >= table->shape[0])
			node = -1;
		for (int64_t n = 0; n < nodes; n++) {
			float *row = (float *)y->data + n * node_pitch + t * y->stride[y->ndim - 2];

			if (n == node)
				look_up_row(table, id, row);
			else
				memset(row, 0, sizeof *row * (size_t)table->shape[1]);
		}
	}
}

#define run_embed CPU_NAME(run_embed)
tess_status run_embed(struct cpu *cpu, const struct tess_op *op)
{
	struct rows arg = { op };

	pool_run(cpu->pool, embed_rows, &arg, op->in[0].shape[0],
	         tess_up(SMALL, op->in[1].shape[1] + 1));
	return TESS_OK;
}

/* A copy as three loops; the innermost copies contiguous bytes. */
struct copy {
	const char *from;
	char *to;
	int64_t n[3], from_step[3], to_step[3], bytes;
};

static void copy_rows(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct copy *c = arg;

	(void)thread;
	for (int64_t i = lo; i < hi; i++) {
		for (int64_t j = 0; j < c->n[1]; j++) {
			const char *from = c->from + i * c->from_step[0] + j * c->from_step[1];
			char *to = c->to + i * c->to_step[0] + j * c->to_step[1];

			if (c->from_step[2] == c->bytes && c->to_step[2] == c->bytes) {
				memcpy(to, from, (size_t)(c->n[2] * c->bytes));
				continue;
			}
			for (int64_t k = 0; k < c->n[2]; k++)
				memcpy(to + k * c->to_step[2], from + k * c->from_step[2],
				       (size_t)c->bytes);
		}
	}
}

#define run_copy CPU_NAME(run_copy)
tess_status run_copy(struct cpu *cpu, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *y = &op->out[0];
	struct copy c = { .from = x->data, .to = y->data, .n = { 1, 1, 1 } };

	c.bytes = (int64_t)tess_width(x->dtype);
	for (int i = 0, axis = 3 - x->ndim; i < x->ndim; i++, axis++) {
		c.n[axis] = x->shape[i];
		c.from_step[axis] = x->stride[i] * c.bytes;
		c.to_step[axis] = y->stride[i] * c.bytes;
	}
	pool_run(cpu->pool, copy_rows, &c, c.n[0], tess_up(SMALL, c.n[1] * c.n[2] + 1));
	return TESS_OK;
}

static void select_rows(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct tess_op *op = ((struct rows *)arg)->op;
	const int32_t *row = op->in[1].data;

	(void)thread;
	for (int64_t i = lo; i < hi; i++)
		memcpy(get_row(&op->out[0], i), get_row(&op->in[0], row[i]),
		       sizeof(float) * (size_t)op->in[0].shape[1]);
}

#define run_select_rows CPU_NAME(run_select_rows)
tess_status run_select_rows(struct cpu *cpu, const struct tess_op *op)
{
	const int32_t *row = op->in[1].data;
	struct rows arg = { op };

	for (int64_t i = 0; i < op->in[1].shape[0]; i++)
		if (row[i] < 0 || row[i] >= op->in[0].shape[0])
			return cpu_host->fail(TESS_EINVAL,
			                      "%s: cpu: select_rows: row %d; x has %lld", op->where,
			                      (int)row[i], (long long)op->in[0].shape[0]);
	pool_run(cpu->pool, select_rows, &arg, op->in[1].shape[0],
	         tess_up(SMALL, op->in[0].shape[1] + 1));
	return TESS_OK;
}
