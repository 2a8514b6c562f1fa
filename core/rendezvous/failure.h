/* failure.h - the first failure of a job, and the callbacks that receive it. */
#ifndef TESS_RENDEZVOUS_FAILURE_H
#define TESS_RENDEZVOUS_FAILURE_H

#include <tessera/plugin.h>

enum { TESS_SENTENCE = 1536 }; /* bytes of a message, with the 0 */

struct tess_failure {
	tess_status why; /* TESS_OK: none */
	int32_t rank; /* the world rank at fault; -1: none */
	char sentence[TESS_SENTENCE];
};

/*
 * Callbacks of a rank. on_failure is called once, with the first failure, from any thread, under
 * the coordinator's lock: it must not call the coordinator.
 */
struct tess_failure_handler {
	struct tess_failure_handler *next; /* the coordinator's */
	void (*on_failure)(void *arg, const struct tess_failure *f);
	/*
	 * Writes the flight record of the rank. Called by the coordinator, and, if the rank is a
	 * process, when sigusr1_fd (-1: none) is readable.
	 */
	void (*on_record)(void *arg);
	int sigusr1_fd;
	int64_t timeout; /* of a call, ns, and so of a plugin; 0: plugins are not watched */
	void *arg;
};

#endif
