#include "nn/run/profile.h"

#include "core/base/status.h"
#include "core/world/group.h"
#include "core/world/world.h"
#include "nn/op/kinds.h"
#include "nn/program/compressed.h"

#include <stdlib.h>
#include <string.h>

void tess_profile_clear(struct tess_profile *p)
{
	struct tess_profile_call *call = p->call;
	int64_t capacity = p->capacity;

	*p = (struct tess_profile){ .call = call, .capacity = capacity };
}

void tess_profile_free(struct tess_profile *p)
{
	free(p->call);
	*p = (struct tess_profile){ 0 };
}

/* ---- bytes and FLOPs of ops ------------------------------------------------------------------ */

static int64_t count_view_elements(const struct tess_view *v)
{
	int64_t n = v->ndim > 0;

	for (int32_t i = 0; i < v->ndim; i++)
		n *= v->shape[i];
	return n;
}

static uint64_t count_bytes(const struct tess_view *v)
{
	return v->dtype >= TESS_Q8 ? tess_view_count_panels(v)
	                           : (uint64_t)count_view_elements(v) * tess_width(v->dtype);
}

/* Returns the host memory of an operand that is an input of the step; NULL: it is none. */
static const int32_t *find_input(const struct tess_profile *p, const struct tess_view *v)
{
	const char *data = v->data;

	return p->at && data >= p->at && data < p->at + p->input_bytes
	               ? (const int32_t *)(const void *)(p->inputs + (data - p->at))
	               : NULL;
}

/* Counts the look-ups in a table that has rows [first, first + n). */
static int64_t count_looked_up(const struct tess_profile *p, const struct tess_view *ids,
                               int64_t first, int64_t n)
{
	const int32_t *id = find_input(p, ids);
	int64_t found = 0;

	for (int64_t i = 0; i < ids->shape[0]; i++)
		found += !id || (id[i] >= first && id[i] - first < n);
	return found;
}

/* Counts pairs of a row and an expert it is routed to; *asked: experts with at least one row. */
static int64_t count_asked(const struct tess_profile *p, const struct tess_view *weights,
                           int64_t *asked)
{
	const float *w = weights->data;
	int64_t pairs = 0;

	*asked = 0;
	for (int64_t e = 0; e < weights->shape[1] && p->on_host; e++) {
		int64_t rows = 0;

		for (int64_t t = 0; t < weights->shape[0]; t++)
			rows += w[t * weights->stride[0] + e * weights->stride[1]] != 0;
		pairs += rows;
		*asked += rows > 0;
	}
	return pairs;
}

/* ---- the column `cost` of the table of ops: FLOPs, and bytes that are not read ---- */

static void profile_add_none_cost(struct tess_profile *p, struct tess_profile_op *sum,
                                  const struct tess_op *op)
{
	(void)p, (void)sum, (void)op;
}

static void profile_add_product_cost(struct tess_profile *p, struct tess_profile_op *sum,
                                     const struct tess_op *op)
{
	(void)p;
	for (int32_t i = 1; i < op->nin; i++)
		sum->flops += 2 * (uint64_t)(op->in[0].shape[0] * count_view_elements(&op->in[i]));
}

/* Counts only the looked up rows of the table. */
static void profile_add_embed_cost(struct tess_profile *p, struct tess_profile_op *sum,
                                   const struct tess_op *op)
{
	const struct tess_view *table = &op->in[1];
	int64_t rows =
		count_looked_up(p, &op->in[0], (int64_t)op->num[TESS_EMBED_FIRST], table->shape[0]);
	uint64_t row = (uint64_t)table->shape[1] * tess_width(table->dtype);

	sum->bytes -= row * (uint64_t)(table->shape[0] - rows);
	p->weight_bytes -= row * (uint64_t)(table->shape[0] - rows);
}

