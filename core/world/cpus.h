/* cpus.h - the CPUs that a rank may use, and its share of them among the ranks of its host. */
#ifndef TESS_GROUP_CPUS_H
#define TESS_GROUP_CPUS_H

#include "core/world/cpu_quota.h"
#include "core/world/world.h"

#include <sched.h>

enum { TESS_HOST_ID = 64 };

struct tess_rank_cpus { /* exchanged as bytes between ranks */
	char host[TESS_HOST_ID]; /* equal for ranks that have CPUs in common */
	cpu_set_t may_use;
	struct tess_cpu_quota quota;
};

/* Reads the id of the running kernel, which processes of one host have in common. */
void tess_host_read_id(char out[static TESS_HOST_ID]);

void tess_rank_cpus_read(struct tess_rank_cpus *out);

/* Returns the CPUs that a process may keep busy: by its affinity, or its quota rounded up. */
int32_t tess_rank_cpus_count(const struct tess_rank_cpus *c);

/*
 * Returns the number of threads for the rank of `mine`, at least 1: the CPUs of its affinity
 * divided by the ranks that may use one of them, limited by its quota, rounded up, divided by the
 * ranks that share it. all[n] contains `mine`.
 */
int32_t tess_rank_cpus_divide(const struct tess_rank_cpus *mine, const struct tess_rank_cpus *all,
                              int32_t n);

/* Publishes the CPUs that this rank may use. */
tess_status tess_world_post_cpus(struct tess_world *w);

/* Returns this rank's share. Waits until the deadline for ranks that have not posted theirs. */
tess_status tess_world_count_cpus(struct tess_world *w, int32_t *out);
/* Returns this rank's index among those of its host, and their number. Waits until the deadline. */
tess_status tess_world_find_local_rank(struct tess_world *w, int32_t *local, int32_t *ranks);

#endif
