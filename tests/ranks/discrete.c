/*
 * tess-device-discrete.so and -discrete_exact.so: the cpu device behind memory of its own, as a GPU
 * has. Addresses that the host gets are PROT_NONE; the device maps the same pages elsewhere, and
 * translates the addresses in ops and page tables. A thread runs each stream. Where sums are not
 * EXACT, a Partial is one node. -discrete_cuda says that its memory is that of a CUDA device: the
 * driver and NCCL of tests/nccl queue their work on its streams.
 *
 * With DISCRETE_LATE set ops are slow, and what follows another stream waits until the host waits
 * for it, or that stream for a call: so calls that overlap with ops are as late as they may be, and
 * ops are later than a call that does not follow them.
 */
#include "nn/generate/sample.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <tessera/device.h>
#include <unistd.h>

enum { SENTENCE = 512 };

struct block { /* of device memory */
	struct block *next;
	char *address, *mapped; /* that the host gets; where the device reads and writes */
	uint64_t bytes;
};

struct task {
	struct task *next;
	struct tess_op op; /* kind 0: a copy, or: */
	void (*foreign)(void *arg);
	struct graph *graph; /* is replayed */
	void *dst;
	const void *src;
	uint64_t bytes;
};

struct graph {
	atomic_int users; /* its owner, and replays that are queued */
	struct task *first, **last;
	struct task *released; /* foreign calls for its end */
};

struct discrete {
	int32_t index; /* first: tests read it */
	void *cpu;
	pthread_mutex_t lock; /* of `cpu` */
	pthread_mutex_t block_lock;
	struct block *blocks;
	atomic_int pending[2]; /* marks of a point that the stream has not reached */
};

struct stream {
	struct discrete *device;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct task *first, **last;
	struct graph *captures; /* what is queued goes into it */
	bool busy, ends, waits; /* waits: a foreign call runs */
	int syncs; /* of the host, now */
	atomic_int ops; /* that have run */
	struct stream *followed; /* the last one, when its ops were so many */
	int followed_ops;
	tess_status failed; /* the first failure */
	char sentence[SENTENCE];
};

static const struct tess_host *host;
static struct tess_host cpu_calls; /* what the cpu device calls */
static const struct tess_device *cpu;
static _Thread_local char last_sentence[SENTENCE];

static pthread_mutex_t foreign_lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *foreign_blocks; /* of NCCL: the device reads them where they are */

/* ---- memory ---------------------------------------------------------------------------------- */

/* bytes 0: it is freed. */
TESS_EXPORT void discrete_adopt(void *p, size_t bytes)
{
	struct block **at = &foreign_blocks, *b = bytes ? calloc(1, sizeof *b) : NULL;

	pthread_mutex_lock(&foreign_lock);
	if (b) {
		*b = (struct block){ foreign_blocks, p, p, bytes };
		foreign_blocks = b;
	} else {
		while (*at && (*at)->address != p)
			at = &(*at)->next;
		b = *at;
		if (b)
			*at = b->next;
		free(b);
	}
	pthread_mutex_unlock(&foreign_lock);
}

static void *find_in_blocks(const struct block *b, const char *at)
{
	while (b && (at < b->address || at >= b->address + b->bytes))
		b = b->next;
	return b ? b->mapped + (at - b->address) : NULL;
}

/* Where the device has address p; NULL: it is not the device's. */
static void *translate_address(struct discrete *d, const void *p)
{
	void *found;

	pthread_mutex_lock(&d->block_lock);
	found = find_in_blocks(d->blocks, p);
	pthread_mutex_unlock(&d->block_lock);
	if (found)
		return found;
	pthread_mutex_lock(&foreign_lock);
	found = find_in_blocks(foreign_blocks, p);
	pthread_mutex_unlock(&foreign_lock);
	return found;
}

static void unmap_block(struct block *b)
{
	if (b->address != MAP_FAILED)
		munmap(b->address, b->bytes);
	if (b->mapped != MAP_FAILED)
		munmap(b->mapped, b->bytes);
	free(b);
}

