#include "sum.h"

#include <stdlib.h>
#include <string.h>

struct walk { /* a walk over a tree or a node of it */
	struct sum *sum;
	const struct tess_op *op;
	const struct tess_tree *tree;
	int64_t trees, first; /* units of the tree over trees, and the unit of op's first tree */
	int64_t lo, hi, step_max;
	int32_t level;
	bool failed;
};

static struct sum_step *append_step(struct walk *w)
{
	struct sum *s = w->sum;
	struct sum_step *more;
	int64_t capacity;

	if (s->count == s->capacity) {
		capacity = s->capacity ? s->capacity * 2 : 256;
		more = realloc(s->step, (size_t)capacity * sizeof *more);
		if (!more) {
			w->failed = true;
			return s->count ? &s->step[s->count - 1] : NULL;
		}
		s->step = more;
		s->capacity = capacity;
	}
	more = &s->step[s->count++];
	*more = (struct sum_step){ .node = -1, .level = (int16_t)w->level, .before = s->elements };
	return more;
}

static struct sum_step *get_last_step(struct walk *w)
{
	return &w->sum->step[w->sum->count - 1];
}

static void append_leaf(struct walk *w, int64_t unit)
{
	const struct tess_term *term = w->op->term + w->tree->first;
	int64_t first = w->sum->count, u = unit - w->tree->lo, at, end;
	struct sum_step *step;

	for (int32_t i = 0; i < w->tree->terms; i++) {
		end = term[i].bound[u + 1];
		for (at = term[i].bound[u]; at < end; at += w->step_max) {
			step = append_step(w);
			if (w->failed)
				return;
			step->at = at;
			step->operand = term[i].operand;
			step->len = (int32_t)(end - at < w->step_max ? end - at : w->step_max);
			step->groups = w->sum->groups;
			step->pairs = w->sum->pairs;
			step->words = w->sum->words;
			w->sum->elements += step->len;
			w->sum->groups += tess_up(step->len, GROUP);
			w->sum->pairs += tess_up(step->len, 2);
			w->sum->words += tess_up(step->len, 8);
		}
	}
	if (w->sum->count == first)
		append_step(w);
	if (w->failed)
		return;
	w->sum->step[first].fresh = 1;
	w->level++;
	if (w->level > w->sum->levels)
		w->sum->levels = w->level;
}

/* Visits the part of node (depth, at) of the tree in [lo, hi); false if that is empty. */
static bool visit_node(struct walk *w, int32_t depth, int64_t at)
{
	int64_t parts = (int64_t)1 << depth;
	int64_t a = tess_edge(w->tree->n, parts, at), b = tess_edge(w->tree->n, parts, at + 1);
	bool left, right;

	if (a >= b || b <= w->lo || a >= w->hi || w->failed)
		return false;
	if (b - a == 1) {
		append_leaf(w, a);
		return true;
	}
	left = visit_node(w, depth + 1, at * 2);
	right = visit_node(w, depth + 1, at * 2 + 1);
	if (left && right && !w->failed) {
		get_last_step(w)->merge++;
		w->level--;
	}
	return left || right;
}

/* Visits the part of node (depth, at) of the tree over finished trees in [lo, hi). */
static bool visit_trees(struct walk *w, int64_t lo, int64_t hi, int32_t depth, int64_t at)
{
	int64_t parts = (int64_t)1 << depth;
	int64_t a = tess_edge(w->trees, parts, at), b = tess_edge(w->trees, parts, at + 1);
	bool left, right;

	if (a >= b || b <= lo || a >= hi || w->failed)
		return false;
	if (b - a == 1) {
		w->tree = &w->op->tree[a - w->first];
		w->lo = w->tree->lo;
		w->hi = w->tree->hi;
		if (!visit_node(w, 0, 0) || w->failed)
			return false;
		get_last_step(w)->finish = 1;
		return true;
	}
	left = visit_trees(w, lo, hi, depth + 1, at * 2);
	right = visit_trees(w, lo, hi, depth + 1, at * 2 + 1);
	/* no operand is -0, so no sum is: a second + 0.0f is not needed */
	if (left && right && !w->failed) {
		get_last_step(w)->trees++;
		w->level--;
	}
	return left || right;
}

static void visit_nodes(struct walk *w)
{
	struct tess_node node;
	int64_t at;

	for (int32_t i = 0; i < w->op->ntree; i++) {
		w->tree = &w->op->tree[i];
		at = w->tree->lo;
		while (tess_node_next(w->tree->n, w->tree->lo, w->tree->hi, &at, &node)) {
			w->lo = node.lo;
			w->hi = node.hi;
			visit_node(w, 0, 0);
			if (w->failed)
				return;
			get_last_step(w)->node = w->sum->nodes++;
			w->level = 0;
		}
	}
}

