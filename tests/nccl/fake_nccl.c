/*
 * fake_nccl.c - NCCL: communicators, groups of calls, and the calls on streams. The ranks of a
 * communicator share a memfd, made by its first rank: a ring of bytes for each pair of ranks.
 */
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <tessera/reduce.h>
#include <unistd.h>

#define CALL __attribute__((visibility("default")))

enum { RANKS = 8, RING = 16 << 10, SPLITS = 4, MAGIC = (int)0xcafebeef };
enum { SUCCESS, CUDA_ERROR, SYSTEM_ERROR, INTERNAL, ARGUMENT, USAGE, REMOTE, IN_PROGRESS };

struct ring {
	_Atomic uint64_t written, read;
	char bytes[RING];
};

struct shared { /* memory shared by the ranks of a communicator */
	atomic_int joined, finished;
	atomic_int device[RANKS];
	struct {
		atomic_int set, colour[RANKS], key[RANKS];
		atomic_int pid[RANKS], fd[RANKS]; /* of the communicator of that colour */
	} split[SPLITS];
	struct ring ring[RANKS][RANKS]; /* [from][to] */
};

struct id {
	int pid, fd;
	char rest[120];
};

struct config {
	size_t size;
	unsigned magic, version;
	int blocking;
};

enum phase { NONE, JOINING, SPLITTING, STARTING, FINALIZING };

struct comm {
	pthread_t starter; /* for the last group of calls, if any */
	bool has_starter;
	atomic_int users; /* the program, and groups of calls on streams */
	atomic_bool aborted;
	struct shared *shared;
	int rank, n, fd, device;
	_Atomic enum phase phase;
	int polls;
	atomic_int graphs; /* groups of calls in graphs */
	atomic_int result;
	atomic_int groups; /* started, and replayed in graphs */
	atomic_int queued, ran; /* groups on streams: those of several streams run one by one */
	uint64_t splits;
	struct group *starting;
	/* for a split */
	struct comm **child;
	int colour, key;
	atomic_int registered; /* registered pieces of memory */
};

/* ---- what happens is written down ------------------------------------------------------------ */

static void log_call(const char *what, int rank)
{
	const char *path = getenv("FAKE_NCCL_LOG");
	int fd = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;

	if (fd >= 0)
		dprintf(fd, "%s %d\n", what, rank);
	if (fd >= 0)
		close(fd);
}

static int read_setting(const char *name, int preset)
{
	const char *text = getenv(name);

	return text ? atoi(text) : preset;
}

CALL int ncclGetVersion(int *version)
{
	*version = read_setting("FAKE_NCCL_VERSION", 22809);
	return SUCCESS;
}

CALL const char *ncclGetErrorString(int result)
{
	return result == USAGE    ? "invalid usage"
	       : result == REMOTE ? "remote process exited"
	                          : "error";
}

CALL const char *ncclGetLastError(void *comm)
{
	return comm ? "a failure of the fake NCCL" : "";
}

/* ---- shared memory --------------------------------------------------------------------------- */

static int make_shared(void)
{
	int fd = memfd_create("fake-nccl", MFD_CLOEXEC);

	if (fd >= 0 && ftruncate(fd, sizeof(struct shared))) {
		close(fd);
		return -1;
	}
	return fd;
}

static struct shared *map_shared(int pid, int fd)
{
	char path[64];
	void *at = MAP_FAILED;
	int own;

	snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
	own = open(path, O_RDWR | O_CLOEXEC);
	if (own >= 0) {
		at = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
		close(own);
	}
	return at == MAP_FAILED ? NULL : at;
}

/* Joins the starter: LeakSanitizer can crash if a detached thread ends while the process does. */
static void join_starter(struct comm *c)
{
	if (c->has_starter)
		pthread_join(c->starter, NULL);
	c->has_starter = false;
}

static void drop_comm(struct comm *c)
{
	if (atomic_fetch_sub(&c->users, 1) > 1)
		return;
	munmap(c->shared, sizeof *c->shared);
	free(c);
}

