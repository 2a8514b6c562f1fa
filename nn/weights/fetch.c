#include "nn/weights/fetch.h"

#include "core/base/status.h"
#include "core/base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

enum { AHEAD_MAX = 64 << 20 }; /* bytes that are read ahead; as many stay after their use */

struct fetched { /* elements of a weight */
	int32_t weight; /* index */
	int64_t first, n;
};

struct fetched_list {
	struct fetched *item;
	int64_t n, capacity;
};

struct tess_fetcher {
	const struct tess_program *program;
	const struct tess_rank_weights *weights;
	bool drops; /* what was read leaves the page cache */
	pthread_t thread;
	bool started; /* the thread */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	/* with the lock: */
	struct tess_transfer *first, *last; /* the queue; the first is under way */
	bool stops;
	/* of the thread: */
	struct tess_parts parts;
	struct fetched_list order; /* of a step */
	bool is_complete; /* the order: it begins again */
	int64_t next; /* index of the next range in the order */
	int64_t ahead; /* number of ranges from there on that are being read */
	uint64_t ahead_bytes;
	struct fetched_list used; /* what may be in the page cache, oldest first */
	uint64_t used_bytes;
};

/* ---- elements -------------------------------------------------------------------------------- */

static uint64_t count_fetched_bytes(const struct tess_fetcher *f, const struct fetched *r)
{
	return (uint64_t)r->n * tess_width(f->program->weight[r->weight]->dtype);
}

static bool is_same_range(const struct fetched *a, const struct fetched *b)
{
	return a->weight == b->weight && a->first == b->first && a->n == b->n;
}

/* Appends a range; lists only serve speed, so nothing happens if memory runs out. */
static void append_range(struct fetched_list *l, const struct fetched *r)
{
	if (l->n == l->capacity) {
		int64_t capacity = 2 * l->capacity + 64;
		struct fetched *more = realloc(l->item, (size_t)capacity * sizeof *more);

		if (!more)
			return;
		l->item = more;
		l->capacity = capacity;
	}
	l->item[l->n++] = *r;
}

/* Returns whether a row requests an expert. */
static bool is_requested(const struct tess_transfer *t, int64_t expert)
{
	for (int64_t i = 0; t->routing && i < t->rows; i++)
		if (t->routing[i * t->row_stride + expert] != 0)
			return true;
	return !t->routing;
}

/* What is done with the rows of a matrix: they are copied, or advice is given. */
struct row_action {
	char *to; /* of the first element of the range; NULL: advice */
	int32_t advice;
	const struct tess_transfer *of; /* NULL: of no request of experts */
};

static tess_status act_on_rows(struct tess_fetcher *f, const struct tess_part *p, int64_t from,
                               int64_t n, const struct row_action *a, char *to)
{
	const struct tess_source *source = f->parts.source;
	tess_status st;

	if (!a->to) {
		tess_parts_advise(&f->parts, p, from, n, a->advice);
		return TESS_OK;
	}
	st = tess_parts_copy_rows(&f->parts, p, from, n, to);
	for (int32_t i = 0; i < p->nfiles && !st && source->check; i++)
		st = source->check(source->self, p->file[i].name);
	return st;
}

/* Goes through the matrices of a weight that a range of its elements has. */
static tess_status walk_range(struct tess_fetcher *f, const struct fetched *r,
                              const struct row_action *a)
{
	const struct tess_weight *w = f->program->weight[r->weight];
	struct tess_run experts = { 0, 1 };
	int64_t all = tess_weight_count_local(f->program, w, f->parts.rank), each, end;
	uint64_t width = tess_width(w->dtype);
	tess_status st = TESS_OK;

	if (w->ndim == 3)
		tess_dim_list_local_runs(
			w->dim[0], tess_program_find_cut(f->program, f->parts.rank, w->place, 0),
			&experts);
	each = experts.len ? all / experts.len : 0;
	end = r->first + r->n;
	for (int64_t e = 0; e < experts.len && each && !st; e++) {
		int64_t lo = e * each > r->first ? e * each : r->first;
		int64_t hi = (e + 1) * each < end ? (e + 1) * each : end;
		struct tess_part p;

		/* biases of experts are one matrix */
		if (lo >= hi || (a->of && w->ndim == 3 && !is_requested(a->of, e)))
			continue;
		st = tess_parts_find(&f->parts, w, experts.start + e, &p);
		if (!st)
			st = act_on_rows(f, &p, (lo - e * each) / p.cols, (hi - lo) / p.cols, a,
			                 a->to ? a->to + (uint64_t)(lo - r->first) * width : NULL);
	}
	return st;
}

