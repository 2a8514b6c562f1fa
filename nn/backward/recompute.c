#include "nn/backward/recompute.h"

#include <string.h>

/* ---- what is computed again ------------------------------------------------------------------ */

/* Returns the outermost module at or above `path` that pattern i matches; NULL: none. */
static const char *find_matched_module(struct tess_recorder *r, const char *pattern,
                                       const char *path)
{
	for (size_t n = strcspn(path, ".");; n += 1 + strcspn(path + n + 1, ".")) {
		const char *module = tess_arena_copy(&r->p->arena, path, n);

		if (!module)
			return tess_recorder_keep_error(r, TESS_ENOMEM);
		if (tess_pattern_matches(pattern, module))
			return module;
		if (!path[n])
			return NULL;
	}
}

/* Finds the outermost matched module of record i. */
static void match_patterns(struct tess_recompute *c, const char *const *patterns, int32_t i,
                           bool *used)
{
	const char *found;

	for (int32_t k = 0; patterns[k] && !c->r->status; k++) {
		found = find_matched_module(c->r, patterns[k], c->r->p->record[i]->module);
		used[k] |= found != NULL;
		if (found && (!c->module[i] || strlen(found) < strlen(c->module[i])))
			c->module[i] = found;
	}
}

void tess_recompute_begin(struct tess_recorder *r, struct tess_recompute *out)
{
	struct tess_program *p = r->p;
	const char *const *patterns = p->training->recompute;
	int32_t npatterns = 0;
	bool *used;

	*out = (struct tess_recompute){ .r = r, .nforward = p->nrecords };
	if (!patterns)
		return;
	while (patterns[npatterns])
		npatterns++;
	out->module = TESS_NEW(&p->arena, const char *, p->nrecords);
	out->again = TESS_NEW(&p->arena, const struct tess_record *, p->nrecords);
	out->copy = TESS_NEW(&p->arena, struct tess_tensor *, p->ntensors);
	used = TESS_NEW(&p->arena, bool, npatterns);
	if (!out->module || !out->again || !out->copy || !used) {
		tess_recorder_keep_error(r, TESS_ENOMEM);
		return;
	}
	for (int32_t i = 0; i < p->nrecords; i++)
		match_patterns(out, patterns, i, used);
	for (int32_t k = 0; k < npatterns; k++)
		if (!used[k])
			tess_recorder_fail(r, TESS_EINVAL,
			                   "recompute \"%s\": no module matches it; give a path in "
			                   "which * stands for one component, such as "
			                   "model.layers.*",
			                   patterns[k]);
}

/* ---- records again --------------------------------------------------------------------------- */

static struct tess_tensor *copy_tensor(struct tess_recompute *c, struct tess_tensor *y)
{
	struct tess_tensor *copy = tess_tensor_new(c->r, y->ndim, y->dim, y->place, y->module);

	if (copy) {
		copy->dtype = y->dtype;
		copy->sum = y->sum;
		copy->local = y->local;
		copy->repeats = y;
		c->copy[y->id] = copy;
	}
	return copy;
}

/* Records that a later move of x to the same place returns the new value. */
static void remember_move(struct tess_recompute *c, struct tess_tensor *x, struct tess_tensor *to)
{
	struct tess_redistributed *memo = TESS_NEW(&c->r->p->arena, struct tess_redistributed, 1);

	if (!memo) {
		tess_recorder_keep_error(c->r, TESS_ENOMEM);
		return;
	}
	*memo = (struct tess_redistributed){ x->redistributed, to };
	x->redistributed = memo;
}

static void repeat_record(struct tess_recompute *c, int32_t i)
{
	const struct tess_record *rec = c->r->p->record[i];
	struct tess_arena *arena = &c->r->p->arena;
	struct tess_tensor **in = TESS_NEW(arena, struct tess_tensor *, rec->nin + 1),
			   **out = TESS_NEW(arena, struct tess_tensor *, rec->nout + 1);
	struct tess_record *again, head;

	if (!in || !out) {
		tess_recorder_keep_error(c->r, TESS_ENOMEM);
		return;
	}
	for (int32_t k = 0; k < rec->nin; k++)
		in[k] = c->copy[rec->in[k]->id] ? c->copy[rec->in[k]->id] : rec->in[k];
	for (int32_t k = 0; k < rec->nout; k++)
		out[k] = copy_tensor(c, rec->out[k]);
	again = tess_record_append(c->r, rec->kind, rec->module, rec->nin, in, rec->nout, out,
	                           rec->nweight, rec->weight);
	if (!again)
		return;
	head = *again;
	*again = *rec;
	again->in = head.in;
	again->out = head.out;
	again->repeats = rec;
	c->again[i] = again;
	if (rec->kind == TESS_REC_MOVE)
		remember_move(c, in[0], out[0]);
}

const struct tess_record *tess_recompute_get(struct tess_recompute *c, int32_t i)
{
	int32_t first = i;

	if (!c->module || !c->module[i])
		return c->r->p->record[i];
	if (!c->again[i]) {
		while (first > 0 && c->module[first - 1] &&
		       !strcmp(c->module[first - 1], c->module[i]))
			first--;
		for (; first <= i && !c->r->status; first++)
			repeat_record(c, first);
	}
	return c->again[i];
}

void tess_recompute_end(struct tess_recompute *c)
{
	struct tess_program *p = c->r->p;
	bool *used = c->module ? TESS_NEW(&p->arena, bool, p->ntensors) : NULL;
	int32_t kept = p->nrecords;

	if (!c->module || c->r->status)
		return;
	if (!used) {
		tess_recorder_keep_error(c->r, TESS_ENOMEM);
		return;
	}
	for (int32_t i = p->nrecords - 1; i >= c->nforward; i--) {
		struct tess_record *rec = p->record[i];
		bool needed = !rec->repeats;

		for (int32_t k = 0; k < rec->nout; k++)
			needed |= used[rec->out[k]->id];
		if (!needed)
			continue;
		for (int32_t k = 0; k < rec->nin; k++)
			used[rec->in[k]->id] = true;
		p->record[--kept] = rec;
	}
	memmove(p->record + c->nforward, p->record + kept,
	        (size_t)(p->nrecords - kept) * sizeof(struct tess_record *));
	p->nrecords -= kept - c->nforward;
}