/* ---- the calls of a group -------------------------------------------------------------------- */

enum kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECV };

struct call {
	struct call *next;
	enum kind kind;
	char *src, *dst;
	size_t count, width;
	int dtype, op, peer;
	void *stream;
};

struct transfer { /* a transfer between this rank and another */
	char *at;
	size_t left;
};

struct transfers { /* the transfers of a pair and direction, in order */
	struct transfer *list;
	int n, at;
};

struct group {
	struct comm *comm;
	struct call *first, **last;
	int number; /* among the queued groups */
	bool captured; /* its graph frees it */
};

static const size_t widths[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2 };
static const int32_t types[] = { TESS_I8, TESS_U8,  TESS_I32, 0,        TESS_I64,
	                         0,       TESS_F16, TESS_F32, TESS_F64, TESS_BF16 };
static const int32_t operations[] = { TESS_SUM, TESS_PROD, TESS_MAX, TESS_MIN };

static void add_transfer(struct transfers *t, void *at, size_t bytes)
{
	t->list = realloc(t->list, (size_t)(t->n + 1) * sizeof *t->list);
	t->list[t->n++] = (struct transfer){ at, bytes };
}

static bool reads_root(const struct call *k, int from, int to)
{
	return k->kind == REDUCE ? to == k->peer : k->kind == BROADCAST ? from == k->peer : true;
}

/* Plans the transfers of one call; temp: [n] vectors that will be reduced. */
static void plan_call(const struct comm *c, const struct call *k, char *temp,
                      struct transfers out[RANKS], struct transfers in[RANKS])
{
	size_t bytes = k->count * k->width;

	for (int r = 0; r < c->n; r++) {
		size_t at = (size_t)r * bytes;

		if (k->kind == SEND && r == k->peer)
			add_transfer(&out[r], k->src, bytes);
		if (k->kind == RECV && r == k->peer)
			add_transfer(&in[r], k->dst, bytes);
		if (k->kind >= SEND || r == c->rank)
			continue;
		if (reads_root(k, c->rank, r))
			add_transfer(&out[r], k->src + (k->kind == REDUCE_SCATTER ? at : 0), bytes);
		if (reads_root(k, r, c->rank))
			add_transfer(&in[r],
			             k->kind == BROADCAST    ? k->dst
			             : k->kind == ALL_GATHER ? k->dst + at
			                                     : temp + at,
			             bytes);
	}
}

/* Moves all bytes that can move now; returns whether any did. */
static bool move_bytes(struct ring *ring, struct transfers *t, bool write)
{
	bool moved = false;

	while (t->at < t->n) {
		struct transfer *one = &t->list[t->at];
		uint64_t written = atomic_load(&ring->written), read = atomic_load(&ring->read);
		uint64_t at = (write ? written : read) % RING,
			 room = write ? RING - (written - read) : written - read;

		if (!one->left) {
			t->at++;
			continue;
		}
		if (room > one->left)
			room = one->left;
		if (room > RING - at)
			room = RING - at;
		if (!room)
			break;
		memcpy(write ? ring->bytes + at : one->at, write ? one->at : ring->bytes + at,
		       room);
		atomic_fetch_add(write ? &ring->written : &ring->read, room);
		one->at += room;
		one->left -= room;
		moved = true;
	}
	return moved;
}

/* Exchanges the bytes; false: the communicator was aborted. */
static bool exchange_bytes(struct comm *c, struct transfers out[RANKS], struct transfers in[RANKS])
{
	const struct timespec pause = { .tv_nsec = 20000 };
	bool more = true;

	for (int idle = 0; more; idle++) {
		more = false;
		for (int r = 0; r < c->n; r++) {
			if (move_bytes(&c->shared->ring[c->rank][r], &out[r], true) ||
			    move_bytes(&c->shared->ring[r][c->rank], &in[r], false))
				idle = 0;
			more = more || out[r].at < out[r].n || in[r].at < in[r].n;
		}
		if (atomic_load(&c->aborted))
			return false;
		if (more && idle > 50)
			nanosleep(&pause, NULL);
		else if (more)
			sched_yield();
	}
	return true;
}