static void advise_range(struct tess_fetcher *f, const struct fetched *r, int32_t advice,
                         const struct tess_transfer *of)
{
	const struct row_action a = { .advice = advice, .of = of };

	if (walk_range(f, r, &a))
		tess_error_clear(); /* reading reports it */
}

/* ---- the page cache -------------------------------------------------------------------------- */

/* Finds the place of a range in the order of steps, which is learnt from the first one. */
static bool is_next_of_order(struct tess_fetcher *f, const struct fetched *r)
{
	if (!f->is_complete && f->order.n && is_same_range(r, f->order.item)) {
		f->is_complete = true;
		f->next = 0;
	}
	if (f->is_complete && is_same_range(r, &f->order.item[f->next])) {
		f->next = (f->next + 1) % f->order.n;
		return true;
	}
	if (f->is_complete) {
		f->is_complete = false;
		f->order.n = 0;
	}
	append_range(&f->order, r);
	return false;
}

/* Begins to read a range, unless that was done, and those that follow it. */
static void read_order_ahead(struct tess_fetcher *f, const struct fetched *r)
{
	if (!is_next_of_order(f, r)) {
		f->ahead = 0;
		f->ahead_bytes = 0;
		advise_range(f, r, TESS_ADVISE_SOON, NULL);
		return;
	}
	if (f->ahead) {
		f->ahead--;
		f->ahead_bytes -= count_fetched_bytes(f, r);
	} else {
		advise_range(f, r, TESS_ADVISE_SOON, NULL);
	}
	while (f->ahead + 1 < f->order.n && f->ahead_bytes < AHEAD_MAX) {
		const struct fetched *at = &f->order.item[(f->next + f->ahead) % f->order.n];

		advise_range(f, at, TESS_ADVISE_SOON, NULL);
		f->ahead++;
		f->ahead_bytes += count_fetched_bytes(f, at);
	}
}

/*
 * Notes what was read, and drops what was read long ago. Other ranks of the host read the same
 * pages at about the same time.
 */
