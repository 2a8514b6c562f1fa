#include "nn/run/profile.h"

#include "core/base/status.h"
#include "core/world/group.h"
#include "core/world/world.h"
#include "nn/cost/step_work.h"

#include <stdlib.h>
#include <string.h>

void tess_profile_clear(struct tess_profile *p)
{
	*p = (struct tess_profile){ .call = p->call,
		                    .capacity = p->capacity,
		                    .sample = p->sample,
		                    .nsamples = p->nsamples,
		                    .sample_capacity = p->sample_capacity,
		                    .keeps_samples = p->keeps_samples };
}

void tess_profile_free(struct tess_profile *p)
{
	free(p->call);
	free(p->sample);
	*p = (struct tess_profile){ 0 };
}

/* ---- ops ------------------------------------------------------------------------------------- */

/* Returns the host memory of an operand that is an input of the step; NULL: it is none. */
static const int32_t *find_input(const struct tess_profile *p, const struct tess_view *v)
{
	const char *data = v->data;

	return p->at && data >= p->at && data < p->at + p->input_bytes
	               ? (const int32_t *)(const void *)(p->inputs + (data - p->at))
	               : NULL;
}

/* Finds the values that the cost of an op depends on. */
static struct tess_op_known find_known(const struct tess_profile *p, const struct tess_op *op)
{
	bool attends = op->kind == TESS_OP_ATTENTION || op->kind == TESS_OP_ATTENTION_D;

	return (struct tess_op_known){
		.ids = op->kind == TESS_OP_EMBED ? find_input(p, &op->in[0]) : NULL,
		.position = attends ? find_input(p, &op->in[3]) : NULL,
		.slot = attends ? find_input(p, &op->in[4]) : NULL,
		.routed = p->on_host,
	};
}

static void add_op_cost(struct tess_profile *p, struct tess_profile_op *sum,
                        const struct tess_op *op)
{
	struct tess_op_known known = find_known(p, op);
	struct tess_op_cost cost = { 0 };

	tess_op_add_cost(op, &known, &cost);
	sum->bytes += cost.bytes;
	sum->flops += cost.flops;
	p->weight_bytes += cost.weight_bytes;
	p->kv_bytes += cost.kv_bytes;
}

/* Finds the sums of steps like this one; without room for more, the last ones. */
static struct tess_profile_op *find_sums(struct tess_profile *p, const struct tess_op *op)
{
	uint8_t kind[TESS_PROFILE_OPS] = { 0 };
	int32_t i = 0;

	for (int32_t n = 0; op && n < TESS_PROFILE_OPS; op = op->next)
		kind[n++] = (uint8_t)op->kind;
	while (i < TESS_PROFILE_STEPS - 1 && p->op[i].calls &&
	       memcmp(p->op[i].kind, kind, sizeof kind) != 0)
		i++;
	if (!p->op[i].calls)
		memcpy(p->op[i].kind, kind, sizeof kind);
	return &p->op[i];
}

/* Keeps a step by itself. */
static void add_sample(struct tess_profile *p, const struct tess_op *op, int64_t ns)
{
	struct tess_profile_sample *more, *s;
	struct tess_op_known known;
	struct tess_step_work work = { 0 };
	struct tess_step_parts parts;

	if (p->nsamples == p->sample_capacity) {
		more = realloc(p->sample, (size_t)(2 * p->sample_capacity + 1024) * sizeof *more);
		if (!more) {
			p->status = TESS_ENOMEM;
			return;
		}
		p->sample = more;
		p->sample_capacity = 2 * p->sample_capacity + 1024;
	}
	s = &p->sample[p->nsamples++];
	*s = (struct tess_profile_sample){ .ns = ns };
	for (int32_t i = 0; op; op = op->next) {
		known = find_known(p, op);
		tess_step_work_add(op, &known, &work);
		if (i < TESS_PROFILE_OPS)
			s->kind[i++] = (uint8_t)op->kind;
	}
	parts = tess_step_work_get_parts(&work);
	s->class = work.class;
	s->bf16 = work.bf16;
	s->rows = parts.rows;
	s->work = parts.work;
	s->parts = parts.parts;
}

void tess_profile_add_op(struct tess_profile *p, const struct tess_op *op, int64_t began)
{
	struct tess_profile_op *sum = find_sums(p, op);
	int64_t ns = tess_now() - began;

	sum->ns += ns;
	sum->calls++;
	if (op && p->keeps_samples)
		add_sample(p, op, ns);
	for (; op; op = op->next)
		add_op_cost(p, sum, op);
}

/* ---- calls of groups ------------------------------------------------------------------------- */

void tess_profile_add_call(struct tess_profile *p, struct tess_group *g, int64_t began)
{
	struct tess_profile_call *more;

	if (!p)
		return;
	if (p->ncalls == p->capacity) {
		more = realloc(p->call, (size_t)(2 * p->capacity + 256) * sizeof *more);
		if (!more) {
			p->status = TESS_ENOMEM;
			return;
		}
		p->call = more;
		p->capacity = 2 * p->capacity + 256;
	}
	p->call[p->ncalls++] = (struct tess_profile_call){ g, began, tess_now() };
}

/* Returns whether no earlier call has the group of call i. */
static bool is_first_of_group(const struct tess_profile *p, int64_t i)
{
	for (int64_t j = 0; j < i; j++)
		if (p->call[j].group == p->call[i].group)
			return false;
	return true;
}

/* Adds the wait of this rank's calls of one group. entered: room for all calls. Collective. */
static tess_status split_group_calls(const struct tess_profile *p, struct tess_group *g,
                                     int64_t *entered, int64_t *wait)
{
	int64_t n = 0;
	tess_status st;

	for (int64_t i = 0; i < p->ncalls; i++)
		if (p->call[i].group == g)
			entered[n++] = p->call[i].entered;
	st = tess_all_reduce(g, entered, entered, (uint64_t)n, TESS_I64, TESS_MAX, "profile");
	for (int64_t i = 0, k = 0; i < p->ncalls && !st; i++) {
		const struct tess_profile_call *c = &p->call[i];
		int64_t last;

		if (c->group != g)
			continue;
		last = entered[k++];
		*wait += (last < c->left ? last : c->left) - c->entered;
	}
	return st;
}

tess_status tess_profile_split_calls(const struct tess_profile *p, int64_t *moving, int64_t *wait)
{
	int64_t *entered = calloc((size_t)p->ncalls + 1, sizeof *entered), all = 0, waited = 0;
	tess_status st =
		!entered || p->status ? tess_fail(TESS_ENOMEM, "profile: out of memory") : TESS_OK;

	for (int64_t i = 0; i < p->ncalls && !st; i++) {
		struct tess_group *g = p->call[i].group;

		all += p->call[i].left - p->call[i].entered;
		if (!g)
			waited += p->call[i].left - p->call[i].entered;
		else if (!g->world->hosts && is_first_of_group(p, i))
			st = split_group_calls(p, g, entered, &waited);
	}
	free(entered);
	*moving = all - waited;
	*wait = waited;
	return st;
}
