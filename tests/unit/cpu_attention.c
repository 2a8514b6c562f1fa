/* ATTENTION on the CPU device: against a plain one, and prefill = chunks = token by token. */
#include "cpu.h"
#include "devices/cpu/mathf.h"

struct model {
	int64_t heads, lo, group, kv, d, window, blocks;
	double scale;
};

static struct model model(int64_t heads, int64_t lo, int64_t group, int64_t d, int64_t window,
                          int64_t blocks)
{
	return (struct model){ .heads = heads,
		               .lo = lo,
		               .group = group,
		               .d = d,
		               .window = window,
		               .blocks = blocks,
		               .kv = (lo + heads - 1) / group - lo / group + 1,
		               .scale = 1 / sqrt((double)d) };
}

struct caches {
	float *k, *v;
};

/* Filled with NaN: what a kernel reads of keys that are not there must not be seen. */
static struct caches caches_make(const struct model *m)
{
	int64_t n = m->kv * m->blocks * 64 * m->d;
	struct caches c = { malloc(sizeof(float) * (size_t)n), malloc(sizeof(float) * (size_t)n) };

	memset(c.k, 0xff, sizeof(float) * (size_t)n);
	memset(c.v, 0xff, sizeof(float) * (size_t)n);
	return c;
}

static void caches_free(struct caches *c)
{
	free(c->k);
	free(c->v);
}

struct inputs {
	float *q, *k, *v;
	int32_t *position;
};

/* Tokens [from, to) of the inputs as one op. */
static void attend(void *device, const struct model *m, const struct inputs *x,
                   const struct caches *c, int64_t from, int64_t to, float *out)
{
	int64_t nq = m->heads * m->d, nk = m->kv * m->d, n = to - from,
		room = m->blocks * 64 * m->d;
	double num[] = { m->scale, (double)m->window, (double)m->d, (double)m->lo,
		         (double)m->group };
	struct tess_view y = cpu_rows(out + from * nq, n, nq, nq);
	struct tess_view in[6] = {
		cpu_rows(x->q + from * nq, n, nq, nq),
		cpu_rows(x->k + from * nk, n, nk, nk),
		cpu_rows(x->v + from * nk, n, nk, nk),
		cpu_list(x->position + from, TESS_I32, n),
		{ .data = c->k,
		  .dtype = TESS_F32,
		  .ndim = 4,
		  .shape = { m->kv, m->blocks, m->d, 64 },
		  .stride = { room, 64 * m->d, 64, 1 } },
		{ .data = c->v,
		  .dtype = TESS_F32,
		  .ndim = 3,
		  .shape = { m->kv, m->blocks * 64, m->d },
		  .stride = { room, m->d, 1 } },
	};
	struct tess_op op = cpu_op(TESS_OP_ATTENTION, in, 6, &y, num, 5);

	cpu_run(device, &op);
}

static struct inputs inputs_make(const struct model *m, int64_t tokens)
{
	struct inputs x = { cpu_floats(tokens * m->heads * m->d), cpu_floats(tokens * m->kv * m->d),
		            cpu_floats(tokens * m->kv * m->d),
		            malloc(sizeof(int32_t) * (size_t)tokens) };

	for (int64_t i = 0; i < tokens * m->heads * m->d; i++)
		x.q[i] *= 8;
	for (int64_t i = 0; i < tokens; i++)
		x.position[i] = (int32_t)i;
	return x;
}

static void inputs_free(struct inputs *x)
{
	free(x->q);
	free(x->k);
	free(x->v);
	free(x->position);
}

/* ---- the plain one */

struct terms {
	const float *w, *v;
	int64_t first, end, step;
};

static float leaf(const void *arg, const struct tess_tree *tree, int64_t u)
{
	const struct terms *t = arg;
	float acc = 0.0f;

	(void)tree;
	for (int64_t p = u * 64 > t->first ? u * 64 : t->first; p < t->end && p < (u + 1) * 64; p++)
		acc = t->v ? fmaf(t->w[p], t->v[p * t->step], acc) : acc + t->w[p];
	return acc;
}

static float sum(const struct terms *t)
{
	struct tess_tree tree = { .n = 1 << 25, .lo = t->first / 64, .hi = (t->end + 63) / 64 };
	float out = 0;

	cpu_node(&tree, tree.lo, tree.hi, 0, 0, leaf, t, &out);
	return out + 0.0f;
}