static tess_status alloc_block(void *self, uint64_t bytes, void **out)
{
	struct discrete *d = self;
	struct block *b = calloc(1, sizeof *b);
	int fd = memfd_create("discrete", MFD_CLOEXEC);

	if (!b || fd < 0 || ftruncate(fd, (off_t)bytes)) {
		free(b);
		if (fd >= 0)
			close(fd);
		return host->fail(TESS_ENOMEM, "discrete: no memory");
	}
	b->bytes = bytes;
	b->address = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);
	b->mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (b->address == MAP_FAILED || b->mapped == MAP_FAILED) {
		unmap_block(b);
		return host->fail(TESS_ENOMEM, "discrete: no memory");
	}
	pthread_mutex_lock(&d->block_lock);
	b->next = d->blocks;
	d->blocks = b;
	pthread_mutex_unlock(&d->block_lock);
	*out = b->address;
	return TESS_OK;
}

static void free_block(void *self, void *p)
{
	struct discrete *d = self;
	struct block **at = &d->blocks, *b;

	pthread_mutex_lock(&d->block_lock);
	while (*at && (*at)->address != p)
		at = &(*at)->next;
	b = *at;
	if (b)
		*at = b->next;
	pthread_mutex_unlock(&d->block_lock);
	if (b)
		unmap_block(b);
}

/* ---- ops ------------------------------------------------------------------------------------- */

/* Copies `bytes` to *at, which moves on. */
static void *append_bytes(char **at, const void *from, size_t bytes)
{
	void *to = *at;

	if (bytes)
		memcpy(to, from, bytes);
	*at += (bytes + 7) / 8 * 8;
	return to;
}

static size_t measure_op(const struct tess_op *op)
{
	size_t bytes = sizeof *op->in * (size_t)(op->nin + op->nout) +
	               sizeof *op->num * (size_t)op->nnum + sizeof *op->tree * (size_t)op->ntree +
	               sizeof *op->term * (size_t)op->nterm;

	for (int32_t t = 0; t < op->ntree; t++)
		bytes += sizeof(int64_t) * (size_t)(op->tree[t].hi - op->tree[t].lo + 1) *
		         (size_t)op->tree[t].terms;
	return bytes;
}

/* Whether out i is a Partial: the gradients of stacks of matrices have three axes without that. */
static bool is_partial_out(const struct tess_op *op, int32_t i)
{
	int32_t stacked = op->kind == TESS_OP_HEAD_LINEAR_DW || op->kind == TESS_OP_EXPERTS_DW;

	return !EXACT && op->kind != TESS_OP_COPY && op->out[i].ndim == 3 + stacked;
}

/* Whether it is a sum over tokens, whose first number is that of the sequences. */
static bool is_token_sum(int32_t kind)
{
	static const int32_t kinds[] = { TESS_OP_LINEAR_DW, TESS_OP_HEAD_LINEAR_DW,
		                         TESS_OP_BIAS_DW,   TESS_OP_EMBED_DW,
		                         TESS_OP_NORM_DW,   TESS_OP_EXPERTS_DW,
		                         TESS_OP_BALANCE };

	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (kinds[i] == kind)
			return true;
	return false;
}

/*
 * The op in memory of its own, as the cpu device is to run it: this rank's units of a Partial are
 * added as a whole sum, to one node.
 */
static struct task *make_op_task(const struct tess_op *op)
{
	bool partial = op->nout && is_partial_out(op, 0);
	struct task *k = calloc(1, sizeof *k + measure_op(op));
	char *at = (char *)(k + 1);
	struct tess_view *out;
	struct tess_tree *tree;
	struct tess_term *term;
	double *num;

	if (!k)
		return NULL;
	k->op = *op;
	k->op.stream = NULL;
	k->op.in = append_bytes(&at, op->in, sizeof *op->in * (size_t)op->nin);
	k->op.out = out = append_bytes(&at, op->out, sizeof *op->out * (size_t)op->nout);
	k->op.num = num = append_bytes(&at, op->num, sizeof *op->num * (size_t)op->nnum);
	k->op.tree = tree = append_bytes(&at, op->tree, sizeof *op->tree * (size_t)op->ntree);
	k->op.term = term = append_bytes(&at, op->term, sizeof *op->term * (size_t)op->nterm);
	for (int32_t t = 0; t < op->ntree; t++) {
		int64_t units = tree[t].hi - tree[t].lo;

		for (int32_t i = tree[t].first; i < tree[t].first + tree[t].terms; i++)
			term[i].bound = append_bytes(&at, op->term[i].bound,
			                             sizeof(int64_t) * (size_t)(units + 1));
		if (partial)
			tree[t] =
				(struct tess_tree){ units, 0, units, tree[t].first, tree[t].terms };
	}
	if (partial && is_token_sum(op->kind)) { /* of sequences that are whole */
		num[TESS_TOKENS_SEQUENCES] = op->ntree - (op->kind == TESS_OP_NORM_DW);
		num[TESS_TOKENS_FIRST] = 0;
	}
	for (int32_t i = 0; op->kind != TESS_OP_EMBED && i < op->nout; i++) {
		if (!is_partial_out(op, i))
			continue;
		out[i].ndim--;
		memmove(out[i].shape, out[i].shape + 1, 3 * sizeof *out[i].shape);
		memmove(out[i].stride, out[i].stride + 1, 3 * sizeof *out[i].stride);
	}
	return k;
}

