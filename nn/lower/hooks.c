/* hooks.c - lowers the calls and collectives that hooks record. */
#include "nn/lower/build.h"

#include <string.h>
#include <tessera/reduce.h>

/* Sets y to zeros: the gradient of a rank whose value nothing reads. */
static tess_status clear_output(const struct tess_local *at)
{
	int64_t n = at->out->shape[0] * at->out->stride[0];

	memset(at->out->data, 0, sizeof(float) * (size_t)n);
	return TESS_OK;
}

/* Returns true if this rank's x is not read: y is replicated, and is that of rank 0. */
static bool is_unread(const struct build *b, const struct tess_record *rec)
{
	return rec->in[0]->place[rec->along].kind == TESS_SHARD &&
	       rec->in[1]->place[rec->along].kind == TESS_REPLICATE &&
	       tess_program_get_cut(b->p, b->l->rank, rec->along).rank != 0;
}

/* Sets the views and descriptions of n inputs and one output. */
static void set_operands(struct build *b, const struct tess_record *rec, struct tess_local *local)
{
	int32_t n = rec->nin;
	struct tess_view *view = TESS_NEW(&b->l->arena, struct tess_view, n + 1);
	struct tess_operand *about = TESS_NEW(&b->l->arena, struct tess_operand, n + 1);

	if (!view || !about) {
		b->status = TESS_ENOMEM;
		return;
	}
	for (int32_t i = 0; i <= n; i++) {
		const struct tess_tensor *t = i < n ? rec->in[i] : rec->out[0];
		struct value *v = build_get_value(b, t);

		view[i] = build_make_view(v);
		about[i] = tess_tensor_describe(b->p, t, rec->along, b->l->rank);
		build_add_pointer(b, &view[i].data, v);
	}
	local->in = view;
	local->out = &view[n];
	local->in_about = about;
	local->out_about = &about[n];
}

void build_add_call(struct build *b, const struct tess_record *rec)
{
	struct value scratch =
		build_add_temporary(b, 0, 1, (int64_t)(rec->call->scratch + 3) / 4, TESS_F32);
	struct tess_step *s = build_add_step(b, TESS_STEP_CALL);
	struct tess_cut cut = tess_program_get_cut(b->p, b->l->rank, rec->along);

	s->backward = rec->nin > 1;
	s->call = !s->backward        ? rec->call->compute
	          : is_unread(b, rec) ? clear_output
	                              : rec->call->grad;
	s->style = rec->style;
	s->where = rec->module;
	s->local = (struct tess_local){
		.size = sizeof s->local, .rank = cut.rank, .nranks = cut.nranks, .state = rec->state
	};
	set_operands(b, rec, &s->local);
	build_add_pointer(b, &s->local.scratch, &scratch);
}

/* Adds no step: the value is a view of the second operand. */
void build_add_straight_through(struct build *b, const struct tess_record *rec)
{
	b->value[rec->out[0]->id] = *build_get_value(b, rec->in[1]);
}

/* ---- collectives ----------------------------------------------------------------------------- */

struct collective { /* a collective record, with what all kinds need */
	const struct tess_record *rec;
	struct tess_cut cut;
	int32_t rank; /* root or shift */
	struct value *x, *y;
	uint64_t *sent, *received; /* by rank: elements */
};

static uint64_t count_held_elements(const struct value *v)
{
	return (uint64_t)(v->rows * v->cols);
}

/* Returns the number of elements of a local value on rank q. */
static uint64_t count_on_rank(const struct collective *c, const struct tess_tensor *t, int32_t q)
{
	return (uint64_t)(tess_dim_get_local_size(t->dim[0], c->cut.nranks, q) * t->dim[1]->size);
}

static void add_collective_gather(struct build *b, struct collective *c)
{
	struct tess_coll *call =
		build_add_collective(b, c->rec->along, TESS_ALL_GATHER, c->x, c->y);

	for (int32_t q = 0; q < c->cut.nranks; q++)
		c->received[q] = count_on_rank(c, c->rec->in[0], q);
	call->count = c->received[c->cut.rank];
	call->recv_counts = c->received;
}

