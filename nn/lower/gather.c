/*
 * gather.c - gathers weights of which each rank keeps a share between uses, and fetches those that
 * are in a file: before the records that read them; the memory is reused after the last of these.
 *
 * The weights of adjacent records, up to the bytes of a bucket, are gathered together as a run. The
 * gathers of the next run start before the records of this one, and overlap with them, if both are
 * in one segment. A share in a file is fetched one run earlier, to its place in the gathered
 * weight. A tile of a record (tiles.h) needs pieces of weights, and is in a run like a record.
 */
#include "nn/lower/tiles.h"
#include "nn/program/storage.h"

#include <tessera/reduce.h>

struct item { /* a weight, or a piece of one for one tile */
	const struct tess_weight *weight;
	int64_t first, n; /* its elements, of this rank's part */
	int32_t last; /* the last run that reads it, + 1 */
	struct value value; /* the gathered elements */
	struct tess_step *start; /* the outstanding gather or transfer; NULL: none */
	int32_t last_fetched; /* the last run for which its share is fetched, + 1 */
	struct value share; /* room for the next gathered elements, with the share */
	struct tess_step *fetch; /* the transfer of the share; NULL: it has no elements */
};

struct run { /* adjacent records and tiles */
	int32_t first, tile; /* its first record, and the first tile of that */
	bool alone; /* it follows no run of its segment */
	int32_t begin, n; /* range of its items in the list */
};

struct build_gathers {
	struct run *run;
	int32_t nruns, next; /* next: the run whose first record is the next one */
	struct item *item; /* by weight, then pieces */
	int32_t *list; /* indices of the items of all runs, in order of use */
	int32_t nitems, nlist;
};

static bool is_fetched(const struct build *b, const struct tess_weight *w)
{
	return tess_weight_is_fetched(b->p, w, b->l->rank);
}

bool build_is_gathered(const struct build *b, const struct tess_weight *w)
{
	return w->rest_cut || is_fetched(b, tess_weight_get_home(w));
}

static int64_t count_local_elements(const struct build *b, const struct tess_weight *w)
{
	return tess_weight_count_local(b->p, w, b->l->rank);
}

/*
 * Returns whether the weights of a record are fetched when it is known which experts its rows
 * request, and only these. In training all are fetched, ahead of the record.
 */
static bool is_fetched_on_request(const struct build *b, const struct tess_record *rec)
{
	return !b->p->training && rec->kind == TESS_OP_EXPERTS;
}

/* Returns how many runs are in memory at once: one more if shares are in files. */
static uint64_t count_runs_ahead(const struct tess_program *p)
{
	for (int32_t i = 0; i < p->nweights; i++)
		if (p->weight[i]->rest_cut &&
		    tess_location_is_apart(p, p->weight[i]->rest_location))
			return 3;
	return 2;
}

uint64_t build_get_most_gathered(const struct build *b)
{
	uint64_t most = tess_program_get_bucket(b->p), each = b->p->tile / count_runs_ahead(b->p);

	return b->p->tile && each < most ? each : most;
}

/* ---- the plan -------------------------------------------------------------------------------- */

/* Begins a run with the tile of a record, or with the record. */
static void add_run(struct build_gathers *g, int32_t record, int32_t tile, bool alone)
{
	g->run[g->nruns++] =
		(struct run){ .first = record, .tile = tile, .alone = alone, .begin = g->nlist };
}

static void add_to_run(struct build_gathers *g, int32_t item)
{
	g->item[item].last = g->nruns;
	g->list[g->nlist++] = item;
	g->run[g->nruns - 1].n++;
}

/* Adds the weights of a record that the last run lacks, or all; returns their bytes. */
static uint64_t add_weights(struct build *b, const struct tess_record *rec, bool all, bool add)
{
	struct build_gathers *g = b->gathers;
	uint64_t bytes = 0;

	for (int32_t i = 0; i < rec->nweight; i++) {
		const struct tess_weight *w = tess_weight_get_home(rec->weight[i]);

		if (!build_is_gathered(b, w) || (!all && g->item[w->index].last == g->nruns))
			continue;
		bytes += tess_width(w->dtype) * (uint64_t)count_local_elements(b, w);
		if (add)
			add_to_run(g, w->index);
	}
	return bytes;
}

