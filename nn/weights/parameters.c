#include "nn/weights/parameters.h"

#include "core/base/status.h"
#include "core/registry/plugin_call.h"
#include "nn/program/agree.h"
#include "nn/weights/kept.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

enum { ALIGNED = 16 }; /* elements of a cache line: each weight's part starts in a new one */
enum { MIB = 1 << 20 };

/* ---- load ------------------------------------------------------------------------------------ */

static void find_spans(struct tess_parameters *s)
{
	const struct tess_program *p = s->program;

	for (int32_t i = 0; i < p->ngradients; i++)
		s->each[p->gradient[i].weight->index].trained = true;
	for (int32_t i = 0; i < p->nweights; i++) {
		const struct tess_weight *w = p->weight[i];
		struct tess_parameter *a = &s->each[i];

		if (w->table)
			continue;
		a->rest = tess_weight_get_kept(p, w, s->rank, TESS_REST);
		a->state = tess_weight_get_kept(p, w, s->rank, TESS_STATE);
		a->weight = s->weights.view[i].data;
		a->own = a->trained && tess_weight_is_own_master(w, a->rest, a->state);
		if (a->own && a->weight)
			a->master = (float *)a->weight + (a->state.start - a->rest.start);
	}
}

/* Finds the tensors of each weight; they are listed in the order of weights. */
static void find_tensors(struct tess_parameters *s)
{
	for (int64_t i = s->ntensors - 1; i >= 0; i--) {
		struct tess_parameter *a = &s->each[s->tensor[i].weight->index];

		a->tensor = &s->tensor[i];
		a->ntensors++;
	}
}

/*
 * Partitions f32 memory into masters and moments that are in no file. Returns the elements; base
 * NULL: only counts.
 */
static int64_t lay_out_state(struct tess_parameters *s, int32_t moments, float *base)
{
	int64_t n = 0;

	for (int32_t i = 0; i < s->program->nweights; i++) {
		struct tess_parameter *a = &s->each[i];

		if (!a->trained || s->offload.layout.weight[i].has_state)
			continue;
		for (int32_t k = a->own; k <= moments; k++) {
			if (base)
				*(k ? &a->moment[k - 1] : &a->master) = base + n;
			n += tess_up(a->state.len, ALIGNED) * ALIGNED;
		}
	}
	return n;
}

/* Widens the weight into its master, which has memory of its own. */
static tess_status fill_master(const struct tess_parameters *s, const struct tess_weight *w)
{
	const struct tess_parameter *a = &s->each[w->index];
	struct tess_kept weight, master;
	tess_status st = TESS_OK;

	tess_kept_open(s, w, TESS_WEIGHT, false, &weight);
	tess_kept_open(s, w, TESS_MASTER, true, &master);
	for (int64_t at = 0, n; at < a->state.len && !st; at += n) {
		union tess_acc acc;
		void *from, *to;

		n = a->state.len - at < TESS_REDUCE_STEP ? a->state.len - at : TESS_REDUCE_STEP;
		st = tess_kept_map(&weight, a->state.start - a->rest.start + at, &n, &from);
		if (!st)
			st = tess_kept_map(&master, at, &n, &to);
		if (st)
			break;
		tess_acc_load(w->dtype, from, (uint32_t)n, &acc);
		memcpy(to, acc.f32, (size_t)n * sizeof *acc.f32);
	}
	st = tess_kept_close(&weight, st);
	return tess_kept_close(&master, st);
}

static tess_status fill_masters(const struct tess_parameters *s)
{
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < s->program->nweights && !st; i++)
		if (s->each[i].trained && !s->each[i].own)
			st = fill_master(s, s->program->weight[i]);
	return st;
}

static tess_status alloc_floats(const struct tess_parameters *s, uint64_t bytes, float **out)
{
	void *memory;
	tess_status st = tess_device_alloc(&s->weights.device, "training", bytes + 64, &memory);

	if (st)
		return st;
	*out = memory;
	return tess_device_clear(&s->weights.device, "training", memory, bytes);
}

