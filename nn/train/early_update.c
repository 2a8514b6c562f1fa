/*
 * early_update.c - updates weights during the backward of a step, where no norm is needed before:
 * without clipping. Those whose state is in files are changed once their gradients are final, so
 * that the disk works while the device does.
 */
#include "core/base/status.h"
#include "nn/program/agree.h"
#include "nn/train/trainer_state.h"

#include <math.h>
#include <stdio.h>
#include <tessera/util/clock.h>

/* Begins the update unless a loss of the step is not finite on some rank. Collective. */
static tess_status begin_if_finite(void *self)
{
	struct tess_trainer *t = self;
	struct tess_early_update *e = &t->early;
	int64_t began = tess_now();
	int32_t bad = e->is_nonfinite;
	tess_status st;

	for (int64_t i = 0; i < e->nlosses; i++)
		bad |= !isfinite(e->losses[i]);
	st = tess_all_reduce(t->parts.group, &bad, &bad, 1, TESS_I32, TESS_MAX, "loss");
	t->waited += tess_now() - began;
	if (!st && !bad) {
		tess_update_begin(&t->update, &e->step);
		e->has_begun = true;
	}
	return st;
}

static void add_final_weight(void *self, const struct tess_weight *w)
{
	struct tess_trainer *t = self;

	if (t->early.has_begun && !t->early.failed)
		tess_update_add(&t->update, w);
}

/* Keeps a failure for the end of the backward, which other ranks wait for. */
static void advance_early(void *self)
{
	struct tess_trainer *t = self;
	struct tess_early_update *e = &t->early;

	if (!e->has_begun || e->failed)
		return;
	e->failed = tess_update_advance(&t->update);
	if (!e->failed)
		return;
	snprintf(e->message, sizeof e->message, "%s", tess_error());
	tess_update_abandon(&t->update);
}

tess_status tess_early_update_get_failure(const struct tess_trainer *t)
{
	return t->early.failed ? tess_fail(t->early.failed, "%s", t->early.message) : TESS_OK;
}

void tess_early_update_prepare(struct tess_trainer *t, const struct tess_optimizer_step *step)
{
	t->early = (struct tess_early_update){ .step = *step };
	t->early.calls = (struct tess_final_calls){ .take_losses = begin_if_finite,
		                                    .take_weight = add_final_weight,
		                                    .advance = advance_early,
		                                    .self = t };
}

void tess_early_update_watch(struct tess_trainer *t, const struct tess_shaped_program *k,
                             const int32_t *nonfinite, int64_t n)
{
	struct tess_early_update *e = &t->early;

	e->losses = k->lowered->loss;
	e->nlosses = e->losses ? k->shape.ntokens : 0;
	for (int64_t i = 0; i < n; i++)
		e->is_nonfinite |= nonfinite[i];
	t->groups.final = &e->calls;
}