/* y of a row as SAMPLE defines it, but for the id if the temperature is not 0. */
static void find_largest(const float *x, int64_t n, int32_t *y)
{
	int32_t best = -1;

	y[TESS_SAMPLE_ODD] = y[TESS_SAMPLE_FLAG] = 0;
	y[TESS_SAMPLE_FIRST_ODD] = -1;
	for (int32_t i = (int32_t)n - 1; i >= 0; i--) {
		if (isfinite(x[i])) {
			best = best < 0 || x[i] >= x[best] ? i : best;
			continue;
		}
		y[TESS_SAMPLE_ODD]++;
		y[TESS_SAMPLE_FIRST_ODD] = i;
		y[TESS_SAMPLE_FLAG] = isnan(x[i]) ? TESS_SAMPLE_NAN : 0;
	}
	y[TESS_SAMPLE_ID] = best < 0 ? 0 : best;
}

/* Draws by the rule, and marks the id if there is a penalty. */
static int32_t draw_row(struct tess_sampler *s, const float *x, int64_t n,
                        const struct tess_draw *d, const struct tess_view *sets, int32_t *seen)
{
	struct tess_sampling how = { .temperature = d->temperature,
		                     .top_p = d->top_p,
		                     .min_p = d->min_p,
		                     .top_k = (int64_t)d->top_k,
		                     .repetition_penalty = d->penalty };
	uint32_t *bits = sets->data;
	int64_t nseen = 0;
	int32_t id;

	if (!tess_sampling_has_penalty(&how))
		return tess_sampler_draw_number(s, &how, x, NULL, 0, d->number);
	bits += (int64_t)d->set * sets->stride[0];
	for (int32_t i = 0; i < n; i++)
		if (bits[i / 32] >> i % 32 & 1)
			seen[nseen++] = i;
	id = tess_sampler_draw_number(s, &how, x, seen, nseen, d->number);
	bits[id / 32] |= 1u << id % 32;
	return id;
}

/* The only op that the cpu device lacks. DISCRETE_DOUBT=n: a row of each nth one is in doubt. */
static tess_status run_sample(const struct tess_op *op)
{
	static atomic_int runs;
	const char *doubt = getenv("DISCRETE_DOUBT");
	int64_t n = op->in[0].shape[1], rows = op->in[0].shape[0];
	int run = atomic_fetch_add(&runs, 1);
	int32_t *seen = malloc(sizeof *seen * (size_t)n);
	struct tess_sampler *s;
	tess_status st = tess_sampler_new(n, &s);

	for (int64_t t = 0; t < rows && !st; t++) {
		const float *x = (const float *)op->in[0].data + t * op->in[0].stride[0];
		const struct tess_draw *d =
			(const void *)((const double *)op->in[1].data + t * op->in[1].stride[0]);
		int32_t *y = (int32_t *)op->out[0].data + t * op->out[0].stride[0];

		find_largest(x, n, y);
		if (doubt && run % atoi(doubt) == 0 && run % rows == t)
			y[TESS_SAMPLE_FLAG] = TESS_SAMPLE_DOUBT;
		else if (!y[TESS_SAMPLE_ODD])
			y[TESS_SAMPLE_ID] = draw_row(s, x, n, d, &op->out[1], seen);
	}
	free(seen);
	if (!st)
		tess_sampler_free(s);
	return st;
}

static tess_status supports_op(const struct tess_op *op)
{
	const char *lacks = getenv("DISCRETE_LACKS"); /* a kind of op */

	if (lacks && op->kind == atoi(lacks))
		return host->fail(TESS_ENOTSUP, "%s: discrete: no such kernel", op->where);
	return op->kind == TESS_OP_SAMPLE ? TESS_OK : cpu->supports(op);
}

