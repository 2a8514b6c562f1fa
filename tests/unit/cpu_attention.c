/*
 * ATTENTION on the CPU device: against a simple reference, and prefill = chunks = token by token.
 */
#include "cpu.h"
#include "devices/cpu/mathf.h"

struct attention_shape {
	int64_t heads, lo, group, kv, d, window, blocks;
	double scale;
};

static struct attention_shape make_attention_shape(int64_t heads, int64_t lo, int64_t group,
                                                   int64_t d, int64_t window, int64_t blocks)
{
	return (struct attention_shape){ .heads = heads,
		                         .lo = lo,
		                         .group = group,
		                         .d = d,
		                         .window = window,
		                         .blocks = blocks,
		                         .kv = (lo + heads - 1) / group - lo / group + 1,
		                         .scale = 1 / sqrt((double)d) };
}

struct cache_pair {
	float *k, *v;
};

/* Filled with NaN: reading keys beyond the end must not affect the result. */
static struct cache_pair make_cache_pair(const struct attention_shape *m)
{
	int64_t n = m->kv * m->blocks * 64 * m->d;
	struct cache_pair c = { malloc(sizeof(float) * (size_t)n),
		                malloc(sizeof(float) * (size_t)n) };

	memset(c.k, 0xff, sizeof(float) * (size_t)n);
	memset(c.v, 0xff, sizeof(float) * (size_t)n);
	return c;
}

static void free_cache_pair(struct cache_pair *c)
{
	free(c->k);
	free(c->v);
}

struct attention_inputs {
	float *q, *k, *v;
	int32_t *position;
};

/* Runs tokens [from, to) of the inputs as one op. */
static tess_status try_attention_tokens(void *device, const struct attention_shape *m,
                                        const struct attention_inputs *x,
                                        const struct cache_pair *c, int64_t from, int64_t to,
                                        float *out)
{
	int64_t nq = m->heads * m->d, nk = m->kv * m->d, n = to - from,
		stride = m->blocks * 64 * m->d;
	double num[] = { m->scale, (double)m->window, (double)m->d, (double)m->lo,
		         (double)m->group };
	struct tess_view y = cpu_make_rows(out + from * nq, n, nq, nq);
	struct tess_view in[6] = {
		cpu_make_rows(x->q + from * nq, n, nq, nq),
		cpu_make_rows(x->k + from * nk, n, nk, nk),
		cpu_make_rows(x->v + from * nk, n, nk, nk),
		cpu_make_list(x->position + from, TESS_I32, n),
		{ .data = c->k,
		  .dtype = TESS_F32,
		  .ndim = 4,
		  .shape = { m->kv, m->blocks, m->d, 64 },
		  .stride = { stride, 64 * m->d, 64, 1 } },
		{ .data = c->v,
		  .dtype = TESS_F32,
		  .ndim = 3,
		  .shape = { m->kv, m->blocks * 64, m->d },
		  .stride = { stride, m->d, 1 } },
	};
	struct tess_op op = cpu_make_op(TESS_OP_ATTENTION, in, 6, &y, num, 5);

	ck_assert_msg(cpu_device->supports(&op) == TESS_OK, "%s", cpu_sentence);
	return cpu_device->run(device, &op);
}

static void run_attention_tokens(void *device, const struct attention_shape *m,
                                 const struct attention_inputs *x, const struct cache_pair *c,
                                 int64_t from, int64_t to, float *out)
{
	ck_assert_msg(!try_attention_tokens(device, m, x, c, from, to, out), "%s", cpu_sentence);
}

static struct attention_inputs make_attention_inputs(const struct attention_shape *m,
                                                     int64_t tokens)
{
	struct attention_inputs x = { cpu_make_floats(tokens * m->heads * m->d),
		                      cpu_make_floats(tokens * m->kv * m->d),
		                      cpu_make_floats(tokens * m->kv * m->d),
		                      malloc(sizeof(int32_t) * (size_t)tokens) };

	for (int64_t i = 0; i < tokens * m->heads * m->d; i++)
		x.q[i] *= 8;
	for (int64_t i = 0; i < tokens; i++)
		x.position[i] = (int32_t)i;
	return x;
}

static void free_attention_inputs(struct attention_inputs *x)
{
	free(x->q);
	free(x->k);
	free(x->v);
	free(x->position);
}

/* ---- reference */

struct attention_terms {
	const float *w, *v;
	int64_t first, end, step;
};

