#include "nn/offload/offload.h"

#include "core/base/status.h"

#include <string.h>
#include <tessera/reduce.h>
#include <tessera/train.h>

/* ---- which values ---------------------------------------------------------------------------- */

int32_t tess_location_parse(const char *option)
{
	return !option                   ? TESS_LOCATION_DEVICE
	       : !strcmp(option, "host") ? TESS_LOCATION_HOST
	                                 : TESS_LOCATION_DISK;
}

tess_status tess_location_check_device(const char *name, const char *option,
                                       const struct tess_device *device)
{
	return tess_location_parse(option) != TESS_LOCATION_DISK || device->mem == TESS_HOST
	               ? TESS_OK
	               : tess_fail(TESS_ENOTSUP,
	                           "--%s %s: values of device %s, which has memory of its own, are "
	                           "not kept in files; use --%s host, or the device cpu",
	                           name, option, device->name, name);
}

int64_t tess_offload_get_bucket(const struct tess_program *p)
{
	return p->offload_bucket ? (int64_t)p->offload_bucket : TESS_OFFLOAD_BUCKET;
}

/* Ranks along dp decide alike, by the smallest of their shares: they gather in one order. */
static bool is_large(const struct tess_program *p, const struct tess_weight *w, int32_t rank,
                     bool cut, uint64_t width)
{
	int64_t n = tess_weight_count_local(p, w, rank) / (cut ? tess_program_count_shards(p) : 1);
	uint64_t min = p->offload_min ? p->offload_min : TESS_OFFLOAD_MIN;

	return !w->table && (uint64_t)n * width >= min;
}

bool tess_weight_is_fetched(const struct tess_program *p, const struct tess_weight *w, int32_t rank)
{
	return tess_location_is_apart(p, w->rest_location) &&
	       is_large(p, w, rank, w->rest_cut, tess_width(w->dtype));
}

bool tess_weight_has_stored_state(const struct tess_program *p, const struct tess_weight *w,
                                  int32_t rank)
{
	return p->training && tess_location_is_apart(p, w->state_location) &&
	       is_large(p, w, rank, w->state_cut, sizeof(float));
}

/* ---- where ----------------------------------------------------------------------------------- */

uint64_t tess_offload_pad(uint64_t bytes)
{
	return (bytes + TESS_DISK_ALIGN - 1) / TESS_DISK_ALIGN * TESS_DISK_ALIGN;
}

static uint64_t take_extent(uint64_t *end, uint64_t bytes)
{
	uint64_t at = *end;

	*end += tess_offload_pad(bytes);
	return at;
}

/* Finds the first weight that reads `table` as a tied head; NULL: none. */
static const struct tess_weight *find_tied_head(const struct tess_program *p,
                                                const struct tess_weight *table)
{
	for (int32_t i = 0; i < p->nweights; i++)
		if (p->weight[i]->table == table)
			return p->weight[i];
	return NULL;
}

bool tess_offload_has_own_gradient(const struct tess_program *p, const struct tess_weight *w)
{
	const struct tess_weight *table = tess_weight_get_table(w);

	if (!tess_weight_is_trained(p, table ? table : w))
		return false;
	return w->table ? find_tied_head(p, w->table) == w : !w->copies || !find_tied_head(p, w);
}

/* Places the weight that a rank keeps, and its gradient, behind what the file has so far. */
static void place_rest(struct tess_offload_layout *s, const struct tess_weight *w)
{
	const struct tess_program *p = s->program;
	struct tess_stored_weight *at = &s->weight[w->index];
	const struct tess_weight *home = tess_weight_get_home(w);
	struct tess_run rest = tess_weight_get_kept(p, home, s->rank, TESS_REST);
	struct tess_run state = tess_weight_get_kept(p, home, s->rank, TESS_STATE);
	bool fetched = tess_weight_is_fetched(p, home, s->rank);

	at->fetched = fetched && !w->table;
	at->has_gradient = fetched && tess_offload_has_own_gradient(p, w);
	if (at->fetched)
		at->weight = take_extent(&s->bytes[TESS_REST],
		                         (uint64_t)rest.len * tess_width(w->dtype));
	if (at->has_gradient)
		at->gradient =
			take_extent(&s->bytes[TESS_REST], (uint64_t)state.len * sizeof(float));
}

