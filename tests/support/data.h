/* data.h - runs a case of tools/conform/data.h on each rank of a group and checks the result. */
#ifndef TESS_TESTS_SUPPORT_DATA_H
#define TESS_TESTS_SUPPORT_DATA_H

#include "tools/conform/data.h"

/*
 * Runs a case. TESS_EBUG: the message has the wrong element and the expected value, or the changed
 * byte.
 */
tess_status data_run(struct tess_group *g, const struct conform_case *c);

/*
 * A case that is started: data_finish completes, checks and frees it. After a failure the buffers
 * belong to the group.
 */
struct data_pending {
	struct conform_data *data;
	struct tess_work *work;
};
tess_status data_start(struct tess_group *g, const struct conform_case *c,
                       struct data_pending *out);
tess_status data_finish(struct data_pending *p);
/* Checks a finished call, and frees `d` if all is right. */
tess_status data_check(struct conform_data *d);

#endif