static float sum_unit_of_keys(const void *arg, const struct tess_tree *tree, int64_t u)
{
	const struct attention_terms *t = arg;
	float acc = 0.0f;

	(void)tree;
	for (int64_t p = u * 64 > t->first ? u * 64 : t->first; p < t->end && p < (u + 1) * 64; p++)
		acc = t->v ? fmaf(t->w[p], t->v[p * t->step], acc) : acc + t->w[p];
	return acc;
}

static float sum_terms(const struct attention_terms *t)
{
	struct tess_tree tree = { .n = 1 << 25, .lo = t->first / 64, .hi = (t->end + 63) / 64 };
	float out = 0;

	tree_sum_node(&tree, tree.lo, tree.hi, 0, 0, sum_unit_of_keys, t, &out);
	return out + 0.0f;
}

static void compute_attention(const struct attention_shape *m, const struct attention_inputs *x,
                              int64_t t, int64_t h, float *out)
{
	int64_t kv = (m->lo + h) / m->group - m->lo / m->group, nk = m->kv * m->d;
	int64_t first = m->window && t >= m->window ? t - m->window + 1 : 0;
	const float *q = x->q + (t * m->heads + h) * m->d;
	float *w = malloc(sizeof *w * (size_t)(t + 1)), top = -INFINITY, all;
	struct attention_terms terms = { .w = w, .first = first, .end = t + 1, .step = nk };

	for (int64_t p = first; p <= t; p++) {
		float acc = 0.0f;

		for (int64_t i = 0; i < m->d; i++)
			acc = fmaf(q[i], x->k[p * nk + kv * m->d + i], acc);
		w[p] = acc * (float)m->scale;
		top = w[p] > top ? w[p] : top;
	}
	for (int64_t p = first; p <= t; p++)
		w[p] = mathf_exp(w[p] - top);
	all = sum_terms(&terms);
	for (int64_t p = first; p <= t; p++)
		w[p] = w[p] / all;
	for (int64_t i = 0; i < m->d; i++) {
		terms.v = x->v + kv * m->d + i;
		out[i] = sum_terms(&terms);
	}
	free(w);
}

/* ---- tests */

static void compare_attention(const struct attention_shape *m, int64_t tokens)
{
	static const int64_t chunks[] = { 1 << 20, 1, 5, 29 };
	int64_t nq = m->heads * m->d;
	struct attention_inputs x = make_attention_inputs(m, tokens);
	float *want = malloc(sizeof(float) * (size_t)(tokens * nq)),
	      *got = malloc(sizeof(float) * (size_t)(tokens * nq));
	struct cpu_devices d = { 0 };
	char what[128];

	for (int64_t t = 0; t < tokens; t++)
		for (int64_t h = 0; h < m->heads; h++)
			compute_attention(m, &x, t, h, want + t * nq + h * m->d);
	while (cpu_open_next(&d)) {
		for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k++) {
			struct cache_pair c = make_cache_pair(m);

			memset(got, 0, sizeof(float) * (size_t)(tokens * nq));
			for (int64_t t = 0; t < tokens; t += chunks[k])
				run_attention_tokens(
					d.now, m, &x, &c, t,
					t + chunks[k] < tokens ? t + chunks[k] : tokens, got);
			snprintf(what, sizeof what,
			         "%s, %d threads, chunks of %lld, %lld heads of %lld, window %lld",
			         d.variant->isa, (int)d.variant->nthreads, (long long)chunks[k],
			         (long long)m->heads, (long long)m->d, (long long)m->window);
			cpu_expect_equal(what, got, want, tokens * nq);
			free_cache_pair(&c);
		}
	}
	free(want);
	free(got);
	free_attention_inputs(&x);
}

START_TEST(heads_of_a_rank)
{
	static const struct {
		int64_t heads, lo, group, d, blocks, tokens;
	} cases[] = {
		{ 7, 0, 7, 16, 3, 150 }, /* all share their keys */
		{ 5, 3, 4, 24, 3, 130 }, /* heads 3..7: the last of one group, all of the next */
		{ 2, 0, 1, 64, 6, 333 }, { 1, 0, 1, 128, 3, 140 },
		{ 3, 0, 3, 80, 2, 70 },  { 8, 0, 2, 8, 2, 90 },
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct attention_shape m =
			make_attention_shape(cases[i].heads, cases[i].lo, cases[i].group,
		                             cases[i].d, 0, cases[i].blocks);

		compare_attention(&m, cases[i].tokens);
	}
}
END_TEST

START_TEST(windows)
{
	static const int64_t window[] = { 1, 3, 64, 65, 130 };

	for (size_t i = 0; i < sizeof window / sizeof *window; i++) {
		struct attention_shape m = make_attention_shape(3, 0, 3, 16, window[i], 5);

		compare_attention(&m, 300);
	}
}
END_TEST

