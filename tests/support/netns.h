/* netns.h - two simulated hosts: network namespaces NAME0 and NAME1, 10.231.7.1 and 10.231.7.2. */
#ifndef TESS_TESTS_SUPPORT_NETNS_H
#define TESS_TESTS_SUPPORT_NETNS_H

#include <stdbool.h>

/*
 * Creates the hosts; requires root, ip, and namespaces. False: not available; prints why the test
 * is skipped.
 */
bool netns_create(const char *name);
void netns_delete(const char *name);

#endif
