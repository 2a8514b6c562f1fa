/* loopback.h - the room where the ranks of a group, threads of one process, meet. */
#ifndef LOOPBACK_H
#define LOOPBACK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <tessera/group.h>

enum { GATHERING, MOVING, DONE };

extern const struct tess_host *loopback_host;

struct work {
	uint32_t n; /* calls of a batch (batch.c); 0: a meet */
};

/*
 * One call. The last rank that comes starts the move; ranks that wait help with it, a piece at a
 * time.
 */
struct meet {
	struct work work;
	struct meet *next;
	struct room *room;
	uint64_t number; /* of the call, or of the message from `from` to `to` */
	int32_t from, to; /* -1: a collective */
	int32_t expected, arrived, released;
	int32_t pieces, taken, moved;
	atomic_int state;
	pthread_cond_t changed;
	struct tess_coll *call; /* [rank]; kind 0: has not come */
};

/* What a call has that decides where its blocks lie. All ranks' calls have been compared. */
void loopback_move(const struct meet *m, int32_t nranks, int32_t piece);
/* Elements that are moved in all, for the number of pieces. */
uint64_t loopback_bytes(const struct meet *m, int32_t nranks);

/* NULL: `b` of rank rb fits `a` of rank ra; else what does not: "kind", "dtype", "count" ... */
const char *loopback_differ(const struct tess_coll *a, int32_t ra, const struct tess_coll *b,
                            int32_t rb, int32_t nranks);
/* "all_reduce of 4 f32 at layers.3"; world: the world rank of each rank */
void loopback_describe(const struct tess_coll *c, const int32_t *world, char *text, size_t room);

tess_status loopback_start(void *self, const struct tess_coll *c, void **work);
tess_status loopback_test(void *self, void *work);
tess_status loopback_wait(void *self, void *work, int64_t deadline);
void loopback_release(void *self, void *work);

tess_status loopback_batch(void *self, const struct tess_coll *const *c, uint32_t n, void **work);
tess_status loopback_batch_test(void *self, struct work *work);
tess_status loopback_batch_wait(void *self, struct work *work, int64_t deadline);
void loopback_batch_release(void *self, struct work *work);

#endif