static void finish_call(const struct comm *c, const struct call *k, char *temp)
{
	size_t bytes = k->count * k->width, at = (size_t)c->rank * bytes;
	char *own = k->kind == REDUCE_SCATTER ? k->src + at : k->src;
	const void *part[RANKS];

	for (int r = 0; r < c->n; r++)
		part[r] = r == c->rank ? own : temp + (size_t)r * bytes;
	if (k->kind == ALL_REDUCE || k->kind == REDUCE_SCATTER ||
	    (k->kind == REDUCE && k->peer == c->rank))
		tess_reduce(types[k->dtype], operations[k->op], part, c->n, k->count, k->dst);
	else if (k->kind == BROADCAST && k->peer == c->rank)
		memmove(k->dst, k->src, bytes);
	else if (k->kind == ALL_GATHER)
		memmove(k->dst + at, k->src, bytes);
}

static void free_calls(void *arg)
{
	struct group *g = arg;

	if (g->captured)
		atomic_fetch_sub(&g->comm->graphs, 1);
	for (struct call *k = g->first, *next; k; k = next) {
		next = k->next;
		free(k);
	}
	drop_comm(g->comm);
	free(g);
}

static bool should_fail(const struct comm *c, int *result)
{
	const char *fails = getenv("FAKE_NCCL_FAILS");
	int rank, group, code;
	bool now = fails && sscanf(fails, "%d %d %d", &rank, &group, &code) == 3 &&
	           rank == c->rank && c->groups >= group;

	if (now)
		*result = code;
	return now;
}

static void run_group(void *arg)
{
	struct group *g = arg;
	struct comm *c = g->comm;
	struct transfers out[RANKS] = { 0 }, in[RANKS] = { 0 };
	size_t bytes = 1, at = 0;
	char *temp;
	bool done;
	int result;

	if (g->captured && ++c->groups && should_fail(c, &result)) {
		c->result = result;
		while (!atomic_load(&c->aborted)) /* like a kernel of NCCL */
			usleep(1000);
		return;
	}
	while (!g->captured && atomic_load(&c->ran) < g->number && !atomic_load(&c->aborted))
		usleep(20);
	for (struct call *k = g->first; k; k = k->next)
		bytes += k->kind < SEND ? (size_t)c->n * k->count * k->width : 0;
	temp = malloc(bytes);
	for (struct call *k = g->first; k; k = k->next) {
		plan_call(c, k, temp + at, out, in);
		at += k->kind < SEND ? (size_t)c->n * k->count * k->width : 0;
	}
	done = exchange_bytes(c, out, in);
	at = 0;
	for (struct call *k = g->first; k && done; k = k->next) {
		finish_call(c, k, temp + at);
		at += k->kind < SEND ? (size_t)c->n * k->count * k->width : 0;
	}
	for (int r = 0; r < RANKS; r++) {
		free(out[r].list);
		free(in[r].list);
	}
	free(temp);
	if (g->captured)
		return;
	atomic_fetch_add(&c->ran, 1);
	free_calls(g);
}

static int capture_group(struct comm *c, struct group *g)
{
	g->captured = true;
	atomic_fetch_add(&c->graphs, 1);
	log_call("capture", c->rank);
	return fake_queue(g->first->stream, run_group, g) ? CUDA_ERROR : SUCCESS;
}

static int queue_calls(struct comm *c, struct group *g)
{
	g->number = atomic_fetch_add(&c->queued, 1);
	return fake_queue(g->first->stream, run_group, g) ? CUDA_ERROR : SUCCESS;
}

/* Puts the group of calls onto its stream. */
static void queue_group(struct comm *c)
{
	struct group *g = c->starting;

	int result = SUCCESS;

	c->starting = NULL;
	atomic_fetch_add(&c->users, 1);
	if (should_fail(c, &result) || atomic_load(&c->aborted))
		free_calls(g);
	else if (fake_retain(g->first->stream, free_calls, g))
		result = capture_group(c, g);
	else
		result = queue_calls(c, g);
	c->result = result;
	c->phase = NONE;
}

