/* data.h - runs a case of tools/conform/data.h in a group, on each of its ranks, and checks what came. */
#ifndef TESS_TESTS_DATA_H
#define TESS_TESTS_DATA_H

#include "tools/conform/data.h"

/* TESS_EBUG and a sentence: which element is wrong, and what was expected; a byte that must not change. */
tess_status data_run(struct tess_group *g, const struct conform_case *c);

/* The same without waiting: data_finish waits, checks and frees. After a failure the buffers are the group's. */
struct data_pending {
	struct conform_data *data;
	struct tess_work *work;
};
tess_status data_start(struct tess_group *g, const struct conform_case *c,
                       struct data_pending *out);
tess_status data_finish(struct data_pending *p);
/* Of a call that is done: checks, and frees if all is right. */
tess_status data_check(struct conform_data *d);

#endif
