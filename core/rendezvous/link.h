/*
 * link.h - a rank's connection to its job, as a table. Ranks that are threads call the coordinator;
 * ranks that are processes send frames over the socket of the rendezvous.
 *
 * The handler receives the job's first failure, once, from any thread, at the latest when the link
 * is closed. Calls may be made from any thread and return at once, except the two with a deadline.
 */
#ifndef TESS_RENDEZVOUS_LINK_H
#define TESS_RENDEZVOUS_LINK_H

#include "core/rendezvous/coordinator.h"
#include "core/rendezvous/net.h"

struct tess_link {
	void *self;
	tess_status (*set)(void *self, const char *key, const void *val, uint64_t len);
	tess_status (*get)(void *self, const char *key, int64_t deadline, void *val, uint64_t *len);
	void (*add_call)(void *self, const struct tess_call_desc *d);
	void (*deadline_passed)(void *self, const struct tess_call_key *key, int32_t n);
	void (*add_group)(void *self, const struct tess_members *m);
	void (*leave_group)(void *self, uint32_t id);
	void (*fail)(void *self, tess_status why, const char *sentence);
	/* Leaves the job and waits until all ranks have left; the handler receives failures. */
	void (*leave)(void *self, int64_t deadline);
	void (*close)(void *self);
};

/* The handler must live until the link is closed. */
tess_status tess_link_thread(struct tess_coordinator *c, int32_t rank,
                             struct tess_failure_handler *handler, struct tess_link *out);

/*
 * Connects to the server at `path`, joins as `rank`, and blocks until all ranks have joined or the
 * deadline. `hosted`: the server runs already (tessera launch); else waits for rank 0's.
 */
tess_status tess_link_socket(const char *path, bool hosted, int32_t rank, int32_t nranks,
                             int64_t deadline, struct tess_failure_handler *handler,
                             struct tess_link *out);

/* Connects to rank 0's server on another host; both sides prove that they hold the secret. */
tess_status tess_link_hosts(const struct tess_hosts *at, const struct tess_secret *secret,
                            int32_t rank, int32_t nranks, int64_t deadline,
                            struct tess_failure_handler *handler, struct tess_link *out);

/* Connects over a tunnel to rank 0's server (tess_backend.bootstrap); takes `fd`. */
tess_status tess_link_tunnel(int fd, int32_t rank, int32_t nranks, int64_t deadline,
                             struct tess_failure_handler *handler, struct tess_link *out);

#endif