/* Places masters and moments. */
static void place_state(struct tess_offload_layout *s, const struct tess_weight *w,
                        int64_t *buckets)
{
	const struct tess_program *p = s->program;
	struct tess_stored_weight *at = &s->weight[w->index];
	struct tess_run rest = tess_weight_get_kept(p, w, s->rank, TESS_REST);
	struct tess_run state = tess_weight_get_kept(p, w, s->rank, TESS_STATE);
	int64_t most = tess_offload_get_bucket(p);

	at->trained = tess_weight_is_trained(p, w);
	at->arrays = s->moments + !tess_weight_is_own_master(w, rest, state);
	at->has_state = at->trained && at->arrays && tess_weight_has_stored_state(p, w, s->rank);
	if (!at->has_state)
		return;
	at->bucket = *buckets;
	at->state = s->bytes[TESS_STATE];
	for (int64_t i = 0, n; i < state.len; i += n) {
		n = state.len - i < most ? state.len - i : most;
		s->bytes[TESS_STATE] +=
			(uint64_t)at->arrays * tess_offload_pad((uint64_t)n * sizeof(float));
		++*buckets;
	}
}

tess_status tess_offload_lay_out(const struct tess_program *p, int32_t rank, int32_t moments,
                                 struct tess_arena *arena, struct tess_offload_layout *out)
{
	int64_t buckets = 0;

	*out = (struct tess_offload_layout){ .program = p,
		                             .rank = rank,
		                             .moments = moments,
		                             .pinned = !tess_program_is_on_host(p) };
	out->weight = TESS_NEW(arena, struct tess_stored_weight, p->nweights);
	if (!out->weight)
		return TESS_ENOMEM;
	for (int32_t i = 0; i < p->nweights; i++) {
		place_rest(out, p->weight[i]);
		if (!p->weight[i]->table)
			place_state(out, p->weight[i], &buckets);
	}
	return TESS_OK;
}

/* Finds elements of a weight, or of a gradient, which are all adjacent. */
static bool find_rest(const struct tess_offload_layout *s, const struct tess_weight *w,
                      int32_t what, int64_t at, struct tess_stored_run *out)
{
	const struct tess_stored_weight *stored = &s->weight[w->index];
	bool is_weight = what == TESS_WEIGHT;

	out->file = TESS_REST;
	out->bucket = -1;
	out->offset = (is_weight ? stored->weight : stored->gradient) +
	              (uint64_t)at * tess_weight_get_width(w, what);
	return is_weight ? stored->fetched : stored->has_gradient;
}

/* Finds elements of array k of the state. */
static bool find_state(const struct tess_offload_layout *s, const struct tess_weight *w, int32_t k,
                       int64_t at, int64_t n, struct tess_stored_run *out)
{
	const struct tess_stored_weight *stored = &s->weight[w->index];
	int64_t len = tess_weight_get_kept(s->program, w, s->rank, TESS_STATE).len;
	int64_t most = tess_offload_get_bucket(s->program);
	int64_t bucket = at / most, begin = bucket * most;
	int64_t each = len - begin < most ? len - begin : most;
	uint64_t full = tess_offload_pad((uint64_t)most * sizeof(float));

	*out = (struct tess_stored_run){
		.file = TESS_STATE,
		.offset = stored->state + (uint64_t)(bucket * stored->arrays) * full +
		          (uint64_t)k * tess_offload_pad((uint64_t)each * sizeof(float)) +
		          (uint64_t)(at - begin) * sizeof(float),
		.n = begin + each - at < n ? begin + each - at : n,
		.bucket = stored->bucket + bucket,
	};
	return stored->has_state && k < stored->arrays;
}

