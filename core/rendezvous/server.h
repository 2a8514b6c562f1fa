/* server.h - the inside of a rendezvous: rendezvous.c opens and closes it, server.c is its thread. */
#ifndef TESS_COMM_SERVER_H
#define TESS_COMM_SERVER_H

#include "coordinator.h"
#include "rendezvous.h"
#include "wire.h"

#include <pthread.h>
#include <stdatomic.h>

enum { TESS_UNAUTHENTICATED_MAX = 64 }; /* connections that are kept beside those of the ranks */

struct tess_pending_get { /* a GET that waits for its key */
	struct tess_pending_get *next;
	int32_t id;
	char key[];
};

struct tess_conn {
	int fd;
	int32_t rank; /* -1: a stranger */
	pid_t pid; /* as the kernel says; between hosts, as the rank says */
	char from[48]; /* between hosts: the peer's address */
	int64_t since;
	bool proven; /* it holds the secret; on one host: it is of our user */
	bool expected; /* a rank's, whenever it comes */
	uint32_t received; /* bytes of: */
	unsigned char greeting[TESS_NONCE + TESS_PROOF], nonce[TESS_NONCE];
	unsigned recorded; /* how often it was asked for its record */
	bool bye, reported, close_after_flush; /* drop: to be closed when `out` is written */
	bool ended; /* nothing more comes from it */
	bool late; /* its deadline has passed, in these calls: */
	int32_t nkeys;
	struct tess_call_key *key;
	struct tess_pipe in, out;
	struct tess_pending_get *pending_gets;
};

struct tess_arrival {
	atomic_bool ended; /* its process */
	bool came;
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
	int64_t served_at; /* when it last looked for news */
	struct tess_arrival *rank; /* of each rank */
	bool welcomed, gone;
	atomic_uint records; /* how often they are wanted */
	int32_t nconns;
	struct tess_conn conn[];
};

/* The thread: serves r (a struct tess_rendezvous) until r->stop. */
void *tess_server_run(void *r);

#endif