/* Counts only the rows of positions of the table. */
static void profile_add_rope_cost(struct tess_profile *p, struct tess_profile_op *sum,
                                  const struct tess_op *op)
{
	const struct tess_view *table = &op->in[2];

	(void)p;
	sum->bytes += (uint64_t)((op->in[1].shape[0] - table->shape[0]) * table->shape[1]) *
	              tess_width(table->dtype);
}

static void profile_add_select_cost(struct tess_profile *p, struct tess_profile_op *sum,
                                    const struct tess_op *op)
{
	(void)p;
	sum->bytes += count_bytes(&op->out[0]) - count_bytes(&op->in[0]);
}

static void profile_add_experts_cost(struct tess_profile *p, struct tess_profile_op *sum,
                                     const struct tess_op *op)
{
	int64_t experts = op->in[1].shape[1], asked, pairs = count_asked(p, &op->in[1], &asked);

	for (int32_t i = 2; i < op->nin && experts; i++) {
		uint64_t unread =
			count_bytes(&op->in[i]) / (uint64_t)experts * (uint64_t)(experts - asked);

		sum->bytes -= unread;
		p->weight_bytes -= unread;
		sum->flops += 2 * (uint64_t)(pairs * (count_view_elements(&op->in[i]) / experts));
	}
}

/*
 * Counts a sequence's keys and values once, from the first position that one of its rows attends
 * to. The table of pages is not counted.
 */
static void profile_add_attention_cost(struct tess_profile *p, struct tess_profile_op *sum,
                                       const struct tess_op *op)
{
	const int32_t *position = find_input(p, &op->in[3]), *slot = find_input(p, &op->in[4]);
	int64_t window = (int64_t)op->num[TESS_ATTENTION_WINDOW], rows = op->in[3].shape[0];
	int64_t head = (int64_t)op->num[TESS_ATTENTION_HEAD], seen = 0, stored = 0, bytes;
	int64_t value = (int64_t)op->num[TESS_ATTENTION_VALUE];
	int64_t cols = op->in[1].shape[1] + (op->in[2].ndim ? op->in[2].shape[1] : 0);

	sum->bytes -= count_bytes(&op->in[5]);
	if (!position || !slot)
		return;
	for (int64_t i = 0; i < rows; i++) {
		int64_t end = position[i] + 1, sees = window && end > window ? window : end;

		if (op->num[TESS_ATTENTION_CHUNKED] != 0)
			sees = position[i] % window + 1;
		seen += sees;
		stored += i && slot[i] == slot[i - 1] ? 1 : sees;
	}
	bytes = (stored + rows) * cols *
	        (int64_t)tess_width((int32_t)op->num[TESS_ATTENTION_DTYPE]);
	sum->bytes += (uint64_t)bytes;
	sum->flops += 2 * (uint64_t)(seen * (op->in[0].shape[1] / head) * (head + value));
	p->kv_bytes += (uint64_t)bytes;
}

static void add_op_cost(struct tess_profile *p, struct tess_profile_op *sum,
                        const struct tess_op *op)
{
	static void (*const add_cost[])(struct tess_profile *, struct tess_profile_op *,
	                                const struct tess_op *) = {
#define OP(kind, name, outs, weight, cost, backward, lower) \
	[TESS_OP_##kind] = profile_add_##cost##_cost,
#include "nn/op/kinds.def"
	};
	int32_t weight = op_find_kind(op->kind)->weight;

	for (int32_t i = 0; i < op->nout; i++)
		sum->bytes += count_bytes(&op->out[i]);
	for (int32_t i = 0; i < op->nin; i++) {
		uint64_t bytes = count_bytes(&op->in[i]);

		sum->bytes += bytes;
		p->weight_bytes += weight && i >= weight ? bytes : 0;
	}
	add_cost[op->kind](p, sum, op);
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

void tess_profile_add_op(struct tess_profile *p, const struct tess_op *op, int64_t began)
{
	struct tess_profile_op *sum = find_sums(p, op);

	sum->ns += tess_now() - began;
	sum->calls++;
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