static void drop_used(struct tess_fetcher *f, const struct fetched *r)
{
	int64_t n = 0;

	if (!f->drops)
		return;
	append_range(&f->used, r);
	f->used_bytes += count_fetched_bytes(f, r);
	for (; n < f->used.n && f->used_bytes > AHEAD_MAX; n++) {
		advise_range(f, &f->used.item[n], TESS_ADVISE_DONE, NULL);
		f->used_bytes -= count_fetched_bytes(f, &f->used.item[n]);
	}
	f->used.n -= n;
	memmove(f->used.item, f->used.item + n, (size_t)f->used.n * sizeof *f->used.item);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void execute_transfer(struct tess_fetcher *f, struct tess_transfer *t)
{
	const struct fetched r = { t->weight->index, t->first, t->n };
	const struct row_action copy = { .to = t->memory, .of = t };
	tess_status st;

	if (t->routing) /* which experts is not known before */
		advise_range(f, &r, TESS_ADVISE_SOON, t);
	else
		read_order_ahead(f, &r);
	st = walk_range(f, &r, &copy);
	t->status = st;
	if (st)
		snprintf(t->message, sizeof t->message, "%s", tess_error());
	drop_used(f, &r);
}

static void *run_fetcher(void *arg)
{
	struct tess_fetcher *f = arg;

	pthread_mutex_lock(&f->lock);
	for (;;) {
		struct tess_transfer *t = f->first;

		if (!t && f->stops)
			break;
		if (!t) {
			pthread_cond_wait(&f->changed, &f->lock);
			continue;
		}
		pthread_mutex_unlock(&f->lock);
		execute_transfer(f, t);
		pthread_mutex_lock(&f->lock);
		f->first = t->after;
		t->done = true;
		pthread_cond_broadcast(&f->changed);
	}
	pthread_mutex_unlock(&f->lock);
	return NULL;
}

void tess_fetcher_start(struct tess_fetcher *f, struct tess_transfer *t)
{
	t->done = false;
	t->after = NULL;
	t->status = TESS_OK;
	pthread_mutex_lock(&f->lock);
	if (f->first)
		f->last->after = t;
	else
		f->first = t;
	f->last = t;
	pthread_cond_broadcast(&f->changed);
	pthread_mutex_unlock(&f->lock);
}

tess_status tess_fetcher_wait(struct tess_fetcher *f, struct tess_transfer *t)
{
	pthread_mutex_lock(&f->lock);
	while (!t->done)
		pthread_cond_wait(&f->changed, &f->lock);
	pthread_mutex_unlock(&f->lock);
	return t->status ? tess_fail(t->status, "%s: %s", t->weight->name, t->message) : TESS_OK;
}

void tess_fetcher_settle(struct tess_fetcher *f)
{
	if (!f)
		return;
	pthread_mutex_lock(&f->lock);
	while (f->first)
		pthread_cond_wait(&f->changed, &f->lock);
	pthread_mutex_unlock(&f->lock);
}

/* ---- open ------------------------------------------------------------------------------------ */

uint64_t tess_fetched_count_bytes(const struct tess_program *p, int32_t rank)
{
	uint64_t bytes = 0;

	for (int32_t i = 0; i < p->nweights && !p->training; i++)
		if (tess_weight_is_fetched(p, p->weight[i], rank))
			bytes += (uint64_t)tess_weight_count_local(p, p->weight[i], rank) *
			         tess_width(p->weight[i]->dtype);
	return bytes;
}

/* Finds the next table in the mapping from weight *i on; returns false if there is none. */
static bool find_mapped_table(const struct tess_fetcher *f, int32_t *i)
{
	while (*i < f->weights->n && f->weights->decision[*i].kind != TESS_STORE_MAPPED)
		++*i;
	return *i < f->weights->n;
}

/* Does not read what surrounds the rows of a table that are accessed. */
static tess_status advise_tables(struct tess_fetcher *f)
{
	tess_status st = TESS_OK;

	for (int32_t i = 0; !st && find_mapped_table(f, &i); i++) {
		struct tess_part p;

		st = tess_parts_find(&f->parts, f->program->weight[i], 0, &p);
		if (!st)
			tess_parts_advise(&f->parts, &p, 0, p.rows, TESS_ADVISE_ROWS);
	}
	return st;
}

tess_status tess_fetcher_begin_step(struct tess_fetcher *f)
{
	tess_status st = TESS_OK;

	for (int32_t i = 0; f && !st && find_mapped_table(f, &i); i++) {
		const struct tess_view *v = &f->weights->view[i];
		const struct tess_source *source = f->parts.source;
		uint64_t bytes = (uint64_t)((v->shape[0] - 1) * v->stride[0] + v->shape[1]) *
		                 tess_width(v->dtype);
		char name[TESS_FILE_NAME];

		source->drop(source->self, v->data, v->shape[0] > 0 ? bytes : 0);
		if (source->check)
			st = source->check(
				source->self,
				tess_files_format(&f->program->weight[i]->files, 0, 0, name));
	}
	return st;
}

tess_status tess_fetcher_open(const struct tess_program *p, const struct tess_source *source,
                              int32_t rank, const struct tess_rank_weights *weights,
                              uint64_t page_cache, struct tess_fetcher **out)
{
	uint64_t bytes = tess_fetched_count_bytes(p, rank);
	struct tess_fetcher *f;
	tess_status st;

	*out = NULL;
	if (!bytes)
		return TESS_OK;
	f = calloc(1, sizeof *f);
	if (!f)
		return tess_fail(TESS_ENOMEM, "out of memory");
	f->program = p;
	f->weights = weights;
	f->drops = bytes > page_cache;
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->changed, NULL);
	st = tess_parts_open(&f->parts, p, source, rank);
	f->parts.unmapped = true;
	if (!st)
		st = advise_tables(f);
	if (!st) {
		f->started = !tess_thread_start(&f->thread, run_fetcher, f);
		if (!f->started)
			st = tess_fail(TESS_ENOMEM, "no thread that reads weights can be started");
	}
	if (st)
		tess_fetcher_close(f);
	else
		*out = f;
	return st;
}

void tess_fetcher_close(struct tess_fetcher *f)
{
	if (!f)
		return;
	pthread_mutex_lock(&f->lock);
	f->stops = true;
	pthread_cond_broadcast(&f->changed);
	pthread_mutex_unlock(&f->lock);
	if (f->started)
		pthread_join(f->thread, NULL);
	tess_parts_close(&f->parts);
	pthread_cond_destroy(&f->changed);
	pthread_mutex_destroy(&f->lock);
	free(f->order.item);
	free(f->used.item);
	free(f);
}
