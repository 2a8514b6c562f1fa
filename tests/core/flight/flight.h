/* flight.h - jobs with known last calls, for the tests of the flight recorder. */
#ifndef TESS_TESTS_CORE_FLIGHT_FLIGHT_H
#define TESS_TESTS_CORE_FLIGHT_FLIGHT_H

/*
 * Runs one rank of a job that makes 300 all_reduces and a barrier, in which rank 2 (0 of two) is
 * lost, late or in another call, according to `role`. Returns the exit status of its process.
 */
int flight_run_rank(const char *role);

#endif
