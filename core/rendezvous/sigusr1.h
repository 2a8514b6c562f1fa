/* sigusr1.h - SIGUSR1 of this process as a descriptor for poll(), and as a flag. */
#ifndef TESS_RENDEZVOUS_SIGUSR1_H
#define TESS_RENDEZVOUS_SIGUSR1_H

#include <stdbool.h>

/*
 * Returns an eventfd that SIGUSR1 makes readable. -1: the program has a handler of its own, or
 * ignores the signal, or one is open already.
 */
int tess_sigusr1_open(void);
void tess_sigusr1_close(int fd); /* -1: nothing */

/* For a command: from now on SIGUSR1 never ends this process, even if it was ignored. */
void tess_sigusr1_catch(void);
/* Sets the flag, for a request that reaches this process by other means than the signal. */
void tess_sigusr1_note(void);
/* Clears the flag; returns true if it was set: after the signal or tess_sigusr1_note(). */
bool tess_sigusr1_take(void);

#endif
