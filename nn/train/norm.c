#include "core/base/status.h"
#include "core/call/carrier.h"
#include "nn/program/agree.h"
#include "nn/train/squares.h"
#include "nn/train/trainer_state.h"
#include "nn/weights/kept.h"

#include <math.h>
#include <string.h>
#include <tessera/util/clock.h>

tess_status tess_trainer_add_accumulators(struct tess_trainer *t, struct tess_group *group,
                                          struct tess_accumulator *a, const char *where)
{
	int64_t fields[TESS_ACCUMULATOR_FIELDS], began = tess_now();
	tess_status st;

	if (!group)
		return TESS_OK;
	memcpy(fields, a, sizeof fields);
	st = tess_all_reduce(group, fields, fields, TESS_ACCUMULATOR_FIELDS, TESS_I64, TESS_SUM,
	                     where);
	memcpy(a, fields, sizeof fields);
	t->waited += tess_now() - began;
	return st;
}

/*
 * Adds the squares of a gradient; of one in a file, window by window. Those of gradients in memory
 * of the host, next to a device with memory of its own, are added to *on_host.
 */
static tess_status add_weight_squares(struct tess_trainer *t, const struct tess_weight *w,
                                      struct tess_accumulator *on_host)
{
	const struct tess_opened_device *device;
	struct tess_squares_part part = { .weight = w };
	struct tess_kept gradient;
	tess_status st = TESS_OK;
	bool pinned;

	tess_kept_open(&t->parameters, w, TESS_GRADIENT, false, &gradient);
	pinned = gradient.offload && gradient.offload->pinned;
	device = pinned ? &t->parameters.host : &t->device;
	for (; part.first < gradient.n && !st; part.first += part.n) {
		void *data = gradient.data;

		part.n = gradient.n - part.first;
		if (gradient.offload)
			st = tess_kept_map(&gradient, part.first, &part.n, &data);
		part.gradient = data;
		if (!st && data)
			st = tess_squares_add_part(device, &t->parameters, &part,
			                           pinned ? on_host : t->squares);
	}
	return tess_kept_close(&gradient, st);
}

/* Adds an accumulator field by field. */
static void add_host_sum(const struct tess_accumulator *more, struct tess_accumulator *sum)
{
	for (int32_t i = 0; i < TESS_ACCUMULATOR_DIGITS; i++)
		sum->digit[i] += more->digit[i];
	sum->nonfinite += more->nonfinite;
}

tess_status tess_trainer_measure_norm(struct tess_trainer *t, double *norm)
{
	const struct tess_parameters *s = &t->parameters;
	struct tess_accumulator sum = { 0 }, on_host = { 0 };
	tess_status st = tess_device_clear(&t->device, "norm", t->squares, sizeof sum), early;

	tess_early_update_add_rest(t);
	for (int32_t i = 0; i < s->program->nweights && !st; i++)
		if (s->each[i].trained && !s->program->weight[i]->table &&
		    !tess_weight_get_copy(s->program, s->program->weight[i], s->rank, TESS_STATE) &&
		    !(t->early.has_begun && s->offload.layout.weight[i].has_gradient))
			st = add_weight_squares(t, s->program->weight[i], &on_host);
	if (!st)
		st = tess_device_move(&t->device, "norm", &sum, t->squares, sizeof sum);
	add_host_sum(&on_host, &sum);
	early = tess_early_update_finish(t);
	if (t->early.has_begun) /* what the update has read */
		add_host_sum(&t->update.squares, &sum);
	st = tess_group_agree_status(t->parts.group, st ? st : early, "norm");
	if (!st)
		st = tess_trainer_add_accumulators(t, t->parts.group, &sum, "norm");
	*norm = sqrt(tess_accumulator_round(&sum));
	return st;
}
