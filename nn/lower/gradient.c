/*
 * gradient.c - stores gradients, and adds them along dp during the backward.
 *
 * Gradients of adjacent records form a bucket: its nodes are contiguous, and are added at once. The
 * sum starts when the last gradient is computed, and is waited for two buckets later, or one if
 * they are large, while the backward continues. Where ranks keep shares of the gradients, each gets
 * the sum of its own share.
 *
 * A gradient that is larger than a bucket or a tile is computed in ranges of rows, each of which is
 * a bucket: only a few of its buckets exist at a time. On a device with inexact sums a bucket has
 * one node, and its sum is one collective, on a separate stream.
 *
 * The gradient of a weight in a file is there, too (stored_gradient.c).
 */
#include "core/base/status.h"
#include "nn/lower/build.h"
#include "nn/program/storage.h"

enum { UNDER_WAY = 2 }; /* maximum number of outstanding sums */
enum { RUN_BYTES = 1 << 20 }; /* minimum range of rows; sums of smaller ones would only wait */

struct slot { /* a gradient record, or a range of rows of it */
	const struct tess_record *record;
	struct bucket *bucket; /* NULL: it is finished, or no other rank has a part */
	int64_t n; /* elements of this rank's part of the weight */
	int64_t lo, len; /* its range of these elements: all, unless it is a range of rows */
	int64_t at; /* offset of its elements in a node of the bucket */
	struct build_earlier earlier; /* in a file: what the slot is added to */
	struct value run; /* of a finished range of rows: its elements */
};

struct bucket {
	struct slot *slot;
	int32_t nslots;
	bool cut; /* ranks get shares */
	bool full; /* a range of rows: no gradient is added to it */
	bool packed; /* the shares of each rank are contiguous, in the order of ranks */
	bool direct; /* the sum is written to the memory of gradients */
	const struct tess_dim *over;
	int64_t nodes, count; /* count: elements of a node */
	int64_t kept; /* elements of the sum that this rank gets */
	int32_t memory; /* the buffer of the elements that it gets */
	struct value node, sum;
	struct tess_step *start;
};

struct build_gradients {
	struct slot *slot, *next; /* next: the slot of the record that is lowered */
	int32_t nslots;
	struct bucket *bucket; /* room for one per slot */
	int32_t nbuckets, nstarted, nwaited;
	struct value *memory; /* by weight: this rank's gradient in memory, as one row */
};

/* ---- the plan -------------------------------------------------------------------------------- */

/* Returns whether a record gives a gradient on this rank; then makes its stage current. */
static bool visit_gradient(struct build *b, const struct tess_record *rec)
{
	if (rec->kind != TESS_REC_GRADIENT || !build_has_record(b, rec))
		return false;
	build_use_stage(b, rec->stage);
	return true;
}

static bool is_added(const struct tess_record *rec)
{
	return rec->num[TESS_REC_GRADIENT_ADDED] != 0;
}

/* Returns this rank's range of the n elements of a weight's local part. */
static struct tess_run find_kept_run(const struct build *b, const struct tess_weight *w, int64_t n)
{
	const struct tess_program *p = b->p;

	if (!w->state_cut)
		return (struct tess_run){ 0, n };
	return tess_program_get_share(p, n,
	                              tess_program_get_cut(p, b->l->rank, p->data_along).rank);
}

static struct tess_run intersect_slot(const struct slot *s, struct tess_run run)
{
	return build_intersect_runs((struct tess_run){ s->lo, s->len }, run);
}

/* Returns the elements of a slot that this rank keeps, as a range of its gradient. */
static struct tess_run find_kept_part(const struct build *b, const struct slot *s)
{
	struct tess_run kept = find_kept_run(b, s->record->weight[0], s->n);
	struct tess_run part = intersect_slot(s, kept);

	part.start = part.len ? part.start - kept.start : 0;
	return part;
}

static struct tess_view *describe_gradient(struct build *b, const struct tess_weight *w, int64_t n)
{
	struct tess_view *view = &b->l->gradient[w->index];

	*view = (struct tess_view){ .dtype = TESS_F32, .ndim = 1, .shape = { n }, .stride = { 1 } };
	return view;
}

