#include "core/world/cpus.h"

#include "core/base/clock.h"
#include "core/base/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void tess_host_read_id(char out[static TESS_HOST_ID])
{
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

	memset(out, 0, TESS_HOST_ID);
	if (!f || !fgets(out, TESS_HOST_ID, f))
		gethostname(out, TESS_HOST_ID - 1);
	if (f)
		fclose(f);
}

void tess_rank_cpus_read(struct tess_rank_cpus *out)
{
	memset(out, 0, sizeof *out);
	tess_host_read_id(out->host);
	if (sched_getaffinity(0, sizeof out->may_use, &out->may_use))
		CPU_ZERO(&out->may_use);
	tess_cpu_quota_read("", &out->quota);
}

/* Returns the quota in CPUs, rounded up; CPU_SETSIZE without a quota. */
static int32_t round_quota(const struct tess_cpu_quota *q)
{
	return q->cpus > 0 && q->cpus < CPU_SETSIZE ? (int32_t)ceil(q->cpus) : CPU_SETSIZE;
}

int32_t tess_rank_cpus_count(const struct tess_rank_cpus *c)
{
	int32_t quota = round_quota(&c->quota), cpus = CPU_COUNT(&c->may_use);

	return quota < cpus ? quota : cpus;
}

int32_t tess_rank_cpus_divide(const struct tess_rank_cpus *mine, const struct tess_rank_cpus *all,
                              int32_t n)
{
	int32_t ranks = 0, sharing = 0, share, quota;
	cpu_set_t common;

	for (int32_t r = 0; r < n; r++) {
		CPU_AND(&common, &mine->may_use, &all[r].may_use);
		if (strcmp(mine->host, all[r].host) != 0)
			continue;
		ranks += CPU_COUNT(&common) > 0;
		sharing += all[r].quota.group == mine->quota.group;
	}
	share = CPU_COUNT(&mine->may_use) / (ranks ? ranks : 1);
	quota = mine->quota.cpus > 0 ? round_quota(&mine->quota) / (sharing ? sharing : 1) : share;
	share = share < quota ? share : quota;
	return share > 1 ? share : 1;
}

static void format_cpus_key(int32_t rank, char key[32])
{
	snprintf(key, 32, "cpus/%d", (int)rank);
}

tess_status tess_world_post_cpus(struct tess_world *w)
{
	struct tess_rank_cpus mine;
	char key[32];

	tess_rank_cpus_read(&mine);
	format_cpus_key(w->rank, key);
	return w->link.set(w->link.self, key, &mine, sizeof mine);
}

/* Gets the CPUs that all ranks posted. Free *out. */
static tess_status get_posted_cpus(struct tess_world *w, struct tess_rank_cpus **out)
{
	struct tess_rank_cpus *all = calloc((size_t)w->size, sizeof *all);
	tess_status st = all ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
	char key[32];

	for (int32_t r = 0; r < w->size && !st; r++) {
		uint64_t len = sizeof *all;

		format_cpus_key(r, key);
		st = w->link.get(w->link.self, key, tess_now() + w->timeout, &all[r], &len);
		all[r].host[sizeof all[r].host - 1] = 0;
	}
	if (st)
		free(all);
	else
		*out = all;
	return st;
}

tess_status tess_world_count_cpus(struct tess_world *w, int32_t *out)
{
	struct tess_rank_cpus *all;
	tess_status st = get_posted_cpus(w, &all);

	if (st)
		return st;
	*out = tess_rank_cpus_divide(&all[w->rank], all, w->size);
	free(all);
	return TESS_OK;
}

tess_status tess_world_find_local_rank(struct tess_world *w, int32_t *local, int32_t *ranks)
{
	struct tess_rank_cpus *all;
	tess_status st = get_posted_cpus(w, &all);

	if (st)
		return st;
	*local = *ranks = 0;
	for (int32_t r = 0; r < w->size; r++) {
		bool here = !strcmp(all[w->rank].host, all[r].host);

		*local += here && r < w->rank;
		*ranks += here;
	}
	free(all);
	return TESS_OK;
}
