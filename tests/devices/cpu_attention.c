/*
 * cpu_attention.c - ATTENTION on the CPU device against its definition; prefill against chunks and
 * single tokens; rows of several slots against each slot alone.
 */
#include "tests/reference/scalar.h"
#include "tests/support/cpu.h"

#include <tessera/reduce.h>

enum { STRIDE = 1 + THIN / 20 }; /* every STRIDE-th case is tested */

struct attention_shape {
	int64_t heads, lo, group, kv, d, value, window, blocks; /* window < 0: chunks */
	double scale, softcap;
	int32_t dtype; /* type of the cache */
	bool latent; /* a value is the beginning of its key */
	int32_t sinks; /* type of the sinks; 0: none */
};

static struct attention_shape make_attention_shape(int64_t heads, int64_t lo, int64_t group,
                                                   int64_t d, int64_t window, int64_t blocks)
{
	return (struct attention_shape){ .heads = heads,
		                         .lo = lo,
		                         .group = group,
		                         .d = d,
		                         .value = d,
		                         .window = window,
		                         .blocks = blocks,
		                         .kv = (lo + heads - 1) / group - lo / group + 1,
		                         .scale = 1 / sqrt((double)d),
		                         .dtype = TESS_F32 };
}

/*
 * The pages of some slots. A page has its keys SKIP bytes from its start, and its values SKIP bytes
 * after the keys.
 */
enum { SKIP = 24 };
struct cache {
	const struct attention_shape *m;
	int64_t slots, bytes; /* bytes of the keys of a page, and of its values */
	int64_t *page; /* [slots][blocks + 1] */
};

/* Adds a page filled with NaN: keys read beyond the end must not affect the result. */
static void add_page(struct cache *c, int64_t slot, int64_t block)
{
	size_t bytes = (size_t)(2 * (c->bytes + SKIP));

	c->page[slot * (c->m->blocks + 1) + block] =
		(int64_t)(uintptr_t)memset(malloc(bytes), 0xff, bytes);
}

static void drop_page(struct cache *c, int64_t slot, int64_t block)
{
	int64_t *at = &c->page[slot * (c->m->blocks + 1) + block];

	free((void *)(uintptr_t)*at);
	*at = 0;
}

/* Makes a cache without pages. */
static struct cache make_cache(const struct attention_shape *m, int64_t slots)
{
	struct cache c = { .m = m,
		           .slots = slots,
		           .bytes = m->kv * (m->d > m->value ? m->d : m->value) * 64 *
		                    cpu_get_width(m->dtype) };

	c.page = calloc((size_t)(slots * (m->blocks + 1)), sizeof *c.page);
	return c;
}

static struct cache make_full_cache(const struct attention_shape *m)
{
	struct cache c = make_cache(m, 1);

	for (int64_t b = 0; b < m->blocks; b++)
		add_page(&c, 0, b);
	return c;
}

static void free_cache(struct cache *c)
{
	for (int64_t i = 0; i < c->slots * (c->m->blocks + 1); i++)
		free((void *)(uintptr_t)c->page[i]);
	free(c->page);
}

struct attention_inputs {
	float *q, *k, *v;
	int32_t *position, *slot;
};

static int64_t get_out_row(const struct attention_shape *m)
{
	return m->heads * m->value;
}

/* Runs the op on a device; NULL: by the definition. */
static tess_status run_attention_rows(void *device, const struct cache *c,
                                      const struct attention_inputs *x, int64_t n, float *out)
{
	const struct attention_shape *m = c->m;
	int64_t nq = m->heads * m->d, nk = m->kv * m->d, nv = m->kv * m->value;
	double num[] = { m->scale,
		         (double)llabs(m->window),
		         (double)m->d,
		         (double)m->lo,
		         (double)m->group,
		         SKIP,
		         (double)(2 * SKIP + c->bytes),
		         m->dtype,
		         m->softcap,
		         (double)m->value,
		         0,
		         0,
		         m->window < 0 };
	struct tess_view y = cpu_make_rows(out, n, get_out_row(m), get_out_row(m));
	struct tess_view in[8] = {
		cpu_make_rows(x->q, n, nq, nq),
		cpu_make_rows(x->k, n, nk, nk),
		m->latent ? (struct tess_view){ 0 } : cpu_make_rows(x->v, n, nv, nv),
		cpu_make_list(x->position, TESS_I32, n),
		cpu_make_list(x->slot, TESS_I32, n),
		{ .data = c->page,
		  .dtype = TESS_I64,
		  .ndim = c->page ? 2 : 0,
		  .shape = { c->slots, m->blocks },
		  .stride = { m->blocks + 1, 1 } },
	};
	struct tess_op op =
		cpu_make_op(TESS_OP_ATTENTION, in, m->sinks ? 8 : 6, &y, num, TESS_ATTENTION_NUMS);
	tess_status st = TESS_OK;

	if (m->sinks)
		in[7] = cpu_make_sinks(m->sinks, m->heads);
	if (device) {
		ck_assert_msg(cpu_check_op(&op) == TESS_OK, "%s", cpu_sentence);
		st = cpu_device->run(device, &op);
	} else {
		scalar_run(&op);
	}
	free(in[7].data);
	return st;
}

