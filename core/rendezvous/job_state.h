/*
 * job_state.h - what the coordinator knows of a job: its ranks, its groups, its keys, and the calls that some
 * ranks of a group have made and others have not. It has no lock: the coordinator holds its own.
 */
#ifndef TESS_RENDEZVOUS_JOB_STATE_H
#define TESS_RENDEZVOUS_JOB_STATE_H

#include "call_desc.h"
#include "kv_store.h"
#include "members.h"

#include <stdbool.h>
#include <sys/types.h>

enum { TESS_RANKS_MAX = 1024, CALL_BUCKETS = 256 };

struct group_state {
	struct group_state *next;
	struct tess_members *members;
	int32_t left; /* members that have closed it */
	int32_t references; /* ranks whose last call is in it */
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
	int64_t heard; /* when it was heard of last, of a rank on another host; else 0 */
	bool joined, left;
	struct tess_call_desc *last; /* its last call that is known; NULL: none yet */
	struct group_state *last_group; /* the group of that call */
};

struct tess_job_state {
	int32_t nranks, joined, left;
	struct tess_kv_store keys;
	struct group_state *groups; /* the last one is that of all ranks */
	struct call_state *calls[CALL_BUCKETS];
	int32_t ncalls, sweep_at;
	bool incomplete; /* a rank ran too far ahead, or there was no memory: some calls were not kept */
	struct rank_state *rank;
};

#endif
