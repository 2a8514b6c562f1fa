/*
 * scenario.h - what a rank of a test does, whatever backend moves its data: by name, in a process of its own.
 *
 *   several     outstanding at once, and finished in another order on each rank
 *   released    polled until they are done, or released before
 *   batches     calls started as one
 *   groups      groups of some ranks, and meshes
 *   splits      200 groups that come and go
 *   loop N      sums of N elements until something fails; then "[RANK] failed after SECONDS: SENTENCE"
 *   killed N    the same, but rank 1 ends itself by SIGKILL; stopped N: by SIGSTOP; exits N: by exit(0);
 *               fails N: with an error; killed_apart N: while it is in another group than the rest
 *   calls N     N sums of 100 elements, where each has the right result
 */
#ifndef TESTS_SCENARIO_H
#define TESTS_SCENARIO_H

#include <tessera/tessera.h>

/* Enters the job of the environment, plays, leaves. Returns the exit status. */
int scenario_main(int argc, char **argv);
/* In a world that is there. */
tess_status scenario_run(struct tess_world *w, const char *name, const char *arg);

#endif