static tess_status translate_views(struct discrete *d, const struct tess_op *op,
                                   const struct tess_view *views, int32_t n)
{
	for (int32_t i = 0; i < n; i++) {
		struct tess_view *v = (struct tess_view *)&views[i];

		if (v->data && !(v->data = translate_address(d, v->data)))
			return host->fail(TESS_EINVAL,
			                  "%s: discrete: operand %d lies in host memory", op->where,
			                  (int)i);
	}
	return TESS_OK;
}

/* The page table of attention with the device's own addresses; NULL: no memory. */
static int64_t *translate_pages(struct discrete *d, const struct tess_view *v)
{
	int64_t n = v->shape[0] * v->shape[1];
	int64_t *pages = calloc((size_t)n + 1, sizeof *pages);

	for (int64_t i = 0; pages && i < n; i++) {
		const int64_t *row = (const int64_t *)v->data + i / v->shape[1] * v->stride[0];

		pages[i] = (int64_t)(uintptr_t)translate_address(
			d, (const void *)(uintptr_t)row[i % v->shape[1]]);
	}
	return pages;
}

static tess_status run_op_task(struct discrete *d, struct task *k)
{
	struct tess_view *table = (struct tess_view *)&k->op.in[5], before;
	const char *fails = getenv("DISCRETE_FAILS"); /* a module */
	int64_t *pages = NULL;
	tess_status st;

	if (fails && !strcmp(k->op.where, fails))
		return cpu_calls.fail(TESS_EDEVICE, "%s: discrete: a kernel failed", k->op.where);
	if (k->op.kind == TESS_OP_SAMPLE)
		return run_sample(&k->op);
	if (k->op.kind == TESS_OP_ATTENTION && table->ndim) {
		pages = translate_pages(d, table);
		if (!pages)
			return cpu_calls.fail(TESS_ENOMEM, "discrete: no memory");
		before = *table;
		table->data = pages;
		table->stride[0] = table->shape[1];
	}
	pthread_mutex_lock(&d->lock);
	st = cpu->run(d->cpu, &k->op);
	pthread_mutex_unlock(&d->lock);
	if (pages)
		*table = before; /* a graph runs it again */
	free(pages);
	return st;
}

/* ---- streams --------------------------------------------------------------------------------- */

static void free_graph(struct graph *g)
{
	if (atomic_fetch_sub(&g->users, 1) > 1)
		return;
	for (struct task *k = g->released, *next; k; k = next) {
		next = k->next;
		k->foreign(k->dst);
		free(k);
	}
	for (struct task *k = g->first, *next; k; k = next) {
		next = k->next;
		free(k);
	}
	free(g);
}

/* After a failure only foreign calls are made: other devices wait for them. */
static tess_status run_discrete_task(struct discrete *d, struct task *k, tess_status st)
{
	if (k->graph) {
		for (struct task *of = k->graph->first; of; of = of->next)
			st = run_discrete_task(d, of, st);
		free_graph(k->graph);
	} else if (k->foreign) {
		k->foreign(k->dst);
	} else if (!st && k->op.kind) {
		st = run_op_task(d, k);
	} else if (!st) {
		memcpy(k->dst, k->src, k->bytes);
	}
	return st;
}

/* ---- order between streams ------------------------------------------------------------------- */

enum { PAUSE_US = 20, SLOW_US = 50, IDLE_PAUSES = 1000 };

struct order { /* of what `stream` runs next, after what was on `after` */
	atomic_int users;
	struct stream *stream, *after;
	atomic_bool reached;
	int ops; /* that `after` had run then */
};

/* Calls that began after ops that were queued later, so far; tests read it. */
TESS_EXPORT atomic_int discrete_overlapped;

static void drop_order(struct order *o)
{
	if (atomic_fetch_sub(&o->users, 1) == 1)
		free(o);
}

static void reach_order(void *arg)
{
	struct order *o = arg;

	o->ops = atomic_load(&o->after->ops);
	atomic_store(&o->reached, true);
	drop_order(o);
}

static bool is_late(void)
{
	return getenv("DISCRETE_LATE");
}

