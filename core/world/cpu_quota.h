/* cpu_quota.h - the CPU limit of the cgroups of this process. */
#ifndef TESS_GROUP_CPU_QUOTA_H
#define TESS_GROUP_CPU_QUOTA_H

#include <stdint.h>

struct tess_cpu_quota {
	double cpus; /* 0: no limit */
	uint64_t group; /* inode of the cgroup with the limit, which its processes share */
	char file[256]; /* the file with the limit */
};

/*
 * Reads the lowest limit among the cgroup of this process and its ancestors: cpu.max of version 2,
 * cpu.cfs_quota_us of version 1. The files are below `root`, "" for the system's own; a missing or
 * malformed file sets no limit. A container may see only the root of its own cgroup.
 */
void tess_cpu_quota_read(const char *root, struct tess_cpu_quota *out);

#endif
