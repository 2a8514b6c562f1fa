/* group.h - the inside of a group, and of a work: a call that is under way in it. */
#ifndef TESS_GROUP_GROUP_H
#define TESS_GROUP_GROUP_H

#include "call_shape.h"
#include "core/base/ticks.h"
#include "core/registry/returned.h"
#include "shared_region.h"
#include "world.h"

#include <tessera/stream.h>

struct tess_group {
	struct tess_group *next; /* the world's */
	struct tess_world *world;
	const struct tess_backend *backend;
	void *self; /* the backend's; NULL: one rank, which needs none */
	void *p2p_channel; /* a second one, for what is made of messages: they must not meet the program's */
	int32_t rank, size;
	struct tess_members *members;
	char key[TESS_MEMBERS_KEY]; /* its name, unique in the job */
	uint64_t calls; /* collectives so far */
	uint64_t *sent, *received; /* messages to and from each rank so far */
	struct tess_ticks ticks; /* the time, for each call */
	struct tess_call_shape
		shape[TESS_RECV + 1]; /* of the last call of each kind that had no lists */
	struct tess_call_desc *desc; /* of the last call */
	const struct tess_call_shape *described; /* of which shape it is; NULL: not known */
	bool unreported; /* nobody was told of it */
	int64_t report_at; /* when somebody is to be told of a call again */
	struct tess_work *live, *spare;
	float *scratch; /* of exact sums, kept between them */
	size_t scratch_bytes;
	void *lists; /* the same: entries for each rank */
	struct tess_store_policy store_policy[TESS_STORE_POLICIES]; /* of exact sums in rooms */
	struct tess_shared_region *regions; /* memory that all its ranks address */
	int64_t nregions; /* so far */
};

struct tess_work_call { /* of a batch */
	struct tess_coll coll;
	struct tess_call_key key;
	uint64_t flight;
	bool unreported; /* the others do not know of it */
};

struct tess_work {
	struct tess_work *next;
	struct tess_group *group;
	struct tess_coll coll; /* complete; what the backend was given */
	struct tess_call_key key;
	void *work; /* the backend's */
	struct tess_emulation *emulation; /* instead, where the backend lacks what it is */
	uint64_t flight; /* its number in the recorder */
	struct tess_work_call *batch; /* its calls; `coll`: the first, the earliest deadline */
	uint32_t n; /* of them */
	int64_t report_at; /* from when on the others are told where this rank is; 0: they were */
	tess_status state; /* PENDING, OK or failed */
};

/* The group of all ranks. Collective. */
tess_status tess_group_open_all(struct tess_world *w, struct tess_group **out);
/* Waits for what is under way, as other ranks may need this rank for it; returns at once after a failure. */
void tess_group_finish(struct tess_group *g);
/* Makes all that waits in the group return soon. From any thread. */
void tess_group_abort(struct tess_group *g);

/* What a function of the group's backend has returned, judged. */
static inline tess_status tess_group_judge(const struct tess_group *g, const char *function,
                                           const char *where, tess_status st)
{
	return tess_plugin_check_returned(g->backend, g->backend->name, function, where, st);
}

/*
 * One wait in `self`, one of the backend's groups; it returns soon after a failure of the world. TESS_ETIMEOUT: the
 * deadline has passed.
 */
static inline tess_status tess_group_wait_work(const struct tess_group *g, void *self, void *work,
                                               int64_t deadline)
{
	tess_status st = g->backend->wait(self, work, deadline);

	return st == TESS_PENDING || st == TESS_ETIMEOUT ? TESS_ETIMEOUT
	                                                 : tess_group_judge(g, "wait", NULL, st);
}

#endif
