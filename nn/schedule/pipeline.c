/* pipeline.c - opens schedules: built in, from files, or from text. */
#include "nn/schedule/schedule.h"

#include "core/base/file.h"
#include "core/base/line.h"
#include "core/base/sized.h"
#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 1 << 26 };

struct opened_pipeline {
	struct tess_pipeline pipeline; /* first: what the caller has */
	struct tess_arena arena;
};

/* ---- opening --------------------------------------------------------------------------------- */

static tess_status alloc_opened(const char *name, struct opened_pipeline **out,
                                struct tess_schedule_maker *m)
{
	struct opened_pipeline *o = calloc(1, sizeof *o);

	if (!o)
		return tess_fail(TESS_ENOMEM, "out of memory for a schedule");
	*m = (struct tess_schedule_maker){ .arena = &o->arena };
	m->name = tess_arena_copy(&o->arena, name, strlen(name));
	if (!m->name) {
		free(o);
		return TESS_ENOMEM;
	}
	*out = o;
	return TESS_OK;
}

/* Checks and orders the computations, adds the messages unless there are some, checks those. */
static tess_status finish_opened(struct tess_schedule_maker *m, bool messages,
                                 struct opened_pipeline *o)
{
	tess_status st = tess_schedule_finish(m, &o->pipeline);

	if (!st)
		st = tess_schedule_check_computations(&o->pipeline);
	if (!st)
		st = tess_schedule_order_weights(m);
	if (!st && !messages)
		st = tess_schedule_add_messages(m);
	if (!st)
		st = tess_schedule_finish(m, &o->pipeline);
	return st ? st : tess_schedule_check_messages(&o->pipeline);
}

static tess_status give_opened(struct opened_pipeline *o, tess_status st,
                               struct tess_pipeline **out)
{
	if (st)
		tess_pipeline_close(&o->pipeline);
	else
		*out = &o->pipeline;
	return st;
}

/* ---- built in -------------------------------------------------------------------------------- */

static tess_status open_built_in(const char *name, int32_t nranks, int32_t nmicro,
                                 struct tess_pipeline **out)
{
	struct opened_pipeline *o = NULL;
	struct tess_schedule_maker m;
	bool known;
	tess_status st;

	if (nranks < 0 || nmicro < 0)
		return tess_fail(TESS_EINVAL,
		                 "pipeline schedule %s: %d ranks and %d micro-batches are given; "
		                 "use 0 or more",
		                 name, (int)nranks, (int)nmicro);
	st = alloc_opened(name, &o, &m);
	if (st)
		return st;
	m.nranks = nranks ? nranks : 1;
	m.nmicro = nmicro ? nmicro : 1;
	st = tess_schedule_generate(&m, &known);
	if (!known)
		st = tess_fail(TESS_EINVAL,
		               "pipeline schedule %s: must be gpipe, 1f1b, interleaved:V, "
		               "looped-bfs:V, zb-h1, zb-v, or a file whose name ends with .csv",
		               name);
	if (!st)
		st = finish_opened(&m, false, o);
	return give_opened(o, st, out);
}

tess_status tess_schedule_open_serial(const struct tess_pipeline *like, int32_t n,
                                      struct tess_pipeline **out)
{
	struct opened_pipeline *o = NULL;
	struct tess_schedule_maker m;
	int32_t nstages = like->nstages;
	tess_status st = alloc_opened(like->name, &o, &m);

	if (st)
		return st;
	m.nranks = like->nranks;
	m.nstages = nstages;
	m.nmicro = n;
	st = tess_schedule_start(&m);
	for (int32_t s = 0; s < nstages && !st; s++)
		m.rank_of[s] = like->rank_of[s];
	for (int32_t i = 0; i < 2 * nstages * n && !st; i++) {
		int32_t k = i % (2 * nstages), stage = k < nstages ? k : 2 * nstages - 1 - k;

		tess_schedule_add(&m, m.rank_of[stage],
		                  (struct tess_pipeline_action){ k < nstages
		                                                         ? TESS_PIPELINE_FORWARD
		                                                         : TESS_PIPELINE_BACKWARD,
		                                                 stage, i / (2 * nstages), 0 });
	}
	if (!st)
		st = m.failed ? TESS_ENOMEM : finish_opened(&m, false, o);
	return give_opened(o, st, out);
}

/* ---- files ----------------------------------------------------------------------------------- */

static tess_status check_numbers(const struct tess_pipeline *p, int32_t nranks, int32_t nmicro)
{
	if (nranks && nranks != p->nranks)
		return tess_fail(TESS_EINVAL,
		                 "%s: is for %d ranks along pp, not %d; use --mesh pp=%d", p->name,
		                 (int)p->nranks, (int)nranks, (int)p->nranks);
	if (nmicro && nmicro != p->nmicro)
		return tess_fail(TESS_EINVAL,
		                 "%s: is for %d micro-batches, not %d; use --micro-batches %d, or "
		                 "leave it out",
		                 p->name, (int)p->nmicro, (int)nmicro, (int)p->nmicro);
	return TESS_OK;
}

tess_status tess_pipeline_parse(const char *name, const char *text, size_t len, int32_t nranks,
                                int32_t nmicro, struct tess_pipeline **out)
{
	struct opened_pipeline *o = NULL;
	struct tess_schedule_maker m;
	bool messages;
	tess_status st = TESS_REQUIRE(name, text, out);

	if (!st)
		st = alloc_opened(name, &o, &m);
	if (st)
		return st;
	st = tess_schedule_read_csv(&m, text, len, &messages);
	if (!st)
		st = finish_opened(&m, messages, o);
	if (!st)
		st = check_numbers(&o->pipeline, nranks, nmicro);
	return give_opened(o, st, out);
}

static tess_status open_csv(const char *path, int32_t nranks, int32_t nmicro,
                            struct tess_pipeline **out)
{
	FILE *f = fopen(path, "r");
	struct tess_line text = { 0 };
	tess_status st;

	if (!f)
		return tess_file_fail_open(path);
	st = tess_line_read(f, EOF, FILE_MAX, &text);
	fclose(f);
	if (!st)
		st = text.len ? tess_pipeline_parse(path, text.text, text.len, nranks, nmicro, out)
		              : tess_fail(TESS_EINVAL,
		                          "%s: is empty; a schedule has a row for each "
		                          "rank",
		                          path);
	else
		tess_fail_in(st, "%s", path);
	free(text.text);
	return st;
}

/* ---- the whole ------------------------------------------------------------------------------- */

bool tess_schedule_is_file(const char *schedule)
{
	size_t len = strlen(schedule);

	return len > 4 && !strcmp(schedule + len - 4, ".csv");
}

tess_status tess_pipeline_open(const char *schedule, int32_t nranks, int32_t nmicro,
                               struct tess_pipeline **out)
{
	tess_status st = TESS_REQUIRE(schedule, out);

	if (st)
		return st;
	return tess_schedule_is_file(schedule) ? open_csv(schedule, nranks, nmicro, out)
	                                       : open_built_in(schedule, nranks, nmicro, out);
}

void tess_pipeline_close(struct tess_pipeline *p)
{
	struct opened_pipeline *o = (struct opened_pipeline *)p;
	struct tess_arena arena;

	if (!p)
		return;
	arena = o->arena;
	tess_arena_free(&arena);
	free(o);
}
