/* netns.h - two hosts of this machine: network namespaces NAME0 and NAME1, 10.231.7.1 and 10.231.7.2. */
#ifndef TESTS_NETNS_H
#define TESTS_NETNS_H

#include <stdbool.h>

/* False, with a line that says why a test is skipped: they need root, ip, and namespaces. */
bool netns_create(const char *name);
void netns_delete(const char *name);

#endif