bool tess_offload_find(const struct tess_offload_layout *s, const struct tess_weight *w,
                       int32_t what, int64_t at, int64_t n, struct tess_stored_run *out)
{
	struct tess_run rest = tess_weight_get_kept(s->program, w, s->rank, TESS_REST);
	struct tess_run state = tess_weight_get_kept(s->program, w, s->rank, TESS_STATE);
	bool own = tess_weight_is_own_master(w, rest, state);

	*out = (struct tess_stored_run){ .n = n };
	switch (what) {
	case TESS_WEIGHT:
	case TESS_GRADIENT:
		return find_rest(s, w, what, at, out);
	case TESS_MASTER:
		if (own)
			return find_rest(s, w, TESS_WEIGHT, state.start - rest.start + at, out) &&
			       s->weight[w->index].trained;
		return find_state(s, w, 0, at, n, out);
	default:
		return find_state(s, w, what - TESS_MOMENT1 + !own, at, n, out);
	}
}

bool tess_offload_has_updated(const struct tess_offload_layout *s, const struct tess_weight *w)
{
	const struct tess_stored_weight *stored = &s->weight[w->index];

	return stored->trained && (stored->fetched || stored->has_state);
}

bool tess_offload_is_moved(const struct tess_offload_layout *s, const struct tess_weight *w,
                           int32_t what, int64_t at, int64_t n, struct tess_stored_run *out)
{
	if ((what == TESS_WEIGHT && w->dtype == TESS_F32) || what >= TESS_MOMENT1 + s->moments)
		return false;
	return tess_offload_find(s, w, what, at, n, out) != s->pinned;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Names the first weight of a file, for which no folder is given. */
static tess_status fail_without_folder(const struct tess_offload_layout *s, int32_t file)
{
	const struct tess_stored_weight *at = s->weight;
	bool rest = file == TESS_REST;

	while (!(rest ? at->fetched : at->has_state))
		at++;
	return tess_fail(
		TESS_EINVAL,
		"%s: the plan stores its %s in a file, and no folder is given; use %s DIR, "
		"a folder on a local disk, or a style without %s=disk",
		s->program->weight[at - s->weight]->name, rest ? "weight" : "optimizer state",
		rest ? "--offload-weights" : "--offload-optimizer", rest ? "weights" : "state");
}

tess_status tess_offload_open(const struct tess_offload_layout *layout, const char *const dir[2],
                              const struct tess_pinned_device *device, struct tess_offload *out)
{
	struct tess_offload s = { .layout = *layout };
	tess_status st = TESS_OK;

	if (layout->pinned && (layout->bytes[0] || layout->bytes[1]))
		st = tess_pinned_open(device, layout->rank, layout->bytes, &s.pinned);
	for (int32_t i = 0; i < 2 && !st && !layout->pinned; i++)
		if (layout->bytes[i] && tess_location_parse(dir[i]) != TESS_LOCATION_DISK)
			st = fail_without_folder(layout, i);
		else if (layout->bytes[i])
			st = tess_disk_open(dir[i], layout->rank, layout->bytes[i], &s.disk[i]);
	if (st)
		tess_offload_close(&s);
	else
		*out = s;
	return st;
}

tess_status tess_offload_open_queues(const struct tess_offload *s, struct tess_offload *out)
{
	struct tess_offload queues = { .layout = s->layout };
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < 2 && !st; i++)
		if (s->disk[i])
			st = tess_disk_open_queue(s->disk[i], &queues.disk[i]);
	if (st)
		tess_offload_close(&queues);
	else
		*out = queues;
	return st;
}

void tess_offload_close(struct tess_offload *s)
{
	for (int32_t i = 0; i < 2; i++)
		tess_disk_close(s->disk[i]);
	tess_pinned_close(s->pinned);
	*s = (struct tess_offload){ 0 };
}

/* ---- transfers ------------------------------------------------------------------------------- */

static const char *get_value_name(int32_t what)
{
	static const char *const name[] = { [TESS_WEIGHT] = "weight",
		                            [TESS_GRADIENT] = "gradient",
		                            [TESS_MASTER] = "master",
		                            [TESS_MOMENT1] = "first moment",
		                            [TESS_MOMENT2] = "second moment" };

	return name[what];
}