/* Checks that memory of the host has room for what all its ranks keep there. */
static tess_status check_host_room(const struct tess_offload_layout *layout,
                                   const struct tess_opened_device *host)
{
	uint64_t bytes = layout->bytes[TESS_REST] + layout->bytes[TESS_STATE], room = UINT64_MAX;
	tess_status st = TESS_OK;

	if (host->table->free_bytes)
		st = TESS_PLUGIN_CALL(host->table, "memory", free_bytes, host->self, &room);
	room /= (uint64_t)host->nranks;
	if (st || bytes <= room)
		return st;
	return tess_fail(TESS_ENOMEM,
	                 "rank %d keeps %lld MiB of weights, gradients and optimizer state in "
	                 "memory of the host, of which %lld MiB are free for it; use more hosts, "
	                 "or offload less",
	                 (int)layout->rank, (long long)tess_up((int64_t)bytes, MIB),
	                 (long long)(room / MIB));
}

/* Sets moments in memory of the host to 0. A file needs no write: it is made of zeros. */
static void clear_pinned_state(const struct tess_offload *s)
{
	if (s->pinned && s->layout.bytes[TESS_STATE])
		memset(s->pinned->memory[TESS_STATE], 0, s->layout.bytes[TESS_STATE]);
}

/* Opens the files of a rank or their memory, and loads its weights into them, or the device's. */
static tess_status load_stored_weights(struct tess_parameters *s, const struct tess_source *source,
                                       const struct tess_opened_device *device, int32_t moments,
                                       const char *const dir[2])
{
	const struct tess_program *p = s->program;
	const struct tess_pinned_device next_to = { device->table, device->self, device->stream };
	struct tess_offload_layout layout;
	tess_status st = tess_offload_lay_out(p, s->rank, moments, &s->arena, &layout);

	if (!st && layout.pinned && tess_program_has_values_apart(p))
		st = tess_device_open_host(device, &s->host);
	if (!st && s->host.self)
		st = check_host_room(&layout, &s->host);
	if (!st)
		st = tess_offload_open(&layout, dir, &next_to, &s->offload);
	if (!st)
		clear_pinned_state(&s->offload);
	if (!st)
		st = tess_rank_weights_load(p, source, s->rank, device, &s->offload, &s->weights);
	s->weight_bytes = s->weights.bytes;
	return st;
}

tess_status tess_parameters_load(const struct tess_program *p, const struct tess_source *source,
                                 int32_t rank, const struct tess_opened_device *device,
                                 int32_t moments, const char *const dir[2],
                                 struct tess_parameters *out)
{
	struct tess_parameters s = { .program = p, .rank = rank };
	tess_status st = load_stored_weights(&s, source, device, moments, dir);

	s.each = TESS_NEW(&s.arena, struct tess_parameter, p->nweights);
	if (!st)
		st = s.each ? tess_stored_tensors_list(p, &s.arena, &s.tensor, &s.ntensors)
		            : TESS_ENOMEM;
	if (!st) {
		find_spans(&s);
		find_tensors(&s);
		s.state_bytes = (uint64_t)lay_out_state(&s, moments, NULL) * sizeof *s.state;
		st = alloc_floats(&s, s.state_bytes, &s.state);
	}
	if (!st) {
		lay_out_state(&s, moments, s.state);
		st = fill_masters(&s);
	}
	if (!st)
		*out = s;
	else
		tess_parameters_free(&s);
	return st;
}

tess_status tess_parameters_reserve_gradients(struct tess_parameters *s,
                                              const struct tess_rank_program *l)
{
	tess_status st;

	if (s->gradients && l->gradient_bytes <= s->gradient_bytes)
		return TESS_OK;
	st = s->gradients ? tess_device_sync(&s->weights.device, "training") : TESS_OK;
	if (st)
		return st;
	for (int32_t i = 0; i < s->program->nweights; i++)
		s->each[i].gradient = NULL;
	tess_device_free(&s->weights.device, s->gradients);
	s->gradients = NULL;
	st = alloc_floats(s, l->gradient_bytes, &s->gradients);
	s->gradient_bytes = st ? 0 : l->gradient_bytes;
	return st;
}

void tess_parameters_find_gradients(struct tess_parameters *s, const struct tess_rank_program *l)
{
	for (int32_t i = 0; i < s->program->nweights; i++) {
		s->each[i].has_gradient = l->gradient[i].ndim;
		s->each[i].gradient = l->gradient[i].data;
	}
}

void tess_parameters_free(struct tess_parameters *s)
{
	struct tess_arena arena = s->arena;

	tess_device_free(&s->weights.device, s->state);
	tess_device_free(&s->weights.device, s->gradients);
	tess_rank_weights_free(&s->weights);
	tess_offload_close(&s->offload);
	tess_device_close(&s->host);
	tess_arena_free(&arena);
	*s = (struct tess_parameters){ 0 };
}

