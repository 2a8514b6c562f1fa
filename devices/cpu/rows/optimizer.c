/* optimizer.c - ADAMW, SGD: elementwise, at memory bandwidth. */
#include <math.h>

#include "cpu.h"

enum { SHARE = 1 << 14 }; /* elements */
enum { BLOCK = 256 }; /* elements rounded at a time, in cache */

struct step {
	const struct tess_op *op;
	const float *g;
	float *w, *m, *v;
};

/* Rounds w to the 16-bit weights, to nearest even. */
static void round_weights(const struct tess_view *to, const float *w, int64_t at, int64_t n)
{
	char *out = (char *)to->data + at * 2;
	uint16_t h[BLOCK];

	if (to->dtype == TESS_BF16) {
		for (int64_t i = 0; i < n; i++)
			h[i] = tess_bf16_round(tess_one_nan(w[i]));
	} else {
		for (int64_t i = 0; i < n; i++)
			h[i] = tess_f16_round(tess_one_nan(w[i]));
	}
	memcpy(out, h, sizeof *h * (size_t)n);
}

static void update_adamw(const struct step *s, int64_t at, int64_t n)
{
	const double *num = s->op->num;
	const float factor = (float)num[TESS_ADAMW_FACTOR],
		    keep = (float)(1 - num[TESS_ADAMW_LR] * num[TESS_ADAMW_DECAY]),
		    new_m = (float)(1 - num[TESS_ADAMW_BETA1]),
		    old_v = (float)num[TESS_ADAMW_BETA2],
		    new_v = (float)(1 - num[TESS_ADAMW_BETA2]),
		    rate = (float)(num[TESS_ADAMW_LR] / num[TESS_ADAMW_BIAS1]),
		    bias = (float)sqrt(num[TESS_ADAMW_BIAS2]), eps = (float)num[TESS_ADAMW_EPS];
	const float *g = s->g + at;
	float *w = s->w + at, *m = s->m + at, *v = s->v + at;

	CPU_LANES
	for (int64_t i = 0; i < n; i++) {
		float u = g[i] * factor, a = m[i] + new_m * (u - m[i]),
		      b = old_v * v[i] + new_v * u * u;

		m[i] = a;
		v[i] = b;
		w[i] = w[i] * keep - rate * a / (sqrtf(b) / bias + eps);
	}
}

static void update_sgd(const struct step *s, int64_t at, int64_t n)
{
	const double *num = s->op->num;
	const float lr = (float)num[TESS_SGD_LR], momentum = (float)num[TESS_SGD_MOMENTUM],
		    decay = (float)num[TESS_SGD_DECAY], factor = (float)num[TESS_SGD_FACTOR];
	const float *g = s->g + at;
	float *w = s->w + at, *m = s->m + at;

	if (!s->m) {
		CPU_LANES
		for (int64_t i = 0; i < n; i++)
			w[i] = w[i] - lr * (g[i] * factor + decay * w[i]);
		return;
	}
	CPU_LANES
	for (int64_t i = 0; i < n; i++) {
		m[i] = momentum * m[i] + (g[i] * factor + decay * w[i]);
		w[i] = w[i] - lr * m[i];
	}
}

static void update_weights(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct step *s = arg;
	const struct tess_view *rounded = &s->op->out[s->op->nout - 1];
	int64_t n;

	(void)thread;
	for (int64_t at = lo; at < hi; at += n) {
		n = hi - at < BLOCK ? hi - at : BLOCK;
		if (s->v)
			update_adamw(s, at, n);
		else
			update_sgd(s, at, n);
		if (rounded->ndim)
			round_weights(rounded, s->w + at, at, n);
	}
}

static tess_status run_update(struct cpu *cpu, const struct step *s)
{
	pool_run(cpu->pool, update_weights, (void *)s, s->op->in[0].shape[0], SHARE);
	return TESS_OK;
}

#define run_adamw CPU_NAME(run_adamw)
tess_status run_adamw(struct cpu *cpu, const struct tess_op *op)
{
	struct step s = { .op = op,
		          .g = op->in[0].data,
		          .w = op->out[0].data,
		          .m = op->out[1].data,
		          .v = op->out[2].data };

	return run_update(cpu, &s);
}

#define run_sgd CPU_NAME(run_sgd)
tess_status run_sgd(struct cpu *cpu, const struct tess_op *op)
{
	struct step s = { .op = op,
		          .g = op->in[0].data,
		          .w = op->out[0].data,
		          .m = op->out[1].ndim ? op->out[1].data : NULL };

	return run_update(cpu, &s);
}
