#include "nn/run/programs.h"

#include "core/base/status.h"
#include "core/world/world.h"
#include "nn/compile/hash.h"
#include "nn/program/agree.h"

#include <stdlib.h>
#include <string.h>

enum { PROGRAMS_MAX = 32 };

static void free_shaped_program(struct tess_shaped_program *k)
{
	tess_graphs_close(&k->graphs);
	tess_rank_program_free(k->lowered);
	tess_program_free(k->program);
	free(k);
}

static tess_status record_shape(struct tess_programs *s, struct tess_shape shape,
                                struct tess_shaped_program **out)
{
	struct tess_record_options options = s->options;
	struct tess_shaped_program *k = calloc(1, sizeof *k);
	tess_status st;

	if (!k)
		return tess_fail(TESS_ENOMEM, "out of memory");
	k->shape = shape;
	options.ntokens = shape.ntokens;
	options.nselected = shape.nselected;
	options.logits_root = shape.root;
	options.training = shape.training;
	st = tess_program_compile(&options, &k->program);
	if (st) {
		free(k);
		return st;
	}
	k->shape.training = k->program->training; /* the program's copy */
	*out = k;
	return TESS_OK;
}

tess_status tess_programs_record_first(struct tess_programs *s, struct tess_shape shape)
{
	tess_status st = record_shape(s, shape, &s->first);

	return st ? st : tess_program_hash(s->first->program);
}

tess_status tess_programs_compare(const struct tess_programs *s)
{
	const struct tess_program *p = s->first->program;
	int32_t nranks = tess_group_size(s->all);
	int64_t mine[2] = { p->nrecords, p->nrecords ? (int64_t)p->hash[p->nrecords - 1] : 0 };
	int64_t *all = calloc((size_t)nranks, sizeof mine);
	uint64_t *hash = NULL;
	tess_status st;
	int32_t other = -1;

	if (!all)
		return tess_fail(TESS_ENOMEM, "out of memory");
	st = tess_all_gather(s->all, mine, all, 2, TESS_I64, "program:hash");
	for (int32_t r = 0; r < nranks && !st; r++)
		if (memcmp(all + 2 * r, all, sizeof mine) && other < 0)
			other = r;
	if (!st && other >= 0 && all[2 * other] != all[0]) {
		st = tess_fail(TESS_EMISMATCH,
		               "rank %d recorded %lld records, but rank 0 recorded %lld: they run "
		               "different plans, checkpoints or versions",
		               (int)other, (long long)all[2 * other], (long long)all[0]);
	} else if (!st && other >= 0) {
		hash = calloc((size_t)nranks * (size_t)p->nrecords, sizeof *hash);
		st = hash ? tess_all_gather(s->all, p->hash, hash, (uint64_t)p->nrecords, TESS_I64,
		                            "program:hashes")
		          : tess_fail(TESS_ENOMEM, "out of memory");
		for (int32_t i = 0; i < p->nrecords && !st; i++)
			if (hash[(int64_t)other * p->nrecords + i] != hash[i])
				st = tess_fail(
					TESS_EMISMATCH,
					"rank %d differs from rank 0 at record %d (%s of %s)",
					(int)other, (int)i,
					tess_record_kind_name(p->record[i]->kind),
					p->record[i]->module);
	}
	free(hash);
	free(all);
	return st == TESS_EMISMATCH ? tess_group_fail_together(s->all, st) : st;
}

static struct tess_shaped_program **find_shape_bucket(struct tess_programs *s,
                                                      struct tess_shape shape)
{
	uint64_t hash = (uint64_t)shape.ntokens * 31 + (uint64_t)shape.nselected * 7 +
	                (uint64_t)shape.root + shape.key + (uint64_t)shape.memory * 17;

	return &s->bucket[hash % TESS_PROGRAM_BUCKETS];
}

static bool is_same_training(const struct tess_training *a, const struct tess_training *b)
{
	return a->nsequences == b->nsequences && a->all_sequences == b->all_sequences &&
	       a->first == b->first && a->accumulate == b->accumulate && a->balance == b->balance &&
	       !memcmp(a->lengths, b->lengths, sizeof *a->lengths * (size_t)a->nsequences);
}

