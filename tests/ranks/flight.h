/* flight.h - jobs whose last calls the tests of the flight recorder know. */
#ifndef TESTS_FLIGHT_H
#define TESTS_FLIGHT_H

/*
 * One rank of a job that makes 300 all_reduces and a barrier, in which rank 2 (0 of two) is lost, late or
 * astray as `role` says. The exit status of its process.
 */
int flight_run_rank(const char *role);

#endif