/* *idle: how often the other stream had nothing to do, which ends where a test fails only. */
static bool may_be_later(const struct order *o, int *idle)
{
	struct stream *s = o->stream, *after = o->after;
	bool later;

	pthread_mutex_lock(&s->lock);
	later = !s->syncs && !s->ends;
	pthread_mutex_unlock(&s->lock);
	pthread_mutex_lock(&after->lock);
	*idle = after->first || after->busy ? 0 : *idle + 1;
	later = later && !after->waits && *idle < IDLE_PAUSES;
	pthread_mutex_unlock(&after->lock);
	return later;
}

static void wait_for_order(void *arg)
{
	struct order *o = arg;
	int idle = 0;

	while (!atomic_load(&o->reached))
		usleep(PAUSE_US);
	while (is_late() && may_be_later(o, &idle))
		usleep(PAUSE_US);
	o->stream->followed = o->after;
	o->stream->followed_ops = o->ops;
	drop_order(o);
}

/* A call between ranks, or a wait for one. */
static bool is_foreign_call(const struct task *k)
{
	return k->foreign && k->foreign != reach_order && k->foreign != wait_for_order;
}

static tess_status run_stream_task(struct stream *s, struct task *k, tess_status st)
{
	if (is_foreign_call(k) && s->followed && atomic_load(&s->followed->ops) > s->followed_ops)
		atomic_fetch_add(&discrete_overlapped, 1);
	if (k->op.kind && is_late())
		usleep(SLOW_US);
	st = run_discrete_task(s->device, k, st);
	atomic_fetch_add(&s->ops, k->op.kind != 0);
	free(k);
	return st;
}