/* Adds the pieces of a tile that are gathered; returns their bytes. */
static uint64_t add_pieces(struct build *b, const struct tess_record *rec,
                           const struct build_tile *tile, bool add)
{
	struct build_gathers *g = b->gathers;
	uint64_t bytes = 0;

	for (int32_t i = 0; i < tile->npieces; i++) {
		struct build_piece *piece = &tile->piece[i];
		const struct tess_weight *w = tess_weight_get_home(rec->weight[piece->weight]);

		if (!build_is_gathered(b, w) || !piece->n)
			continue;
		bytes += tess_width(w->dtype) * (uint64_t)piece->n;
		if (!add)
			continue;
		piece->item = g->nitems++;
		g->item[piece->item] =
			(struct item){ .weight = w, .first = piece->first, .n = piece->n };
		add_to_run(g, piece->item);
	}
	return bytes;
}

/* Notes a record that gathers more bytes at once than the tile of the program lets it. */
static void note_widest(struct build *b, const struct tess_record *rec, uint64_t bytes)
{
	uint64_t once = bytes * count_runs_ahead(b->p);

	if (!b->p->tile || once <= b->p->tile || once <= b->l->widest_bytes)
		return;
	b->l->widest_bytes = once;
	for (int32_t i = rec->nweight - 1; i >= 0; i--)
		if (build_is_gathered(b, tess_weight_get_home(rec->weight[i])))
			b->l->widest = tess_weight_get_home(rec->weight[i]);
}

/* Adds what a record needs, or tile k of its tiles, to the last run or to a new one. */
static void plan_need(struct build *b, int32_t i, int32_t k, uint64_t *bytes)
{
	struct build_gathers *g = b->gathers;
	const struct tess_record *rec = b->p->record[i];
	const struct build_tile *tile = b->tiling[i].ntiles ? &b->tiling[i].tile[k] : NULL;
	bool alone = !g->nruns || !build_is_one_segment(b, g->run[g->nruns - 1].first, i);
	uint64_t more = tile ? add_pieces(b, rec, tile, false) : add_weights(b, rec, alone, false);

	if (!more)
		return;
	note_widest(b, rec, more);
	if (alone || *bytes + more > build_get_most_gathered(b)) {
		add_run(g, i, k, alone);
		*bytes = 0;
	}
	*bytes += tile ? add_pieces(b, rec, tile, true) : add_weights(b, rec, false, true);
}

/* Makes room for the items of all records; returns false if there is none. */
static bool alloc_gathers(struct build *b)
{
	const struct tess_program *p = b->p;
	struct tess_arena *arena = &b->l->arena;
	struct build_gathers *g = b->gathers = TESS_NEW(arena, struct build_gathers, 1);
	int64_t nuses = 1, npieces = 0;

	for (int32_t i = 0; i < p->nrecords; i++) {
		nuses += p->record[i]->nweight;
		for (int32_t k = 0; k < b->tiling[i].ntiles; k++)
			npieces += b->tiling[i].tile[k].npieces;
	}
	if (!g)
		return false;
	g->run = TESS_NEW(arena, struct run, nuses + npieces);
	g->list = TESS_NEW(arena, int32_t, nuses + npieces);
	g->item = TESS_NEW(arena, struct item, p->nweights + npieces);
	g->nitems = p->nweights;
	return g->run && g->list && g->item;
}

