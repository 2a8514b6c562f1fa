/* group.h - the internals of a group and of a work, a pending call. */
#ifndef TESS_GROUP_GROUP_H
#define TESS_GROUP_GROUP_H

#include "core/registry/plugin_call.h"
#include "core/world/world.h"

#include <tessera/names.h>

struct tess_carrier { /* a backend that moves the memory of a call */
	const struct tess_backend *backend;
	void *self; /* its group; NULL: none */
};

struct tess_group {
	struct tess_group *next; /* in the world */
	struct tess_world *world;
	const struct tess_backend *backend;
	void *self; /* the backend's group; NULL: a split group of one rank */
	void *p2p_channel; /* a second group for messages of emulated calls; NULL: not needed */
	const char *owner; /* the object that closes it, "world" or "mesh"; NULL: the program */
	int32_t rank, size;
	struct tess_members *members;
	char key[TESS_MEMBERS_KEY]; /* name, unique in the job */
	uint64_t calls; /* number of collectives */
	uint64_t *sent, *received; /* number of messages to and from each rank */
	struct tess_call_desc *desc; /* the last call */
	bool unreported; /* `desc` is */
	int64_t report_at; /* time to report the next call */
	struct tess_work *live, *spare;
	struct tess_sum_work *sums, *idle_sums; /* exact: under way, oldest first; for later */
	struct tess_shared_region *regions; /* newest first */
	int64_t nregions; /* so far, for ids */
	const struct tess_device *device; /* whose memory calls may use (carrier.h), or NULL */
	void *device_self;
	struct tess_carrier carrier; /* moves the device's memory; the backend moves the host's */
	int32_t ncarriers; /* number of carriers so far, for names */
	int32_t nqueued; /* works ordered by the device's streams */
	float *staging; /* host memory for exact sums of the device's memory, reused */
	size_t staging_bytes;
};

struct tess_work_call { /* of a batch */
	struct tess_coll coll;
	struct tess_call_key key;
	uint64_t flight;
	bool unreported;
};

struct tess_work {
	struct tess_work *next;
	struct tess_group *group;
	struct tess_coll coll; /* complete, as the backend gets it */
	struct tess_call_key key;
	struct tess_carrier by; /* the backend that runs it */
	bool queued; /* the caller does not wait: see tess_group_drain */
	bool in_background; /* it is in the list of background.h */
	struct tess_work *next_in_background;
	void *work; /* the backend's; or: */
	struct tess_emulation *emulation; /* for a call that the backend lacks */
	uint64_t flight; /* number in the flight recorder */
	struct tess_stage *stage; /* host memory, reused by the next call on a device's memory */
	bool staged; /* received data are to be copied from it */
	struct tess_work_call *batch; /* n calls; `coll`: the first, with the earliest deadline */
	uint32_t n;
	int64_t report_at; /* time to report it, if it is not done; 0: reported */
	char where[TESS_WHERE]; /* `where` of a graph's replay */
	tess_status state; /* PENDING, OK or failed */
};

/* Opens the group of all ranks. Collective. */
tess_status tess_group_open_all(struct tess_world *w, struct tess_group **out);
/* Closes a group with any owner. */
void tess_group_destroy(struct tess_group *g);
/* Waits for pending works, which may need this rank. Returns at once after a failure. */
void tess_group_finish(struct tess_group *g);
/* Makes every wait in the group return soon. Call it from any thread. */
void tess_group_abort(struct tess_group *g);

/* Tests a work of the carrier, whose call is `c`. where: for a message, or NULL. */
static inline tess_status tess_carrier_test(const struct tess_carrier *by, void *work,
                                            const struct tess_coll *c, const char *where)
{
	tess_status st =
		TESS_PLUGIN_NOTED(TESS_STATE_FLOAT, by->backend, "test", c->where,
	                          tess_kind_name(c->kind), 0, by->backend->test(by->self, work));

	return st == TESS_PENDING ? st
	                          : tess_plugin_check_returned(by->backend, by->backend->name,
	                                                       "test", where, st);
}

/* Waits once; returns soon after a failure of the world. TESS_ETIMEOUT: the deadline has passed. */
static inline tess_status tess_carrier_wait(const struct tess_carrier *by, void *work,
                                            const struct tess_coll *c, int64_t deadline)
{
	tess_status st = TESS_PLUGIN_NOTED(TESS_STATE_FLOAT, by->backend, "wait", c->where,
	                                   tess_kind_name(c->kind), deadline,
	                                   by->backend->wait(by->self, work, deadline));

	return st == TESS_PENDING || st == TESS_ETIMEOUT
	               ? TESS_ETIMEOUT
	               : tess_plugin_check_returned(by->backend, by->backend->name, "wait", NULL,
	                                            st);
}

#endif