/* ---- room ------------------------------------------------------------------------------------ */

tess_status tess_parameters_check_room(const struct tess_program *p, int32_t rank,
                                       const struct tess_opened_device *d, int32_t moments)
{
	uint64_t weights = 0, more = 0, room = 0;
	tess_status st;

	if (tess_device_is_host(d) || !d->table->free_bytes)
		return TESS_OK;
	for (int32_t i = 0; i < p->nweights; i++)
		if (!p->weight[i]->table && !tess_weight_is_fetched(p, p->weight[i], rank))
			weights += tess_width(p->weight[i]->dtype) *
			           (uint64_t)tess_weight_get_kept(p, p->weight[i], rank, TESS_REST)
			                   .len;
	for (int32_t i = 0; i < p->ngradients; i++) {
		const struct tess_weight *w = p->gradient[i].weight;

		if (!tess_weight_has_stored_state(p, w, rank))
			more += tess_weight_count_state_bytes(p, w, rank, moments);
		if (!tess_weight_is_fetched(p, w, rank))
			more += 4 * (uint64_t)tess_weight_get_kept(p, w, rank, TESS_STATE).len;
	}
	st = TESS_PLUGIN_CALL(d->table, "memory", free_bytes, d->self, &room);
	room /= (uint64_t)d->nranks;
	if (st || weights + more <= room)
		return st;
	return tess_fail(TESS_ENOMEM,
	                 "the weights of a rank need %lld MiB, their gradients and the optimizer's "
	                 "state %lld, and %lld MiB of device %s:%d are free for it; use more "
	                 "ranks, each on a device of its own: along tp, or along dp with "
	                 "--plan-override 'dp:**=zero3'; or --offload-optimizer host",
	                 (long long)tess_up((int64_t)weights, MIB),
	                 (long long)tess_up((int64_t)more, MIB), (long long)(room / MIB),
	                 d->table->name, (int)d->index);
}

/* ---- gather ---------------------------------------------------------------------------------- */

void *tess_parameter_find(const struct tess_parameters *s, const struct tess_weight *w,
                          int32_t what, int32_t *dtype, int64_t *kept)
{
	const struct tess_parameter *a = &s->each[w->index];

	*dtype = what == TESS_WEIGHT ? w->dtype : TESS_F32;
	*kept = what == TESS_WEIGHT ? a->rest.len : a->state.len;
	switch (what) {
	case TESS_WEIGHT:
		return a->weight;
	case TESS_GRADIENT:
		return a->gradient;
	case TESS_MASTER:
		return a->master;
	case TESS_MOMENT1:
	case TESS_MOMENT2:
		return a->moment[what - TESS_MOMENT1];
	default:
		return NULL;
	}
}

struct gather { /* elements [first, first + n) of a tensor */
	const struct tess_parameters *s;
	const struct tess_stored_tensor *tensor;
	int64_t first, n;
	int32_t what, storage;
	struct tess_kept kept;
	char *mine, *all; /* owned elements of this rank, of all ranks one after another */
	uint64_t *counts; /* [nranks] */
};

/* Copies elements [at, at + n) of this rank's part. */
static tess_status copy_kept(struct gather *g, int64_t at, int64_t n, char *out)
{
	uint64_t width = tess_width(g->kept.dtype);
	tess_status st = TESS_OK;

	for (int64_t part; n && !st; at += part, n -= part) {
		void *from;

		part = n;
		st = tess_kept_map(&g->kept, at, &part, &from);
		if (st)
			break;
		memcpy(out, from, (uint64_t)part * width);
		out += (uint64_t)part * width;
	}
	return st;
}

/* Copies the elements that `rank` owns: from its part to `packed`, or from there to `out`. */
static tess_status copy_owned_runs(struct gather *g, int32_t rank, char *packed, char *out)
{
	uint64_t width = tess_width(g->kept.dtype);
	struct tess_kept_walk w;
	struct tess_kept_run run;
	tess_status st = TESS_OK;

	tess_kept_walk_begin(&w, g->s->program, g->tensor, rank, g->storage, TESS_OWNED);
	while (!st && tess_kept_walk_next(&w, &run)) {
		int64_t lo = run.stored > g->first ? run.stored : g->first;
		int64_t end = g->first + g->n, hi = run.stored + run.n;
		uint64_t bytes;

		hi = hi < end ? hi : end;
		if (lo >= hi)
			continue;
		bytes = (uint64_t)(hi - lo) * width;
		if (out)
			memcpy(out + (uint64_t)(lo - g->first) * width, packed, bytes);
		else
			st = copy_kept(g, run.kept + lo - run.stored, hi - lo, packed);
		packed += bytes;
	}
	return st;
}