static void plain(const struct model *m, const struct inputs *x, int64_t t, int64_t h, float *out)
{
	int64_t kv = (m->lo + h) / m->group - m->lo / m->group, nk = m->kv * m->d;
	int64_t first = m->window && t >= m->window ? t - m->window + 1 : 0;
	const float *q = x->q + (t * m->heads + h) * m->d;
	float *w = malloc(sizeof *w * (size_t)(t + 1)), top = -INFINITY, all;
	struct terms terms = { .w = w, .first = first, .end = t + 1, .step = nk };

	for (int64_t p = first; p <= t; p++) {
		float acc = 0.0f;

		for (int64_t i = 0; i < m->d; i++)
			acc = fmaf(q[i], x->k[p * nk + kv * m->d + i], acc);
		w[p] = acc * (float)m->scale;
		top = w[p] > top ? w[p] : top;
	}
	for (int64_t p = first; p <= t; p++)
		w[p] = mathf_exp(w[p] - top);
	all = sum(&terms);
	for (int64_t p = first; p <= t; p++)
		w[p] = w[p] / all;
	for (int64_t i = 0; i < m->d; i++) {
		terms.v = x->v + kv * m->d + i;
		out[i] = sum(&terms);
	}
	free(w);
}

/* ---- tests */

static void try(const struct model *m, int64_t tokens)
{
	static const int64_t chunks[] = { 1 << 20, 1, 5, 29 };
	int64_t nq = m->heads * m->d;
	struct inputs x = inputs_make(m, tokens);
	float *want = malloc(sizeof(float) * (size_t)(tokens * nq)),
	      *got = malloc(sizeof(float) * (size_t)(tokens * nq));
	char what[128];

	for (int64_t t = 0; t < tokens; t++)
		for (int64_t h = 0; h < m->heads; h++)
			plain(m, &x, t, h, want + t * nq + h * m->d);
	for (int i = 0; i < CPU_TRIES; i++) {
		void *device = cpu_try_open(i);

		for (size_t k = 0; device && k < sizeof chunks / sizeof *chunks; k++) {
			struct caches c = caches_make(m);

			memset(got, 0, sizeof(float) * (size_t)(tokens * nq));
			for (int64_t t = 0; t < tokens; t += chunks[k])
				attend(device, m, &x, &c, t,
				       t + chunks[k] < tokens ? t + chunks[k] : tokens, got);
			snprintf(what, sizeof what,
			         "%s, %d threads, chunks of %lld, %lld heads of %lld, window %lld",
			         cpu_tries[i].set, (int)cpu_tries[i].nthreads, (long long)chunks[k],
			         (long long)m->heads, (long long)m->d, (long long)m->window);
			cpu_equal(what, got, want, tokens * nq);
			caches_free(&c);
		}
		if (device)
			cpu_table->close(device);
	}
	free(want);
	free(got);
	inputs_free(&x);
}

START_TEST(heads_that_share_keys)
{
	struct model m = model(7, 0, 7, 16, 0, 3);

	try(&m, 150);
}
END_TEST

START_TEST(heads_of_a_rank)
{
	/* global heads 3..7: the last of one group, all of the next */
	struct model m = model(5, 3, 4, 24, 0, 3);

	try(&m, 130);
}
END_TEST

START_TEST(wide_heads)
{
	struct model a = model(2, 0, 1, 64, 0, 6), b = model(1, 0, 1, 128, 0, 3),
		     c = model(3, 0, 3, 80, 0, 2);

	try(&a, 333);
	try(&b, 140);
	try(&c, 70);
}
END_TEST

START_TEST(small_heads)
{
	struct model m = model(8, 0, 2, 8, 0, 2);

	try(&m, 90);
}
END_TEST

START_TEST(windows)
{
	static const int64_t window[] = { 1, 3, 64, 65, 130 };

	for (size_t i = 0; i < sizeof window / sizeof *window; i++) {
		struct model m = model(3, 0, 3, 16, window[i], 5);

		try(&m, 300);
	}
}
END_TEST

/*
 * The same prompt once more from an earlier position: what is behind it in the cache must not be
 * seen.
 */
START_TEST(rewound)
{
	enum { N = 100, AT = 70 };
	struct model m = model(2, 0, 2, 16, 0, 2);
	struct inputs x = inputs_make(&m, N);
	struct caches c = caches_make(&m);
	void *device = cpu_open("auto", 1);
	float *got = malloc(sizeof(float) * N * 32), *want = malloc(sizeof(float) * N * 32);

	attend(device, &m, &x, &c, 0, N, want);
	attend(device, &m, &x, &c, AT, AT + 1, got);
	cpu_equal("rewound", got + AT * 32, want + AT * 32, 32);
	attend(device, &m, &x, &c, AT + 1, N, got);
	cpu_equal("rewound", got + AT * 32, want + AT * 32, (N - AT) * 32);
	cpu_table->close(device);
	caches_free(&c);
	inputs_free(&x);
	free(got);
	free(want);
}
END_TEST

