#include "nn/run/run.h"

#include "core/base/status.h"
#include "core/call/carrier.h"
#include "core/call/queue.h"
#include "core/call/work.h"
#include "core/registry/plugin_call.h"
#include "nn/op/kinds.h"
#include "nn/run/check.h"
#include "nn/run/compute_spans.h"
#include "nn/run/graphs.h"
#include "nn/run/row_exchange.h"

#include <stdlib.h>
#include <tessera/util/clock.h>

/* Checks a copy of the value, up to its last element, in host memory. */
static tess_status run_check_step(const struct tess_check *c, const struct tess_opened_device *d,
                                  struct tess_group *group)
{
	struct tess_check host = *c;
	size_t width = tess_width(c->view.dtype);
	int64_t last = 0;
	bool empty = false;
	tess_status st;

	for (int32_t i = 0; i < c->view.ndim; i++) {
		empty = empty || !c->view.shape[i];
		last += (c->view.shape[i] - 1) * c->view.stride[i];
	}
	host.view.data = malloc(empty ? 1 : width * (size_t)(last + 1));
	st = host.view.data ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
	if (!st && !empty)
		st = tess_device_move(d, c->record->module, host.view.data, c->view.data,
		                      width * (uint64_t)(last + 1));
	if (!st)
		st = tess_check_run(&host, group);
	free(host.view.data);
	return st;
}

/* ---- steps that are started ------------------------------------------------------------------ */

static struct tess_group *get_step_group(const struct tess_run_groups *g, const struct tess_step *s)
{
	return s->among_shards && g->shards ? g->shards : g->along[s->along];
}

/* Starts a collective; on its own stream it follows the ops that are queued so far. */
static tess_status start_coll(struct tess_step *s, const struct tess_opened_device *d,
                              struct tess_group *g)
{
	tess_status st = TESS_OK;

	if (d->call_stream) {
		s->coll.stream = d->call_stream;
		st = TESS_PLUGIN_CALL_QUICK(d->table, s->coll.where, follow, d->self,
		                            d->call_stream, d->stream);
	}
	return st ? st : tess_group_start(g, &s->coll, &s->work);
}

static tess_status start_step(struct tess_step *s, const struct tess_opened_device *d,
                              const struct tess_run_groups *groups, struct tess_step **under_way)
{
	tess_status st;

	if (s->kind == TESS_STEP_TRANSFER && groups->fetcher) {
		/* it may be waited for in another call */
		tess_fetcher_start(groups->fetcher, s->transfer);
		return TESS_OK;
	}
	if (s->kind == TESS_STEP_TRANSFER)
		st = tess_offload_start(groups->offload, s->transfer);
	else if (s->kind == TESS_STEP_SUM)
		st = tess_sum_start(get_step_group(groups, s), &s->sum, s->sum_in, s->sum_out,
		                    &s->sum_work);
	else
		st = start_coll(s, d, get_step_group(groups, s));
	if (!st) {
		s->under_way = *under_way;
		*under_way = s;
	}
	return st;
}

/* Abandons steps after a failure: other ranks may be reading memory that the caller frees. */
static void abandon_under_way(const struct tess_step *s, const struct tess_run_groups *groups)
{
	tess_fetcher_settle(groups->fetcher);
	for (; s; s = s->under_way)
		if (s->kind == TESS_STEP_TRANSFER)
			tess_offload_wait(s->transfer);
		else if (s->kind == TESS_STEP_SUM)
			tess_sum_abandon(s->sum_work);
		else
			tess_work_abandon(s->work);
}

static tess_status wait_for_step(struct tess_step *s, const struct tess_opened_device *d,
                                 const struct tess_run_groups *groups, struct tess_step **under_way)
{
	if (s->kind == TESS_STEP_TRANSFER && groups->fetcher)
		return tess_fetcher_wait(groups->fetcher, s->transfer);
	while (*under_way != s)
		under_way = &(*under_way)->under_way;
	*under_way = s->under_way;
	if (s->kind == TESS_STEP_TRANSFER)
		return tess_offload_follow(s->transfer);
	return s->kind == TESS_STEP_SUM ? tess_sum_wait(s->sum_work) : tess_work_finish(s->work, d);
}

/* Lets backends that move data only while they are called progress. The wait reports failures. */
static void test_steps(const struct tess_step *s, const struct tess_offload *offload)
{
	tess_offload_test(offload);
	for (; s; s = s->under_way)
		if (s->kind == TESS_STEP_SUM)
			tess_sum_test(s->sum_work);
		else if (s->kind != TESS_STEP_TRANSFER)
			tess_work_test(s->work);
}

