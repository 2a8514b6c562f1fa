/* squares.c - SQUARES: the exact sum of squares of f32, in any order, as an integer in digits. */
#include "cpu.h"

/*
 * A value is m * 2^(e - 150) with m below 2^24. Squares of one exponent are added as integers, in
 * several tables, so that an addition need not wait for the previous one; the sum of a share fits
 * 63 bits. Then each exponent's sum enters the digits of the thread.
 */
enum { EXPONENTS = 256, TABLES = 4, SHARE = 1 << 15, BLOCK = 128 };
enum { DIGITS = 18, FIELDS };

struct squares { /* the sums of a thread */
	int64_t table[TABLES][EXPONENTS];
	int64_t field[FIELDS];
};

struct squares_arg {
	const struct cpu *cpu;
	const float *x;
};

static void add_block_squares(struct squares *s, const float *x, int64_t n)
{
	int64_t square[BLOCK];
	int32_t exponent[BLOCK], nonfinite = 0;
	uint32_t bits[BLOCK];

	memcpy(bits, x, sizeof *x * (size_t)n);
	for (int64_t i = 0; i < n; i++) {
		int32_t e = (int32_t)(bits[i] >> 23 & 255);
		uint64_t m = (bits[i] & 0x7fffff) | (uint32_t)(e > 0) << 23;

		square[i] = (int64_t)(m * m);
		exponent[i] = e;
		nonfinite += e == 255;
	}
	for (int64_t i = 0; i < n; i++)
		s->table[i % TABLES][exponent[i]] += square[i];
	s->field[DIGITS] += nonfinite;
}

static void carry_fields(int64_t *field)
{
	for (int i = 0; i < DIGITS - 1; i++) {
		field[i + 1] += field[i] >> 32;
		field[i] &= 0xffffffff;
	}
}

/* Adds the sums of exponents to the digits; that of e is in units of 2^(2 * (e - 150)). */
static void add_tables(struct squares *s)
{
	for (int32_t e = 0; e < EXPONENTS - 1; e++) {
		int64_t v = s->table[0][e] + s->table[1][e] + s->table[2][e] + s->table[3][e];
		int32_t at = e ? 2 * e - 2 : 0;
		int64_t *d = &s->field[at / 32], low, high;

		low = (v & 0xffffffff) << at % 32;
		high = (v >> 32) << at % 32;
		d[0] += low & 0xffffffff;
		d[1] += (int64_t)((uint64_t)low >> 32) + (high & 0xffffffff);
		d[2] += high >> 32;
	}
	carry_fields(s->field);
}

static void add_share_squares(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct squares_arg *a = arg;
	struct squares *s = cpu_get_thread_scratch(a->cpu, thread);
	int64_t end;

	for (; lo < hi; lo = end) {
		end = hi - lo < SHARE ? hi : lo + SHARE;
		memset(s->table, 0, sizeof s->table);
		for (int64_t i = lo; i < end; i += BLOCK)
			add_block_squares(s, a->x + i, end - i < BLOCK ? end - i : BLOCK);
		add_tables(s);
	}
}

#define run_squares CPU_NAME(run_squares)
tess_status run_squares(struct cpu *cpu, const struct tess_op *op)
{
	struct squares_arg arg = { cpu, op->in[0].data };
	int64_t *sum = op->out[0].data;
	struct squares *s;
	tess_status st = cpu_grow_thread_scratch(cpu, sizeof *s);

	if (st)
		return st;
	for (int32_t i = 0; i < cpu->nthreads; i++)
		memset(cpu_get_thread_scratch(cpu, i), 0, sizeof *s);
	pool_run(cpu->pool, add_share_squares, &arg, op->in[0].shape[0], SHARE);
	for (int32_t i = 0; i < cpu->nthreads; i++) {
		s = cpu_get_thread_scratch(cpu, i);
		for (int k = 0; k < FIELDS; k++)
			sum[k] += s->field[k];
	}
	carry_fields(sum);
	return TESS_OK;
}