void build_plan_gathers(struct build *b)
{
	const struct tess_program *p = b->p;
	uint64_t bytes = 0;

	if (!alloc_gathers(b)) {
		b->status = TESS_ENOMEM;
		return;
	}
	for (int32_t i = 0; i < p->nweights; i++)
		b->gathers->item[i] = (struct item){ .weight = p->weight[i],
			                             .n = count_local_elements(b, p->weight[i]) };
	for (int32_t i = 0; i < p->nrecords; i++) {
		if (p->record[i]->kind == TESS_REC_GRADIENT ||
		    is_fetched_on_request(b, p->record[i]) || !build_has_record(b, p->record[i]))
			continue;
		for (int32_t k = 0; k < b->tiling[i].ntiles || !k; k++)
			plan_need(b, i, k, &bytes);
	}
	for (int32_t i = 0; i < b->gathers->nitems; i++)
		b->gathers->item[i].last = 0;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static struct value add_room(struct build *b, const struct item *t)
{
	return build_add_temporary(b, 0, 1, t->n, t->weight->dtype);
}

/* Returns the elements of an item that are in the share of a rank, of the weight's n. */
static struct tess_run find_share(const struct build *b, const struct item *t, int64_t n,
                                  int32_t rank)
{
	return build_intersect_runs(tess_program_get_share(b->p, n, rank),
	                            (struct tess_run){ t->first, t->n });
}

/* Returns what this rank keeps of an item, as elements of the item. *at: those of all it keeps. */
static struct tess_run find_kept_share(const struct build *b, const struct item *t, int64_t *at)
{
	struct tess_run kept = tess_weight_get_kept(b->p, t->weight, b->l->rank, TESS_REST);
	struct tess_run part = build_intersect_runs(kept, (struct tess_run){ t->first, t->n });

	*at = part.len ? part.start - kept.start : 0;
	part.start = part.len ? part.start - t->first : 0;
	return part;
}

/* Fetches what this rank keeps of an item to its place in the room; NULL: nothing. */
static struct tess_step *fetch_item(struct build *b, const struct item *t, const struct value *room)
{
	int64_t from;
	struct tess_run kept = find_kept_share(b, t, &from);
	struct value at = build_slice_value(room, 0, 1, kept.start, kept.len);

	return kept.len
	               ? build_start_transfer(b, t->weight, TESS_WEIGHT, false, from, kept.len, &at)
	               : NULL;
}

/* Returns the room for a gathered item; the share is there, if that was in a file. */
static struct value take_room(struct build *b, struct item *t)
{
	if (!is_fetched(b, t->weight))
		return add_room(b, t);
	if (t->fetch) {
		build_add_wait(b, t->fetch);
		build_keep_value(b, &t->share);
	}
	return t->share;
}

/* Sets the operand of a gather: the share in memory, or in place where it was fetched to. */
static void set_gather_source(struct build *b, struct tess_step *s, const struct item *t)
{
	const char *data = b->weights ? b->weights[t->weight->index].data : NULL;
	int64_t from;

	find_kept_share(b, t, &from);
	if (is_fetched(b, t->weight)) /* src == dst: each block is in its place */
		build_add_pointer(b, (void **)(uintptr_t)&s->coll.src, &t->value);
	else if (data)
		s->coll.src = data + from * (int64_t)tess_width(t->weight->dtype);
}

static void start_gather(struct build *b, struct item *t)
{
	const struct tess_program *p = b->p;
	int32_t nshards = tess_program_count_shards(p);
	struct tess_cut cut = tess_program_get_cut(p, b->l->rank, p->data_along);
	uint64_t *counts = TESS_NEW(&b->l->arena, uint64_t, nshards);
	int64_t n = count_local_elements(b, t->weight);
	struct tess_step *s;

	if (!counts) {
		b->status = TESS_ENOMEM;
		return;
	}
	for (int32_t q = 0; q < nshards; q++)
		counts[q] = (uint64_t)find_share(b, t, n, q).len;
	t->value = take_room(b, t);
	s = t->start = build_add_step(b, TESS_STEP_COLL);
	s->along = p->data_along;
	s->among_shards = true;
	s->started = true;
	s->coll = (struct tess_coll){ .size = sizeof s->coll,
		                      .kind = TESS_ALL_GATHER,
		                      .dtype = t->weight->dtype,
		                      .mem = p->device ? p->device->mem : TESS_HOST,
		                      .count = counts[cut.rank % nshards],
		                      .recv_counts = counts,
		                      .where = t->weight->name };
	set_gather_source(b, s, t);
	build_add_pointer(b, &s->coll.dst, &t->value);
}

static struct item *get_item_of_run(const struct build *b, int32_t i, int32_t k)
{
	const struct build_gathers *g = b->gathers;

	return &g->item[g->list[g->run[i].begin + k]];
}

/* Fetches the shares of a run, except for weights that the previous run gathers. */
static void fetch_shares(struct build *b, int32_t i)
{
	struct build_gathers *g = b->gathers;

	for (int32_t k = 0; k < g->run[i].n && !b->status; k++) {
		struct item *t = get_item_of_run(b, i, k);

		if (!t->weight->rest_cut || !is_fetched(b, t->weight))
			continue;
		if (g->run[i].alone || t->last_fetched != i) {
			t->share = add_room(b, t);
			t->fetch = fetch_item(b, t, &t->share);
		}
		t->last_fetched = i + 1;
	}
}

static void start_item(struct build *b, struct item *t)
{
	build_await_weight(b, t->weight);
	if (t->weight->rest_cut) {
		start_gather(b, t);
	} else {
		t->value = add_room(b, t);
		t->start = fetch_item(b, t, &t->value);
	}
}

/* Starts the gathers of a run, except for weights that the previous run has gathered. */
static void start_run(struct build *b, int32_t i)
{
	struct build_gathers *g = b->gathers;

	for (int32_t k = 0; k < g->run[i].n && !b->status; k++) {
		struct item *t = get_item_of_run(b, i, k);

		if (g->run[i].alone || t->last != i)
			start_item(b, t);
		t->last = i + 1;
	}
}

static void wait_for_item(struct build *b, struct item *t)
{
	if (!t->start)
		return;
	build_add_wait(b, t->start);
	build_keep_value(b, &t->value);
	t->start = NULL;
}

static void wait_for_run(struct build *b, int32_t i)
{
	for (int32_t k = 0; k < b->gathers->run[i].n && !b->status; k++)
		wait_for_item(b, get_item_of_run(b, i, k));
}

/* Returns whether there is a run i, in the segment of the run before it. */
static bool follows_run(const struct build_gathers *g, int32_t i)
{
	return i < g->nruns && !g->run[i].alone;
}

/* Fetches the experts that the rows of the current record request, and waits for them. */
static void fetch_requested(struct build *b)
{
	const struct tess_record *rec = b->p->record[b->record];
	const struct value *routing = build_get_value(b, rec->in[1]);
	struct build_gathers *g = b->gathers;

	if (!build_get_value(b, rec->in[0])->rows)
		return;
	for (int32_t i = 0; i < rec->nweight && !b->status; i++) {
		struct item *t = &g->item[rec->weight[i]->index];

		if (!is_fetched(b, t->weight))
			continue;
		start_item(b, t);
		if (!t->start)
			continue;
		t->start->transfer->rows = routing->rows;
		t->start->transfer->row_stride = routing->row_stride;
		build_add_pointer(b, (void **)(uintptr_t)&t->start->transfer->routing, routing);
	}
	for (int32_t i = 0; i < rec->nweight && !b->status; i++)
		wait_for_item(b, &g->item[rec->weight[i]->index]);
	build_keep_value(b, routing);
}

void build_gather_weights(struct build *b)
{
	struct build_gathers *g = b->gathers;
	int32_t i = g->next;

	if (is_fetched_on_request(b, b->p->record[b->record])) {
		fetch_requested(b);
		return;
	}
	if (i == g->nruns || g->run[i].first != b->record || g->run[i].tile != b->tile)
		return;
	if (g->run[i].alone) {
		fetch_shares(b, i);
		start_run(b, i);
		if (follows_run(g, i + 1))
			fetch_shares(b, i + 1);
	}
	wait_for_run(b, i);
	g->next++;
	if (!follows_run(g, i + 1))
		return;
	if (follows_run(g, i + 2))
		fetch_shares(b, i + 2);
	start_run(b, i + 1);
}

int64_t build_find_tied_part(struct build *b, const struct tess_weight *w)
{
	int64_t at = 0, stride = 1;

	for (int32_t a = w->ndim - 1; a >= 0 && w->table; a--) {
		int32_t along = tess_places_find(w->place, b->p->mesh.ndims, TESS_SHARD, a);

		if (along >= 0 && w->table->place[along].kind == TESS_REPLICATE) {
			tess_dim_list_local_runs(w->dim[a], build_find_cut(b, w->place, a),
			                         b->runs);
			at += b->runs[0].start * stride;
		}
		stride *= tess_weight_get_local_size(b->p, w->table, b->l->rank, a);
	}
	return at;
}

void build_add_gathered_pointer(struct build *b, void **at, const struct tess_weight *w,
                                const struct build_piece *piece, int64_t element)
{
	const struct item *t =
		&b->gathers->item[piece ? piece->item : tess_weight_get_home(w)->index];
	struct value v = t->value;

	if (piece && !piece->n) /* no elements */
		v = build_add_temporary(b, 0, 1, 0, w->dtype);
	else
		v.offset += tess_width(w->dtype) *
		            (uint64_t)(build_find_tied_part(b, w) + element - t->first);
	build_add_pointer(b, at, &v);
}
