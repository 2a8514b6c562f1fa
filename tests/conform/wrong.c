/*
 * tess-backend-wrong_NAME.so: a small backend over threads, with barrier, all_reduce, all_gather,
 * send and recv. Each build is wrong in one way (WRONG), which `tessera conform` must find and
 * name; RIGHT conforms.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <tessera/reduce.h>
#include <unistd.h>

enum {
	RIGHT,
	DROPS_ELEMENT,
	ROUNDS_TWICE,
	IGNORES_IN_PLACE,
	LOSES_WAKE_UP,
	LEAKS_FD,
	WRITES_PAST,
	LEAKS_MEMORY,
	CHANGES_SOURCE,
	LEAVES_EARLY,
	HANGS,
	OVERTAKES,
	OVERTAKES_ALIKE,
	OVERTAKES_ONCE,
	CRASHES,
	ABORTS,
	ADDS_IN_FLOAT,
	ADDS_IN_LINE,
	ADDS_OWN_FIRST,
	BLOCKS_IN_TEST,
	FORGETS_ABORT,
	ABORTS_LATE,
	SWAPS_BLOCKS,
	HIDES_GAP,
	RUNS_EARLY,
	SKIPS_MEANWHILE
};
enum { RANKS = 16 };

static const struct tess_host *host;
static void *volatile leaked;

/* One call of all ranks, or one message: from `from` to `to`. */
struct pending_call {
	struct pending_call *next;
	uint64_t number;
	int32_t from, to, expected, arrived, released, done;
	struct tess_coll call[RANKS];
};

struct wrong_context {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int32_t nranks, inside, aborted;
	struct pending_call *pending;
	uint64_t sent[RANKS][RANKS], received[RANKS][RANKS], calls[RANKS];
	unsigned wakes;
};

struct wrong_group {
	struct wrong_context *context;
	int32_t rank;
};

static tess_status wrong_supports(const struct tess_coll *c, int32_t nranks)
{
	int has = c->kind == TESS_BARRIER || c->kind == TESS_ALL_REDUCE ||
	          c->kind == TESS_ALL_GATHER || c->kind == TESS_SEND || c->kind == TESS_RECV;

	if (!has || (c->kind != TESS_BARRIER && !tess_width(c->dtype)) || nranks > RANKS)
		return host->fail(TESS_ENOTSUP, "wrong lacks it");
	if (WRONG == HIDES_GAP && c->kind == TESS_ALL_REDUCE && c->dtype == TESS_F16)
		return host->fail(TESS_ENOTSUP, "wrong lacks it");
	return TESS_OK;
}

/* ---- what is moved --------------------------------------------------------------------------- */

static void add_parts_in_float(const struct tess_coll *c, const void *const *part, int32_t n,
                               double *out)
{
	for (uint64_t i = 0; i < c->count; i++) {
		float sum = 0;

		for (int32_t r = 0; r < n; r++)
			sum += (float)((const double *)part[r])[i];
		out[i] = (double)sum;
	}
}

static void add_parts(const struct tess_coll *c, const void *const *part, int32_t n, void *out)
{
	uint64_t count = c->count;
	const void *two[2] = { out };

	if (WRONG == DROPS_ELEMENT && count > 1)
		count--;
	if (WRONG == ADDS_IN_FLOAT && c->dtype == TESS_F64 && c->op == TESS_SUM) {
		add_parts_in_float(c, part, n, out);
	} else if (WRONG == ROUNDS_TWICE || (WRONG == ADDS_IN_LINE && c->dtype == TESS_F32)) {
		memcpy(out, part[0], count * tess_width(c->dtype));
		for (int32_t r = 1; r < n; r++) {
			two[1] = part[r];
			tess_reduce(c->dtype, c->op, two, 2, count, out);
		}
	} else {
		tess_reduce(c->dtype, c->op, part, n, count, out);
	}
}

