/* step_trace.c - runs the steps of a rank on a clock again. */
#include "nn/cost/step_trace.h"

#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>

tess_status tess_trace_add(struct tess_step_trace *trace, struct tess_trace_item item)
{
	if (trace->n == trace->room) {
		int32_t room = 2 * trace->room + 64;
		struct tess_trace_item *more = realloc(trace->item, (size_t)room * sizeof *more);

		if (!more)
			return tess_fail(TESS_ENOMEM, "out of memory for the trace of a step");
		trace->item = more;
		trace->room = room;
	}
	if (item.kind == TESS_TRACE_CALL) {
		item.of = item.step->started;
		item.among_shards = item.step->among_shards;
	}
	if (item.kind == TESS_TRACE_WAIT) {
		item.of = trace->n - 1;
		while (item.of > 0 && (trace->item[item.of].kind != TESS_TRACE_CALL ||
		                       trace->item[item.of].step != item.step))
			item.of--;
	}
	trace->item[trace->n++] = item;
	return TESS_OK;
}

void tess_trace_free(struct tess_step_trace *trace)
{
	free(trace->item);
	*trace = (struct tess_step_trace){ 0 };
}

double tess_trace_sum_work(const struct tess_step_trace *trace)
{
	double sum = 0;

	for (int32_t i = 0; i < trace->n; i++)
		if (!trace->item[i].data && trace->item[i].kind != TESS_TRACE_WAIT &&
		    trace->item[i].kind != TESS_TRACE_LAUNCH)
			sum += trace->item[i].seconds;
	return sum;
}

/* ---- the clock ------------------------------------------------------------------------------- */

struct trace_clock {
	const struct tess_machine *m;
	const struct tess_trace_change *change;
	double now, host, link[TESS_LINKS];
};

static void run_traced_call(struct trace_clock *c, struct tess_trace_item *i)
{
	const struct tess_step_call *call = &i->call;
	int32_t n = !i->data          ? call->nranks
	            : i->among_shards ? c->change->shards
	                              : c->change->replicas;
	double seconds = i->seconds * c->change->work, *link;
	/* n ranks send (n - 1) / n of all bytes each */
	double bytes = call->bytes * call->nranks / (call->nranks - 1) * (n - 1) / n;

	if (strstr(call->name, "scatter"))
		bytes *= c->change->copies;
	if (i->data)
		seconds = tess_machine_communicate(c->m, call->name, n, call->stride, bytes) *
		          c->m->time[TESS_TERM_DATA];
	link = &c->link[tess_machine_is_within(c->m, n, call->stride) ? TESS_LINK_WITHIN
	                                                              : TESS_LINK_BETWEEN];
	*link = (*link > c->now ? *link : c->now) + seconds;
	i->end = *link;
	if ((!i->of || !tess_machine_hides_calls(c->m)) && *link > c->now)
		c->now = *link;
}

double tess_trace_run(const struct tess_step_trace *trace, const struct tess_machine *m,
                      const struct tess_trace_change *change)
{
	struct trace_clock c = { .m = m, .change = change };

	for (int32_t k = 0; k < trace->n; k++) {
		struct tess_trace_item *i = &trace->item[k];
		double end = 0;

		switch (i->kind) {
		case TESS_TRACE_WORK:
			c.now += i->seconds * change->work;
			break;
		case TESS_TRACE_LAUNCH:
			end = c.host += i->seconds;
			break;
		case TESS_TRACE_CALL:
			run_traced_call(&c, i);
			break;
		default:
			end = trace->item[i->of].end;
		}
		c.now = end > c.now ? end : c.now;
	}
	return c.now;
}