/* Returns the inputs from token t on. */
static struct attention_inputs skip_tokens(const struct attention_shape *m,
                                           const struct attention_inputs *x, int64_t t)
{
	return (struct attention_inputs){ x->q + t * m->heads * m->d, x->k + t * m->kv * m->d,
		                          x->v + t * m->kv * m->value, x->position + t,
		                          x->slot + t };
}

/* Runs tokens [from, to) of the inputs as one op. */
static void run_attention_tokens(void *device, const struct cache *c,
                                 const struct attention_inputs *x, int64_t from, int64_t to,
                                 float *out)
{
	struct attention_inputs part = skip_tokens(c->m, x, from);

	ck_assert_msg(run_attention_rows(device, c, &part, to - from,
	                                 out + from * get_out_row(c->m)) == TESS_OK,
	              "%s", cpu_sentence);
}

static struct attention_inputs make_attention_inputs(const struct attention_shape *m,
                                                     int64_t tokens)
{
	struct attention_inputs x = { cpu_make_floats(tokens * m->heads * m->d),
		                      cpu_make_floats(tokens * m->kv * m->d),
		                      cpu_make_floats(tokens * m->kv * m->value),
		                      malloc(sizeof(int32_t) * (size_t)tokens),
		                      calloc(sizeof(int32_t), (size_t)tokens) };

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
	free(x->slot);
}

/* ---- reference */

/* Copies the contents of the cache, in the type of its elements. */
static float *copy_cached(const struct attention_shape *m, const float *x, int64_t n)
{
	float *y = malloc(sizeof *y * (size_t)n);

	for (int64_t i = 0; i < n; i++)
		y[i] = m->dtype == TESS_BF16 ? tess_bf16_load(tess_bf16_round(x[i])) : x[i];
	return y;
}

static void compute_text(const struct attention_shape *m, const struct attention_inputs *x,
                         int64_t tokens, float *out)
{
	struct attention_shape f32 = *m;
	struct cache none = { .m = &f32 };
	struct attention_inputs cached = *x;

	f32.dtype = TESS_F32;
	cached.k = copy_cached(m, x->k, tokens * m->kv * m->d);
	cached.v = copy_cached(m, x->v, tokens * m->kv * m->value);
	run_attention_tokens(NULL, &none, &cached, 0, tokens, out);
	free(cached.k);
	free(cached.v);
}

/* ---- tests */

