/*
 * link.h - a rank's line to its job. Two kinds behind one table: straight into the hub, for ranks
 * that are threads, and over the socket of the rendezvous, for ranks that are processes.
 *
 * The listener is told of the job's first failure, once, from any thread, at the latest when the
 * line is closed. Calls may come from any thread and return at once, but for the two that take a
 * deadline.
 */
#ifndef TESS_COMM_LINK_H
#define TESS_COMM_LINK_H

#include "coordinator.h"
#include "net.h"

struct tess_link {
	void *self;
	tess_status (*set)(void *self, const char *key, const void *val, uint64_t len);
	tess_status (*get)(void *self, const char *key, int64_t deadline, void *val, uint64_t *len);
	void (*add_call)(void *self, const struct tess_call_desc *n);
	void (*deadline_passed)(void *self, const struct tess_call_key *key, int32_t n);
	void (*add_group)(void *self, const struct tess_members *r);
	void (*leave_group)(void *self, uint32_t id);
	void (*fail)(void *self, tess_status why, const char *sentence);
	/*
	 * Says goodbye and waits for that of all others. What fails meanwhile is told to the
	 * listener.
	 */
	void (*leave)(void *self, int64_t deadline);
	void (*close)(void *self);
};

/* The listener must live until the line is closed. */
tess_status tess_link_thread(struct tess_coordinator *h, int32_t rank,
                             struct tess_failure_handler *l, struct tess_link *out);

/*
 * Connects to the server at `path`, says which rank this is, and blocks until all ranks are there
 * or the deadline. `hosted`: the server is there already (tessera launch); else rank 0's is waited
 * for.
 */
tess_status tess_link_socket(const char *path, bool hosted, int32_t rank, int32_t nranks,
                             int64_t deadline, struct tess_failure_handler *l,
                             struct tess_link *out);

/*
 * The same between hosts, with rank 0's server, to which the secret is proved and which proves it.
 */
tess_status tess_link_hosts(const struct tess_hosts *at, const struct tess_secret *secret,
                            int32_t rank, int32_t nranks, int64_t deadline,
                            struct tess_failure_handler *l, struct tess_link *out);

/* The same over a line to rank 0's server that is there (tess_backend.meet), which becomes ours. */
tess_status tess_link_tunnel(int line, int32_t rank, int32_t nranks, int64_t deadline,
                             struct tess_failure_handler *l, struct tess_link *out);

#endif