/* Queues a group in a thread, like NCCL for a communicator that does not block. */
static void *queue_group_later(void *arg)
{
	struct comm *c = arg;
	const struct timespec pause = { .tv_nsec = 20000 * c->polls };

	nanosleep(&pause, NULL);
	queue_group(c);
	return NULL;
}

/* ---- groups of calls ------------------------------------------------------------------------- */

static _Thread_local int depth;
static _Thread_local struct group *collected;

CALL int ncclGroupStart(void)
{
	depth++;
	return SUCCESS;
}

CALL int ncclGroupEnd(void)
{
	struct group *g = collected;
	struct comm *c;

	if (!depth || --depth || !g)
		return depth || !g ? SUCCESS : USAGE;
	collected = NULL;
	c = g->comm;
	if (c->phase != NONE || c->result)
		return ARGUMENT; /* the last call is still in progress */
	log_call("group", c->rank);
	if (c->registered)
		log_call("known", c->rank);
	join_starter(c);
	c->groups++;
	c->starting = g;
	c->phase = STARTING;
	c->polls = read_setting("FAKE_NCCL_POLLS", 2);
	if (!c->polls) {
		queue_group(c);
		return c->result;
	}
	if (pthread_create(&c->starter, NULL, queue_group_later, c))
		return SYSTEM_ERROR;
	c->has_starter = true;
	return IN_PROGRESS;
}

static int collect_call(struct comm *c, const struct call *call, void *stream)
{
	struct call *k;
	bool writes = call->kind != SEND && (call->kind != REDUCE || call->peer == c->rank);
	bool reads = call->kind != RECV && (call->kind != BROADCAST || call->peer == c->rank);

	if (!c || !depth || fake_current_device() != c->device || c->phase == JOINING)
		return USAGE;
	if (!call->count)
		return SUCCESS;
	if (!collected) {
		collected = calloc(1, sizeof *collected);
		collected->comm = c;
		collected->last = &collected->first;
	}
	k = malloc(sizeof *k);
	*k = *call;
	k->next = NULL;
	k->width = widths[k->dtype];
	k->stream = stream;
	k->src = reads ? fake_translate(stream, call->src) : NULL;
	k->dst = writes ? fake_translate(stream, call->dst) : NULL;
	*collected->last = k;
	collected->last = &k->next;
	return (reads && !k->src) || (writes && !k->dst) || collected->comm != c ? ARGUMENT
	                                                                         : SUCCESS;
}

#define POINTER(p) ((char *)(uintptr_t)(p))

CALL int ncclAllReduce(const void *src, void *dst, size_t n, int dtype, int op, void *comm,
                       void *stream)
{
	return collect_call(comm,
	                    &(struct call){ .kind = ALL_REDUCE,
	                                    .src = POINTER(src),
	                                    .dst = dst,
	                                    .count = n,
	                                    .dtype = dtype,
	                                    .op = op },
	                    stream);
}

CALL int ncclReduce(const void *src, void *dst, size_t n, int dtype, int op, int root, void *comm,
                    void *stream)
{
	return collect_call(comm,
	                    &(struct call){ .kind = REDUCE,
	                                    .src = POINTER(src),
	                                    .dst = dst,
	                                    .count = n,
	                                    .dtype = dtype,
	                                    .op = op,
	                                    .peer = root },
	                    stream);
}

CALL int ncclBroadcast(const void *src, void *dst, size_t n, int dtype, int root, void *comm,
                       void *stream)
{
	return collect_call(comm,
	                    &(struct call){ .kind = BROADCAST,
	                                    .src = POINTER(src),
	                                    .dst = dst,
	                                    .count = n,
	                                    .dtype = dtype,
	                                    .peer = root },
	                    stream);
}

CALL int ncclAllGather(const void *src, void *dst, size_t n, int dtype, void *comm, void *stream)
{
	return collect_call(comm,
	                    &(struct call){ .kind = ALL_GATHER,
	                                    .src = POINTER(src),
	                                    .dst = dst,
	                                    .count = n,
	                                    .dtype = dtype },
	                    stream);
}

