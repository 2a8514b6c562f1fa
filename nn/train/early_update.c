/*
 * early_update.c - updates weights during the backward of a step, where no norm is needed before:
 * without clipping. Those that are in files, or whose state is, are changed once their gradients
 * are final, by a thread (update_thread.h). Next to a device with memory of its own, the rank
 * changes those in memory of the host: it queues the ops of the backward before the device runs
 * them, and works while it would wait.
 *
 * Where only state is in files, a step does not wait for the end of the update: the next forward
 * waits for each weight before it reads it.
 */
#include "core/base/status.h"
#include "nn/program/agree.h"
#include "nn/train/trainer_state.h"

#include <math.h>
#include <tessera/util/clock.h>

/* Waits until a weight has the values of the last step, unless that fails: settle reports it. */
static void await_weight(void *self, const struct tess_weight *w)
{
	struct tess_trainer *t = self;

	if (t->is_updating && t->update_thread)
		tess_update_thread_await(t->update_thread, w);
}

/* Begins the update unless a loss of the step is not finite on some rank. Collective. */
static tess_status begin_if_finite(void *self)
{
	struct tess_trainer *t = self;
	struct tess_early_update *e = &t->early;
	int32_t bad = e->is_nonfinite;
	int64_t began;
	tess_status st;

	if (!e->is_last)
		return TESS_OK;
	st = tess_trainer_settle(t);
	if (!st)
		st = tess_device_move(&t->device, "loss", t->losses, e->losses,
		                      (uint64_t)e->nlosses * sizeof *t->losses);
	if (st)
		return st;
	for (int64_t i = 0; i < e->nlosses; i++)
		bad |= !isfinite(t->losses[i]);
	began = tess_now(); /* without waits for this rank's own disk and device */
	st = tess_all_reduce(t->parts.group, &bad, &bad, 1, TESS_I32, TESS_MAX, "loss");
	t->waited += tess_now() - began;
	if (st || bad)
		return st;
	tess_early_update_count_moved(t); /* of the last update, which has ended */
	tess_update_begin(&t->update, &e->step);
	t->update.adds_squares = true;
	e->has_begun = true;
	if (t->update_thread)
		tess_update_thread_begin(t->update_thread);
	return TESS_OK;
}

/* Without a thread and memory of the host, this rank has no values elsewhere. */
static tess_status add_final_weight(void *self, const struct tess_weight *w)
{
	struct tess_trainer *t = self;

	if (!t->early.has_begun)
		return TESS_OK;
	if (t->parameters.offload.pinned)
		return tess_update_add_queued(&t->update, w);
	if (t->update_thread)
		tess_update_thread_add(t->update_thread, w);
	return TESS_OK;
}

tess_status tess_early_update_open(struct tess_trainer *t)
{
	const struct tess_pinned_device d = { t->device.table, t->device.self, t->device.stream };
	struct tess_pinned *pinned = t->parameters.offload.pinned;

	t->may_update_early = tess_update_may_be_early(t->clip, t->balance, t->pipeline != NULL) &&
	                      (tess_device_is_host(&t->device) || tess_pinned_overlaps(&d));
	t->may_update_late = t->may_update_early && tess_device_is_host(&t->device) &&
	                     tess_program_may_update_late(t->parameters.program);
	if (!t->may_update_early)
		return TESS_OK;
	if (pinned)
		return tess_pinned_open_points(pinned);
	return t->update.bytes ? tess_update_thread_open(&t->update, &t->device, t->parts.group,
	                                                 &t->update_thread)
	                       : TESS_OK;
}

void tess_early_update_prepare(struct tess_trainer *t, const struct tess_optimizer_step *step)
{
	t->early = (struct tess_early_update){ .step = *step };
	t->early.calls = (struct tess_final_calls){ .await_weight = await_weight,
		                                    .take_losses = begin_if_finite,
		                                    .take_weight = add_final_weight,
		                                    .self = t };
	t->groups.final = t->may_update_early ? &t->early.calls : NULL;
}

void tess_early_update_watch(struct tess_trainer *t, const struct tess_shaped_program *k,
                             const int32_t *nonfinite, int64_t n)
{
	struct tess_early_update *e = &t->early;

	e->losses = k->lowered->loss;
	e->nlosses = e->losses ? k->shape.ntokens : 0;
	for (int64_t i = 0; i < n; i++)
		e->is_nonfinite |= nonfinite[i];
	e->is_last = true;
}

tess_status tess_early_update_execute(struct tess_trainer *t)
{
	tess_status st = TESS_OK;

	while (!st && t->early.has_begun && !t->update_thread && !tess_update_is_idle(&t->update))
		st = tess_update_advance(&t->update);
	return st;
}

void tess_early_update_add_rest(struct tess_trainer *t)
{
	if (t->early.has_begun && t->update_thread)
		tess_update_thread_add_rest(t->update_thread);
}

tess_status tess_early_update_finish(struct tess_trainer *t)
{
	t->is_updating = t->early.has_begun && t->may_update_late;
	if (!t->early.has_begun || (t->is_updating && t->update_thread))
		return TESS_OK;
	return t->update_thread ? tess_update_thread_finish(t->update_thread)
	                        : tess_update_finish(&t->update);
}

void tess_early_update_count_moved(struct tess_trainer *t)
{
	for (int32_t i = 0; i < 2; i++) {
		t->moved[0][i] += t->moved[1][i];
		t->moved[1][i] = 0;
	}
}

tess_status tess_trainer_settle(struct tess_trainer *t)
{
	tess_status st = TESS_OK;

	if (!t->is_updating)
		return TESS_OK;
	t->is_updating = false;
	if (t->update_thread)
		st = tess_update_thread_finish(t->update_thread);
	st = tess_group_agree_status(t->parts.group, st, "optimizer");
	if (st)
		t->failed = t->step;
	return st;
}

void tess_early_update_abandon(struct tess_trainer *t)
{
	t->is_updating = false;
	if (t->early.has_begun && t->update_thread)
		tess_update_thread_abandon(t->update_thread);
	else if (t->early.has_begun)
		tess_update_abandon(&t->update);
}
