/* sigusr1.h - SIGUSR1 of this process as a descriptor for poll(). */
#ifndef TESS_RENDEZVOUS_SIGUSR1_H
#define TESS_RENDEZVOUS_SIGUSR1_H

/*
 * Returns an eventfd that SIGUSR1 makes readable. -1: the program has a handler of its own, or
 * ignores the signal, or one is open already.
 */
int tess_sigusr1_open(void);
void tess_sigusr1_close(int fd); /* -1: nothing */

#endif