static void compare_attention(const struct attention_shape *m, int64_t most)
{
	int64_t tokens = THIN > 1 ? most / 2 : most; /* the time grows with its square */
	static const int64_t chunks[] = { 1 << 20, 1, 5, 29 };
	int64_t nq = get_out_row(m);
	struct attention_inputs x = make_attention_inputs(m, tokens);
	float *want = malloc(sizeof(float) * (size_t)(tokens * nq)),
	      *got = malloc(sizeof(float) * (size_t)(tokens * nq));
	struct cpu_devices d = { 0 };
	char what[128];

	compute_text(m, &x, tokens, want);
	while (cpu_open_next(&d)) {
		for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k += 1 + THIN / 4) {
			struct cache c = make_full_cache(m);

			memset(got, 0, sizeof(float) * (size_t)(tokens * nq));
			for (int64_t t = 0; t < tokens; t += chunks[k])
				run_attention_tokens(
					d.now, &c, &x, t,
					t + chunks[k] < tokens ? t + chunks[k] : tokens, got);
			snprintf(what, sizeof what,
			         "%s, %d threads, chunks of %lld, %lld heads of %lld, values of "
			         "%lld, window %lld",
			         d.variant->isa, (int)d.variant->nthreads, (long long)chunks[k],
			         (long long)m->heads, (long long)m->d, (long long)m->value,
			         (long long)m->window);
			cpu_expect_equal(what, got, want, tokens * nq);
			free_cache(&c);
		}
		if (m->dtype == TESS_F32) {
			struct cache none = { .m = m };

			memset(got, 0, sizeof(float) * (size_t)(tokens * nq));
			run_attention_tokens(d.now, &none, &x, 0, tokens, got);
			cpu_expect_equal("without pages", got, want, tokens * nq);
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
		{ 7, 0, 7, 16, 3, 150 }, /* all share one key-value head */
		{ 5, 3, 4, 24, 3, 130 }, /* heads 3..7: the last of one group, all of the next */
		{ 2, 0, 1, 64, 6, 333 }, { 1, 0, 1, 128, 3, 140 },
		{ 3, 0, 3, 80, 2, 70 },  { 8, 0, 2, 8, 2, 90 },
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i += STRIDE) {
		struct attention_shape m =
			make_attention_shape(cases[i].heads, cases[i].lo, cases[i].group,
		                             cases[i].d, 0, cases[i].blocks);

		compare_attention(&m, cases[i].tokens);
		m.softcap = 0.9;
		m.dtype = TESS_BF16;
		compare_attention(&m, cases[i].tokens);
	}
}
END_TEST

/* Checks values of another width than keys, and values that are the beginnings of keys. */
START_TEST(widths_of_values)
{
	static const struct {
		int64_t heads, lo, group, d, value, window, blocks, tokens;
		int32_t dtype;
	} cases[] = {
		{ 4, 0, 2, 24, 16, 0, 3, 150, TESS_F32 },
		{ 3, 2, 4, 16, 40, 70, 3, 130, TESS_BF16 },
		{ 16, 0, 16, 80, 64, 0, 3, 150, TESS_F32 }, /* like the attention of a latent */
		{ 5, 3, 4, 28, 12, 0, 3, 130, TESS_BF16 }, /* heads of two groups */
		{ 70, 0, 70, 20, 17, 30, 2, 70, TESS_F32 },
		{ 1, 0, 1, 8, 8, 1, 5, 300, TESS_BF16 },
		{ 12, 0, 12, 16, 5, 0, 7, 400, TESS_F32 },
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i += STRIDE) {
		struct attention_shape m =
			make_attention_shape(cases[i].heads, cases[i].lo, cases[i].group,
		                             cases[i].d, cases[i].window, cases[i].blocks);

		m.value = cases[i].value;
		m.dtype = cases[i].dtype;
		m.softcap = i % 3 == 1 ? 1.3 : 0;
		compare_attention(&m, cases[i].tokens);
		m.latent = m.value <= m.d;
		m.sinks = cpu_choose_dtype((int)i + 1);
		compare_attention(&m, cases[i].tokens);
	}
}
END_TEST

START_TEST(windows)
{
	static const int64_t window[] = { 1, 3, 64, 65, 130, -1, -3, -64, -70 };

	for (size_t i = 0; i < sizeof window / sizeof *window; i += STRIDE) {
		struct attention_shape m = make_attention_shape(3, 0, 3, 16, window[i], 5);

		m.softcap = i % 2 ? 1.7 : 0;
		m.sinks = i % 4 ? cpu_choose_dtype((int)i) : 0;
		compare_attention(&m, 300);
	}
}
END_TEST

/*
 * Runs the prompt again from an earlier position: later positions in the cache must have no effect.
 */
START_TEST(rewound)
{
	enum { N = 100, AT = 70 };
	struct attention_shape m = make_attention_shape(2, 0, 2, 16, 0, 2);
	struct attention_inputs x = make_attention_inputs(&m, N);
	struct cache c = make_full_cache(&m);
	void *device = cpu_open_device("auto", 1);
	float *got = malloc(sizeof(float) * N * 32), *want = malloc(sizeof(float) * N * 32);

	run_attention_tokens(device, &c, &x, 0, N, want);
	run_attention_tokens(device, &c, &x, AT, AT + 1, got);
	cpu_expect_equal("rewound", got + AT * 32, want + AT * 32, 32);
	run_attention_tokens(device, &c, &x, AT + 1, N, got);
	cpu_expect_equal("rewound", got + AT * 32, want + AT * 32, (N - AT) * 32);
	cpu_device->close(device);
	free_cache(&c);
	free_attention_inputs(&x);
	free(got);
	free(want);
}
END_TEST