/*
 * The same prompt once more from an earlier position: later positions in the cache must have no
 * effect.
 */
START_TEST(rewound)
{
	enum { N = 100, AT = 70 };
	struct attention_shape m = make_attention_shape(2, 0, 2, 16, 0, 2);
	struct attention_inputs x = make_attention_inputs(&m, N);
	struct cache_pair c = make_cache_pair(&m);
	void *device = cpu_open_device("auto", 1);
	float *got = malloc(sizeof(float) * N * 32), *want = malloc(sizeof(float) * N * 32);

	run_attention_tokens(device, &m, &x, &c, 0, N, want);
	run_attention_tokens(device, &m, &x, &c, AT, AT + 1, got);
	cpu_expect_equal("rewound", got + AT * 32, want + AT * 32, 32);
	run_attention_tokens(device, &m, &x, &c, AT + 1, N, got);
	cpu_expect_equal("rewound", got + AT * 32, want + AT * 32, (N - AT) * 32);
	cpu_device->close(device);
	free_cache_pair(&c);
	free_attention_inputs(&x);
	free(got);
	free(want);
}
END_TEST

/*
 * An infinite value of a key that a query does not see does not affect it, though other queries
 * of the tile see it.
 */
START_TEST(masked_values_are_absent)
{
	struct attention_shape m = make_attention_shape(2, 0, 1, 16, 0, 1);
	struct cpu_devices d = { 0 };

	while (cpu_open_next(&d)) {
		struct attention_inputs x = make_attention_inputs(&m, 12);
		struct cache_pair c = make_cache_pair(&m);
		float want[12 * 32], got[12 * 32];

		run_attention_tokens(d.now, &m, &x, &c, 0, 12, want);
		for (int64_t k = 7 * 32; k < 12 * 32; k++)
			x.v[k] = INFINITY;
		run_attention_tokens(d.now, &m, &x, &c, 0, 12, got);
		cpu_expect_equal("earlier rows", got, want, 7 * 32);
		MUST(!isfinite(got[7 * 32]));
		free_cache_pair(&c);
		free_attention_inputs(&x);
	}
}
END_TEST

/* Beyond the cache, and not in order. */
START_TEST(refuses_positions)
{
	static const int32_t last[] = { 64, 1 };
	struct attention_shape m = make_attention_shape(1, 0, 1, 16, 0, 1);
	struct attention_inputs x = make_attention_inputs(&m, 3);
	struct cache_pair c = make_cache_pair(&m);
	void *device = cpu_open_device("auto", 1);
	float out[48];

	for (int i = 0; i < 2; i++) {
		x.position[2] = last[i];
		ck_assert_int_eq(try_attention_tokens(device, &m, &x, &c, 0, 3, out), TESS_EINVAL);
		expect_part(cpu_sentence, "layers.0.mlp");
	}
	cpu_device->close(device);
	free_cache_pair(&c);
	free_attention_inputs(&x);
}
END_TEST

/* Query heads [lo, lo + heads) in groups of `group` read the right number of key-value heads. */
START_TEST(refuses_other_heads)
{
	enum { D = 4 };
	float memory[8 * D] = { 0 };
	int32_t position = 0;
	void *device = cpu_open_device("auto", 1);

	for (int i = 0; i < 4 * 4 * 4 * 8; i++) {
		int64_t heads = 1 + i % 4, lo = i / 4 % 4, group = 1 + i / 16 % 4, g = 1 + i / 64;
		double num[] = { 1, 0, D, (double)lo, (double)group };
		struct tess_view in[6] = { cpu_make_rows(memory, 1, heads * D, heads * D),
			                   cpu_make_rows(memory, 1, g * D, g * D),
			                   cpu_make_rows(memory, 1, g * D, g * D),
			                   cpu_make_list(&position, TESS_I32, 1) };
		struct tess_view y = cpu_make_rows(memory, 1, heads * D, heads * D);
		struct tess_op op = cpu_make_op(TESS_OP_ATTENTION, in, 6, &y, num, 5);
		bool read[8] = { false };
		int64_t count = 0;

		for (int64_t h = lo; h < lo + heads; h++) {
			count += !read[h / group];
			read[h / group] = true;
		}
		if ((cpu_device->supports(&op) == TESS_OK) != (count == g))
			ck_abort_msg("heads %d from %d, groups of %d: %d", (int)heads, (int)lo,
			             (int)group, (int)g);
	}
	cpu_device->close(device);
}
END_TEST

SUITE_MAIN("cpu_attention", heads_of_a_rank, windows, rewound, masked_values_are_absent,
           refuses_positions, refuses_other_heads)