/* Places `kept` elements for a weight at the end of a buffer in the memory of gradients. */
static void place_memory(struct build *b, const struct tess_weight *w, int32_t buffer, int64_t kept)
{
	struct build_gradients *g = b->gradients;
	struct tess_view *view = describe_gradient(b, w, kept);
	struct value *v = &g->memory[w->index];

	*v = (struct value){ .allocated = true,
		             .buffer = buffer,
		             .dtype = TESS_F32,
		             .offset = b->buffer[buffer].life.bytes,
		             .rows = 1,
		             .cols = kept,
		             .row_stride = kept,
		             .node_stride = kept };
	b->buffer[buffer].life.bytes += 4 * (uint64_t)kept;
	build_add_pointer(b, &view->data, v);
}

/* Opens a buffer in the memory of gradients, which grows with each weight placed in it. */
static int32_t open_memory(struct build *b)
{
	int32_t buffer = build_add_buffer(b, 0);

	if (!b->status) {
		b->buffer[buffer].space = TESS_SPACE_GRADIENTS;
		b->buffer[buffer].life.offset = b->l->gradient_bytes;
	}
	return buffer;
}

static void close_memory(struct build *b, int32_t buffer)
{
	b->l->gradient_bytes += (b->buffer[buffer].life.bytes + 63) & ~(uint64_t)63;
}

/* Places a gradient without parts on other ranks, computed in place unless it is accumulated. */
static void place_finished(struct build *b, struct slot *s, struct value *v)
{
	const struct tess_weight *w = s->record->weight[0];
	int32_t buffer;

	v->allocated = false;
	if (build_is_gradient_stored(b, w)) {
		describe_gradient(b, w, find_kept_run(b, w, s->n).len);
		return;
	}
	if (!b->gradients->memory[w->index].allocated) {
		buffer = open_memory(b);
		if (b->status)
			return;
		place_memory(b, w, buffer, find_kept_run(b, w, s->n).len);
		close_memory(b, buffer);
	}
	if (is_added(s->record) || w->state_cut)
		return;
	v->allocated = true;
	v->buffer = b->gradients->memory[w->index].buffer;
	v->offset = b->gradients->memory[w->index].offset;
}

/* Returns the bucket of the next gradient: the last one, or a new one. */
static struct bucket *choose_bucket(struct build *b, const struct slot *s, const struct value *v)
{
	struct build_gradients *g = b->gradients;
	struct bucket *k = g->nbuckets ? &g->bucket[g->nbuckets - 1] : NULL;
	bool cut = s->record->weight[0]->state_cut;
	const struct tess_dim *over = s->record->in[0]->sum;

	if (k && !k->full && k->slot->record->stage == s->record->stage && s->len == s->n &&
	    k->cut == cut && k->over == over &&
	    4 * (uint64_t)(k->count + s->n) <= tess_program_get_bucket(b->p))
		return k;
	k = &g->bucket[g->nbuckets++];
	*k = (struct bucket){
		.cut = cut, .full = s->len < s->n, .over = over, .direct = true, .nodes = v->nodes
	};
	return k;
}

/* Returns the rows per range of the gradient of record i; 0: it is computed at once. */
static int64_t choose_run_rows(const struct build *b, int32_t i, const struct value *v)
{
	const struct tess_program *p = b->p;
	const struct tess_record *from = i ? p->record[i - 1] : NULL;
	const struct tess_weight *w = p->record[i]->weight[0];
	int64_t bytes = 4 * v->cols, rows; /* bytes: a node's; some ranks may have several */
	uint64_t most, shards = (uint64_t)tess_program_count_shards(p);
	bool by_rows = from && from->nout && from->out[0] == p->record[i]->in[0] &&
	               (from->kind == TESS_OP_EMBED_DW || from->kind == TESS_OP_LINEAR_DW);

	if (!by_rows || p->check || from->out[0]->ndim != 2)
		return 0;
	if (v->partial ? p->mesh.dim[p->data_along].size != tess_program_count_shards(p)
	               : w->state_cut || !build_is_gradient_stored(b, w))
		return 0;
	most = tess_program_get_bucket(p);
	if (p->tile && p->tile < most)
		most = p->tile;
	if ((uint64_t)(bytes * v->rows) <= most)
		return 0;
	if (w->state_cut && most > RUN_BYTES) /* one rank gets all nodes */
		most = most / shards > RUN_BYTES ? most / shards : RUN_BYTES;
	rows = (int64_t)most / bytes;
	return rows + !rows;
}

