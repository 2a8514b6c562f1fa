/*
 * shm.h - what the ranks of a group share, and what a rank keeps for itself.
 *
 * A collective is a number of rounds. In a round every rank puts up a notice, with its data beside
 * it, waits for the notices of all, and reads what it needs of the others' data. Notices are there
 * twice and take turns by the parity of the round: whoever has seen all notices of round n + 1
 * knows that every rank is done with reading round n, and may write what belongs to round n + 2. So
 * a small collective is one round, nothing is ever handed back, and all that happens between two
 * ranks is one store and one load. Slots take turns as well, but there are many: when one comes
 * again it has left the caches of its readers, from where lines are dear to take back.
 *
 * Buffers in memory from alloc() are read and written where they are: one round to say where, the
 * work, and one round to say that it is done. Other buffers go through the slots, a chunk each
 * round.
 */
#ifndef SHM_H
#define SHM_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>
#include <tessera/reduce.h>
#include <tessera/stream.h>

enum {
	RANKS_MOST = 64,
	TABLE = RANKS_MOST * 16, /* bytes of a slot where all_to_all says how its blocks lie */
	CHUNK = 32 << 10, /* bytes of a slot for data: few, so that they are read while near */
	CHUNK_LARGE = 128 << 10, /* where a round costs more: many ranks, or turns on the CPU */
	FEW_RANKS = 4,
	SLOTS = 2 << 20, /* bytes of data in all slots of a rank */
	FEW = 4 << 10, /* bytes of a call whose lines stay near with any number of slots */
	PIECE = 32 << 10, /* bytes of a message that are under way at once, twice */
	INLINE = 40, /* bytes of data that fit into the notice */
	WHERE = 104
};

/* ---- shared ---------------------------------------------------------------------------------- */

/* Memory that all ranks see; room 0: none. */
struct ref {
	uint32_t room, zero;
	uint64_t at;
};

enum { DIRECT = 1, FILLED = 2 };

struct notice { /* one cache line */
	_Atomic uint64_t round; /* written last: what it is for, and that the rest is there */
	uint64_t print;
	uint32_t able; /* DIRECT: buffers may be used as they lie; FILLED: chunk 0 is in the slot */
	uint32_t need; /* chunks that it has to move */
	union {
		struct {
			struct ref src, dst;
		} at;
		char data[INLINE];
	};
};

struct card { /* the call in words, for the others' error messages; it may come after the notice */
	_Atomic uint64_t round; /* written last */
	int32_t kind, dtype, op, peer;
	uint64_t count;
	char where[WHERE];
};

struct seat { /* of one rank; written by it alone, but for the bell */
	alignas(128) _Atomic uint32_t bell;
	_Atomic uint32_t asleep;
	_Atomic int32_t cpu; /* the last it was on, plus 1, where there are more ranks than CPUs */
	alignas(128) struct notice notice[2];
	alignas(128) struct card card[2];
};

struct piece {
	uint64_t print, total, len;
};

struct pair { /* messages from one rank to another */
	alignas(64) _Atomic uint64_t sent; /* pieces; written by the sender */
	alignas(64) _Atomic uint64_t taken; /* pieces; written by the receiver */
	alignas(64) struct piece piece[2];
	struct card card[2]; /* with the first piece of a message */
	char data[2][PIECE];
};

struct hall { /* the segment begins with it */
	unsigned char token[16];
	int32_t cpus; /* that all ranks together may run on */
	alignas(128) _Atomic uint32_t sleepers;
	alignas(128) struct seat seat[];
};

/* ---- of one rank ----------------------------------------------------------------------------- */

struct map { /* shared memory as this process sees it; its ranks share it */
	struct map *next; /* of the process; under their lock, with users */
	char *base;
	size_t bytes;
	int32_t users;
};

struct room { /* from alloc: `bytes` for each rank, `stride` apart */
	struct room *next;
	struct map *map;
	uint32_t id;
	uint64_t bytes, stride;
};

struct work {
	struct work *next; /* in its queue, or spare */
	struct work *all; /* of the group */
	struct tess_coll c;
	size_t width;
	uint64_t bytes; /* of all blocks */
	uint64_t chunk; /* elements, of each block, that go in one round */
	uint64_t round, rounds; /* done; in all, known after the first */
	uint64_t skip; /* rounds before the first chunk */
	uint32_t able, need; /* the weakest and the largest of all ranks */
	bool small; /* one round does it all (small.c) */
	bool inlined; /* of a call that is not small: the data are in the notice */
	bool few; /* they are so small, on all ranks alike, that two slots do */
	bool shares; /* every rank adds its share of a chunk; the sums follow a round later */
	bool posted, done;
	uint64_t moved; /* of a message: elements so far */
};

