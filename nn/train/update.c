#include "nn/train/update.h"

#include "core/base/status.h"
#include "nn/train/squares.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

enum { VALUES = TESS_MOMENT2 + 1 };
enum { PART = 1 << 18 }; /* elements that are changed while the disk gets no request */

/* ---- the ring -------------------------------------------------------------------------------- */

/* Each bucket copies between a device and memory of the host on a lane of its own. */
static int32_t count_buckets(const struct tess_offload_layout *files)
{
	return files->pinned ? TESS_PINNED_LANES - TESS_PINNED_TAKEN : TESS_UPDATE_BUCKETS;
}

/* Returns the bytes in the ring of a bucket of a weight. */
static uint64_t count_bucket_bytes(const struct tess_offload_layout *files,
                                   const struct tess_weight *w)
{
	const struct tess_program *p = files->program;
	int64_t n = tess_weight_get_kept(p, w, files->rank, TESS_STATE).len;
	int64_t max = tess_offload_get_bucket(p);
	struct tess_stored_run run;
	uint64_t bytes = 0;

	n = n < max ? n : max;
	for (int32_t what = TESS_WEIGHT; what < VALUES && n; what++)
		if (tess_offload_is_moved(files, w, what, 0, n, &run))
			bytes += tess_offload_pad((uint64_t)n * tess_weight_get_width(w, what));
	return tess_offload_has_updated(files, w) ? bytes : 0;
}

uint64_t tess_update_count_bytes(const struct tess_offload_layout *files)
{
	const struct tess_program *p = files->program;
	uint64_t max = 0;

	for (int32_t i = 0; i < p->nweights; i++) {
		uint64_t bytes = p->weight[i]->table ? 0 : count_bucket_bytes(files, p->weight[i]);

		max = bytes > max ? bytes : max;
	}
	return (uint64_t)count_buckets(files) * max;
}

/* Sets the ring; NULL: there is no memory. */
static void alloc_ring(struct tess_update *u)
{
	const struct tess_pinned *pinned = u->parameters->offload.pinned;
	void *ring = NULL;

	if (!pinned)
		u->ring = tess_disk_alloc(u->bytes);
	else if (!tess_pinned_alloc(&pinned->device, u->bytes, &ring))
		u->ring = ring;
}

tess_status tess_update_open(const struct tess_optimizer *o, struct tess_parameters *s,
                             struct tess_update *out)
{
	struct tess_update u = { .optimizer = o,
		                 .parameters = s,
		                 .bytes = tess_update_count_bytes(&s->offload.layout),
		                 .nbuckets = count_buckets(&s->offload.layout) };
	uint64_t each = u.bytes / (uint64_t)u.nbuckets;
	tess_status st;

	u.ready = calloc((size_t)s->program->nweights + 1, sizeof *u.ready);
	u.gradient = calloc((size_t)s->program->nweights + 1, sizeof *u.gradient);
	u.is_ready = calloc((size_t)s->program->nweights + 1, sizeof *u.is_ready);
	u.is_changed = calloc((size_t)s->program->nweights + 1, sizeof *u.is_changed);
	if (u.bytes)
		alloc_ring(&u);
	if (!u.ready || !u.gradient || !u.is_ready || !u.is_changed || (u.bytes && !u.ring))
		st = tess_fail(TESS_ENOMEM,
		               "no memory for %d buckets of state in files, %lld bytes; set a "
		               "lower TESSERA_OFFLOAD_BUCKET",
		               (int)u.nbuckets, (long long)u.bytes);
	else
		st = tess_offload_open_queues(&s->offload, &u.files);
	if (st) {
		tess_update_close(&u);
		return st;
	}
	for (int i = 0; i < u.nbuckets && u.ring; i++)
		u.bucket[i].memory = u.ring + (uint64_t)i * each;
	*out = u;
	return TESS_OK;
}

void tess_update_close(struct tess_update *u)
{
	free(u->ready);
	free(u->gradient);
	free(u->is_ready);
	free(u->is_changed);
	if (u->parameters && u->parameters->offload.pinned)
		tess_pinned_free(&u->parameters->offload.pinned->device, u->ring);
	else
		free(u->ring);
	tess_offload_close(&u->files);
	*u = (struct tess_update){ 0 };
}

/* ---- a bucket -------------------------------------------------------------------------------- */

static struct tess_update_bucket *get_bucket(struct tess_update *u, int64_t i)
{
	return &u->bucket[i % u->nbuckets];
}