/*
 * An infinite value of a key that a query does not see stays out of it, though a tile's other
 * queries do see it.
 */
START_TEST(masked_values_are_absent)
{
	struct model m = model(2, 0, 1, 16, 0, 1);

	for (int i = 0; i < CPU_TRIES; i++) {
		struct inputs x = inputs_make(&m, 12);
		struct caches c = caches_make(&m);
		float want[12 * 32], got[12 * 32];
		void *device = cpu_try_open(i);

		if (device) {
			attend(device, &m, &x, &c, 0, 12, want);
			for (int64_t k = 7 * 32; k < 12 * 32; k++)
				x.v[k] = INFINITY;
			attend(device, &m, &x, &c, 0, 12, got);
			cpu_equal("earlier rows", got, want, 7 * 32);
			MUST(!isfinite(got[7 * 32]));
			cpu_table->close(device);
		}
		caches_free(&c);
		inputs_free(&x);
	}
}
END_TEST

START_TEST(refuses_positions)
{
	struct model m = model(1, 0, 1, 16, 0, 1);
	struct inputs x = inputs_make(&m, 3);
	struct caches c = caches_make(&m);
	void *device = cpu_open("auto", 1);
	float out[48];
	struct tess_view in[6] = {
		cpu_rows(x.q, 3, 16, 16),
		cpu_rows(x.k, 3, 16, 16),
		cpu_rows(x.v, 3, 16, 16),
		cpu_list(x.position, TESS_I32, 3),
		{ .data = c.k,
		  .dtype = TESS_F32,
		  .ndim = 4,
		  .shape = { 1, 1, 16, 64 },
		  .stride = { 1024, 1024, 64, 1 } },
		{ .data = c.v,
		  .dtype = TESS_F32,
		  .ndim = 3,
		  .shape = { 1, 64, 16 },
		  .stride = { 1024, 16, 1 } },
	};
	struct tess_view y = cpu_rows(out, 3, 16, 16);
	struct tess_op op = cpu_op(TESS_OP_ATTENTION, in, 6, &y, (double[]){ 1, 0, 16, 0, 1 }, 5);

	op.where = "layers.3.attn";
	x.position[2] = 64;
	ck_assert_int_eq(cpu_table->run(device, &op), TESS_EINVAL);
	ck_assert_ptr_nonnull(strstr(cpu_sentence, "layers.3.attn"));
	x.position[2] = 1;
	ck_assert_int_eq(cpu_table->run(device, &op), TESS_EINVAL);
	cpu_table->close(device);
	caches_free(&c);
	inputs_free(&x);
}
END_TEST

/* Query heads [lo, lo + heads) in groups of `group` read as many key-value heads as there must be. */
START_TEST(refuses_other_heads)
{
	enum { D = 4 };
	float room[8 * D] = { 0 };
	int32_t position = 0;
	void *device = cpu_open("auto", 1);

	for (int i = 0; i < 4 * 4 * 4 * 8; i++) {
		int64_t heads = 1 + i % 4, lo = i / 4 % 4, group = 1 + i / 16 % 4, g = 1 + i / 64;
		double num[] = { 1, 0, D, (double)lo, (double)group };
		struct tess_view in[6] = { cpu_rows(room, 1, heads * D, heads * D),
			                   cpu_rows(room, 1, g * D, g * D),
			                   cpu_rows(room, 1, g * D, g * D),
			                   cpu_list(&position, TESS_I32, 1) };
		struct tess_view y = cpu_rows(room, 1, heads * D, heads * D);
		struct tess_op op = cpu_op(TESS_OP_ATTENTION, in, 6, &y, num, 5);
		bool read[8] = { false };
		int64_t count = 0;

		for (int64_t h = lo; h < lo + heads; h++) {
			count += !read[h / group];
			read[h / group] = true;
		}
		if ((cpu_table->supports(&op) == TESS_OK) != (count == g))
			ck_abort_msg("heads %d from %d, groups of %d: %d", (int)heads, (int)lo,
			             (int)group, (int)g);
	}
	cpu_table->close(device);
}
END_TEST

SUITE_MAIN("cpu_attention", heads_that_share_keys, heads_of_a_rank, wide_heads, small_heads,
           windows, rewound, masked_values_are_absent, refuses_positions, refuses_other_heads)