/* Adds a sum of one addend per rank: rank q gets sent[q] elements of it. */
static void add_collective_sum(struct build *b, struct collective *c)
{
	struct tess_dim *addends = TESS_NEW(&b->l->arena, struct tess_dim, 1);
	struct value node = *c->x;
	struct tess_coll *call;

	if (!addends) {
		b->status = TESS_ENOMEM;
		return;
	}
	*addends = (struct tess_dim){ .size = c->cut.nranks,
		                      .nunits = c->cut.nranks,
		                      .unit_size = 1,
		                      .base = addends,
		                      .group = 1 };
	node.partial = true;
	node.nodes = 1;
	node.node_stride = node.rows * node.cols;
	if (node.dtype == TESS_F32) {
		build_add_sum(b, c->rec->along, addends, &node, c->y, c->sent);
		return;
	}
	call = build_add_collective(b, c->rec->along, TESS_REDUCE_SCATTER, c->x, c->y);
	call->count = c->sent[c->cut.rank];
	call->send_counts = c->sent;
}

static void add_collective_scatter(struct build *b, struct collective *c)
{
	for (int32_t q = 0; q < c->cut.nranks; q++)
		c->sent[q] = count_on_rank(c, c->rec->out[0], q);
	add_collective_sum(b, c);
}

/* Adds the sum on the root; other ranks get zeros, since only the root's x was read. */
static void add_collective_reduce(struct build *b, struct collective *c)
{
	struct tess_step *s;
	struct tess_view *view;

	c->sent[c->rank] = count_held_elements(c->x);
	add_collective_sum(b, c);
	if (c->cut.rank == c->rank)
		return;
	s = build_add_step(b, TESS_STEP_CALL);
	view = TESS_NEW(&b->l->arena, struct tess_view, 1);
	if (!view) {
		b->status = TESS_ENOMEM;
		return;
	}
	*view = build_make_view(c->y);
	build_add_pointer(b, &view->data, c->y);
	s->call = clear_output;
	s->style = c->rec->style;
	s->where = c->rec->module;
	s->local = (struct tess_local){ .size = sizeof s->local, .out = view };
}

static void add_collective_exchange(struct build *b, struct collective *c, bool all)
{
	int32_t n = c->cut.nranks;
	uint64_t count = count_held_elements(c->x);
	struct tess_coll *call =
		build_add_collective(b, c->rec->along, TESS_ALL_TO_ALL, c->x, c->y);

	for (int32_t q = 0; q < n && all; q++)
		c->sent[q] = c->received[q] = count / (uint64_t)n;
	if (!all) {
		c->sent[(c->cut.rank + c->rank + n) % n] = count;
		c->received[(c->cut.rank - c->rank + n) % n] = count;
	}
	call->send_counts = c->sent;
	call->recv_counts = c->received;
}

static void add_collective_broadcast(struct build *b, struct collective *c)
{
	struct tess_coll *call = build_add_collective(b, c->rec->along, TESS_BROADCAST, c->x, c->y);

	call->root = c->rank;
	call->count = count_held_elements(c->y);
}

void build_add_local_collective(struct build *b, const struct tess_record *rec)
{
	struct tess_cut cut = tess_program_get_cut(b->p, b->l->rank, rec->along);
	uint64_t *counts = TESS_NEW(&b->l->arena, uint64_t, 2 * cut.nranks);
	struct collective c = { .rec = rec,
		                .cut = cut,
		                .rank = (int32_t)rec->num[TESS_REC_COLLECTIVE_RANK],
		                .x = build_get_value(b, rec->in[0]),
		                .sent = counts,
		                .received = counts + cut.nranks };

	if (!counts) {
		b->status = TESS_ENOMEM;
		return;
	}
	if (cut.nranks == 1) {
		b->value[rec->out[0]->id] = *c.x;
		return;
	}
	c.y = build_get_value(b, rec->out[0]);
	switch ((int32_t)rec->num[TESS_REC_COLLECTIVE_KIND]) {
	case TESS_ALL_GATHER:
		add_collective_gather(b, &c);
		break;
	case TESS_REDUCE_SCATTER:
		add_collective_scatter(b, &c);
		break;
	case TESS_REDUCE:
		add_collective_reduce(b, &c);
		break;
	case TESS_BROADCAST:
		add_collective_broadcast(b, &c);
		break;
	case TESS_ALL_TO_ALL:
		add_collective_exchange(b, &c, true);
		break;
	default: /* TESS_SEND: one message from each rank, as one call that ranks compare */
		add_collective_exchange(b, &c, false);
	}
}