/*
 * Checks that an infinite value of a key that a query does not see does not affect it, though other
 * queries of the tile see it.
 */
START_TEST(masked_values_are_absent)
{
	struct attention_shape m = make_attention_shape(2, 0, 1, 16, 0, 1);
	struct cpu_devices d = { 0 };

	while (cpu_open_next(&d)) {
		struct attention_inputs x = make_attention_inputs(&m, 12);
		struct cache c = make_full_cache(&m);
		float want[12 * 32], got[12 * 32];

		run_attention_tokens(d.now, &c, &x, 0, 12, want);
		for (int64_t k = 7 * 32; k < 12 * 32; k++)
			x.v[k] = INFINITY;
		run_attention_tokens(d.now, &c, &x, 0, 12, got);
		cpu_expect_equal("earlier rows", got, want, 7 * 32);
		MUST(!isfinite(got[7 * 32]));
		free_cache(&c);
		free_attention_inputs(&x);
	}
}
END_TEST

/* ---- several slots */

enum { SLOTS = 5, TEXT = 200 };

struct text { /* the sequence of one slot */
	struct attention_inputs x;
	float *want, *got;
	int64_t done;
};

static void open_text(const struct attention_shape *m, struct text *t)
{
	size_t n = (size_t)(TEXT * get_out_row(m));

	t->x = make_attention_inputs(m, TEXT);
	t->want = malloc(sizeof(float) * n);
	t->got = malloc(sizeof(float) * n);
	compute_text(m, &t->x, TEXT, t->want);
}

/* Appends the next n rows of a sequence to a step; pages that its window has passed are freed. */
static void append_text_rows(struct cache *c, struct text *t, int32_t slot, int64_t n,
                             struct attention_inputs *step, int64_t at)
{
	const struct attention_shape *m = c->m;
	struct attention_inputs from = skip_tokens(m, &t->x, t->done),
				to = skip_tokens(m, step, at);
	int64_t size = llabs(m->window), first = size && t->done >= size ? t->done - size + 1 : 0;

	for (int64_t b = 0; b < first / 64; b++)
		drop_page(c, slot, b);
	for (int64_t b = (t->done + 63) / 64; b * 64 < t->done + n; b++)
		add_page(c, slot, b);
	memcpy(to.q, from.q, sizeof(float) * (size_t)(n * m->heads * m->d));
	memcpy(to.k, from.k, sizeof(float) * (size_t)(n * m->kv * m->d));
	memcpy(to.v, from.v, sizeof(float) * (size_t)(n * m->kv * m->value));
	for (int64_t i = 0; i < n; i++) {
		to.position[i] = from.position[i];
		to.slot[i] = slot;
	}
}

/*
 * Runs some rows of some slots, in any order of slots; returns the number of sequences that have
 * ended.
 */
static int run_slots_step(void *device, struct cache *c, struct text *text,
                          struct attention_inputs *step, float *out)
{
	int64_t row = get_out_row(c->m), n[SLOTS] = { 0 }, at = 0;
	int32_t first = (int32_t)(cpu_draw_random() % SLOTS), ended = 0, slot;

	for (int32_t i = 0; i < SLOTS; i++) {
		slot = (first + i) % SLOTS;
		n[slot] = cpu_draw_random() % 2 ? 1 : cpu_draw_random() % 40;
		if (n[slot] > TEXT - text[slot].done)
			n[slot] = TEXT - text[slot].done;
		append_text_rows(c, &text[slot], slot, n[slot], step, at);
		at += n[slot];
	}
	ck_assert_msg(run_attention_rows(device, c, step, at, out) == TESS_OK, "%s", cpu_sentence);
	at = 0;
	for (int32_t i = 0; i < SLOTS; i++) {
		slot = (first + i) % SLOTS;
		memcpy(text[slot].got + text[slot].done * row, out + at * row,
		       sizeof(float) * (size_t)(n[slot] * row));
		at += n[slot];
		text[slot].done += n[slot];
		ended += text[slot].done == TEXT;
	}
	return ended;
}

