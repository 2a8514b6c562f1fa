/* estimate.h - what the estimate of a candidate follows from. */
#ifndef TESS_API_PLAN_ESTIMATE_H
#define TESS_API_PLAN_ESTIMATE_H

#include "api/plan/stages.h"

struct estimate {
	const struct tess_planner *planner;
	struct candidate *candidate;
	/* with dp=1 and pp=1; a sample with few ranks along dp; and the same sample with dp=1 */
	struct composed compute, data, plain;
	/* with pp > 1: */
	struct staged staged;
	const struct stage_schedule *schedule;
	struct simulated simulated; /* without what is done along dp */
};
/* Sets seconds and memory of e->candidate. */
void tess_candidate_estimate(struct estimate *e);

#endif
