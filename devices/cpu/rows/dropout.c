/* dropout.c - DROPOUT: drops an element by a random number that does not depend on ranks. */
#include "dropout.h"

#include <tessera/util/random.h>

enum { WORDS = 4, ROWS = 64 };

struct dropout dropout_read(double rate, const struct tess_view *step)
{
	struct dropout d = { .below = tess_drop_below(rate), .scale = tess_drop_scale(rate) };
	const int32_t *words = step->data;

	if (!d.below)
		return d;
	d.key[0] = (uint32_t)words[0];
	d.key[1] = (uint32_t)words[1];
	d.first = (uint32_t)words[2];
	return d;
}

void dropout_apply(const struct dropout *d, int64_t position, int64_t slot, int64_t site,
                   int64_t column, int64_t n, const float *x, float *y)
{
	uint32_t word[WORDS][LANES], sequence = d->first + (uint32_t)slot;
	int64_t skip = column % WORDS, group = column / WORDS, end = skip + n;

	for (int64_t at = 0; at < end; at += WORDS * LANES, group += LANES) {
		CPU_LANES
		for (int l = 0; l < LANES; l++) {
			uint32_t c[WORDS] = { (uint32_t)group + (uint32_t)l, (uint32_t)position,
				              sequence, (uint32_t)site };

			tess_philox(d->key[0], d->key[1], c);
			for (int w = 0; w < WORDS; w++)
				word[w][l] = c[w];
		}
		for (int64_t i = at > skip ? at : skip; i < at + WORDS * LANES && i < end; i++)
			y[i - skip] = word[i % WORDS][(i - at) / WORDS] < d->below
			                      ? 0.0f
			                      : x[i - skip] * d->scale;
	}
}

void dropout_list_factors(const struct dropout *drop, int64_t position, int64_t slot, int64_t site,
                          int64_t column, float *to)
{
	const struct dropout d = *drop; /* a copy, which `to` cannot alias */
	uint32_t sequence = d.first + (uint32_t)slot, group = (uint32_t)(column / WORDS);

	CPU_LANES
	for (int l = 0; l < ROWS; l++) {
		uint32_t c[WORDS] = { group, (uint32_t)position + (uint32_t)l, sequence,
			              (uint32_t)site };

		tess_philox(d.key[0], d.key[1], c);
		to[l] = c[0] < d.below ? 0.0f : d.scale;
		to[ROWS + l] = c[1] < d.below ? 0.0f : d.scale;
		to[2 * ROWS + l] = c[2] < d.below ? 0.0f : d.scale;
		to[3 * ROWS + l] = c[3] < d.below ? 0.0f : d.scale;
	}
}

struct rows {
	const struct tess_op *op;
	struct dropout drop;
};

static void drop_rows(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct rows *r = arg;
	const struct tess_op *op = r->op;
	const int32_t *position = op->in[1].data, *slot = op->in[2].data;

	(void)thread;
	for (int64_t t = lo; t < hi; t++)
		dropout_apply(&r->drop, position[t], slot[t], (int64_t)op->num[TESS_DROPOUT_SITE],
		              (int64_t)op->num[TESS_DROPOUT_FIRST], op->in[0].shape[1],
		              get_row(&op->in[0], t), get_row(&op->out[0], t));
}

#define run_dropout CPU_NAME(run_dropout)
tess_status run_dropout(struct cpu *cpu, const struct tess_op *op)
{
	struct rows r = { op, dropout_read(op->num[TESS_DROPOUT_RATE], &op->in[3]) };

	pool_run(cpu->pool, drop_rows, &r, op->in[0].shape[0],
	         tess_up(1 << 13, op->in[0].shape[1] + 1));
	return TESS_OK;
}
