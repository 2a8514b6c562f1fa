/* inputs.c - the inputs of a step, which the host writes, and their dims. */
#include "core/base/status.h"
#include "nn/record/recorder.h"

#include <string.h>

enum { SEQUENCE_UNIT = 32 }; /* positions of a sequence added in one chain */

/* Makes a dim of rows in units of `each`; a rank may hold none. */
static struct tess_dim *make_rows_dim(struct tess_recorder *r, const char *name, int64_t n,
                                      int64_t each)
{
	struct tess_dim *d = TESS_NEW(&r->p->arena, struct tess_dim, 1);

	if (d)
		*d = (struct tess_dim){ .name = name,
			                .size = n,
			                .nunits = n ? tess_up(n, each) : 1,
			                .unit_size = each > 1 ? each : 0,
			                .base = d,
			                .group = 1,
			                .may_be_empty = true };
	return d;
}

/* Makes the tokens of a training step, with a part for each sequence. */
static const struct tess_dim *make_token_parts(struct tess_recorder *r,
                                               const struct tess_training *t)
{
	struct tess_dim *d = make_rows_dim(r, "tokens", r->p->ntokens, 1);
	const struct tess_dim **part =
		TESS_NEW(&r->p->arena, const struct tess_dim *, t->nsequences);

	for (int64_t i = 0; i < t->nsequences && d && part; i++) {
		part[i] = make_rows_dim(r, "sequence", t->lengths[i], SEQUENCE_UNIT);
		if (!part[i])
			return NULL;
	}
	if (!d || !part)
		return NULL;
	d->nunits = 0;
	d->base = NULL;
	d->nparts = t->nsequences;
	d->parts = part;
	return d;
}

static tess_status check_training(const struct tess_record_options *o)
{
	const struct tess_training *t = o->training;
	int32_t dp = tess_mesh_shape_find(&o->mesh, "dp", 2);
	int32_t replicas = dp < 0 ? 1 : o->mesh.dim[dp].size;
	int64_t sum = 0;

	if (t->all_sequences < replicas)
		return tess_fail(TESS_EINVAL,
		                 "%lld sequences cannot be cut for %d ranks along dp; give a "
		                 "micro-batch more of them, or dp at most %lld ranks",
		                 (long long)t->all_sequences, (int)replicas,
		                 (long long)t->all_sequences);
	for (int64_t i = 0; i < t->nsequences; i++) {
		if (t->lengths[i] <= 0)
			return tess_fail(TESS_EINVAL, "sequence %lld of a step has no tokens",
			                 (long long)(t->first + i));
		sum += t->lengths[i];
	}
	if (t->nsequences <= 0 || t->first < 0 || t->first + t->nsequences > t->all_sequences ||
	    sum != o->ntokens || o->nselected != o->ntokens)
		return tess_fail(TESS_EBUG,
		                 "sequences %lld to %lld of %lld do not make a step of %lld rows",
		                 (long long)t->first, (long long)(t->first + t->nsequences),
		                 (long long)t->all_sequences, (long long)o->ntokens);
	return TESS_OK;
}

static const struct tess_training *copy_training(struct tess_arena *arena,
                                                 const struct tess_training *from)
{
	struct tess_training *t = TESS_NEW(arena, struct tess_training, 1);
	int64_t *lengths = TESS_NEW(arena, int64_t, from->nsequences);
	const char **list;
	int32_t n = 0;

	while (from->recompute && from->recompute[n])
		n++;
	list = TESS_NEW(arena, const char *, n + 1);
	if (!t || !lengths || !list)
		return NULL;
	*t = *from;
	memcpy(lengths, from->lengths, sizeof *lengths * (size_t)from->nsequences);
	t->lengths = lengths;
	t->recompute = list;
	for (int32_t i = 0; i < n; i++) {
		list[i] = tess_arena_copy(arena, from->recompute[i], SIZE_MAX);
		if (!list[i])
			return NULL;
	}
	return t;
}

static bool make_training_dims(struct tess_recorder *r)
{
	struct tess_program *p = r->p;
	int32_t dp = tess_mesh_shape_find(&p->mesh, "dp", 2);

	p->training = copy_training(&p->arena, r->options->training);
	p->tokens = p->training ? make_token_parts(r, p->training) : NULL;
	p->sequences =
		p->tokens ? make_rows_dim(r, "sequences", p->training->all_sequences, 1) : NULL;
	if (dp >= 0 && p->mesh.dim[dp].size > 1)
		p->data_along = dp;
	return p->sequences != NULL;
}

tess_status tess_inputs_make(struct tess_recorder *r)
{
	struct tess_program *p = r->p;
	bool training = r->options->training != NULL;
	const struct tess_dim *selected, *one, *random;
	tess_status st = training ? check_training(r->options) : TESS_OK;

	if (st)
		return st;
	p->data_along = -1;
	if (training && !make_training_dims(r))
		return TESS_ENOMEM;
	if (!training)
		p->tokens = make_rows_dim(r, "tokens", p->ntokens, 1);
	selected = make_rows_dim(r, "selected", training ? 0 : p->nselected, 1);
	one = make_rows_dim(r, "one", 1, 1);
	random = make_rows_dim(r, "random numbers", 4, 1);
	if (!p->tokens || !selected || !one || !random)
		return TESS_ENOMEM;

	const struct {
		struct tess_tensor **at;
		const struct tess_dim *dim;
		const char *name;
		int32_t dtype;
	} inputs[] = { { &p->ids, p->tokens, "the ids", TESS_I32 },
		       { &p->positions, p->tokens, "the positions", TESS_I32 },
		       { &p->slots, p->tokens, "the slots", TESS_I32 },
		       { &p->rows, selected, "the selected rows", TESS_I32 },
		       { &p->labels, p->tokens, "the labels", TESS_I32 },
		       { &p->count, one, "the count of labels", TESS_F32 },
		       { &p->random, random, "the random numbers", TESS_I32 } };

	for (size_t i = 0; i < (training ? 7 : 4); i++) {
		struct tess_tensor *v =
			tess_tensor_new(r, 1, &inputs[i].dim, r->whole, inputs[i].name);

		if (!v)
			return TESS_ENOMEM;
		v->dtype = inputs[i].dtype;
		*inputs[i].at = v;
	}
	return TESS_OK;
}