/* Returns the pointer of a bucket to a value. */
static void **point_to_value(struct tess_update_bucket *b, int32_t what)
{
	switch (what) {
	case TESS_WEIGHT:
		return &b->values.rounded;
	case TESS_GRADIENT:
		return (void **)&b->values.gradient;
	case TESS_MASTER:
		return (void **)&b->values.master;
	default:
		return (void **)&b->values.moment[what - TESS_MOMENT1];
	}
}

/* Finds a value of n elements from `first` on of the state: in memory, or in the ring. */
static void find_bucket_value(const struct tess_update *u, struct tess_update_bucket *b,
                              int32_t what, char **free_memory)
{
	const struct tess_parameters *s = u->parameters;
	const struct tess_parameter *a = &s->each[b->weight->index];
	uint64_t width = tess_weight_get_width(b->weight, what);
	int64_t first = b->first + (what == TESS_WEIGHT ? a->state.start - a->rest.start : 0), kept;
	struct tess_transfer *t = &b->transfer[what];
	struct tess_stored_run run;
	int64_t n = b->values.n;
	int32_t dtype;
	char *memory = what == TESS_GRADIENT
	                       ? (char *)u->gradient[b->weight->index]
	                       : tess_parameter_find(s, b->weight, what, &dtype, &kept);

	*t = (struct tess_transfer){ .weight = b->weight, .what = what, .first = first };
	memory = memory ? memory + (uint64_t)first * width
	                : tess_offload_find_pinned(&s->offload, b->weight, what, first, &n);
	b->on_device[what] = *point_to_value(b, what) = memory;
	if (!free_memory ||
	    !tess_offload_is_moved(&s->offload.layout, b->weight, what, first, b->values.n, &run))
		return;
	t->n = b->values.n;
	t->memory = *free_memory;
	*point_to_value(b, what) = t->memory;
	*free_memory += tess_offload_pad((uint64_t)t->n * width);
}

static int32_t get_bucket_lane(const struct tess_update *u, const struct tess_update_bucket *b)
{
	return TESS_PINNED_TAKEN + (int32_t)(b - u->bucket);
}

/* Queues the copy of a value between the device and the ring. */
static tess_status copy_bucket_value(struct tess_update *u, struct tess_update_bucket *b,
                                     struct tess_transfer *t)
{
	void *device = b->on_device[t->what];
	uint64_t bytes = (uint64_t)t->n * tess_weight_get_width(t->weight, t->what);

	if (u->files.moved) /* back to the device: it reads from memory of the host */
		u->files.moved[!t->writes] += bytes;
	return tess_pinned_copy(u->parameters->offload.pinned, get_bucket_lane(u, b),
	                        t->weight->name, t->writes ? device : t->memory,
	                        t->writes ? t->memory : device, bytes);
}

/* Lets the copies of a bucket of the next weight follow the ops that need its values. */
static tess_status order_copies(const struct tess_update *u, const struct tess_update_bucket *b)
{
	int32_t point = u->next < u->npoints ? u->next % TESS_PINNED_POINTS : -1;

	return tess_pinned_order(u->parameters->offload.pinned, get_bucket_lane(u, b), point,
	                         b->weight->name);
}

/* Starts writing what has changed, or reading what is changed and the gradient. */
static tess_status start_transfers(struct tess_update *u, struct tess_update_bucket *b)
{
	bool orders = u->parameters->offload.pinned && !b->writes;
	tess_status st = orders ? order_copies(u, b) : TESS_OK;

	for (int32_t what = TESS_WEIGHT; what < VALUES && !st; what++) {
		struct tess_transfer *t = &b->transfer[what];

		if (!t->n || what == (b->writes ? TESS_GRADIENT : TESS_WEIGHT))
			continue;
		t->writes = b->writes;
		if (u->parameters->offload.pinned) {
			st = copy_bucket_value(u, b, t);
			continue;
		}
		st = tess_offload_start(&u->files, t);
		t->disk = st ? NULL : t->disk;
	}
	return st;
}

/* Returns whether the transfers of a bucket have ended. */
static bool are_transfers_done(const struct tess_update_bucket *b)
{
	bool done = true;

	for (int32_t what = TESS_WEIGHT; what < VALUES; what++)
		if (b->transfer[what].disk)
			done = done && tess_disk_is_done(b->transfer[what].disk,
			                                 &b->transfer[what].request);
	return done;
}

