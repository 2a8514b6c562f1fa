/* test_cpu_quota.c - the CPU limits of cgroups, read from folders that imitate a container's. */
#include "core/world/cpu_quota.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/tessera-cpu-quota-XXXXXX";

/* Writes a file below the root, and the folders above it. */
static void write_below_root(const char *name, const char *text)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof path, "%s/%s", root, name);
	for (char *at = strchr(path + sizeof root, '/'); at; at = strchr(at + 1, '/')) {
		*at = 0;
		ck_assert(!mkdir(path, 0700) || !access(path, X_OK));
		*at = '/';
	}
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_ge(fputs(text, f), 0);
	ck_assert_int_eq(fclose(f), 0);
}

static void make_root(void)
{
	strcpy(root + sizeof root - 7, "XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(root));
}

static void remove_root(void)
{
	char command[64];

	snprintf(command, sizeof command, "rm -r %s", root);
	ck_assert_int_eq(system(command), 0);
}

static struct tess_cpu_quota read_quota(void)
{
	struct tess_cpu_quota q;

	tess_cpu_quota_read(root, &q);
	return q;
}

START_TEST(lowest_limit_of_the_ancestors_counts)
{
	struct tess_cpu_quota q, parent;

	make_root();
	write_below_root("proc/self/cgroup", "0::/job/step\n");
	ck_assert(read_quota().cpus == 0);
	write_below_root("sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
	ck_assert(read_quota().cpus == 0);
	write_below_root("sys/fs/cgroup/job/cpu.max", "250000 100000\n");
	parent = read_quota();
	ck_assert(parent.cpus == 2.5 && parent.group);
	ck_assert_ptr_nonnull(strstr(parent.file, "/sys/fs/cgroup/job/cpu.max"));
	write_below_root("sys/fs/cgroup/job/step/cpu.max", "150000 100000\n");
	q = read_quota();
	ck_assert(q.cpus == 1.5 && q.group != parent.group);
	write_below_root("sys/fs/cgroup/job/step/cpu.max", "400000 100000\n");
	ck_assert(read_quota().cpus == 2.5);
	remove_root();
}
END_TEST

/* Checks a container without a cgroup namespace: its path is the host's, its files are its own. */
START_TEST(path_of_the_host_is_replaced_by_the_mounted_root)
{
	make_root();
	write_below_root("proc/self/cgroup", "0::/docker/0123/x\n");
	write_below_root("sys/fs/cgroup/cpu.max", "50000 100000\n");
	ck_assert(read_quota().cpus == 0.5);
	remove_root();
}
END_TEST

START_TEST(version_1_is_read)
{
	make_root();
	write_below_root("proc/self/cgroup", "12:cpuset:/a\n4:cpu,cpuacct:/a\n1:name=systemd:/a\n");
	write_below_root("sys/fs/cgroup/cpuset/a/cpu.cfs_quota_us", "100000\n");
	write_below_root("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "50000\n");
	write_below_root("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
	ck_assert(read_quota().cpus == 0);
	write_below_root("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "150000\n");
	ck_assert(read_quota().cpus == 3);
	write_below_root("proc/self/cgroup", "3:cpuacct,cpu:/b\n");
	write_below_root("sys/fs/cgroup/cpu/b/cpu.cfs_period_us", "100000\n");
	write_below_root("sys/fs/cgroup/cpu/b/cpu.cfs_quota_us", "70000\n");
	ck_assert(read_quota().cpus == 0.7);
	remove_root();
}
END_TEST

START_TEST(malformed_files_set_no_limit)
{
	static const char *const limits[] = { "",         "max",       "0 100000", "100000",
		                              "100000 0", "-5 100000", "x y",      "100000 x" };

	make_root();
	for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
		write_below_root("proc/self/cgroup", "\nx\n:\n0::/\n");
		write_below_root("sys/fs/cgroup/cpu.max", limits[i]);
		ck_assert(read_quota().cpus == 0);
	}
	write_below_root("proc/self/cgroup", "0:cpu");
	ck_assert(read_quota().cpus == 0);
	remove_root();
}
END_TEST

SUITE_MAIN("cpu_quota", lowest_limit_of_the_ancestors_counts,
           path_of_the_host_is_replaced_by_the_mounted_root, version_1_is_read,
           malformed_files_set_no_limit)