/* ---- final weights --------------------------------------------------------------------------- */

static tess_status announce_final(const struct tess_step *s, const struct tess_run_groups *groups)
{
	const struct tess_final_calls *calls = groups->final;

	if (!calls)
		return TESS_OK;
	return s->final_weight ? calls->take_weight(calls->self, s->final_weight)
	                       : calls->take_losses(calls->self);
}

/* ---- steps ----------------------------------------------------------------------------------- */

tess_status tess_step_run(struct tess_step *s, const struct tess_opened_device *d,
                          const struct tess_run_groups *groups, struct tess_step **under_way)
{
	switch (s->kind) {
	case TESS_STEP_OP:
		return TESS_PLUGIN_CALL_FOR(d->table, s->op.where, op_get_kind_name(s->op.kind),
		                            run, d->self, &s->op);
	case TESS_STEP_COLL:
		return s->started ? start_step(s, d, groups, under_way)
		                  : tess_group_run(get_step_group(groups, s), &s->coll);
	case TESS_STEP_SUM:
		return s->started ? start_step(s, d, groups, under_way)
		                  : tess_group_sum(get_step_group(groups, s), &s->sum, s->sum_in,
		                                   s->sum_out);
	case TESS_STEP_TRANSFER:
		return start_step(s, d, groups, under_way);
	case TESS_STEP_ROWS:
		if (s->packs)
			tess_row_exchange_pack(s->rows);
		else
			tess_row_exchange_unpack(s->rows);
		return TESS_OK;
	case TESS_STEP_FINAL:
		return announce_final(s, groups);
	case TESS_STEP_AWAIT:
		if (groups->final)
			groups->final->await_weight(groups->final->self, s->final_weight);
		return TESS_OK;
	case TESS_STEP_WAIT:
		return wait_for_step(s->of, d, groups, under_way);
	case TESS_STEP_CHECK:
		return run_check_step(s->check, d, groups->stage);
	default:
		tess_error_clear();
		return tess_plugin_check_returned(
			s->style, s->style->name, s->backward ? "grad" : "compute", s->where,
			TESS_PLUGIN_NOTED(TESS_STATE_ALL, s->style,
		                          s->backward ? "grad" : "compute", s->where, NULL, 0,
		                          s->call(&s->local)));
	}
}

/* Runs a step, and measures the time in collectives. */
static tess_status run_timed_step(struct tess_step *s, const struct tess_opened_device *d,
                                  const struct tess_run_groups *groups,
                                  struct tess_step **under_way)
{
	bool calls = groups->waited && (s->kind == TESS_STEP_COLL || s->kind == TESS_STEP_SUM ||
	                                s->kind == TESS_STEP_WAIT);
	int64_t began = calls ? tess_now() : 0;
	tess_status st = tess_step_run(s, d, groups, under_way);

	if (calls)
		*groups->waited += tess_now() - began;
	return st;
}

static bool is_sent_to_one(const struct tess_step *s)
{
	return s->kind == TESS_STEP_COLL &&
	       (s->coll.kind == TESS_SEND || s->coll.kind == TESS_RECV);
}

/* Runs a step for a profile, and waits for its op on a stream. */
static tess_status run_profiled_step(struct tess_step *s, const struct tess_opened_device *d,
                                     const struct tess_run_groups *groups,
                                     struct tess_step **under_way)
{
	struct tess_profile *p = groups->profile;
	int64_t began = tess_profile_begin(p);
	tess_status st = tess_step_run(s, d, groups, under_way);
	const struct tess_step *call = s->kind == TESS_STEP_WAIT ? s->of : s;

	if (!st && d->stream)
		st = tess_device_sync(d, "profile");
	if (s->kind == TESS_STEP_OP || s->kind == TESS_STEP_CALL)
		tess_profile_add_op(p, s->kind == TESS_STEP_OP ? &s->op : NULL, began);
	else if (s->kind != TESS_STEP_CHECK && s->kind != TESS_STEP_FINAL &&
	         s->kind != TESS_STEP_AWAIT && call->kind != TESS_STEP_TRANSFER)
		tess_profile_add_call(p, is_sent_to_one(call) ? NULL : get_step_group(groups, call),
		                      began);
	p->ns += tess_now() - began;
	return st;
}