CALL int ncclReduceScatter(const void *src, void *dst, size_t n, int dtype, int op, void *comm,
                           void *stream)
{
	return collect_call(comm,
	                    &(struct call){ .kind = REDUCE_SCATTER,
	                                    .src = POINTER(src),
	                                    .dst = dst,
	                                    .count = n,
	                                    .dtype = dtype,
	                                    .op = op },
	                    stream);
}

CALL int ncclSend(const void *src, size_t n, int dtype, int peer, void *comm, void *stream)
{
	return collect_call(comm,
	                    &(struct call){ .kind = SEND,
	                                    .src = POINTER(src),
	                                    .count = n,
	                                    .dtype = dtype,
	                                    .peer = peer },
	                    stream);
}

CALL int ncclRecv(void *dst, size_t n, int dtype, int peer, void *comm, void *stream)
{
	return collect_call(
		comm,
		&(struct call){
			.kind = RECV, .dst = dst, .count = n, .dtype = dtype, .peer = peer },
		stream);
}

/* ---- communicators --------------------------------------------------------------------------- */

CALL int ncclGetUniqueId(struct id *id)
{
	memset(id, 0, sizeof *id);
	id->pid = getpid();
	id->fd = make_shared();
	log_call(getenv("NCCL_SOCKET_IFNAME") ? getenv("NCCL_SOCKET_IFNAME") : "no interface", 0);
	return id->fd < 0 ? SYSTEM_ERROR : SUCCESS;
}

static struct comm *make_member(int pid, int fd, int rank, int n)
{
	struct comm *c = calloc(1, sizeof *c);

	c->shared = map_shared(pid, fd);
	if (!c->shared) {
		free(c);
		return NULL;
	}
	atomic_store(&c->users, 1);
	c->rank = rank;
	c->n = n;
	c->fd = rank ? -1 : fd; /* closed by its maker when all have joined */
	c->device = fake_current_device();
	c->phase = JOINING;
	c->polls = read_setting("FAKE_NCCL_POLLS", 2);
	atomic_store(&c->shared->device[rank], c->device + 1);
	atomic_fetch_add(&c->shared->joined, 1);
	return c;
}

CALL int ncclCommInitRankConfig(struct comm **out, int n, struct id id, int rank,
                                const struct config *config)
{
	if (config->magic != (unsigned)MAGIC || config->blocking || rank < 0 || rank >= n ||
	    n > RANKS || fake_current_device() < 0)
		return ARGUMENT;
	*out = make_member(id.pid, id.fd, rank, n);
	log_call("init", rank);
	return *out ? IN_PROGRESS : SYSTEM_ERROR;
}

static int check_devices(const struct comm *c)
{
	const char *shares = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
	int version;

	ncclGetVersion(&version);
	for (int r = 0; r < c->n; r++)
		for (int q = 0; q < r; q++)
			if (c->shared->device[r] == c->shared->device[q] &&
			    (version < 23000 || !shares || strcmp(shares, "1")))
				return USAGE; /* "Duplicate GPU detected" */
	return SUCCESS;
}

static void join_comm(struct comm *c)
{
	if (atomic_load(&c->shared->joined) < c->n || --c->polls > 0)
		return;
	c->phase = NONE;
	c->result = check_devices(c);
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
}

CALL int ncclCommSplit(struct comm *c, int colour, int key, struct comm **out,
                       const struct config *config)
{
	uint64_t i = c->splits++ % SPLITS;

	if (config->magic != (unsigned)MAGIC || config->blocking || c->phase != NONE)
		return ARGUMENT;
	log_call("split", c->rank);
	*out = NULL;
	c->child = out;
	c->colour = colour;
	c->key = key;
	c->shared->split[i].colour[c->rank] = colour;
	c->shared->split[i].key[c->rank] = key;
	if (read_setting("FAKE_NCCL_NO_SPLIT", -1) != c->rank)
		atomic_fetch_add(&c->shared->split[i].set, 1);
	c->phase = SPLITTING;
	return IN_PROGRESS;
}