/* Either both shapes are of training, or none. */
static bool is_same_shape(struct tess_shape a, struct tess_shape b)
{
	return a.ntokens == b.ntokens && a.nselected == b.nselected && a.root == b.root &&
	       a.key == b.key && a.memory == b.memory &&
	       (!a.training || is_same_training(a.training, b.training));
}

/* Frees the program that no step has run for the longest time. */
static void drop_oldest_program(struct tess_programs *s)
{
	struct tess_shaped_program **oldest = NULL, *k;

	for (int i = 0; i < TESS_PROGRAM_BUCKETS; i++)
		for (struct tess_shaped_program **at = &s->bucket[i]; *at; at = &(*at)->next)
			if (*at != s->first && (!oldest || (*at)->used < (*oldest)->used))
				oldest = at;
	k = *oldest;
	*oldest = k->next;
	free_shaped_program(k);
	s->n--;
}

/* Lowers a recorded program for a device that must be able to run it. */
static tess_status lower_shape(struct tess_programs *s, struct tess_shaped_program *k)
{
	struct tess_rank_program *old = k->lowered;
	tess_status st =
		tess_program_lower(k->program, tess_group_rank(s->group), s->weights, &k->lowered);

	if (st)
		return st;
	tess_graphs_close(&k->graphs);
	tess_rank_program_free(old);
	k->stale = k->bound = false;
	return tess_rank_program_check_device(k->lowered, s->options.device);
}

tess_status tess_programs_find(struct tess_programs *s, struct tess_shape shape,
                               struct tess_shaped_program **out)
{
	struct tess_shaped_program **bucket = find_shape_bucket(s, shape), *k = *bucket;
	bool first = is_same_shape(s->first->shape, shape);
	tess_status st = TESS_OK;

	while (k && !is_same_shape(k->shape, shape))
		k = k->next;
	if (k) {
		st = k->stale ? lower_shape(s, k) : TESS_OK;
		if (!st)
			*out = k;
		return st;
	}
	if (s->n >= PROGRAMS_MAX && s->n >= s->kept)
		drop_oldest_program(s);
	if (first)
		k = s->first;
	else
		st = record_shape(s, shape, &k);
	if (!st)
		st = lower_shape(s, k);
	st = tess_group_agree_unless_apart(s->group, s->apart, st, "program");
	if (st) {
		if (k && !first)
			free_shaped_program(k);
		return st;
	}
	k->next = *bucket;
	*bucket = k;
	s->n++;
	*out = k;
	return TESS_OK;
}

void tess_programs_close_graphs(struct tess_programs *s)
{
	for (int i = 0; i < TESS_PROGRAM_BUCKETS; i++)
		for (struct tess_shaped_program *k = s->bucket[i]; k; k = k->next)
			tess_graphs_close(&k->graphs);
}

void tess_programs_mark_stale(struct tess_programs *s)
{
	for (int i = 0; i < TESS_PROGRAM_BUCKETS; i++)
		for (struct tess_shaped_program *k = s->bucket[i]; k; k = k->next)
			k->stale = true;
}

void tess_programs_bind(struct tess_programs *s, int32_t memory, const struct tess_memory *m)
{
	tess_programs_close_graphs(s);
	for (int i = 0; i < TESS_PROGRAM_BUCKETS; i++)
		for (struct tess_shaped_program *k = s->bucket[i]; k; k = k->next)
			if (k->shape.memory == memory) {
				tess_rank_program_bind(k->lowered, m);
				k->bound = true;
			}
}

void tess_programs_free(struct tess_programs *s)
{
	bool kept = false;

	for (int i = 0; i < TESS_PROGRAM_BUCKETS; i++) {
		while (s->bucket[i]) {
			struct tess_shaped_program *k = s->bucket[i];

			kept = kept || k == s->first;
			s->bucket[i] = k->next;
			free_shaped_program(k);
		}
	}
	if (s->first && !kept)
		free_shaped_program(s->first);
}