/* Returns the value of a gradient before the step that computes it adds a buffer. */
static struct value *peek_value(struct build *b, const struct tess_record *rec)
{
	struct value *v = build_get_value(b, rec->in[0]);

	b->nbuffers--;
	v->allocated = false;
	return v;
}

/* Counts the slots of the gradient of record i. */
static int32_t count_slots(struct build *b, int32_t i)
{
	const struct value *v = peek_value(b, b->p->record[i]);
	int64_t rows = choose_run_rows(b, i, v);

	return rows ? (int32_t)tess_up(v->rows, rows) : 1;
}

static void assign_slot(struct build *b, struct slot *s)
{
	struct value *v = peek_value(b, s->record);

	if (!v->partial) {
		place_finished(b, s, v);
		return;
	}
	s->bucket = choose_bucket(b, s, v);
	if (!s->bucket->nslots)
		s->bucket->slot = s;
	s->at = s->bucket->count;
	/* there may be finished gradients between those of a bucket */
	s->bucket->nslots = (int32_t)(s - s->bucket->slot) + 1;
	s->bucket->count += s->len;
	s->bucket->direct &=
		!is_added(s->record) && !build_is_gradient_stored(b, s->record->weight[0]);
}

static void place_bucket(struct build *b, struct bucket *k)
{
	const struct tess_program *p = b->p;
	int32_t nranks = p->mesh.dim[p->data_along].size, nshards = tess_program_count_shards(p);
	bool several = k->nslots > 1;

	k->packed = k->cut && (several || nranks > nshards);
	k->count *= k->cut ? nranks / nshards : 1;
	k->memory = open_memory(b);
	build_use_stage(b, k->slot->record->stage);
	k->node = build_add_temporary(b, k->nodes, 1, k->count, TESS_F32);
	k->node.partial = true;
	for (int32_t i = 0; i < k->nslots && !b->status; i++) {
		const struct slot *s = &k->slot[i];
		const struct tess_weight *w = s->record->weight[0];
		struct value *v = &b->value[s->record->in[0]->id];

		if (s->bucket != k)
			continue;
		k->kept += find_kept_part(b, s).len;
		if (build_is_gradient_stored(b, w))
			describe_gradient(b, w, find_kept_run(b, w, s->n).len);
		else if (!b->gradients->memory[w->index].allocated)
			place_memory(b, w, k->memory, find_kept_run(b, w, s->n).len);
		if (k->packed)
			continue;
		v->allocated = true;
		v->buffer = k->node.buffer;
		v->offset = 4 * (uint64_t)s->at;
		v->node_stride = k->count;
	}
	if (!b->status)
		close_memory(b, k->memory);
}

/* Makes room for a part of the gradient of a tied head, which the stage of its table receives. */
static void place_received(struct build *b, const struct tess_record *rec)
{
	const struct tess_weight *w = rec->weight[0], *table = tess_weight_get_table(w);
	int32_t rank = b->l->rank, buffer;
	int64_t n;

	if (!table || build_has_record(b, rec) || b->l->gradient[w->index].ndim)
		return;
	n = tess_program_limit_part(b->p, tess_weight_get_kept(b->p, table, rank, TESS_STATE).len);
	if (!n)
		return;
	buffer = open_memory(b);
	if (b->status)
		return;
	place_memory(b, w, buffer, n);
	close_memory(b, buffer);
}