/* Finishes the next node of the output, over the finished trees [lo, hi). */
static void finish_node_of_trees(struct walk *w, int64_t lo, int64_t hi)
{
	if (!visit_trees(w, lo, hi, 0, 0) && !w->failed) { /* an empty sum is +0.0f */
		append_step(w);
		if (!w->failed)
			get_last_step(w)->fresh = 1;
	}
	if (!w->failed)
		get_last_step(w)->node = w->sum->nodes++;
	w->level = 0;
}

/* Returns the least recently used plan, emptied. */
static struct sum *take_oldest_plan(struct sum_plans *p)
{
	struct sum *s = &p->plan[0];

	for (size_t i = 1; i < sizeof p->plan / sizeof *p->plan; i++)
		if (p->plan[i].used < s->used)
			s = &p->plan[i];
	s->count = s->elements = s->groups = s->pairs = s->words = 0;
	s->levels = 1;
	s->nodes = 0;
	s->from.n = 0;
	s->used = ++p->turn;
	return s;
}

static bool match_source(const struct sum_source *from, const struct tess_op *op, bool partial,
                         int64_t step_max)
{
	const struct tess_tree *t = op->tree;
	int64_t bounds = t->hi - t->lo + 1;
	const int64_t *kept = from->term, *end = kept + t->terms * (bounds + 1);

	if (!from->n || from->n != t->n || from->lo != t->lo || from->hi != t->hi ||
	    from->step_max != step_max || from->terms != t->terms || from->partial != partial)
		return false;
	for (const struct tess_term *m = op->term + t->first; kept < end; m++, kept += bounds + 1)
		if (*kept != m->operand ||
		    memcmp(kept + 1, m->bound, (size_t)bounds * sizeof *kept))
			return false;
	return true;
}

/* Keeps the source of a planned sum of one tree; without memory it is not found again. */
static void keep_source(struct sum_source *from, const struct tess_op *op, bool partial,
                        int64_t step_max)
{
	const struct tess_tree *t = op->tree;
	int64_t bounds = t->hi - t->lo + 1, *kept;

	kept = realloc(from->term, (size_t)(t->terms * (bounds + 1) + 1) * sizeof *kept);
	if (!kept)
		return;
	*from = (struct sum_source){ t->n, t->lo, t->hi, step_max, t->terms, partial, kept };
	for (int32_t i = 0; i < t->terms; i++, kept += bounds + 1) {
		kept[0] = op->term[t->first + i].operand;
		memcpy(kept + 1, op->term[t->first + i].bound, (size_t)bounds * sizeof *kept);
	}
}

tess_status sum_plan(struct sum_plans *p, const struct tess_op *op, bool partial, int64_t step_max,
                     const struct sum **out)
{
	struct walk w = { .op = op, .trees = op->ntree, .step_max = step_max };
	size_t n = op->ntree == 1 ? sizeof p->plan / sizeof *p->plan : 0;

	for (size_t i = 0; i < n; i++) {
		if (match_source(&p->plan[i].from, op, partial, step_max)) {
			p->plan[i].used = ++p->turn;
			*out = &p->plan[i];
			return TESS_OK;
		}
	}
	w.sum = take_oldest_plan(p);
	*out = w.sum;
	if (partial)
		visit_nodes(&w);
	else
		finish_node_of_trees(&w, 0, w.trees);
	if (op->ntree == 1 && !w.failed)
		keep_source(&w.sum->from, op, partial, step_max);
	return w.failed ? TESS_ENOMEM : TESS_OK;
}

tess_status sum_plan_tokens(struct sum_plans *p, const struct tess_op *op, int32_t tree,
                            int64_t step_max, const struct sum **out)
{
	struct tess_op trees = *op;
	struct walk w = { .op = &trees,
		          .trees = (int64_t)op->num[TESS_TOKENS_SEQUENCES],
		          .first = (int64_t)op->num[TESS_TOKENS_FIRST],
		          .step_max = step_max };
	struct tess_node node;
	int64_t at = w.first;

	trees.tree += tree;
	trees.ntree -= tree;
	if (op->out[0].ndim < 3 || !w.trees)
		return sum_plan(p, &trees, op->out[0].ndim == 3, step_max, out);
	w.sum = take_oldest_plan(p);
	*out = w.sum;
	while (!w.failed && tess_node_next(w.trees, w.first, w.first + trees.ntree, &at, &node))
		finish_node_of_trees(&w, node.lo, node.hi);
	return w.failed ? TESS_ENOMEM : TESS_OK;
}

void sum_free_plans(struct sum_plans *p)
{
	for (size_t i = 0; i < sizeof p->plan / sizeof *p->plan; i++) {
		free(p->plan[i].step);
		free(p->plan[i].from.term);
	}
	*p = (struct sum_plans){ 0 };
}