/* Each rank from its own part on, so that sums of floats differ between ranks. */
static void add_own_first(struct pending_call *m, int32_t n)
{
	uint64_t bytes = m->call[0].count * tess_width(m->call[0].dtype);
	char *sum = malloc((uint64_t)n * bytes + 1);

	for (int32_t r = 0; r < n; r++) {
		const void *two[2] = { sum + (uint64_t)r * bytes };

		memcpy(sum + (uint64_t)r * bytes, m->call[r].src, bytes);
		for (int32_t i = 1; i < n; i++) {
			two[1] = m->call[(r + i) % n].src;
			tess_reduce(m->call[0].dtype, m->call[0].op, two, 2, m->call[0].count,
			            sum + (uint64_t)r * bytes);
		}
	}
	for (int32_t r = 0; r < n; r++)
		memcpy(m->call[r].dst, sum + (uint64_t)r * bytes, bytes);
	free(sum);
}

static void complete_all_reduce(struct pending_call *m, int32_t n)
{
	uint64_t bytes = m->call[0].count * tess_width(m->call[0].dtype);
	const void *part[RANKS] = { NULL };
	char *sum = malloc(bytes + 1);

	for (int32_t r = 0; r < n; r++)
		part[r] = m->call[r].src;
	if (WRONG == ADDS_OWN_FIRST && m->call[0].dtype == TESS_F32) {
		add_own_first(m, n);
	} else if (WRONG == IGNORES_IN_PLACE) {
		for (int32_t r = 0; r < n; r++) /* overwrites what later ranks read */
			add_parts(&m->call[r], part, n, m->call[r].dst);
	} else {
		memset(sum, 0, bytes);
		add_parts(&m->call[0], part, n, sum);
		for (int32_t r = 0; r < n; r++)
			memcpy(m->call[r].dst, sum, bytes);
	}
	if (WRONG == WRITES_PAST && bytes)
		((char *)m->call[n - 1].dst)[bytes] = 0;
	if (WRONG == CHANGES_SOURCE && bytes && m->call[0].src != m->call[0].dst)
		memset((char *)(uintptr_t)m->call[0].src, 0, 1);
	if (WRONG == CRASHES && m->call[0].count == 65)
		raise(SIGSEGV);
	free(sum);
}

static void complete_all_gather(const struct pending_call *m, int32_t n)
{
	size_t width = tess_width(m->call[0].dtype);

	for (int32_t r = 0; r < n; r++) {
		const struct tess_coll *c = &m->call[r];
		uint64_t at = 0;

		for (int32_t from = 0; from < n; from++) {
			const struct tess_coll *other =
				&m->call[WRONG == SWAPS_BLOCKS && !c->recv_counts ? n - 1 - from
			                                                          : from];
			uint64_t count = other->count;
			const char *src = other->src;
			uint64_t begin = 0;

			for (int32_t k = 0; k < from; k++)
				begin += m->call[k].count;
			if (other->src == other->dst && src)
				src += begin * width;
			if (count && (char *)c->dst + at * width != src)
				memcpy((char *)c->dst + at * width, src, count * width);
			at += count;
		}
	}
}

/* Of two messages of one size that wait for their receives, the later one is received first. */
static void swap_equal_messages(struct wrong_context *context, struct pending_call *m)
{
	for (struct pending_call *late = context->pending; late; late = late->next)
		if (late->from == m->from && late->to == m->to && late->number > m->number &&
		    late->call[m->from].kind && !late->done &&
		    late->call[m->from].count == m->call[m->from].count) {
			const void *src = m->call[m->from].src;

			m->call[m->from].src = late->call[m->from].src;
			late->call[m->from].src = src;
			return;
		}
}

static void perform_call(struct wrong_context *context, struct pending_call *m)
{
	const struct tess_coll *to;

	if (WRONG == OVERTAKES_ALIKE && m->from >= 0)
		swap_equal_messages(context, m);
	if (m->from >= 0) {
		uint64_t count = m->call[m->from].count;

		to = &m->call[m->to];
		if (count > to->count)
			count = to->count;
		if (count)
			memcpy(to->dst, m->call[m->from].src, count * tess_width(to->dtype));
	} else if (m->call[0].kind == TESS_ALL_REDUCE) {
		complete_all_reduce(m, context->nranks);
	} else if (m->call[0].kind == TESS_ALL_GATHER) {
		complete_all_gather(m, context->nranks);
	}
}

/* ---- calls ----------------------------------------------------------------------------------- */

