/*
 * nccl.c - tess-backend-nccl.so: memory of CUDA devices, over NCCL. Another backend moves host
 * memory; the group opens both.
 *
 * NCCL and the driver are found at run time (library.h). Communicators are non-blocking: NCCL's
 * work is polled until the deadline, and ends when the job has failed. NCCL does not compare calls;
 * the job's coordinator does.
 */
#include "foreign.h"
#include "issue.h"
#include "work.h"

static const struct tess_host *host;

static tess_status nccl_supports_call(const struct tess_coll *c, int32_t nranks)
{
	const struct nccl_calls *calls;
	char fault[160];
	int version;

	(void)nranks;
	if (issue_find_fault(c, fault, sizeof fault))
		return host->fail(TESS_ENOTSUP, "nccl: %s", fault);
	return library_get_calls(host, &calls, &version);
}

static tess_status nccl_open_group(const struct tess_group_entry *how, void **self)
{
	return group_open(how, host, self);
}

static tess_status nccl_start_call(void *self, const struct tess_coll *c, void **work)
{
	return work_start(self, &c, 1, work);
}

static tess_status nccl_init_plugin(const struct tess_host *h)
{
	host = h;
	return TESS_OK;
}

static const struct tess_backend nccl = {
	.size = sizeof nccl,
	.threads = 1,
	.name = "nccl",
	.summary = "memory of CUDA devices, over NVIDIA's NCCL",
	.supports = nccl_supports_call,
	.open = nccl_open_group,
	.start = nccl_start_call,
	.test = work_test,
	.wait = work_wait,
	.release = work_release,
	.close = group_close,
	.batch = work_start,
	.join = work_join,
	.alloc = group_alloc,
	.free = group_free,
	.abort = group_abort,
	.reach = TESS_REACH_HOSTS,
	.mem_kinds = 1 << TESS_CUDA,
	.capture = work_capture,
	.replayed = work_follow_graph,
};

TESS_DEFINE_PLUGIN("nccl", "1.0", "Apache-2.0", .summary = "communication between GPUs over NCCL",
                   .backends = TESS_LIST(tess_backend, &nccl),
                   .options = TESS_LIST(tess_option, &foreign_option), .init = nccl_init_plugin);
