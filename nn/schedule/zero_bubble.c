/*
 * zero_bubble.c - schedules whose backward is in two parts: the gradients of inputs, for which the
 * stage before waits, and those of weights, for which nothing waits, so that they fill the bubble.
 *
 * ZB-H1: Qi et al. 2023. ZB-V: Qi et al. 2024, with the order of torch.
 */
#include "nn/schedule/schedule.h"

struct zero_bubble { /* a rank, and its next micro-batches by kind and by its stages */
	struct tess_schedule_maker *m;
	int32_t rank, stage[2];
	int32_t next[TESS_PIPELINE_KINDS][2];
};

/* Adds the next computation of a kind; micro-batches that are too many are left out. */
static void add_next(struct zero_bubble *z, int32_t kind, int32_t chunk)
{
	int32_t micro = z->next[kind][chunk]++;

	if (micro < z->m->nmicro)
		tess_schedule_add(z->m, z->rank,
		                  (struct tess_pipeline_action){ kind, z->stage[chunk], micro, 0 });
}

static void add_next_forward(struct zero_bubble *z, int32_t chunk)
{
	add_next(z, TESS_PIPELINE_FORWARD, chunk);
}

static void add_next_inputs(struct zero_bubble *z, int32_t chunk)
{
	add_next(z, TESS_PIPELINE_BACKWARD_INPUTS, chunk);
}

static void add_next_weights(struct zero_bubble *z, int32_t chunk)
{
	add_next(z, TESS_PIPELINE_BACKWARD_WEIGHTS, chunk);
}

static void add_next_parts(struct zero_bubble *z, int32_t chunk)
{
	add_next_inputs(z, chunk);
	add_next_weights(z, chunk);
}

/*
 * ZB-H1 is 1F1B whose gradients of weights come r micro-batches later on rank r. Every rank keeps
 * the values of as many micro-batches as rank 0.
 */
void tess_schedule_add_zb_h1(struct tess_schedule_maker *m, int32_t r)
{
	struct zero_bubble z = { .m = m, .rank = r, .stage = { r } };
	int32_t warmup = m->nranks - 1 - r;

	for (int32_t k = 0; k < m->nmicro + warmup + r; k++) {
		add_next_forward(&z, 0);
		if (k >= warmup)
			add_next_inputs(&z, 0);
		if (k >= warmup + r)
			add_next_weights(&z, 0);
	}
}

static void add_zb_v_warmup(struct zero_bubble *z)
{
	int32_t p = z->m->nranks;

	for (int32_t i = 0; i < 2 * (p - z->rank) - 1; i++)
		add_next_forward(z, 0);
	for (int32_t i = 0; i < z->rank; i++) {
		add_next_forward(z, 1);
		add_next_forward(z, 0);
	}
	for (int32_t i = 0; i < p - z->rank; i++) {
		add_next_forward(z, 1);
		add_next_parts(z, 1);
	}
}

/* Ends a step: gradients of inputs first, and what is left of those of weights last. */
static void add_zb_v_end(struct zero_bubble *z)
{
	const int32_t *inputs = z->next[TESS_PIPELINE_BACKWARD_INPUTS];
	const int32_t *weights = z->next[TESS_PIPELINE_BACKWARD_WEIGHTS];

	for (int32_t i = 0; i < z->rank; i++) {
		add_next_inputs(z, 0);
		add_next_inputs(z, 1);
	}
	for (int32_t i = z->rank; i < z->m->nranks; i++)
		add_next_parts(z, 0);
	for (int32_t chunk = 1; chunk >= 0; chunk--)
		while (weights[chunk] < inputs[chunk])
			add_next_weights(z, chunk);
}

/* Made for at least 2p - 1 micro-batches; those that are too many are left out. */
void tess_schedule_add_zb_v(struct tess_schedule_maker *m, int32_t r)
{
	struct zero_bubble z = { .m = m, .rank = r, .stage = { r, 2 * m->nranks - 1 - r } };
	const int32_t *begun = z.next[TESS_PIPELINE_FORWARD];
	int32_t n = m->nmicro < 2 * m->nranks - 1 ? 2 * m->nranks - 1 : m->nmicro;

	add_zb_v_warmup(&z);
	while (begun[1] < begun[0] || begun[0] < n) {
		if (begun[0] < n)
			add_next_forward(&z, 0);
		add_next_parts(&z, 0);
		add_next_forward(&z, 1);
		add_next_parts(&z, 1);
	}
	add_zb_v_end(&z);
}