static void assign_record(struct build *b, int32_t i)
{
	const struct value *v = peek_value(b, b->p->record[i]);
	int64_t rows = choose_run_rows(b, i, v), n = v->rows, cols = v->cols;

	for (int64_t row = 0, more; row < n || !row; row += more) {
		struct slot *s = &b->gradients->slot[b->gradients->nslots++];

		more = rows && rows < n - row ? rows : n - row;
		*s = (struct slot){ .record = b->p->record[i],
			            .n = n * cols,
			            .lo = row * cols,
			            .len = more * cols };
		build_expect_gradient(b, s->record->weight[0]);
		assign_slot(b, s);
		if (!more)
			break;
	}
}

void build_place_gradients(struct build *b)
{
	const struct tess_program *p = b->p;
	struct tess_arena *arena = &b->l->arena;
	struct build_gradients *g = TESS_NEW(arena, struct build_gradients, 1);
	int32_t n = 0;

	for (int32_t i = 0; i < p->nrecords; i++)
		if (visit_gradient(b, p->record[i]))
			n += count_slots(b, i);
	b->gradients = g;
	b->writes = build_make_writes(b);
	b->l->gradient = TESS_NEW(arena, struct tess_view, p->nweights);
	if (g) {
		g->slot = g->next = TESS_NEW(arena, struct slot, n);
		g->bucket = TESS_NEW(arena, struct bucket, n);
		g->memory = TESS_NEW(arena, struct value, p->nweights);
	}
	if (!g || !b->writes || !b->l->gradient || !g->slot || !g->bucket || !g->memory) {
		b->status = TESS_ENOMEM;
		return;
	}
	for (int32_t i = 0; i < p->nrecords && !b->status; i++)
		if (visit_gradient(b, p->record[i]))
			assign_record(b, i);
	for (int32_t i = 0; i < g->nbuckets && !b->status; i++)
		place_bucket(b, &g->bucket[i]);
	for (int32_t i = 0; i < p->nrecords && !b->status; i++)
		if (p->record[i]->kind == TESS_REC_GRADIENT)
			place_received(b, p->record[i]);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Returns a value whose rows have no gaps as one row. */
static struct value flatten_value(struct build *b, const struct value *v)
{
	struct value flat = build_is_dense(v) ? *v : build_copy_dense(b, v);

	flat.cols = flat.row_stride = v->rows * v->cols;
	flat.rows = 1;
	return flat;
}

/* Returns the memory of this rank's elements of a slot. */
static struct value slice_memory(const struct build *b, const struct slot *s)
{
	struct tess_run part = find_kept_part(b, s);

	return build_slice_value(&b->gradients->memory[s->record->weight[0]->index], 0, 1,
	                         part.start, part.len);
}

/* Stores this rank's elements of a slot; d: their finished sum. */
static void store_slot(struct build *b, struct slot *slot, const struct value *d)
{
	struct value to;

	if (build_is_gradient_stored(b, slot->record->weight[0])) {
		build_store_gradient(b, slot->record->weight[0], find_kept_part(b, slot).start, d,
		                     is_added(slot->record) ? &slot->earlier : NULL);
		return;
	}
	to = slice_memory(b, slot);
	if (is_added(slot->record))
		build_add_to_value(b, d, &to);
	else if (d->buffer != to.buffer || d->offset != to.offset)
		build_add_copy(b, d, &to);
}

/* Returns whether a slot is added to what is in a file. */
static bool has_earlier(const struct build *b, const struct slot *s)
{
	return is_added(s->record) && build_is_gradient_stored(b, s->record->weight[0]);
}

/* Starts reading what a slot is added to, if that is in a file. */
static void read_earlier(struct build *b, struct slot *s)
{
	struct tess_run part = find_kept_part(b, s);

	if (has_earlier(b, s))
		build_read_earlier(b, s->record->weight[0], part.start, part.len, &s->earlier);
}

/* Returns whether an outstanding sum, or the bucket after these, has a gradient of w. */
static bool is_summed(const struct build *b, const struct tess_weight *w, bool next)
{
	const struct build_gradients *g = b->gradients;

	for (int32_t i = g->nwaited; i < g->nstarted + next && i < g->nbuckets; i++)
		for (int32_t k = 0; k < g->bucket[i].nslots; k++)
			if (g->bucket[i].slot[k].record->weight[0] == w)
				return true;
	return false;
}

/* Reads ahead what the next slot is added to, unless its bucket does, or that is not there yet. */
static void read_ahead(struct build *b, const struct slot *now)
{
	struct build_gradients *g = b->gradients;
	const struct tess_record *next;

	if (g->next == g->slot + g->nslots || g->next->bucket)
		return;
	next = g->next->record;
	if (!is_summed(b, next->weight[0], true) && next->stage == now->record->stage &&
	    next->action == now->record->action)
		read_earlier(b, g->next);
}

static void add_finished_gradient(struct build *b, struct slot *s)
{
	const struct tess_record *rec = s->record;
	struct tess_run kept = find_kept_run(b, rec->weight[0], s->n);
	struct value flat = flatten_value(b, build_get_value(b, rec->in[0]));
	struct value mine = build_slice_value(&flat, 0, 1, kept.start, kept.len);

	store_slot(b, s, &mine);
	read_ahead(b, s);
}

/* Moves the nodes of a gradient to where the sum reads them: rank by rank, or in place. */
static void pack_nodes(struct build *b, const struct slot *s)
{
	const struct tess_program *p = b->p;
	const struct bucket *k = s->bucket;
	struct value *v = build_get_value(b, s->record->in[0]), flat = flatten_value(b, v), from,
		     to;
	int64_t at = 0;

	if (!k->packed) {
		to = build_slice_value(&k->node, 0, 1, s->at, s->n);
		if (v->buffer != to.buffer)
			build_add_copy(b, &flat, &to);
		return;
	}
	for (int32_t q = 0; q < p->mesh.dim[p->data_along].size; q++)
		for (int32_t i = 0; i < k->nslots; i++) {
			struct tess_run run = tess_program_get_share(p, k->slot[i].n, q);

			if (k->slot[i].bucket != k)
				continue;
			if (&k->slot[i] == s) {
				from = build_slice_value(&flat, 0, 1, run.start, run.len);
				to = build_slice_value(&k->node, 0, 1, at, run.len);
				build_add_copy(b, &from, &to);
			}
			at += run.len;
		}
}

/* Adds the elements of a slot that each of n ranks gets; most get nothing of a range of rows. */
static void add_shares(const struct tess_program *p, const struct slot *s, int32_t n,
                       uint64_t *share)
{
	int32_t shards = tess_program_count_shards(p);
	int32_t i = s->n ? (int32_t)(s->lo * shards / s->n) : 0;

	for (; i < shards; i++) {
		struct tess_run run = tess_program_get_share(p, s->n, i);

		if (run.start >= s->lo + s->len)
			break;
		for (int32_t q = i; q < n; q += shards)
			share[q] += (uint64_t)intersect_slot(s, run).len;
	}
}

/* Lists the number of elements of the sum that each rank gets. */
static const uint64_t *list_shares(struct build *b, const struct bucket *k)
{
	const struct tess_program *p = b->p;
	int32_t n = p->mesh.dim[p->data_along].size;
	uint64_t *share = TESS_NEW(&b->l->arena, uint64_t, n);

	if (!share)
		b->status = TESS_ENOMEM;
	for (int32_t i = 0; i < k->nslots && share; i++)
		if (k->slot[i].bucket == k)
			add_shares(p, &k->slot[i], n, share);
	return share;
}

static void start_bucket(struct build *b, struct bucket *k)
{
	struct tess_step *s;

	k->sum = build_add_temporary(b, 0, 1, k->kept, TESS_F32);
	if (k->direct && k->full)
		k->sum = slice_memory(b, k->slot);
	else if (k->direct)
		k->sum.buffer = k->memory;
	s = k->start = build_add_sum(b, b->p->data_along, k->over, &k->node, &k->sum,
	                             k->cut ? list_shares(b, k) : NULL);
	s->started = true;
}

static void finish_bucket(struct build *b, const struct bucket *k)
{
	int64_t at = 0;

	build_add_wait(b, k->start);
	build_keep_value(b, &k->node);
	build_keep_value(b, &k->sum);
	for (int32_t i = 0; i < k->nslots && !k->direct; i++) {
		struct slot *s = &k->slot[i];
		int64_t n = find_kept_part(b, s).len;
		struct value d = build_slice_value(&k->sum, 0, 1, at, n);

		if (s->bucket != k)
			continue;
		store_slot(b, s, &d);
		at += n;
	}
	for (int32_t i = 0; i < k->nslots; i++)
		if (k->slot[i].bucket == k)
			build_announce_gradient(b, k->slot[i].record->weight[0]);
}

/* Returns true if the number or the bytes of outstanding sums have reached the limit. */
static bool is_full(const struct build *b)
{
	const struct build_gradients *g = b->gradients;
	uint64_t bytes = 0;

	for (int32_t i = g->nwaited; i <= g->nstarted; i++)
		bytes += 4 * (uint64_t)g->bucket[i].count;
	return g->nstarted - g->nwaited == UNDER_WAY ||
	       (g->nstarted > g->nwaited && bytes > UNDER_WAY * tess_program_get_bucket(b->p));
}

static void finish_oldest_bucket(struct build *b)
{
	finish_bucket(b, &b->gradients->bucket[b->gradients->nwaited++]);
}

/* Returns whether a slot is added to another one of its bucket, which is not in the file yet. */
static bool follows_slot(const struct slot *s)
{
	for (const struct slot *o = s->bucket->slot; o < s; o++)
		if (o->record->weight[0] == s->record->weight[0])
			return true;
	return false;
}

/* Reads ahead what the slots of a bucket are added to, after sums of the same gradients. */
static void read_earlier_bucket(struct build *b, struct bucket *k)
{
	for (int32_t i = 0; i < k->nslots && !b->status; i++) {
		struct slot *s = &k->slot[i];

		if (s->bucket != k || !has_earlier(b, s) || follows_slot(s))
			continue;
		while (is_summed(b, s->record->weight[0], false))
			finish_oldest_bucket(b);
		read_earlier(b, s);
	}
}

static void start_next_bucket(struct build *b)
{
	struct bucket *k = &b->gradients->bucket[b->gradients->nstarted];

	while (is_full(b) && !b->status)
		finish_oldest_bucket(b);
	read_earlier_bucket(b, k);
	b->gradients->nstarted++;
	start_bucket(b, k);
}

bool build_get_gradient_run(struct build *b, struct value *run, int64_t *row)
{
	struct build_gradients *g = b->gradients;
	struct slot *s = g->next;
	const struct value *v = build_get_value(b, b->p->record[b->record]->out[0]);

	if (b->status || s == g->slot + g->nslots || s->len == s->n ||
	    s->record->in[0] != b->p->record[b->record]->out[0])
		return false;
	if (!s->bucket)
		s->run = build_add_temporary(b, 0, 1, s->len, TESS_F32);
	*run = s->bucket ? s->bucket->node : s->run;
	run->rows = s->len / v->cols;
	run->cols = run->row_stride = v->cols;
	*row = s->lo / v->cols;
	return true;
}

void build_add_gradient_run(struct build *b)
{
	struct slot *s = b->gradients->next++;

	if (s->bucket) {
		start_next_bucket(b);
		return;
	}
	store_slot(b, s, &s->run);
	build_announce_gradient(b, s->record->weight[0]);
	read_ahead(b, s);
}

void build_add_gradient(struct build *b, const struct tess_record *rec)
{
	struct build_gradients *g = b->gradients;
	struct slot *s = g->next;

	if (s == g->slot + g->nslots || s->record != rec)
		return; /* computed in ranges of rows, all of which are under way */
	g->next++;
	if (!s->bucket) {
		add_finished_gradient(b, s);
		build_announce_gradient(b, rec->weight[0]);
		return;
	}
	pack_nodes(b, s);
	if (s == &s->bucket->slot[s->bucket->nslots - 1])
		start_next_bucket(b);
}

void build_finish_gradients(struct build *b)
{
	b->record--; /* the last record */
	while (b->gradients->nwaited < b->gradients->nstarted && !b->status)
		finish_oldest_bucket(b);
	build_finish_stored_gradients(b);
	b->record++;
}
