#include "nn/compile/hash.h"

#include "core/base/hash.h"

#include <string.h>

static uint64_t hash_dim(uint64_t h, const struct tess_dim *d)
{
	int64_t about[] = { d->size, d->unit_size, d->group, d->nparts,
		            d->base ? d->base->nunits : 0 };

	h = tess_hash_bytes(h, about, sizeof about);
	for (int64_t i = 0; i < d->nparts; i++)
		h = hash_dim(h, d->parts[i]);
	return h;
}

static uint64_t hash_places(uint64_t h, const struct tess_program *p,
                            const struct tess_place *place)
{
	for (int32_t i = 0; i < p->mesh.ndims; i++) {
		int32_t about[] = { place[i].kind, place[i].dim, place[i].op };

		h = tess_hash_bytes(h, about, sizeof about);
	}
	return h;
}

/* Hashes a dim of a value, except tokens: replicas have other sequences, but equal records. */
static uint64_t hash_axis(uint64_t h, const struct tess_program *p, const struct tess_dim *d)
{
	if (!p->training || d != p->tokens)
		return hash_dim(h, d);
	return tess_hash_bytes(h, &p->training->all_sequences, sizeof p->training->all_sequences);
}

static uint64_t hash_tensor(uint64_t h, const struct tess_program *p, const struct tess_tensor *v)
{
	int32_t about[] = { v->id, v->dtype, v->ndim };

	h = hash_places(tess_hash_bytes(h, about, sizeof about), p, v->place);
	if (v->local && p->training &&
	    p->data_along >= 0) /* its rows may be those of the replica */
		return h;
	for (int32_t i = 0; i < v->ndim; i++)
		h = hash_axis(h, p, v->dim[i]);
	return v->sum ? hash_axis(h, p, v->sum) : h;
}

static uint64_t hash_rope(uint64_t h, const struct tess_rope_use *u)
{
	double numbers[] = { u->rope.theta, u->rope.factor, u->rope.low,    u->rope.high,
		             u->rope.scale, u->rope.alpha,  u->rope.growth, u->rope.period,
		             u->rope.start, u->rope.still };
	int64_t integers[] = { u->rope.type, u->rope.original, u->rope.fractions, u->each };
	const json_t *factor;
	size_t i;

	json_array_foreach(u->rope.factors, i, factor) {
		double value = json_number_value(factor);

		h = tess_hash_bytes(h, &value, sizeof value);
	}
	return tess_hash_bytes(tess_hash_bytes(h, numbers, sizeof numbers), integers,
	                       sizeof integers);
}

tess_status tess_program_hash(struct tess_program *p)
{
	uint64_t h = TESS_HASH_EMPTY;

	p->hash = TESS_NEW(&p->arena, uint64_t, p->nrecords);
	if (!p->hash)
		return TESS_ENOMEM;
	for (int32_t i = 0; i < p->nrecords; i++) {
		const struct tess_record *rec = p->record[i];

		h = tess_hash_bytes(tess_hash_bytes(h, &rec->kind, sizeof rec->kind), rec->module,
		                    strlen(rec->module));
		h = tess_hash_bytes(h, rec->num, sizeof rec->num);
		if (rec->kind == TESS_OP_ROPE)
			h = hash_rope(h, &p->rope[(int)rec->num[TESS_REC_ROPE_TABLE]]);
		h = tess_hash_bytes(h, &rec->along, sizeof rec->along);
		h = tess_hash_bytes(h, &rec->stage, sizeof rec->stage);
		h = tess_hash_bytes(h, &rec->action, sizeof rec->action);
		for (int32_t k = 0; k < rec->nin; k++)
			h = hash_tensor(h, p, rec->in[k]);
		for (int32_t k = 0; k < rec->nout; k++)
			h = hash_tensor(h, p, rec->out[k]);
		for (int32_t k = 0; k < rec->nweight; k++) {
			const struct tess_weight *w = rec->weight[k];

			for (int32_t a = 0; a < w->ndim; a++)
				h = hash_dim(h, w->dim[a]);
			h = tess_hash_bytes(h, w->name, strlen(w->name));
			h = tess_hash_bytes(h, &w->compressed, sizeof w->compressed);
			h = hash_places(tess_hash_bytes(h, &w->dtype, sizeof w->dtype), p,
			                w->place);
		}
		p->hash[i] = h;
	}
	return TESS_OK;
}