struct queue {
	struct work *head, *tail;
	uint64_t pieces; /* of messages, so far */
};

struct group {
	const struct tess_host *host;
	char *name;
	int32_t rank, nranks;
	int32_t *world;
	struct map *map;
	struct hall *hall;
	int *line; /* sockets, by rank; -1: none. Descriptors of rooms come over them */
	struct room *rooms;
	uint32_t nrooms; /* so far */
	int64_t timeout; /* of alloc: as much as open had */

	uint64_t round; /* the one that is run now */
	int32_t seen; /* ranks whose notice of this round is there */
	struct queue calls, *out, *in; /* collectives; messages to and from each rank */
	int32_t messages;
	struct work *works, *spare;
	uint64_t moves; /* counts whatever goes on */
	bool unrung; /* something was put up since the bells were rung */
	bool fenced; /* by those who fall asleep */
	int32_t spin; /* turns of a wait before it gives up the CPU; 0: others wait for it */
	int32_t cpu; /* as its seat says */
	struct tess_store_policy direct[TESS_STORE_POLICIES], shares[TESS_STORE_POLICIES]; /* of sums in place, in slots */
	struct tess_store_policy fills[TESS_STORE_POLICIES]; /* of slots */
	bool filling; /* the slots have their pages */
	uint64_t chunk, slots; /* bytes of data in a slot; how many a rank has */
	char *slot; /* the first of all */
	uint64_t small; /* bytes up to which one round through slots is faster than two in place */
	atomic_bool aborted;
	tess_status failed;
	char why[512];
};

static inline struct seat *seat_of(const struct group *g, int32_t r)
{
	return &g->hall->seat[r];
}

static inline struct notice *notice_of(const struct group *g, int32_t r, uint64_t round)
{
	return &seat_of(g, r)->notice[round & 1];
}

/* ---- line.c: sockets between rank 0 and the others, over which descriptors go ---------------- */
enum { CALLERS = 128 };
struct callers { /* of our user, who have not said who they are */
	int fd[CALLERS], n;
};
struct address { /* what rank 0 says in the store */
	int64_t pid;
	unsigned char process[16], token[16];
	struct map *map; /* for threads of this process */
	char name[40]; /* of the socket, behind a 0 */
};

tess_status line_listen(const struct group *g, const char *name, int *out);
tess_status line_call(struct group *g, const struct address *a, int64_t deadline);
/* Takes all calls that are there: strangers must not fill the queue in which ranks wait. */
void line_answer(struct group *g, int ear, struct callers *c, const struct address *a);
void line_hang_up(struct callers *c);
tess_status line_give(const struct group *g, int32_t r, int fd);
/* What rank 0 has given, of `bytes`: it is there already. */
tess_status line_take(const struct group *g, size_t bytes, int *out);

/* ---- segment.c: shared memory ---------------------------------------------------------------- */
/* A file of a size that nobody can change. Its pages come when they are written. */
tess_status segment_file(const struct group *g, size_t bytes, int *out);
tess_status segment_map(const struct group *g, int fd, size_t bytes, struct map **out);
/* The map of another rank of this process, if it is still there. */
tess_status segment_share(const struct group *g, struct map *theirs, struct map **out);
void segment_unmap(struct map *m);
/* Small calls take turns with two, all others with the rest. */
static inline char *segment_slot(const struct group *g, int32_t r, uint64_t round, bool few)
{
	uint64_t slot = few ? round % 2 : 2 + round % (g->slots - 2);

	return g->slot + ((size_t)r * g->slots + slot) * (TABLE + g->chunk);
}
/* This rank's slots are about to be filled. */
void segment_touch(struct group *g);
struct pair *segment_pair(const struct group *g, int32_t from, int32_t to);
/* Enters the hall of a group: made by rank 0, then handed to the others. */
tess_status segment_enter(struct group *g, const struct tess_join *how,
                          const unsigned char *process);
void segment_leave(struct group *g);

/* ---- room.c ---------------------------------------------------------------------------------- */
tess_status room_alloc(struct group *g, uint64_t bytes, void **mine, void **peers);
void room_free(struct group *g, void *mine);
/* Where `bytes` at `p` lie, if in memory that all see. */
struct ref room_find(const struct group *g, const void *p, uint64_t bytes);
/* What rank r means by it; NULL: it names no such memory. */
char *room_at(const struct group *g, int32_t r, struct ref at, uint64_t bytes);

