#include "run.h"

#include "small.h"
#include "wakeup.h"
#include "work.h"

enum {
	PEEKS = 40
}; /* one after another, as the caller's bookkeeping takes about as long as a flag */

/* Whether all flags are set before meanwhile() says 0, and are of this call. */
static inline bool await_all_flags(struct group *g, const struct tess_coll *c,
                                   int32_t (*meanwhile)(void *), void *arg)
{
	bool more = meanwhile(arg);
	int32_t seen = 0, peeks = PEEKS;

	while (seen < g->nranks) {
		const struct flag *flag = flag_of(g, seen, g->round);

		if (atomic_load_explicit(&flag->round, memory_order_acquire) == g->round) {
			if (flag->fingerprint != c->fingerprint)
				return false;
			seen++;
		} else if (peeks > 0) {
			peeks--;
		} else if (more) {
			if (g->fenced)
				wakeup_notify(g);
			relax_cpu();
			more = meanwhile(arg);
		} else {
			return false;
		}
	}
	return true;
}

/* As a work: it is not small, spinning is no use, or it is posted and not complete. */
static tess_status continue_as_work(struct group *g, const struct tess_coll *c, bool posted,
                                    int32_t (*meanwhile)(void *), void *arg, void **work)
{
	struct work *w;
	tess_status st = shm_work_start(g, c, posted, &w);

	if (!posted)
		meanwhile(arg);
	if (st)
		return st;
	w->c.deadline = c->deadline;
	*work = w;
	return TESS_PENDING;
}

tess_status run_small_call(void *self, const struct tess_coll *c, int32_t (*meanwhile)(void *arg),
                           void *arg, void **work)
{
	struct group *g = self;
	uint64_t bytes;

	if (!g->spin || g->failed || g->calls.head || g->messages || !small_plan_call(g, c, &bytes))
		return continue_as_work(g, c, false, meanwhile, arg, work);
	small_post_call(g, c, bytes);
	if (!await_all_flags(g, c, meanwhile, arg))
		return continue_as_work(g, c, true, meanwhile, arg, work);
	small_take_result(g, c, bytes);
	g->round++;
	wakeup_notify(g);
	return TESS_OK;
}