static void *run_stream(void *arg)
{
	struct stream *s = arg;

	pthread_mutex_lock(&s->lock);
	while (s->first || !s->ends) {
		struct task *k = s->first;
		tess_status st = s->failed;

		if (!k) {
			pthread_cond_wait(&s->changed, &s->lock);
			continue;
		}
		s->first = k->next;
		if (!s->first)
			s->last = &s->first;
		s->busy = true;
		s->waits = is_foreign_call(k);
		pthread_mutex_unlock(&s->lock);
		st = run_stream_task(s, k, st);
		pthread_mutex_lock(&s->lock);
		if (st && !s->failed)
			memcpy(s->sentence, last_sentence, sizeof s->sentence);
		s->failed = st;
		s->busy = s->waits = false;
		pthread_cond_broadcast(&s->changed);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

static tess_status queue_task(struct stream *s, struct task *k)
{
	if (!s || !k) {
		free(k);
		return host->fail(TESS_EINVAL, "discrete: no stream, or no memory");
	}
	pthread_mutex_lock(&s->lock);
	if (s->captures) {
		*s->captures->last = k;
		s->captures->last = &k->next;
	} else {
		*s->last = k;
		s->last = &k->next;
	}
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	return TESS_OK;
}

/* Queues foreign(arg). 0: done. */
TESS_EXPORT int discrete_queue(void *stream, void (*foreign)(void *arg), void *arg)
{
	struct task *k = stream ? calloc(1, sizeof *k) : NULL;

	if (!k)
		return 1;
	k->foreign = foreign;
	k->dst = arg;
	return queue_task(stream, k) != TESS_OK;
}

/* Whether the stream captures a graph; then foreign(arg) is called when the graph is freed. */
TESS_EXPORT bool discrete_retain(void *stream, void (*foreign)(void *arg), void *arg)
{
	struct stream *s = stream;
	struct task *k = foreign ? calloc(1, sizeof *k) : NULL;
	bool captures;

	pthread_mutex_lock(&s->lock);
	captures = s->captures;
	if (captures && k) {
		k->foreign = foreign;
		k->dst = arg;
		k->next = s->captures->released;
		s->captures->released = k;
		k = NULL;
	}
	pthread_mutex_unlock(&s->lock);
	free(k);
	return captures;
}

static tess_status capture_tasks(void *self, void *stream, int32_t begin, void **graph)
{
	const char *none = getenv("DISCRETE_NO_GRAPHS"); /* the index of a device that makes none */
	struct stream *s = stream;
	struct graph *made = begin ? calloc(1, sizeof *made) : NULL;

	if ((none && atoi(none) == ((struct discrete *)self)->index) || (begin && !made)) {
		free(made);
		return host->fail(TESS_ENOTSUP, "discrete: no graphs");
	}
	if (made) {
		atomic_store(&made->users, 1);
		made->last = &made->first;
	}
	pthread_mutex_lock(&s->lock);
	if (!begin)
		*graph = s->captures;
	s->captures = made;
	pthread_mutex_unlock(&s->lock);
	return TESS_OK;
}

static tess_status replay_tasks(void *self, void *graph, void *stream)
{
	struct task *k = calloc(1, sizeof *k);

	(void)self;
	if (k) {
		k->graph = graph;
		atomic_fetch_add(&k->graph->users, 1);
	}
	return queue_task(stream, k);
}

static void drop_discrete_graph(void *self, void *graph)
{
	(void)self;
	free_graph(graph);
}

/* Where the memory at `p` is mapped; NULL: it is not that of the stream's device. */
TESS_EXPORT void *discrete_translate(void *stream, const void *p)
{
	return translate_address(((struct stream *)stream)->device, p);
}

TESS_EXPORT atomic_int discrete_chosen; /* ops that choose ids, so far; tests read it */

static tess_status queue_op(void *self, const struct tess_op *op)
{
	struct task *k = make_op_task(op);
	tess_status st = TESS_OK;

	if (op->kind == TESS_OP_SAMPLE)
		atomic_fetch_add(&discrete_chosen, 1);

	if (k)
		st = translate_views(self, op, k->op.in, op->nin);
	if (k && !st)
		st = translate_views(self, op, k->op.out, op->nout);
	if (!st)
		return queue_task(op->stream, k);
	free(k);
	return st;
}

static tess_status queue_copy(void *self, void *dst, const void *src, uint64_t bytes, void *stream)
{
	void *to = translate_address(self, dst), *from = translate_address(self, src);
	struct task *k = calloc(1, sizeof *k);

	if (stream && ((struct stream *)stream)->captures) {
		free(k);
		return host->fail(TESS_EINVAL, "discrete: a copy in a graph");
	}
	if (k) {
		k->dst = to ? to : dst;
		k->src = from ? from : src;
		k->bytes = bytes;
	}
	return queue_task(stream, k);
}

static tess_status sync_stream(void *self, void *stream)
{
	struct stream *s = stream;
	tess_status st;

	(void)self;
	if (!s || s->captures)
		return host->fail(TESS_EINVAL, "discrete: no stream, or it captures a graph");
	pthread_mutex_lock(&s->lock);
	s->syncs++;
	while (s->first || s->busy)
		pthread_cond_wait(&s->changed, &s->lock);
	s->syncs--;
	st = s->failed;
	pthread_mutex_unlock(&s->lock);
	return st ? host->fail(st, "%s", s->sentence) : TESS_OK;
}

/* What follows is late, so that the host is ahead of it. */
static void reach_point(void *arg)
{
	atomic_fetch_sub((atomic_int *)arg, 1);
	usleep(300);
}

static tess_status mark_stream(void *self, void *stream, int32_t point)
{
	struct discrete *d = self;

	atomic_fetch_add(&d->pending[point], 1);
	return discrete_queue(stream, reach_point, &d->pending[point])
	               ? host->fail(TESS_ENOMEM, "discrete: no memory")
	               : TESS_OK;
}

static tess_status test_mark(void *self, int32_t point)
{
	return atomic_load(&((struct discrete *)self)->pending[point]) ? TESS_PENDING : TESS_OK;
}

static tess_status order_streams(void *self, void *stream, void *after)
{
	struct order *o = calloc(1, sizeof *o);

	(void)self;
	if (!o)
		return host->fail(TESS_ENOMEM, "discrete: no memory");
	*o = (struct order){ .stream = stream, .after = after };
	atomic_store(&o->users, 2);
	return discrete_queue(after, reach_order, o) || discrete_queue(stream, wait_for_order, o)
	               ? host->fail(TESS_ENOMEM, "discrete: no memory")
	               : TESS_OK;
}

static tess_status open_stream(void *self, void **out)
{
	struct stream *s = calloc(1, sizeof *s);

	if (!s)
		return host->fail(TESS_ENOMEM, "discrete: no memory");
	s->device = self;
	s->last = &s->first;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->changed, NULL);
	if (pthread_create(&s->thread, NULL, run_stream, s)) {
		free(s);
		return host->fail(TESS_ENOMEM, "discrete: no thread");
	}
	*out = s;
	return TESS_OK;
}

static void close_stream(void *self, void *stream)
{
	struct stream *s = stream;

	(void)self;
	pthread_mutex_lock(&s->lock);
	s->ends = true;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->thread, NULL);
	free(s);
}

