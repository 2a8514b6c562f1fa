/*
 * scenario.h - scenarios of ranks, by name, on any backend and in a process of their own.
 *
 *   several     several calls at once, completed in a different order on each rank
 *   released    calls polled until they are done, or released before
 *   batches     calls started as one
 *   groups      subgroups and meshes
 *   splits      opens and closes 200 groups
 *   loop N      sums of N elements until a failure; prints "[RANK] failed after SECONDS: MESSAGE"
 *   killed N    a loop in which rank 1 gets SIGKILL; stopped N: SIGSTOP; exits N: calls exit(0);
 *               fails N: returns an error; killed_apart N: SIGKILL in another group than the others
 *   calls N     N sums of 100 elements, each with the right result
 */
#ifndef TESS_TESTS_SUPPORT_SCENARIO_H
#define TESS_TESTS_SUPPORT_SCENARIO_H

#include <tessera/tessera.h>

/* Joins the job of the environment, runs the scenario and leaves. Returns the exit status. */
int scenario_main(int argc, char **argv);
/* Runs a scenario in an open world. */
tess_status scenario_run(struct tess_world *w, const char *name, const char *arg);

/*
 * Returns the seconds between the rank's last call and its failure, from `output`. Fails the test
 * unless the rank printed its failure, with a message that contains `what`.
 */
double scenario_parse_failure(const char *output, int rank, const char *what);

#endif