/* ---- bell.c: waiting ------------------------------------------------------------------------- */
int64_t bell_now(void);
/* Whether sleepers will fence this process, which need not do it then. */
bool bell_fenced(void);
/* Between two looks: who asks for a line all the time keeps it from its writer. */
static inline void bell_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb");
#endif
}
void bell_wake(struct group *g);
/*
 * After something was put up, before this rank does anything else for long: wakes those who sleep.
 */
static inline void bell_ring(struct group *g)
{
	if (!g->unrung)
		return;
	atomic_signal_fence(memory_order_seq_cst);
	if (!g->fenced || atomic_load_explicit(&g->hall->sleepers, memory_order_relaxed))
		bell_wake(g);
	g->unrung = false;
}
/* Before a notice is put up: who waits for it may want to know from where it comes. */
void bell_place(struct group *g);
/*
 * One step of a wait, zeroed before the first; the longer the later. False: the deadline has
 * passed.
 */
struct pause {
	int32_t turn;
	int64_t since;
	uint64_t moves;
};
bool bell_pause(struct group *g, struct pause *p, int64_t deadline);
void bell_abort(struct group *g);

/* ---- work.c: what is under way; collectives as rounds ---------------------------------------- */
/* up: it is small, and its notice is there already. */
tess_status work_start(struct group *g, const struct tess_coll *c, bool up, struct work **out);
tess_status work_test(struct group *g, struct work *w);
tess_status work_wait(struct group *g, struct work *w, int64_t deadline);
void work_release(struct group *g, struct work *w);
void work_clear(struct group *g);
/* One step of all that is under way: TESS_OK, or the group has failed. */
tess_status work_progress(struct group *g);
/* The group's first failure, which this is if there was none. */
tess_status work_fail(struct group *g, tess_status why, const char *fmt, ...) TESS_PRINTF(3, 4);
void work_card(const struct tess_coll *c, struct card *out);
/* Writes this rank's card of this round. */
void work_introduce(struct group *g, const struct tess_coll *c);
tess_status work_differ(struct group *g, const struct work *w, int32_t r,
                        const struct card *theirs);

/* ---- small.c: calls of one round ------------------------------------------------------------- */
/* Whether the call is one; all ranks agree. */
bool small_plan(const struct group *g, const struct tess_coll *c, uint64_t *bytes);
void small_post(struct group *g, const struct tess_coll *c, uint64_t bytes);
/* When all notices are there. */
void small_take(const struct group *g, const struct tess_coll *c, uint64_t bytes);
/* tess_backend.run */
tess_status small_run(void *self, const struct tess_coll *c, int32_t (*meanwhile)(void *arg),
                      void *arg, void **work);

/* ---- kind.c: what each kind puts into slots and takes out of them ---------------------------- */
void kind_plan(const struct group *g, struct work *w);
/* Whether this rank puts anything into its slot. */
bool kind_gives(const struct group *g, const struct work *w);
/*
 * Chunk `k`: before this round's notice, and after all notices are there. After the last one the
 * sums come in.
 */
void kind_fill(struct group *g, const struct work *w, uint64_t k);
void kind_drain(struct group *g, const struct work *w, uint64_t k);
/* What a rank gives itself. */
void kind_keep(const struct group *g, const struct work *w);
uint64_t kind_block(const struct work *w, const uint64_t *list, int32_t r);
uint64_t kind_begin(const struct work *w, const uint64_t *list, int32_t r);
/* all_to_all with lists: what each rank says of the blocks that it gives. */
struct lie {
	uint64_t begin, count;
};
void kind_lies(const struct group *g, const struct work *w);
/* Rank r's block for this one. */
struct lie kind_lie(const struct group *g, const struct work *w, int32_t r);
/* A block of another length than expected is a mismatch. */
tess_status kind_compare(struct group *g, const struct work *w);

/* ---- direct.c: in memory that all see -------------------------------------------------------- */
/* The refs of this rank's notice; whether its buffers can be used as they lie. */
bool direct_offer(const struct group *g, const struct work *w, struct ref *src, struct ref *dst);
tess_status direct_move(struct group *g, const struct work *w);

/* ---- sum.c ----------------------------------------------------------------------------------- */
/*
 * `n` elements of each, in order of src, to every dst. dst[0] is this rank's own and may be one of
 * src; the others have been read by other ranks, who may be told after tess_stream_end, and are
 * written at `pace` (NULL: past the caches).
 */
void sum_to(int32_t dtype, int32_t op, const void *const *src, int32_t nsrc, uint64_t n,
            void *const *dst, int32_t ndst, struct tess_store_policy *pace);

/* ---- message.c: send and recv ---------------------------------------------------------------- */
tess_status message_progress(struct group *g);

#endif
