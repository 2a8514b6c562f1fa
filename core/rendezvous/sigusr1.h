/* knock.h - SIGUSR1 of this process, for a thread that waits for other things as well. */
#ifndef TESS_COMM_KNOCK_H
#define TESS_COMM_KNOCK_H

/*
 * From now on SIGUSR1 makes the descriptor that is returned readable: an eventfd. -1: the program has a
 * handler of its own, or ignores the signal, or somebody has knock open already.
 */
int tess_sigusr1_open(void);
void tess_sigusr1_close(int fd); /* -1: nothing */

#endif
