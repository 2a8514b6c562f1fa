/* server.h - the inside of a rendezvous: opened by rendezvous.c, served by server.c. */
#ifndef TESS_RENDEZVOUS_SERVER_H
#define TESS_RENDEZVOUS_SERVER_H

#include "core/rendezvous/coordinator.h"
#include "core/rendezvous/rendezvous.h"
#include "core/rendezvous/wire.h"

#include <pthread.h>
#include <stdatomic.h>

enum { TESS_UNAUTHENTICATED_MAX = 64 }; /* connections beside those of the ranks */

struct tess_pending_get { /* a GET that waits for its key */
	struct tess_pending_get *next;
	int32_t id;
	char key[];
};

struct tess_conn {
	int fd;
	int32_t rank; /* -1: not known yet */
	pid_t pid; /* from the kernel; between hosts from its HELLO */
	char from[48]; /* between hosts: the peer's address */
	int64_t since;
	bool proven; /* it holds the secret; on one host: same user */
	bool expected; /* a tunnel: its HELLO has no deadline */
	uint32_t received; /* bytes of: */
	unsigned char greeting[TESS_NONCE + TESS_PROOF], nonce[TESS_NONCE];
	unsigned records_sent; /* requests for its record */
	bool left, reported, close_after_flush; /* reported: it was sent the failure */
	bool ended; /* no more input */
	bool deadline_passed; /* in these calls: */
	int32_t nkeys;
	struct tess_call_key *key;
	struct tess_pipe in, out;
	struct tess_pending_get *pending_gets;
};

struct tess_rank_presence {
	atomic_bool ended; /* its process */
	bool joined;
};

struct tess_rendezvous {
	char path[128], lock_path[136]; /* "": between hosts */
	struct tess_secret secret;
	bool hosts;
	int listener, lock, wake;
	pthread_t thread;
	atomic_bool stop;
	struct tess_coordinator *coordinator;
	struct tess_failure_handler handler;
	int32_t nranks;
	int64_t served_at; /* when the server last read its connections */
	struct tess_rank_presence *rank; /* [nranks] */
	bool welcomed, all_left; /* notifications that were sent to the ranks */
	bool lacked_files; /* a connection had no descriptor; this was reported */
	atomic_uint records; /* requests for flight records */
	int32_t nconns;
	struct tess_conn conn[];
};

/* The thread: serves r (a struct tess_rendezvous) until r->stop. */
void *tess_server_run(void *r);

#endif
