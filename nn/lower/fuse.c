/* fuse.c - joins ops into fused steps, from what the device can compute in one call. */
#include "nn/lower/lower.h"

#include "core/registry/plugin_call.h"

/* Binds the spaces of a program far apart, so that addresses show which operands share memory. */
static void bind_apart(struct tess_rank_program *l)
{
	const struct tess_memory m = { .step = (void *)((uintptr_t)1 << 40),
		                       .inputs = (void *)((uintptr_t)2 << 40),
		                       .rope = (void *)((uintptr_t)3 << 40),
		                       .rope_positions = 1, /* else all tables are at `rope` */
		                       .pages = (void *)((uintptr_t)4 << 40),
		                       .gradients = (void *)((uintptr_t)5 << 40) };

	tess_rank_program_bind(l, &m);
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

void tess_rank_program_fuse(struct tess_rank_program *l, const struct tess_device *device)
{
	int32_t n = 0;

	if (!device->fuses)
		return;
	bind_apart(l);
	for (int32_t i = 0; i < l->nsteps; i++) {
		struct tess_step *s = l->step[i], *before = n ? l->step[n - 1] : NULL;

		if (!before || before->kind != TESS_STEP_OP || s->kind != TESS_STEP_OP ||
		    !add_fused_op(before, s, device))
			l->step[n++] = s;
	}
	l->nbody -= l->nsteps - n; /* no op follows the body */
	l->nsteps = n;
}
