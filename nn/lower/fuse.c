/* fuse.c - joins ops into fused steps, from what the device can compute in one call. */
#include "nn/lower/lower.h"

#include "core/registry/plugin_call.h"

/* Binds the spaces of a program far apart, so that addresses show which operands share memory. */
static tess_status bind_apart(struct tess_rank_program *l)
{
	void **slot = TESS_NEW(&l->arena, void *, l->nstages);
	const struct tess_memory m = { .step = (void *)((uintptr_t)1 << 40),
		                       .slot = slot,
		                       .inputs = (void *)((uintptr_t)2 << 40),
		                       .rope = (void *)((uintptr_t)3 << 40),
		                       .rope_positions = 1, /* else all tables are at `rope` */
		                       .pages = (void *)((uintptr_t)4 << 40),
		                       .gradients = (void *)((uintptr_t)5 << 40) };

	for (int32_t s = 0; s < l->nstages && slot; s++)
		slot[s] = (void *)((uintptr_t)(6 + s) << 40);
	if (!slot)
		return TESS_ENOMEM;
	tess_rank_program_bind(l, &m);
	return TESS_OK;
}

/* Appends an op to the last one of a step, unless the device needs a call for each. */
static bool add_fused_op(struct tess_step *step, struct tess_step *s,
                         const struct tess_device *device)
{
	struct tess_step *last = step;

	while (last->fused)
		last = last->fused;
	last->op.next = &s->op;
	last->op.only_next = last->only_next;
	if (TESS_PLUGIN_VALUE_QUICK(device, step->op.where, fuses, &step->op) == 1) {
		last->fused = s;
		return true;
	}
	last->op.next = NULL;
	last->op.only_next = 0;
	return false;
}

tess_status tess_rank_program_fuse(struct tess_rank_program *l, const struct tess_device *device)
{
	int32_t n = 0, k = 0;

	if (!device->fuses)
		return TESS_OK;
	if (bind_apart(l))
		return TESS_ENOMEM;
	for (int32_t i = 0; i < l->nsteps; i++) {
		struct tess_step *s = l->step[i], *before = n ? l->step[n - 1] : NULL;
		bool begins = k < l->nsegments && l->segment[k].first == i;

		for (; k < l->nsegments && l->segment[k].first == i; k++)
			l->segment[k].first = n;
		if (begins || !before || before->kind != TESS_STEP_OP || s->kind != TESS_STEP_OP ||
		    !add_fused_op(before, s, device))
			l->step[n++] = s;
	}
	for (; k < l->nsegments; k++)
		l->segment[k].first = n;
	for (k = 0; k < l->nsegments; k++)
		l->segment[k].end = k + 1 < l->nsegments ? l->segment[k + 1].first : n;
	l->nsteps = n;
	return TESS_OK;
}