/*
 * Waits for the transfers of a bucket, and returns the first failure. Copies wait for the ops that
 * need its values, also if nothing is copied.
 */
static tess_status wait_for_transfers(struct tess_update *u, struct tess_update_bucket *b)
{
	const struct tess_pinned *pinned = u->parameters->offload.pinned;
	tess_status st = TESS_OK;

	if (pinned)
		return tess_pinned_wait(pinned, get_bucket_lane(u, b), b->weight->name);
	for (int32_t what = TESS_WEIGHT; what < VALUES; what++)
		if (b->transfer[what].disk) {
			tess_status failed = tess_offload_wait(&b->transfer[what]);

			st = st ? st : failed;
			b->transfer[what].disk = NULL;
		}
	return st;
}

/* Changes the elements of a bucket, in parts between which the disk gets more requests. */
static tess_status change_values(struct tess_update *u, const struct tess_opened_device *device,
                                 const struct tess_weight *w,
                                 const struct tess_optimizer_values *all)
{
	uint64_t width = tess_width(w->dtype);
	tess_status st = TESS_OK;

	for (int64_t at = 0, n; at < all->n && !st; at += n) {
		struct tess_optimizer_values v = { .gradient = all->gradient + at,
			                           .master = all->master + at };

		v.n = n = u->ring && all->n - at > PART ? PART : all->n - at;
		for (int i = 0; i < 2; i++)
			v.moment[i] = all->moment[i] ? all->moment[i] + at : NULL;
		v.rounded = all->rounded ? (char *)all->rounded + (uint64_t)at * width : NULL;
		st = tess_optimizer_run(u->optimizer, &u->step, device, w, &v);
		tess_offload_test(&u->files);
	}
	return st;
}

/* ---- the queue ------------------------------------------------------------------------------- */

/* Sets the bucket to the next elements of the weight that is read, and starts reading them. */
static tess_status read_bucket(struct tess_update *u, const struct tess_weight *w, int64_t len)
{
	const struct tess_parameters *s = u->parameters;
	struct tess_update_bucket *b = get_bucket(u, u->read);
	int64_t max = tess_offload_get_bucket(s->program);
	char *memory = b->memory;

	b->weight = w;
	b->first = u->at;
	b->values.n = len - u->at < max ? len - u->at : max;
	b->writes = false;
	for (int32_t what = TESS_WEIGHT; what < VALUES; what++)
		find_bucket_value(u, b, what, &memory);
	u->at += b->values.n;
	u->read++;
	return start_transfers(u, b);
}

/*
 * Makes the newest weight the next one: the gradients of a backward that are final last are of the
 * weights that the next forward reads first.
 */
static void prefer_newest(struct tess_update *u)
{
	const struct tess_weight **next = u->ready + u->next;
	int32_t n = u->nready - u->next - 1;
	const struct tess_weight *newest = next[n];

	memmove(next + 1, next, (size_t)n * sizeof *next);
	*next = newest;
}

/* Changes a weight of which nothing is in files. */
static tess_status change_in_memory(struct tess_update *u, const struct tess_weight *w, int64_t len)
{
	struct tess_update_bucket b = { .weight = w, .values.n = len };
	tess_status st;

	for (int32_t what = TESS_WEIGHT; what < VALUES; what++)
		find_bucket_value(u, &b, what, NULL);
	st = len ? change_values(u, u->device, w, &b.values) : TESS_OK;
	u->is_changed[w->index] = !st;
	return st;
}

/* Starts reading the next bucket, or changes the next weight if nothing of it is in files. */
static tess_status take_next(struct tess_update *u)
{
	const struct tess_parameters *s = u->parameters;
	const struct tess_weight *w;
	tess_status st = TESS_OK;
	int64_t len;

	if (!u->at && !s->offload.pinned)
		prefer_newest(u);
	w = u->ready[u->next];
	len = s->each[w->index].state.len;
	if (len && tess_offload_has_updated(&s->offload.layout, w)) {
		st = read_bucket(u, w, len);
	} else {
		st = change_in_memory(u, w, len);
		u->at = len;
	}
	if (u->at == len) {
		u->next++;
		u->at = 0;
	}
	return st;
}

/* Adds the squares of a gradient that is in a file, or in memory of the host next to a device. */
static tess_status add_bucket_squares(struct tess_update *u, const struct tess_update_bucket *b)
{
	const struct tess_parameters *s = u->parameters;
	struct tess_squares_part part = { .weight = b->weight,
		                          .first = b->first,
		                          .n = b->values.n,
		                          .gradient = (float *)b->values.gradient };

	return u->adds_squares && s->offload.layout.weight[b->weight->index].has_gradient
	               ? tess_squares_add_part(s->offload.pinned ? &s->host : u->device, s, &part,
	                                       &u->squares)
	               : TESS_OK;
}

