#include "nn/run.h"

#include "core/base/status.h"
#include "core/registry/returned.h"
#include "nn/check.h"

static tess_status run_program_step(const struct tess_step *s, const struct tess_device *device,
                                    void *self, const struct tess_run_groups *groups)
{
	switch (s->kind) {
	case TESS_STEP_OP:
		return TESS_PLUGIN_CALL(device, s->op.where, run, self, &s->op);
	case TESS_STEP_COLL:
		return tess_group_run(groups->along[s->along], &s->coll);
	case TESS_STEP_SUM:
		return tess_group_sum(groups->along[s->along], &s->sum, s->sum_in, s->sum_out);
	case TESS_STEP_CHECK:
		return tess_check_run(&s->check, groups->all);
	default:
		tess_error_clear();
		return tess_plugin_check_returned(s->style, s->style->name, "run", s->where,
		                                  s->call->run(&s->local));
	}
}

tess_status tess_rank_program_run(const struct tess_rank_program *l,
                                  const struct tess_device *device, void *self,
                                  const struct tess_run_groups *groups)
{
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < l->nsteps && !st; i++)
		st = run_program_step(l->step[i], device, self, groups);
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