/* ---- the device ------------------------------------------------------------------------------ */

static int32_t count_discrete_devices(void)
{
	return DEVICES;
}

static tess_status open_discrete(int32_t index, int32_t nthreads, void **self)
{
	struct discrete *d = calloc(1, sizeof *d);
	tess_status st = d ? cpu->open(0, nthreads, &d->cpu) : TESS_ENOMEM;

	if (st || index >= DEVICES) {
		if (d && d->cpu)
			cpu->close(d->cpu);
		free(d);
		return host->fail(TESS_EINVAL, "discrete: device %d does not open", (int)index);
	}
	pthread_mutex_init(&d->lock, NULL);
	pthread_mutex_init(&d->block_lock, NULL);
	d->index = index;
	*self = d;
	return TESS_OK;
}

static void close_discrete(void *self)
{
	struct discrete *d = self;

	while (d->blocks)
		free_block(d, d->blocks->address);
	cpu->close(d->cpu);
	free(d);
}

static tess_status pack_into_block(void *self, const struct tess_view *rows,
                                   struct tess_view *panels)
{
	struct discrete *d = self;
	void *address = panels->data;
	tess_status st;

	panels->data = translate_address(d, address);
	pthread_mutex_lock(&d->lock);
	st = panels->data ? cpu->pack(d->cpu, rows, panels)
	                  : host->fail(TESS_EINVAL, "discrete: panels in host memory");
	pthread_mutex_unlock(&d->lock);
	panels->data = address;
	return st;
}

static tess_status get_free_bytes(void *self, uint64_t *out)
{
	const char *bytes = getenv("DISCRETE_MEMORY");

	(void)self;
	*out = bytes ? strtoull(bytes, NULL, 10) : 1 << 30;
	return TESS_OK;
}

static tess_status TESS_PRINTF(2, 3) remember_sentence(tess_status why, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(last_sentence, sizeof last_sentence, fmt, ap);
	va_end(ap);
	return host->fail(why, "%s", last_sentence);
}

static const char *choose_any_instructions(const char *key)
{
	(void)key;
	return "auto";
}

static tess_status init_discrete(const struct tess_host *h)
{
	void *file = dlopen(CPU_DEVICE, RTLD_NOW | RTLD_LOCAL);
	const struct tess_plugin *plugin = file ? dlsym(file, "tess_plugin_v1") : NULL;

	host = h;
	if (!plugin)
		return host->fail(TESS_ENOTSUP, "discrete: " CPU_DEVICE " does not open");
	cpu_calls = *h;
	cpu_calls.fail = remember_sentence;
	cpu_calls.option = choose_any_instructions;
	cpu = plugin->devices[0];
	return plugin->init(&cpu_calls);
}

/* DISCRETE_KV: bf16 beside weights of bf16. */
static int32_t prefer_kv_dtype_by_env(int32_t weights)
{
	return weights == TESS_BF16 && getenv("DISCRETE_KV") ? TESS_BF16 : TESS_F32;
}

static const struct tess_device discrete_device = {
	.size = sizeof discrete_device,
	.mem = MEM,
	.name = NAME,
	.summary = "the cpu device behind memory of its own",
	.count = count_discrete_devices,
	.supports = supports_op,
	.open = open_discrete,
	.alloc = alloc_block,
	.free = free_block,
	.run = queue_op,
	.pack = pack_into_block,
	.copy = queue_copy,
	.sync = sync_stream,
	.close = close_discrete,
	.stream_open = open_stream,
	.stream_close = close_stream,
	.layout = TESS_ROWS,
	.exact = EXACT,
	.free_bytes = get_free_bytes,
	.capture = capture_tasks,
	.replay = replay_tasks,
	.graph_close = drop_discrete_graph,
	.mark = mark_stream,
	.reached = test_mark,
	.kv_dtype = prefer_kv_dtype_by_env,
	.follow = order_streams,
	.prompt_rows = 64,
};

TESS_DEFINE_PLUGIN("discrete", "1.0", "Apache-2.0",
                   .summary = "a device with memory of its own, for tests",
                   .devices = TESS_LIST(tess_device, &discrete_device), .init = init_discrete);
