#include "core/world/cpu_quota.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { CGROUP_PATH = 200, CGROUP_LINE = 512 };

/* Reads one or two numbers at the start of a file; returns their count. */
static int read_numbers(const char *folder, const char *name, long long *first, long long *second)
{
	char path[CGROUP_LINE];
	int n = snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *f = n < (int)sizeof path ? fopen(path, "re") : NULL;

	if (!f)
		return 0;
	n = fscanf(f, "%lld %lld", first, second);
	fclose(f);
	return n;
}

/* Returns the limit of one cgroup in CPUs; 0: none. */
static double read_limit(const char *folder, bool unified)
{
	long long quota = 0, period = 0, rest;
	bool complete =
		unified ? read_numbers(folder, "cpu.max", &quota, &period) == 2
			: read_numbers(folder, "cpu.cfs_quota_us", &quota, &rest) == 1 &&
				  read_numbers(folder, "cpu.cfs_period_us", &period, &rest) == 1;

	return complete && quota > 0 && period > 0 ? (double)quota / (double)period : 0;
}

/* Reads the limits of cgroup `path`, and of its ancestors up to the mounted one. */
static void read_ancestors(const char *mount, char *path, bool unified, struct tess_cpu_quota *out)
{
	const char *name = unified ? "cpu.max" : "cpu.cfs_quota_us";
	char folder[sizeof out->file - 32];
	struct stat st;

	for (char *end = path + strlen(path);; end = strrchr(path, '/')) {
		double cpus;

		if (end)
			*end = 0;
		if (snprintf(folder, sizeof folder, "%s%s", mount, path) >= (int)sizeof folder)
			return;
		cpus = read_limit(folder, unified);
		if (cpus > 0 && (!out->cpus || cpus < out->cpus) && !stat(folder, &st)) {
			out->cpus = cpus;
			out->group = st.st_ino;
			snprintf(out->file, sizeof out->file, "%s/%s", folder, name);
		}
		if (!*path || !end)
			return;
	}
}

/* Returns whether a comma-separated list of controllers has `cpu`. */
static bool has_cpu(const char *list)
{
	for (; *list; list += strcspn(list, ","), list += *list == ',')
		if (!strncmp(list, "cpu", 3) && (!list[3] || list[3] == ','))
			return true;
	return false;
}

/* Reads a line of /proc/self/cgroup, "HIERARCHY:CONTROLLERS:PATH", see cgroups(7). */
static void read_cgroup_line(const char *root, char *line, struct tess_cpu_quota *out)
{
	static const char *const folders[] = { "/cpu,cpuacct", "/cpu" };
	char *controllers = strchr(line, ':'), *path, mount[CGROUP_PATH], whole[CGROUP_LINE];

	path = controllers ? strchr(controllers + 1, ':') : NULL;
	if (!path)
		return;
	*controllers++ = *path++ = 0;
	path[strcspn(path, "\n")] = 0;
	for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
		bool unified = !*controllers;

		if (!unified && !has_cpu(controllers))
			return;
		if (snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s", root,
		             unified ? "" : folders[i]) >= (int)sizeof mount)
			return;
		snprintf(whole, sizeof whole, "%s", path);
		read_ancestors(mount, whole, unified, out);
		if (unified || out->cpus > 0)
			return;
	}
}

void tess_cpu_quota_read(const char *root, struct tess_cpu_quota *out)
{
	char line[CGROUP_LINE];
	FILE *f;

	memset(out, 0, sizeof *out);
	if (snprintf(line, sizeof line, "%s/proc/self/cgroup", root) >= (int)sizeof line)
		return;
	f = fopen(line, "re");
	while (f && fgets(line, sizeof line, f))
		read_cgroup_line(root, line, out);
	if (f)
		fclose(f);
}