static struct pending_call *find_or_add_call(struct wrong_context *context, uint64_t number,
                                             int32_t from, int32_t to, int sending)
{
	struct pending_call *m = context->pending;

	if ((WRONG == OVERTAKES || (WRONG == OVERTAKES_ONCE && number == 60)) && from >= 0 &&
	    !sending) /* the last message first */
		for (struct pending_call *late = context->pending; late; late = late->next)
			if (late->from == from && late->to == to && late->arrived == 1 &&
			    late->call[from].kind)
				return late;
	while (m && (m->number != number || m->from != from || m->to != to))
		m = m->next;
	if (m)
		return m;
	m = calloc(1, sizeof *m);
	*m = (struct pending_call){ .next = context->pending,
		                    .number = number,
		                    .from = from,
		                    .to = to,
		                    .expected = from < 0 ? context->nranks : 2 };
	return context->pending = m;
}

static void wake_waiters(struct wrong_context *context)
{
	if (WRONG == LOSES_WAKE_UP && ++context->wakes % 64 == 0)
		return;
	pthread_cond_broadcast(&context->changed);
}

static tess_status wrong_start(void *self, const struct tess_coll *c, void **work)
{
	struct wrong_group *me = self;
	struct wrong_context *context = me->context;
	struct pending_call *m;

	if (WRONG == ABORTS && me->rank == 1 && c->kind == TESS_ALL_GATHER && c->count == 65) {
		host->log(TESS_WARN, "wrong", "slot 7 of 4");
		abort();
	}
	pthread_mutex_lock(&context->lock);
	if (c->kind == TESS_SEND)
		m = find_or_add_call(context, ++context->sent[me->rank][c->peer], me->rank, c->peer,
		                     1);
	else if (c->kind == TESS_RECV)
		m = find_or_add_call(context, ++context->received[c->peer][me->rank], c->peer,
		                     me->rank, 0);
	else
		m = find_or_add_call(context, ++context->calls[me->rank], -1, -1, 1);
	m->call[me->rank] = *c;
	if (++m->arrived == m->expected) {
		perform_call(context, m);
		m->done = 1;
		wake_waiters(context);
	}
	if (WRONG == LEAVES_EARLY && c->kind == TESS_BARRIER)
		m->done = m->arrived * 2 >= m->expected;
	pthread_mutex_unlock(&context->lock);
	*work = m;
	return context->aborted ? host->fail(TESS_EABORTED, "wrong: aborted") : TESS_OK;
}

static tess_status get_call_status(const struct wrong_context *context,
                                   const struct pending_call *m)
{
	if (m->done)
		return TESS_OK;
	return context->aborted ? host->fail(TESS_EABORTED, "wrong: aborted") : TESS_PENDING;
}

static tess_status wrong_test(void *self, void *work)
{
	struct wrong_group *me = self;
	tess_status st;

	if (WRONG == BLOCKS_IN_TEST)
		usleep(600000);
	pthread_mutex_lock(&me->context->lock);
	st = get_call_status(me->context, work);
	pthread_mutex_unlock(&me->context->lock);
	return st;
}

static tess_status wrong_wait(void *self, void *work, int64_t deadline)
{
	struct wrong_group *me = self;
	struct wrong_context *context = me->context;
	struct timespec until = { .tv_sec = deadline / 1000000000,
		                  .tv_nsec = deadline % 1000000000 };
	tess_status st;
	int err = 0;

	pthread_mutex_lock(&context->lock);
	while ((st = get_call_status(context, work)) == TESS_PENDING && (WRONG == HANGS || !err))
		err = WRONG == HANGS
		              ? pthread_cond_wait(&context->changed, &context->lock)
		              : pthread_cond_timedwait(&context->changed, &context->lock, &until);
	if (WRONG == LOSES_WAKE_UP && err)
		st = TESS_PENDING;
	pthread_mutex_unlock(&context->lock);
	return st == TESS_PENDING ? TESS_ETIMEOUT : st;
}

static void unlink_call(struct wrong_context *context, struct pending_call *m)
{
	for (struct pending_call **at = &context->pending; *at; at = &(*at)->next)
		if (*at == m) {
			*at = m->next;
			break;
		}
	free(m);
}

