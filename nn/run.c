#include "nn/run.h"

#include "core/base/status.h"
#include "core/registry/returned.h"
#include "nn/check.h"

#include <stdlib.h>

/* The check reads a copy of the value, up to its last element, in host memory. */
static tess_status run_check_step(const struct tess_check *c, const struct tess_opened_device *d,
                                  struct tess_group *group)
{
	struct tess_check host = *c;
	int64_t last = 0;
	bool empty = false;
	tess_status st;

	for (int32_t i = 0; i < c->view.ndim; i++) {
		empty = empty || !c->view.shape[i];
		last += (c->view.shape[i] - 1) * c->view.stride[i];
	}
	host.view.data = malloc(empty ? 1 : 4 * (size_t)(last + 1));
	st = host.view.data ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
	if (!st && !empty)
		st = tess_device_move(d, c->record->module, host.view.data, c->view.data,
		                      4 * (uint64_t)(last + 1));
	if (!st)
		st = tess_check_run(&host, group);
	free(host.view.data);
	return st;
}

static tess_status run_program_step(const struct tess_step *s, const struct tess_opened_device *d,
                                    const struct tess_run_groups *groups)
{
	switch (s->kind) {
	case TESS_STEP_OP:
		return TESS_PLUGIN_CALL(d->table, s->op.where, run, d->self, &s->op);
	case TESS_STEP_COLL:
		return tess_group_run(groups->along[s->along], &s->coll);
	case TESS_STEP_SUM:
		return tess_group_sum(groups->along[s->along], &s->sum, s->sum_in, s->sum_out);
	case TESS_STEP_CHECK:
		return run_check_step(&s->check, d, groups->all);
	default:
		tess_error_clear();
		return tess_plugin_check_returned(s->style, s->style->name, "run", s->where,
		                                  s->call->run(&s->local));
	}
}

tess_status tess_rank_program_run(const struct tess_rank_program *l,
                                  const struct tess_opened_device *device,
                                  const struct tess_run_groups *groups)
{
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < l->nsteps && !st; i++)
		st = run_program_step(l->step[i], device, groups);
	return st;
}

tess_status tess_rank_program_check_device(const struct tess_rank_program *l,
                                           const struct tess_device *device)
{
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < l->nsteps && !st; i++)
		if (l->step[i]->kind == TESS_STEP_OP)
			st = TESS_PLUGIN_CALL(device, l->step[i]->op.where, supports,
			                      &l->step[i]->op);
	return st;
}