/* Changes the oldest bucket that is read, and starts writing it. */
static tess_status change_next(struct tess_update *u)
{
	struct tess_update_bucket *b = get_bucket(u, u->changed);
	const struct tess_parameters *s = u->parameters;
	tess_status st = wait_for_transfers(u, b);

	if (!st)
		st = add_bucket_squares(u, b);
	if (!st)
		st = change_values(u, s->offload.pinned ? &s->host : u->device, b->weight,
		                   &b->values);
	if (!st && !s->offload.pinned)
		st = tess_device_sync(u->device, b->weight->name);
	if (!st && b->first + b->values.n == s->each[b->weight->index].state.len)
		u->is_changed[b->weight->index] = true;
	b->writes = true;
	u->changed++;
	return st ? st : start_transfers(u, b);
}

static tess_status finish_oldest(struct tess_update *u)
{
	return wait_for_transfers(u, get_bucket(u, u->written++));
}

/*
 * Returns whether the oldest bucket is written. Devices do not report that; their copy is finished
 * once another bucket has been changed.
 */
static bool is_oldest_written(struct tess_update *u)
{
	if (u->parameters->offload.pinned)
		return u->written + 1 < u->changed;
	return u->written < u->changed && are_transfers_done(get_bucket(u, u->written));
}

/* Returns whether there is a weight to take, and a free bucket. */
static bool can_take_next(const struct tess_update *u)
{
	return u->next < u->nready && u->read - u->written < u->nbuckets;
}

tess_status tess_update_advance(struct tess_update *u)
{
	tess_offload_test(&u->files);
	if (is_oldest_written(u))
		return finish_oldest(u);
	if (can_take_next(u))
		return take_next(u);
	return u->changed < u->read ? change_next(u) : finish_oldest(u);
}

void tess_update_begin(struct tess_update *u, const struct tess_optimizer_step *step)
{
	u->step = *step;
	u->device = &u->parameters->weights.device;
	u->adds_squares = false;
	u->squares = (struct tess_accumulator){ 0 };
	u->read = u->changed = u->written = u->at = 0;
	u->nready = u->next = u->npoints = 0;
	for (int32_t i = 0; i < u->parameters->program->nweights; i++)
		u->is_ready[i] = u->is_changed[i] = false;
}

void tess_update_add(struct tess_update *u, const struct tess_weight *w)
{
	if (u->is_ready[w->index])
		return;
	u->is_ready[w->index] = true;
	u->gradient[w->index] = u->parameters->each[w->index].gradient;
	u->ready[u->nready] = u->parameters->program->weight[w->index];
	u->nready++; /* the other thread may read the list up to here */
}

tess_status tess_update_add_queued(struct tess_update *u, const struct tess_weight *w)
{
	tess_status st = TESS_OK;

	while (!st && u->nready - u->next == TESS_PINNED_POINTS)
		st = tess_update_advance(u);
	if (!st)
		st = tess_pinned_mark(u->parameters->offload.pinned, u->nready % TESS_PINNED_POINTS,
		                      w->name);
	if (st)
		return st;
	tess_update_add(u, w);
	u->npoints = u->nready;
	return TESS_OK;
}

void tess_update_add_rest(struct tess_update *u)
{
	const struct tess_program *p = u->parameters->program;

	for (int32_t i = p->nweights - 1; i >= 0; i--) /* the first one is the newest */
		if (u->parameters->each[i].trained)
			tess_update_add(u, p->weight[i]);
}

bool tess_update_is_idle(const struct tess_update *u)
{
	return u->next == u->nready && u->written == u->read;
}

bool tess_update_is_pending(const struct tess_update *u, const struct tess_weight *w)
{
	return u->is_ready[w->index] && !u->is_changed[w->index];
}

void tess_update_abandon(struct tess_update *u)
{
	while (u->written < u->read)
		finish_oldest(u);
	u->next = u->nready;
}

tess_status tess_update_finish(struct tess_update *u)
{
	tess_status st = TESS_OK;

	tess_update_add_rest(u);
	while (!st && !tess_update_is_idle(u))
		st = tess_update_advance(u);
	if (st)
		tess_update_abandon(u);
	return st;
}