static void wrong_release(void *self, void *work)
{
	struct wrong_group *me = self;
	struct pending_call *m = work;

	pthread_mutex_lock(&me->context->lock);
	if (++m->released == m->expected)
		unlink_call(me->context, m);
	pthread_mutex_unlock(&me->context->lock);
}

static tess_status wrong_run(void *self, const struct tess_coll *c, int32_t (*meanwhile)(void *),
                             void *arg, void **work)
{
	void *own;
	tess_status st = wrong_start(self, c, &own);
	int32_t more = WRONG == SKIPS_MEANWHILE ? 0 : meanwhile(arg);

	if (st || WRONG == RUNS_EARLY)
		return st;
	while ((st = wrong_test(self, own)) == TESS_PENDING && more)
		more = meanwhile(arg);
	if (st)
		*work = own;
	else
		wrong_release(self, own);
	return st;
}

static void wrong_abort(void *self)
{
	struct wrong_group *me = self;

	if (WRONG == ABORTS_LATE)
		usleep(1200000);
	pthread_mutex_lock(&me->context->lock);
	me->context->aborted = WRONG != FORGETS_ABORT;
	pthread_cond_broadcast(&me->context->changed);
	pthread_mutex_unlock(&me->context->lock);
}

/* ---- groups ---------------------------------------------------------------------------------- */

static struct wrong_context *make_wrong_context(int32_t nranks)
{
	struct wrong_context *context = calloc(1, sizeof *context);
	pthread_condattr_t attr;

	pthread_mutex_init(&context->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&context->changed, &attr);
	context->nranks = context->inside = nranks;
	return context;
}

static tess_status wrong_open(const struct tess_join *how, void **self)
{
	struct wrong_group *me = calloc(1, sizeof *me);
	uint64_t here[2] = { (uint64_t)getpid() }, len = sizeof here;
	char key[200];
	tess_status st;

	me->rank = how->rank;
	snprintf(key, sizeof key, "%s/wrong", how->name);
	if (how->rank == 0) {
		me->context = make_wrong_context(how->nranks);
		here[1] = (uintptr_t)me->context;
		st = how->store->set(how->store->self, key, here, sizeof here);
	} else {
		st = how->store->get(how->store->self, key, how->deadline, here, &len);
		me->context = (struct wrong_context *)(uintptr_t)here[1];
	}
	if (!st && here[0] != (uint64_t)getpid())
		st = host->fail(TESS_EINVAL, "wrong: its ranks are threads of one process");
	if (st) {
		free(me);
		return st;
	}
	if (WRONG == LEAKS_FD)
		eventfd(0, EFD_CLOEXEC);
	if (WRONG == LEAKS_MEMORY)
		leaked = malloc(500);
	*self = me;
	return TESS_OK;
}

static void wrong_close(void *self)
{
	struct wrong_group *me = self;
	struct wrong_context *context = me->context;
	int last;

	pthread_mutex_lock(&context->lock);
	last = !--context->inside;
	pthread_mutex_unlock(&context->lock);
	free(me);
	if (!last)
		return;
	while (context->pending)
		unlink_call(context, context->pending);
	pthread_cond_destroy(&context->changed);
	pthread_mutex_destroy(&context->lock);
	free(context);
}

static tess_status wrong_init(const struct tess_host *h)
{
	host = h;
	return TESS_OK;
}

static const struct tess_backend wrong = {
	.size = sizeof wrong,
	.threads = 1,
	.name = NAME,
	.summary = "wrong in one way",
	.supports = wrong_supports,
	.open = wrong_open,
	.start = wrong_start,
	.test = wrong_test,
	.wait = wrong_wait,
	.release = wrong_release,
	.close = wrong_close,
	.abort = wrong_abort,
	.exact = WRONG == ADDS_IN_LINE,
	.run = WRONG == RIGHT || WRONG >= RUNS_EARLY ? wrong_run : NULL,
};

TESS_DEFINE_PLUGIN(NAME, "1.0", "Apache-2.0", .summary = "for tests of tessera conform",
                   .backends = TESS_LIST(tess_backend, &wrong), .init = wrong_init);