static void compare_slots(const struct attention_shape *m)
{
	struct attention_inputs step = make_attention_inputs(m, SLOTS * 40);
	float *out = malloc(sizeof(float) * (size_t)(SLOTS * 40 * get_out_row(m)));
	struct text text[SLOTS] = { 0 };
	struct cpu_devices d = { 0 };
	uint64_t seed;

	for (int s = 0; s < SLOTS; s++)
		open_text(m, &text[s]);
	seed = cpu_seed;
	while (cpu_open_next(&d)) {
		struct cache c = make_cache(m, SLOTS);

		for (int s = 0; s < SLOTS; s++)
			text[s].done = 0;
		while (run_slots_step(d.now, &c, text, &step, out) < SLOTS)
			;
		for (int s = 0; s < SLOTS; s++)
			cpu_expect_equal(d.variant->isa, text[s].got, text[s].want,
			                 TEXT * get_out_row(m));
		free_cache(&c);
	}
	cpu_seed = seed; /* later sequences do not depend on the number of devices */
	for (int s = 0; s < SLOTS; s++) {
		free_attention_inputs(&text[s].x);
		free(text[s].want);
		free(text[s].got);
	}
	free_attention_inputs(&step);
	free(out);
}

START_TEST(slots_are_apart)
{
	static const int64_t window[] = { 0, 70, 0, 1, 130, 0, -70, -33 };

	for (size_t i = 0; i < sizeof window / sizeof *window; i += STRIDE) {
		struct attention_shape m = make_attention_shape(
			i % 2 ? 5 : 3, i % 2 ? 3 : 0, i % 2 ? 4 : 1, i > 2 ? 24 : 16, window[i], 4);

		m.dtype = i < 2 ? TESS_F32 : TESS_BF16;
		if (i >= 4) {
			m.latent = true;
			m.value = 10;
		}
		compare_slots(&m);
	}
}
END_TEST

static void expect_rows_refused(void *device, const struct cache *c,
                                const struct attention_inputs *x, const char *says)
{
	float out[48];

	ck_assert_int_eq(run_attention_rows(device, c, x, 3, out), TESS_EINVAL);
	expect_part(cpu_sentence, says);
	expect_part(cpu_sentence, "layers.0.mlp");
}

/* Checks that another view for operand `at`, or, from 6 on, another stride `at` - 6, is refused. */
static void expect_operands_refused(const struct cache *c, int at, struct tess_view view)
{
	const struct attention_shape *m = c->m;
	float x[64] = { 0 };
	int32_t list[1] = { 0 };
	double num[TESS_ATTENTION_NUMS] = { 1, 0,  (double)m->d, 0, 1,
		                            0, 64, m->dtype,     0, (double)m->value };
	struct tess_view y = cpu_make_rows(x, 1, m->d, m->d);
	struct tess_view in[6] = { y,
		                   y,
		                   y,
		                   cpu_make_list(list, TESS_I32, 1),
		                   cpu_make_list(list, TESS_I32, 1),
		                   { .dtype = TESS_I64, .ndim = 2, .stride = { 0, 1 } } };
	struct tess_op op = cpu_make_op(TESS_OP_ATTENTION, in, 6, &y, num, TESS_ATTENTION_NUMS);

	if (m->latent)
		in[2] = (struct tess_view){ 0 };
	ck_assert_int_eq(cpu_check_op(&op), TESS_OK);
	if (at < 6)
		in[at] = view;
	else
		num[at - 6] = (double)view.stride[0];
	ck_assert_msg(cpu_check_op(&op) == TESS_ENOTSUP, "operand or number %d", at);
}

START_TEST(refuses_other_operands)
{
	struct attention_shape m = make_attention_shape(1, 0, 1, 16, 0, 1);
	struct cache c = make_full_cache(&m);
	struct tess_view pages = { .dtype = TESS_I64, .ndim = 2, .stride = { 0, 1 } };
	int32_t list[2] = { 0 };
	void *device = cpu_open_device("auto", 1);

	for (int i = 3; i < 5; i++) {
		expect_operands_refused(&c, i, cpu_make_list(list, TESS_I32, 2));
		expect_operands_refused(&c, i, cpu_make_list(list, TESS_I64, 1));
	}
	pages.dtype = TESS_I32;
	expect_operands_refused(&c, 5, pages);
	pages.dtype = TESS_I64;
	pages.shape[1] = 2;
	expect_operands_refused(&c, 5, pages); /* rows that overlap */
	for (int i = TESS_ATTENTION_KEYS; i <= TESS_ATTENTION_VALUES; i++) {
		pages.stride[0] = -4;
		expect_operands_refused(&c, 6 + i, pages);
		pages.stride[0] = 6; /* not a multiple of the element */
		expect_operands_refused(&c, 6 + i, pages);
	}
	pages.stride[0] = TESS_F16;
	expect_operands_refused(&c, 6 + TESS_ATTENTION_DTYPE, pages);
	pages.stride[0] = -1;
	expect_operands_refused(&c, 6 + TESS_ATTENTION_SOFTCAP, pages);
	for (int i = 0; i < 2; i++) { /* v, or a value as wide as a key */
		pages.stride[0] = i ? 17 : 0;
		expect_operands_refused(&c, 6 + TESS_ATTENTION_VALUE, pages);
		expect_operands_refused(&c, 2, cpu_make_rows(list, 1, i ? 17 : 15, 17));
		m.latent = true;
	}
	cpu_device->close(device);
	free_cache(&c);
}
END_TEST

