#include "nn/run/segment.h"

/* Returns the first step of record `record` or a later one; l->nbody: there is none. */
static int32_t find_step(const struct tess_rank_program *l, int32_t record)
{
	int32_t i = 0;

	while (i < l->nbody && l->step[i]->record < record)
		i++;
	return i;
}

void tess_pipeline_schedule_find_steps(const struct tess_pipeline_schedule *s,
                                       const struct tess_rank_program *l, int32_t segment,
                                       int32_t *first, int32_t *end)
{
	if (segment == s->nsegments) {
		*first = l->nbody;
		*end = l->nsteps;
		return;
	}
	*first = segment ? find_step(l, s->record[segment]) : 0;
	*end = segment + 1 < s->nsegments ? find_step(l, s->record[segment + 1]) : l->nbody;
}
