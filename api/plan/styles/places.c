/* places.c - the places of the values that later modules read: what their cost depends on. */
#include "api/plan/styles/styles.h"

#include <string.h>

/* Returns whether a move is that of a module's input: the model has the value as it was before. */
static bool moves_input(const struct tess_program *p, const struct tess_record *move, int32_t made)
{
	for (int32_t i = 0; i < p->nmodules; i++)
		if (!strcmp(p->module[i].path, move->module))
			return p->module[i].record > made;
	return true;
}

bool tess_styles_find_values(struct tess_arena *a, const struct tess_program *p, int32_t end,
                             struct value_places *v)
{
	int32_t n = tess_styles_count_forward(p), order = 0;

	v->made = TESS_NEW(a, int32_t, p->ntensors);
	v->owner = TESS_NEW(a, int32_t, p->ntensors);
	v->order = TESS_NEW(a, int32_t, p->ntensors);
	v->read = TESS_NEW(a, bool, p->ntensors);
	if (!v->made || !v->owner || !v->order || !v->read)
		return false;
	for (int32_t i = 0; i < p->ntensors; i++) {
		v->made[i] = -1;
		v->owner[i] = i;
	}
	for (int32_t i = 0; i < n; i++) {
		const struct tess_record *rec = p->record[i];
		bool move = rec->kind == TESS_REC_MOVE;

		for (int32_t k = 0; k < rec->nin && i >= end; k++)
			if (v->made[rec->in[k]->id] < end)
				v->read[v->owner[rec->in[k]->id]] = true;
		for (int32_t k = 0; k < rec->nout; k++) {
			int32_t id = rec->out[k]->id;

			v->made[id] = i;
			v->order[id] = move ? v->order[rec->in[0]->id] : ++order;
			if (move && moves_input(p, rec, v->made[rec->in[0]->id]))
				v->owner[id] = v->owner[rec->in[0]->id];
		}
	}
	return true;
}

static uint32_t get_place_bit(const struct tess_tensor *t)
{
	return 1u << (4 * t->place[0].kind + t->place[0].dim);
}

const char *tess_styles_format_places(struct style_search *s, const struct tess_program *p,
                                      const struct value_places *v, int32_t end, bool with_copies)
{
	const char *text = "";
	int32_t n = tess_styles_count_forward(p);

	for (int32_t i = 0; i < end && i < n && text; i++)
		for (int32_t k = 0; k < p->record[i]->nout && text; k++) {
			const struct tess_tensor *t = p->record[i]->out[k];
			uint32_t copies = 0;

			if (v->owner[t->id] != t->id || !v->read[t->id])
				continue;
			for (const struct tess_redistributed *c = t->redistributed; c; c = c->next)
				if (v->made[c->to->id] < end && v->made[c->to->id] >= 0)
					copies |= get_place_bit(c->to);
			text = with_copies ? tess_arena_format(&s->arena, "%s %d:%x+%x", text,
			                                       (int)v->order[t->id],
			                                       (unsigned)get_place_bit(t),
			                                       (unsigned)copies)
			                   : tess_arena_format(&s->arena, "%s %x", text,
			                                       (unsigned)get_place_bit(t));
		}
	return text;
}

/* Returns whether a record is of a module, or computes with its weights. */
static bool is_of_module(const struct tess_record *rec, const char *path)
{
	bool is = !strcmp(rec->module, path);

	for (int32_t i = 0; i < rec->nweight && !is; i++)
		is = tess_styles_is_below(rec->weight[i]->name, path);
	return is;
}

/* Returns whether what follows site i depends on the style of site `at` by itself. */
static bool is_style_open(const struct style_search *s, const struct tess_program *p, int32_t at,
                          int32_t i)
{
	const char *path = s->site[at].path;
	int32_t n = tess_styles_count_forward(p);

	if (s->choice[s->site[at].choice].tied)
		return true;
	if (s->site[at].contains)
		return i + 1 < s->nsites && tess_styles_is_below(s->site[i + 1].path, path);
	for (int32_t k = tess_styles_find_end(p, i); k < n; k++)
		if (is_of_module(p->record[k], path))
			return true; /* several modules are opened before their records */
	return false;
}

const char *tess_styles_format_key(struct style_search *s, const struct tess_program *p,
                                   const struct value_places *v, int32_t i, const int32_t *spec)
{
	const char *text = tess_styles_format_places(s, p, v, tess_styles_find_end(p, i), true);

	for (int32_t at = 0; at <= i && text; at++)
		if (is_style_open(s, p, at, i))
			text = tess_arena_format(&s->arena, "%s %d=%d", text,
			                         (int)s->site[at].choice,
			                         (int)spec[s->site[at].choice]);
	return text;
}