/* Answers when all ranks have split: the first rank of a colour makes its memory. */
static void answer_split(struct comm *c)
{
	uint64_t i = (c->splits - 1) % SPLITS;
	int rank = 0, n = 0, first = c->rank;

	if (atomic_load(&c->shared->split[i].set) < c->n)
		return;
	for (int r = 0; r < c->n; r++) {
		if (c->shared->split[i].colour[r] != c->colour)
			continue;
		n++;
		rank += c->shared->split[i].key[r] < c->key;
		if (c->shared->split[i].key[r] < c->shared->split[i].key[first])
			first = r;
	}
	if (!rank && !c->shared->split[i].pid[first]) {
		c->shared->split[i].fd[first] = make_shared();
		c->shared->split[i].pid[first] = getpid();
	}
	if (!c->shared->split[i].pid[first])
		return;
	*c->child =
		make_member(c->shared->split[i].pid[first], c->shared->split[i].fd[first], rank, n);
	c->phase = NONE;
}

CALL int ncclCommGetAsyncError(struct comm *c, int *result)
{
	if (fake_current_device() != c->device)
		return CUDA_ERROR;
	if (c->phase == JOINING)
		join_comm(c);
	else if (c->phase == SPLITTING)
		answer_split(c);
	else if (c->phase == FINALIZING && atomic_load(&c->shared->finished) == c->n &&
	         atomic_load(&c->users) == 1)
		c->phase = NONE;
	*result = c->result ? c->result : c->phase ? IN_PROGRESS : SUCCESS;
	return SUCCESS;
}

CALL int ncclCommFinalize(struct comm *c)
{
	if (c->phase != NONE)
		return ARGUMENT;
	log_call("finalize", c->rank);
	atomic_fetch_add(&c->shared->finished, 1);
	c->phase = FINALIZING;
	return IN_PROGRESS;
}

CALL int ncclCommDestroy(struct comm *c)
{
	log_call("destroy", c->rank);
	if (c->phase != NONE)
		return USAGE;
	join_starter(c);
	drop_comm(c);
	return SUCCESS;
}

/* Fails a split like NCCL's thread: the child exists, failed, and the program ends it. */
static void fail_split(struct comm *c)
{
	int fd = make_shared();

	*c->child = make_member(getpid(), fd, c->rank, c->n);
	close(fd);
	(*c->child)->fd = -1;
	(*c->child)->result = INTERNAL;
	c->phase = NONE;
}

CALL int ncclCommAbort(struct comm *c)
{
	log_call("abort", c->rank);
	if (fake_current_device() != c->device)
		log_call("elsewhere", c->rank); /* NCCL would make a context on device 0 */
	atomic_store(&c->aborted, true);
	if (c->phase == SPLITTING)
		fail_split(c);
	if (c->fd >= 0)
		close(c->fd);
	join_starter(c);
	while (atomic_load(&c->graphs))
		usleep(1000);
	log_call("ended", c->rank);
	drop_comm(c);
	return SUCCESS;
}

/* ---- memory ---------------------------------------------------------------------------------- */

CALL int ncclMemAlloc(void **p, size_t bytes)
{
	*p = fake_allocate(bytes);
	return *p ? SUCCESS : SYSTEM_ERROR;
}

CALL int ncclMemFree(void *p)
{
	fake_release(p);
	return SUCCESS;
}

CALL int ncclCommRegister(struct comm *c, void *p, size_t bytes, void **handle)
{
	log_call("register", c->rank);
	if (read_setting("FAKE_NCCL_NO_REGISTER", -1) == c->rank)
		return SYSTEM_ERROR;
	*handle = p;
	c->registered++;
	return p && bytes ? SUCCESS : ARGUMENT;
}

CALL int ncclCommDeregister(struct comm *c, void *handle)
{
	log_call(c->phase == NONE ? "deregister" : "early", c->rank);
	c->registered--;
	return handle ? SUCCESS : ARGUMENT;
}