/* Copies elements that the host can address at once, or queues their copy on a lane. */
static tess_status start_pinned(struct tess_pinned *p, const struct tess_stored_run *run,
                                struct tess_transfer *t)
{
	uint64_t bytes = (uint64_t)t->n * tess_weight_get_width(t->weight, t->what);
	void *there = p->memory[run->file] + run->offset;
	void *dst = t->writes ? there : t->memory, *src = t->writes ? t->memory : there;
	tess_status st;

	t->pinned = t->on_device ? p : NULL;
	if (!t->on_device) {
		memcpy(dst, src, bytes);
		return TESS_OK;
	}
	t->lane = tess_pinned_take_lane(p);
	st = tess_pinned_order(p, t->lane, -1, t->weight->name);
	return st ? st : tess_pinned_copy(p, t->lane, t->weight->name, dst, src, bytes);
}

void *tess_offload_find_pinned(const struct tess_offload *s, const struct tess_weight *w,
                               int32_t what, int64_t at, int64_t *n)
{
	struct tess_stored_run run;

	if (!s->pinned || !tess_offload_find(&s->layout, w, what, at, *n, &run))
		return NULL;
	*n = run.n;
	return s->pinned->memory[run.file] + run.offset;
}

/* Counts a transfer between memory and files, or between the device and memory of the host. */
static void count_transfer(const struct tess_offload *s, const struct tess_transfer *t)
{
	if (s->moved && (!s->pinned || t->on_device))
		s->moved[t->writes] += (uint64_t)t->n * tess_weight_get_width(t->weight, t->what);
}

tess_status tess_offload_start(const struct tess_offload *s, struct tess_transfer *t)
{
	uint64_t width = tess_weight_get_width(t->weight, t->what);
	struct tess_stored_run run;

	if (!tess_offload_find(&s->layout, t->weight, t->what, t->first, t->n, &run) ||
	    run.n < t->n)
		return tess_fail(TESS_EBUG, "%s: its %s is not in a file, or not in one piece",
		                 t->weight->name, get_value_name(t->what));
	count_transfer(s, t);
	if (s->pinned)
		return start_pinned(s->pinned, &run, t);
	t->disk = s->disk[run.file];
	t->request = (struct tess_disk_request){ .where = t->weight->name,
		                                 .what = get_value_name(t->what),
		                                 .bucket = run.bucket,
		                                 .writes = t->writes,
		                                 .data = t->memory,
		                                 .offset = run.offset,
		                                 .bytes = (uint64_t)t->n * width };
	return tess_disk_start(t->disk, &t->request);
}

tess_status tess_offload_wait(struct tess_transfer *t)
{
	if (t->pinned)
		return tess_pinned_wait(t->pinned, t->lane, t->weight->name);
	return t->disk ? tess_disk_wait(t->disk, &t->request) : TESS_OK;
}

tess_status tess_offload_follow(struct tess_transfer *t)
{
	return t->pinned ? tess_pinned_follow(t->pinned, t->lane, t->weight->name)
	                 : tess_offload_wait(t);
}

void tess_offload_test(const struct tess_offload *s)
{
	for (int32_t i = 0; s && i < 2; i++)
		if (s->disk[i])
			tess_disk_test(s->disk[i]);
}

tess_status tess_offload_move(const struct tess_offload *s, const struct tess_weight *w,
                              int32_t what, int64_t first, int64_t n, bool writes, void *memory)
{
	uint64_t width = tess_weight_get_width(w, what);
	tess_status st = TESS_OK;

	for (int64_t at = 0, part; at < n && !st; at += part) {
		struct tess_transfer t = { .weight = w,
			                   .what = what,
			                   .first = first + at,
			                   .writes = writes,
			                   .memory = (char *)memory + (uint64_t)at * width };
		struct tess_stored_run run;

		tess_offload_find(&s->layout, w, what, t.first, n - at, &run);
		part = t.n = run.n;
		st = tess_offload_start(s, &t);
		if (!st)
			st = tess_offload_wait(&t);
	}
	return st;
}
