/* candidate.c - the strategy of a candidate. */
#include "api/plan/compose.h"

const char *tess_candidate_get_schedule(int32_t schedule, int32_t *per_rank)
{
	static const char *const names[SCHEDULES] = { "1f1b", "interleaved:2", "zb-h1", "zb-v" };
	static const int32_t stages[SCHEDULES] = { 1, 2, 1, 2 };

	*per_rank = stages[schedule];
	return names[schedule];
}

int32_t tess_candidate_count_shards(const struct candidate *k)
{
	return k->shards ? k->shards : k->dp;
}

static const char *format_mesh(struct tess_planner *p, const struct candidate *k)
{
	char text[4][32] = { "", "", "", "" };

	if (k->pp > 1)
		snprintf(text[0], sizeof text[0], "pp=%d,", (int)k->pp);
	if (k->shards)
		snprintf(text[1], sizeof text[1], "ddp=%d,dp=%d,", (int)(k->dp / k->shards),
		         (int)k->shards);
	else if (k->dp > 1)
		snprintf(text[1], sizeof text[1], "dp=%d,", (int)k->dp);
	if (k->ep > 1)
		snprintf(text[2], sizeof text[2], "ep=%d,", (int)k->ep);
	snprintf(text[3], sizeof text[3], "tp=%d", (int)k->tp);
	return tess_arena_format(&p->arena, "%s%s%s%s", text[0], text[1], text[2], text[3]);
}

int32_t tess_planner_count_presets(const struct tess_planner *p)
{
	int32_t n = 0;

	while (p->model.model->presets[n].name)
		n++;
	return n;
}

const char *tess_candidate_get_plan(const struct tess_planner *p, const struct candidate *k)
{
	int32_t n = tess_planner_count_presets(p);

	return k->plan < 0    ? "auto"
	       : k->plan >= n ? p->found[k->plan - n].text
	                      : p->model.model->presets[k->plan].name;
}

/* The pattern of the modules that a candidate recomputes. */
static const char *format_recomputed(struct tess_planner *p, int32_t recompute)
{
	return recompute == RECOMPUTE_LAYERS
	               ? p->path
	               : tess_arena_format(&p->arena, "%s.%s", p->path, p->attention);
}

const struct tess_strategy *tess_candidate_make_strategy(struct tess_planner *p,
                                                         const struct candidate *k)
{
	static const char *const zero[ZEROS] = { NULL, "dp:**=zero1", "dp:**=zero3" };
	struct tess_strategy *s = TESS_NEW(&p->arena, struct tess_strategy, 1);
	const char **list = TESS_NEW(&p->arena, const char *, 4);
	const char *place = p->machine->exact ? "disk" : "host";
	int32_t per_rank;

	if (!s || !list)
		return NULL;
	*s = (struct tess_strategy){ .size = sizeof *s };
	s->plan = tess_candidate_get_plan(p, k);
	s->mesh = format_mesh(p, k);
	s->micro_batches = k->micro > 1 ? k->micro : 0;
	s->bucket = k->bucket ? LARGE_BUCKET : 0;
	s->offload_optimizer = k->offload ? place : NULL;
	s->offload_weights = k->offload == OFFLOAD_ALL ? place : NULL;
	if (zero[k->zero]) {
		list[0] = zero[k->zero];
		s->overrides = list;
	}
	if (k->recompute) {
		list[2] = format_recomputed(p, k->recompute);
		s->recompute = list + 2;
	}
	if (k->pp > 1 && p->options.train)
		s->pipeline_schedule = tess_candidate_get_schedule(k->schedule, &per_rank);
	return s->mesh && (!k->recompute || list[2]) ? s : NULL;
}