/* Runs a step, measured as requested; then lets started calls progress. */
static tess_status run_measured_step(struct tess_step *s, const struct tess_opened_device *d,
                                     const struct tess_run_groups *groups,
                                     struct tess_compute_spans *spans, struct tess_step **under_way)
{
	int64_t began = spans->group ? tess_now() : 0;
	tess_status st = groups->profile ? run_profiled_step(s, d, groups, under_way)
	                                 : run_timed_step(s, d, groups, under_way);

	if (spans->group && !st)
		tess_compute_spans_add(spans, s, began);
	test_steps(*under_way, groups->offload);
	return st;
}

tess_status tess_rank_program_run(const struct tess_rank_program *l,
                                  const struct tess_opened_device *device,
                                  const struct tess_run_groups *groups, struct tess_graphs *graphs)
{
	bool graph = !groups->profile && tess_graphs_begin(graphs, l, device, groups);
	struct tess_compute_spans spans = tess_compute_spans_begin(groups);
	struct tess_step *under_way = NULL;
	struct tess_thread_state before; /* a single step restores less of it */
	tess_status st = TESS_OK;

	tess_thread_state_save(&before, TESS_STATE_ALL);
	for (int32_t i = 0, end, n = 0; i < l->nsteps && !st; i = end) {
		end = graph ? tess_graphs_find_end(graphs, l, groups, i) : i;
		if (end > i) {
			tess_compute_spans_end(&spans);
			st = tess_graphs_run(graphs, l, groups, i, end, n++);
		} else {
			end = i + 1;
			st = run_measured_step(l->step[i], device, groups, &spans, &under_way);
		}
	}
	tess_compute_spans_end(&spans);
	if (st)
		abandon_under_way(under_way, groups);
	tess_thread_state_restore(&before);
	return st;
}

/* Receives from another stage, or starts a send, which the caller waits for. */
static tess_status run_message(struct tess_step *s, const struct tess_opened_device *d,
                               const struct tess_run_groups *groups, struct tess_sends *sends)
{
	struct tess_coll message = s->coll;
	struct tess_group *g = tess_channels_route(&groups->channels, &message);
	struct tess_work *work;
	tess_status st = TESS_OK;

	g = g ? g : get_step_group(groups, s);
	if (message.kind == TESS_RECV)
		return tess_group_run(g, &message);
	if (message.stream != d->stream)
		st = TESS_PLUGIN_CALL_QUICK(d->table, message.where, follow, d->self,
		                            message.stream, d->stream);
	if (!st)
		st = tess_group_start(g, &message, &work);
	if (st)
		return st;
	st = tess_sends_add(sends, work);
	return st ? st : tess_work_issue(work);
}

/* Runs a message, and measures the time that this rank waits for it. */
static tess_status run_timed_message(struct tess_step *s, const struct tess_opened_device *d,
                                     const struct tess_run_groups *groups, struct tess_sends *sends)
{
	int64_t began = tess_now();
	tess_status st = run_message(s, d, groups, sends);

	if (groups->waited)
		*groups->waited += tess_now() - began;
	return st;
}

tess_status tess_rank_program_run_segment(const struct tess_rank_program *l,
                                          const struct tess_segment *segment,
                                          const struct tess_opened_device *device,
                                          const struct tess_run_groups *groups,
                                          struct tess_sends *sends)
{
	struct tess_compute_spans spans = tess_compute_spans_begin(groups);
	bool is_message = segment->kind >= TESS_PIPELINE_SEND_FORWARD;
	struct tess_step *under_way = NULL;
	struct tess_thread_state before;
	tess_status st = TESS_OK;

	tess_thread_state_save(&before, TESS_STATE_ALL);
	for (int32_t i = segment->first; i < segment->end && !st; i++) {
		struct tess_step *s = l->step[i];

		st = is_message && s->kind == TESS_STEP_COLL
		             ? run_timed_message(s, device, groups, sends)
		             : run_measured_step(s, device, groups, &spans, &under_way);
		tess_sends_test(sends);
	}
	tess_compute_spans_end(&spans);
	if (st)
		abandon_under_way(under_way, groups);
	tess_thread_state_restore(&before);
	return st;
}

tess_status tess_rank_program_check_device(const struct tess_rank_program *l,
                                           const struct tess_device *device)
{
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < l->nsteps; i++)
		for (const struct tess_step *s = l->step[i]; s && !st; s = s->fused)
			if (s->kind == TESS_STEP_OP)
				st = tess_device_check_op(device, &s->op);
	return st;
}
