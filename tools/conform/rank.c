/* rank.c - a job: inspects the plugin, or runs ranks as threads or as this process. */
#include "conform.h"

#include "core/base/status.h"
#include "core/registry/registry.h"
#include "core/rendezvous/call_desc.h"
#include "core/world/group.h"

#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <tessera/coll.h>
#include <unistd.h>

/* ---- the plugin ------------------------------------------------------------------------------ */

static void query_support(const struct tess_backend *b, int32_t mem, struct conform_backend_info *f)
{
	for (int32_t kind = TESS_BARRIER; kind <= TESS_RECV; kind++)
		for (int32_t dtype = TESS_F32; dtype <= TESS_U8; dtype++)
			for (int32_t op = TESS_SUM; op <= TESS_BXOR; op++) {
				struct tess_coll c = { .size = sizeof c,
					               .kind = kind,
					               .dtype = dtype,
					               .op = op,
					               .mem = mem,
					               .count = 64 };
				uint16_t *bits = &f->unsupported[kind][dtype]
				                                [tess_kind_reduces(kind) ? op : 0];

				if (!conform_is_operation(kind, dtype, op))
					continue;
				for (int32_t n = 1; n <= CONFORM_RANKS; n++)
					if (b->supports(&c, n) != TESS_OK)
						*bits |= (uint16_t)(1 << n);
			}
}

static int inspect_backend(struct conform_shared *shared)
{
	struct conform_backend_info *f = &shared->backend;
	const char *name = getenv("TESSERA_BACKEND");
	const struct tess_backend *b;
	const struct tess_device *device = NULL;
	struct tess_plugin_info p;
	struct conform_rank me = { .state = &shared->rank_state[0] };

	conform_set_activity(&me, "opening the plugin");
	if (!name || tess_plugin_find_backend(name, &b) ||
	    (*shared->job.device && tess_plugin_find_device(shared->job.device, &device))) {
		conform_add_failure(&me, TESS_ENOENT);
		return 1;
	}
	snprintf(f->name, sizeof f->name, "%s", b->name);
	snprintf(f->summary, sizeof f->summary, "%s", b->summary ? b->summary : "");
	f->threads = b->threads;
	f->abort = b->abort;
	f->batch = b->batch;
	f->alloc = b->alloc;
	f->bootstraps = b->bootstrap;
	for (size_t i = 0; tess_registry_at(i, &p); i++)
		for (size_t k = 0; k < p.noffers; k++)
			if (p.offers[k].table == b)
				snprintf(f->path, sizeof f->path, "%s", p.path);
	conform_set_activity(&me, "supports(), before a group is open");
	query_support(b, device ? device->mem : TESS_HOST, f);
	f->opened = true;
	return 0;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static tess_status run_job_rank(struct tess_world *w, void *arg)
{
	struct conform_shared *shared = arg;
	const struct conform_part *part = conform_get_part(&shared->job);
	struct conform_rank me = { .world = w,
		                   .group = tess_world_group(w),
		                   .shared = shared,
		                   .job = &shared->job,
		                   .rank = tess_world_rank(w),
		                   .n = tess_world_size(w) };
	bool opened;
	const char *name = *shared->job.device ? getenv("TESSERA_BACKEND") : tess_world_backend(w);
	tess_status st = tess_plugin_find_backend(name, &me.backend);

	me.all = (struct conform_direct){ me.group->self, me.rank, me.n };
	w->timeout = (int64_t)(shared->job.timeout * 1e9);
	me.state = &shared->rank_state[me.rank];
	me.state->pid = getpid();
	atomic_store(&me.state->state, CONFORM_RUNNING);
	if (!st)
		st = conform_open_memory(&me, shared->job.device);
	opened = !st;
	if (part->cleans)
		conform_note_files(&me);
	if (!st) {
		tess_error_clear();
		st = part->run(&me);
	}
	if (st && (!part->fails || !opened))
		conform_add_failure(&me, st);
	conform_close_memory(&me);
	atomic_store(&me.state->state, CONFORM_DONE);
	return st;
}

/* Adds a fault without a world, for the rank in the environment. */
static int fail_not_opened(struct conform_shared *shared, tess_status st)
{
	const char *rank = getenv("RANK");
	struct conform_rank me = {
		.state = &shared->rank_state[rank ? atoi(rank) % CONFORM_RANKS : 0]
	};

	conform_set_activity(&me, "opening the group of all ranks");
	conform_add_failure(&me, st);
	return 1;
}

int conform_rank_main(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	struct conform_shared *shared = MAP_FAILED;
	struct tess_world *w;
	tess_status st;

	if (fd >= 0)
		shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (shared == MAP_FAILED)
		return 2;
	close(fd);
	/* buffers of up to some MiB for each case: their pages stay in the heap */
	mallopt(M_MMAP_THRESHOLD, 32 << 20);
	mallopt(M_TRIM_THRESHOLD, 256 << 20);
	if (shared->job.part < 0)
		return *shared->job.style || *shared->job.file ? conform_inspect_style(shared)
		                                               : inspect_backend(shared);
	if (shared->job.threads) {
		/*
		 * Under a sanitizer glibc's heap is unused: the first mallinfo2() creates it for
		 * the calling thread, which ranks would count.
		 */
		mallinfo2();
		st = tess_world_spawn_threads(shared->job.nranks, run_job_rank, shared);
		if (st && !atomic_load(&shared->rank_state[0].state))
			return fail_not_opened(shared, st);
		return st ? 1 : 0;
	}
	st = tess_world_open(&w);
	if (st)
		return fail_not_opened(shared, st);
	st = run_job_rank(w, shared);
	tess_world_close(w);
	return st ? 1 : 0;
}
