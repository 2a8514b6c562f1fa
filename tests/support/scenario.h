/*
 * scenario.h - what a rank of a test does, by name, on any backend and in a process of its own.
 *
 *   several     several calls at once, finished in a different order on each rank
 *   released    calls polled until they are done, or released before
 *   batches     calls started as one
 *   groups      subgroups and meshes
 *   splits      opens and closes 200 groups
 *   loop N      sums of N elements until a failure; prints "[RANK] failed after SECONDS: SENTENCE"
 *   killed N    the same, but rank 1 gets SIGKILL; stopped N: SIGSTOP; exits N: calls exit(0);
 *               fails N: returns an error; killed_apart N: SIGKILL in another group than the rest
 *   calls N     N sums of 100 elements, each with the right result
 */
#ifndef TESS_TESTS_SUPPORT_SCENARIO_H
#define TESS_TESTS_SUPPORT_SCENARIO_H

#include <tessera/tessera.h>

/* Joins the job of the environment, runs the scenario, leaves. Returns the exit status. */
int scenario_main(int argc, char **argv);
/* The same in an open world. */
tess_status scenario_run(struct tess_world *w, const char *name, const char *arg);

/*
 * How many seconds after it began its last call the rank failed, according to `output`. Fails the
 * test unless the rank printed its failure, with a sentence that contains `what`.
 */
double scenario_parse_failure(const char *output, int rank, const char *what);

#endif