static tess_status check_gather(const struct gather *g, int64_t i, int32_t nranks, int32_t root)
{
	const struct tess_trained *about;

	if (i < 0 || i >= g->s->ntensors)
		return tess_fail(TESS_EINVAL, "tensor %lld; there are 0 to %lld", (long long)i,
		                 (long long)g->s->ntensors - 1);
	about = &g->s->tensor[i].about;
	if (g->first < 0 || g->n < 0 || g->first > about->size || g->n > about->size - g->first)
		return tess_fail(TESS_EINVAL, "%s: %lld elements from %lld on; it has %lld",
		                 about->name, (long long)g->n, (long long)g->first,
		                 (long long)about->size);
	if (root < -1 || root >= nranks)
		return tess_fail(TESS_EINVAL, "%s: gathered to rank %d of %d", about->name,
		                 (int)root, (int)nranks);
	return TESS_OK;
}

/* Opens this rank's part of the tensor, allocates buffers, and packs the owned elements. */
static tess_status pack_owned_elements(struct gather *g, int32_t nranks, bool receives)
{
	const struct tess_trained *about = &g->tensor->about;
	uint64_t width;

	tess_kept_open(g->s, g->tensor->weight, g->what, false, &g->kept);
	width = tess_width(g->kept.dtype);
	g->storage = g->what == TESS_WEIGHT ? TESS_REST : TESS_STATE;
	if (tess_kept_is_absent(&g->kept)) /* n is 0 for weights of other stages */
		return tess_fail(TESS_EINVAL,
		                 "%s has no such state: it is not trained, or the "
		                 "optimizer keeps none",
		                 about->name);
	g->counts = calloc((size_t)nranks, sizeof *g->counts);
	if (!g->counts)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", about->name);
	for (int32_t r = 0; r < nranks; r++)
		g->counts[r] = (uint64_t)tess_kept_count(g->s->program, g->tensor, r, g->storage,
		                                         TESS_OWNED, g->first, g->n);
	g->mine = malloc(g->counts[g->s->rank] * width + 1);
	g->all = receives ? malloc((uint64_t)g->n * width + 1) : NULL;
	if (!g->mine || (receives && !g->all))
		return tess_fail(TESS_ENOMEM, "%s: no memory to gather %lld elements", about->name,
		                 (long long)g->n);
	return copy_owned_runs(g, g->s->rank, g->mine, NULL);
}

tess_status tess_parameters_gather(const struct tess_parameters *s, struct tess_group *group,
                                   int32_t what, int64_t i, int64_t first, int64_t n, int32_t root,
                                   void *out)
{
	struct gather g = { .s = s, .first = first, .n = n, .what = what };
	int32_t nranks = tess_group_size(group);
	bool receives = root < 0 || root == s->rank;
	tess_status st = check_gather(&g, i, nranks, root);

	if (st)
		return st;
	g.tensor = &s->tensor[i];
	st = tess_kept_close(&g.kept, pack_owned_elements(&g, nranks, receives));
	st = tess_group_agree_status(group, st, g.tensor->about.name);
	if (!st) {
		struct tess_coll c = { .size = sizeof c,
			               .kind = root < 0 ? TESS_ALL_GATHER : TESS_GATHER,
			               .dtype = g.kept.dtype,
			               .root = root < 0 ? 0 : root,
			               .src = g.mine,
			               .dst = g.all,
			               .count = g.counts[s->rank],
			               .recv_counts = g.counts,
			               .where = g.tensor->about.name };
		char *at = g.all;

		st = tess_group_run(group, &c);
		for (int32_t r = 0; r < nranks && !st && receives; r++) {
			st = copy_owned_runs(&g, r, at, out);
			at += g.counts[r] * tess_width(g.kept.dtype);
		}
	}
	free(g.counts);
	free(g.mine);
	free(g.all);
	return st;
}
