/* search.c - searches strategies. */
#include "api/plan/planner.h"
#include "core/base/status.h"

tess_status tess_planner_search(struct tess_planner *p, int32_t nranks, int32_t most,
                                const struct tess_forecast *const **out, int32_t *n)
{
	(void)p, (void)nranks, (void)most, (void)out, (void)n;
	return tess_fail(TESS_EINVAL, "not yet");
}