START_TEST(refuses_positions_and_slots)
{
	static const int32_t position[][3] = {
		{ 0, 1, 64 }, { 0, 1, 1 }, { 0, 2, 3 }, { 62, 63, 64 }, { -1, 0, 1 },
	};
	struct attention_shape m = make_attention_shape(1, 0, 1, 16, 0, 1);
	struct attention_inputs x = make_attention_inputs(&m, 3);
	struct cache c = make_full_cache(&m), none = { .m = &m };
	void *device = cpu_open_device("auto", 1);
	float out[48];

	for (size_t i = 0; i < sizeof position / sizeof *position; i++) {
		memcpy(x.position, position[i], sizeof *position);
		expect_rows_refused(device, &c, &x, i ? "position" : "position 64 of slot 0");
	}
	memcpy(x.position, (int32_t[]){ 61, 62, 63 }, sizeof *position);
	ck_assert_int_eq(run_attention_rows(device, &c, &x, 3, out), TESS_OK);
	x.slot[2] = 1;
	expect_rows_refused(device, &c, &x, "slot 1");
	x.slot[2] = -1;
	expect_rows_refused(device, &c, &x, "slot -1");
	x.slot[2] = 0;
	drop_page(&c, 0, 0);
	expect_rows_refused(device, &c, &x, "slot 0 has no page for positions from 0 on");
	for (int32_t i = 0; i < 2; i++) {
		memcpy(x.position, (int32_t[]){ i, 1 + i, 3 }, sizeof *position);
		expect_rows_refused(device, &none, &x, i ? "position 1 of" : "position 3 of");
	}
	cpu_device->close(device);
	free_cache(&c);
	free_attention_inputs(&x);
}
END_TEST

/*
 * Checks that query heads [lo, lo + heads) in groups of `group` read the right number of key-value
 * heads.
 */
START_TEST(refuses_other_heads)
{
	enum { D = 4 };
	float memory[8 * D] = { 0 };
	int32_t position = 0;
	void *device = cpu_open_device("auto", 1);

	for (int i = 0; i < 4 * 4 * 4 * 8; i++) {
		int64_t heads = 1 + i % 4, lo = i / 4 % 4, group = 1 + i / 16 % 4, g = 1 + i / 64;
		double num[TESS_ATTENTION_NUMS] = { 1, 0, D,        (double)lo, (double)group,
			                            0, 0, TESS_F32, 0,          D };
		struct tess_view in[6] = { cpu_make_rows(memory, 1, heads * D, heads * D),
			                   cpu_make_rows(memory, 1, g * D, g * D),
			                   cpu_make_rows(memory, 1, g * D, g * D),
			                   cpu_make_list(&position, TESS_I32, 1),
			                   cpu_make_list(&position, TESS_I32, 1),
			                   { .dtype = TESS_I64, .ndim = 2, .stride = { 0, 1 } } };
		struct tess_view y = cpu_make_rows(memory, 1, heads * D, heads * D);
		struct tess_op op =
			cpu_make_op(TESS_OP_ATTENTION, in, 6, &y, num, TESS_ATTENTION_NUMS);
		bool read[8] = { false };
		int64_t count = 0;

		for (int64_t h = lo; h < lo + heads; h++) {
			count += !read[h / group];
			read[h / group] = true;
		}
		if ((cpu_check_op(&op) == TESS_OK) != (count == g))
			ck_abort_msg("heads %d from %d, groups of %d: %d", (int)heads, (int)lo,
			             (int)group, (int)g);
	}
	cpu_device->close(device);
}
END_TEST

SUITE_MAIN("cpu_attention", heads_of_a_rank, widths_of_values, windows, rewound,
           masked_values_are_absent, slots_are_apart, refuses_positions_and_slots,
           refuses_other_operands, refuses_other_heads)
