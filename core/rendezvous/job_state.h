/*
 * job_state.h - the coordinator's view of a job: its ranks, groups, keys, and the calls that only
 * some ranks of a group have made. Guarded by the coordinator's lock.
 */
#ifndef TESS_RENDEZVOUS_JOB_STATE_H
#define TESS_RENDEZVOUS_JOB_STATE_H

#include "core/rendezvous/call_desc.h"
#include "core/rendezvous/kv_store.h"
#include "core/rendezvous/members.h"

#include <stdbool.h>
#include <sys/types.h>

enum { TESS_RANKS_MAX = 1024, CALL_BUCKETS = 256 };

struct group_state {
	struct group_state *next;
	struct tess_members *members;
	int32_t left; /* number of members that have closed it */
	int32_t references; /* number of ranks whose last call is in it */
	bool dropped; /* closed by all members and without calls; kept by references */
	struct {
		uint64_t reached; /* the number of its last collective */
		bool left;
	} member[];
};

struct call_state { /* a call that some of its ranks have made */
	struct call_state *next;
	struct group_state *group;
	int32_t arrived;
	struct {
		int32_t rank;
		struct tess_call_desc *desc;
	} by[];
};

struct rank_state {
	pid_t pid; /* 0: a thread of this process, or a process of another host */
	int64_t last_heard; /* time of the last data from a rank on another host; else 0 */
	bool joined, left;
	struct tess_call_desc *last; /* its last reported call; NULL: none yet */
	struct group_state *last_group; /* the group of that call */
	char *stay; /* the slow call of a plugin in which it is: "layout() of ..."; NULL: none */
	int64_t stay_began;
	bool overdue; /* that call should have returned */
};

struct tess_job_state {
	int32_t nranks, joined, left;
	struct tess_kv_store keys;
	struct group_state *groups; /* the last one has all ranks */
	struct call_state *calls[CALL_BUCKETS];
	int32_t ncalls, sweep_at;
	bool incomplete; /* some calls were not kept: a rank is too far ahead, or no memory */
	struct rank_state *rank;
};

#endif
