/* The ranks of one job, as threads of this process or as this process; and the first job, which has none. */
#include "conform.h"

#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"
#include "core/group/world.h"
#include "core/registry/registry.h"

#include <fcntl.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void conform_doing(struct conform_rank *me, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(me->seat->doing, sizeof me->seat->doing, fmt, ap);
	va_end(ap);
	atomic_fetch_add(&me->seat->beats, 1);
}

void conform_step(struct conform_rank *me, int step)
{
	atomic_store(&me->seat->step, step);
}

static void blame(struct conform_seat *seat, const char *fmt, va_list ap)
{
	unsigned i = atomic_load(&seat->blamed);

	if (i < CONFORM_BLAMES) {
		snprintf(seat->blame[i].what, sizeof seat->blame[i].what, "%s", seat->doing);
		vsnprintf(seat->blame[i].text, sizeof seat->blame[i].text, fmt, ap);
	}
	atomic_store(&seat->blamed, i + 1);
}

void conform_blame(struct conform_rank *me, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	blame(me->seat, fmt, ap);
	va_end(ap);
}

void conform_blame_time(struct conform_rank *me, const char *fmt, ...)
{
	va_list ap;

	atomic_fetch_add(&me->seat->blamed_time, 1);
	va_start(ap, fmt);
	blame(me->seat, fmt, ap);
	va_end(ap);
}

/* ---- what the plugin is ------------------------------------------------------------------------------------ */

static void ask(const struct tess_backend *b, struct conform_found *f, struct tess_coll *c)
{
	for (int32_t n = 1; n <= CONFORM_RANKS; n++)
		if (b->supports(c, n) != TESS_OK)
			f->lacks[c->kind][c->dtype][tess_kind_reduces(c->kind) ? c->op : 0] |=
				(uint16_t)(1 << n);
}

static void ask_all(const struct tess_backend *b, struct conform_found *f)
{
	for (int32_t kind = TESS_BARRIER; kind <= TESS_RECV; kind++)
		for (int32_t dtype = TESS_F32; dtype <= TESS_U8; dtype++)
			for (int32_t op = TESS_SUM; op <= TESS_BXOR; op++) {
				struct tess_coll c = { .size = sizeof c,
					               .kind = kind,
					               .dtype = dtype,
					               .op = op,
					               .mem = TESS_HOST,
					               .count = 64 };

				if ((op > TESS_SUM && !tess_kind_reduces(kind)) ||
				    (op >= TESS_BAND && dtype <= TESS_F16))
					continue;
				ask(b, f, &c);
			}
}

static int find(struct conform_board *board)
{
	struct conform_found *f = &board->found;
	const char *name = getenv("TESSERA_BACKEND");
	const struct tess_backend *b;
	struct tess_plugin_info p;
	struct conform_rank me = { .seat = &board->seat[0] };

	conform_doing(&me, "opening the plugin");
	if (!name || tess_plugin_backend(name, &b)) {
		conform_blame(&me, "%s", tess_error());
		return 1;
	}
	snprintf(f->name, sizeof f->name, "%s", b->name);
	snprintf(f->summary, sizeof f->summary, "%s", b->summary ? b->summary : "");
	f->threads = b->threads;
	f->abort = b->abort;
	f->batch = b->batch;
	f->alloc = b->alloc;
	f->meets = b->bootstrap;
	for (size_t i = 0; tess_registry_at(i, &p); i++)
		for (size_t k = 0; k < p.noffers; k++)
			if (p.offers[k].table == b)
				snprintf(f->path, sizeof f->path, "%s", p.path);
	conform_doing(&me, "supports(), asked without a group");
	ask_all(b, f);
	f->opened = true;
	return 0;
}

/* ---- ranks ---------------------------------------------------------------------------------------------------- */

static tess_status live(struct tess_world *w, void *arg)
{
	struct conform_board *board = arg;
	const struct conform_part *part = &conform_parts[board->job.part];
	struct conform_rank me = { .world = w,
		                   .group = tess_world_group(w),
		                   .board = board,
		                   .job = &board->job,
		                   .rank = tess_world_rank(w),
		                   .n = tess_world_size(w) };
	tess_status st = tess_plugin_backend(tess_world_backend(w), &me.backend);

	w->timeout = (int64_t)(board->job.timeout * 1e9);
	me.seat = &board->seat[me.rank];
	atomic_store(&me.seat->state, CONFORM_HERE);
	if (!st)
		st = part->run(&me);
	if (st && !part->scene)
		conform_blame(&me, "%s", tess_error());
	atomic_store(&me.seat->state, CONFORM_THROUGH);
	return st;
}

/* No world, no rank to blame it on but the one that the environment names. */
static int not_opened(struct conform_board *board)
{
	const char *rank = getenv("RANK");
	struct conform_rank me = { .seat = &board->seat[rank ? atoi(rank) % CONFORM_RANKS : 0] };

	conform_doing(&me, "opening the group of all ranks");
	conform_blame(&me, "%s", tess_error());
	return 1;
}

int conform_rank_main(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	struct conform_board *board = MAP_FAILED;
	struct tess_world *w;
	tess_status st;

	if (fd >= 0)
		board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (board == MAP_FAILED)
		return 2;
	close(fd);
	if (board->job.part < 0)
		return find(board);
	if (board->job.threads) {
		/*
		 * Where a sanitizer has a heap of its own, the first call makes glibc's, for the
		 * thread that calls: two ranks at once would both take it for theirs.
		 */
		mallinfo2();
		st = tess_world_spawn(board->job.nranks, live, board);
		if (st && !atomic_load(&board->seat[0].state))
			return not_opened(board);
		return st ? 1 : 0;
	}
	if (tess_world_open(&w))
		return not_opened(board);
	st = live(w, board);
	tess_world_close(w);
	return st ? 1 : 0;
}
