/* cable.h - two hosts of this machine: network namespaces NAME0 and NAME1, 10.231.7.1 and 10.231.7.2. */
#ifndef TESTS_CABLE_H
#define TESTS_CABLE_H

#include <stdbool.h>

/* False, with a line that says why a test is skipped: they need root, ip, and namespaces. */
bool cable_lay(const char *name);
void cable_take(const char *name);

#endif
