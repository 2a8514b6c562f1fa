/* ops_attention.c - records attention and the rotation of its heads by position. */
#include "core/base/status.h"
#include "core/registry/plugin_call.h"
#include "nn/record/recorder.h"

#include <string.h>

static bool is_same_rope(const struct tess_rope *a, const struct tess_rope *b)
{
	return a->type == b->type && a->theta == b->theta && a->factor == b->factor &&
	       a->low == b->low && a->high == b->high && a->original == b->original &&
	       a->alpha == b->alpha && a->scale == b->scale && a->growth == b->growth &&
	       a->period == b->period && a->start == b->start && a->still == b->still &&
	       a->fractions == b->fractions && a->factors == b->factors;
}

/*
 * Finds the index of the table for `each` rotated elements of heads of `all`, by the checkpoint's
 * settings; -1: failure.
 */
static int32_t find_rope_table(struct tess_recorder *r, const struct tess_rotary *how, int64_t all)
{
	const struct tess_source *source = r->options->source;
	const int64_t each = how->width;
	struct tess_rope_use use = { .each = each }, *list;
	struct tess_program *p = r->p;
	tess_status st =
		tess_rope_read(source->name, r->settings, how->kind, how->theta, &use.rope);

	use.rope.growth = how->growth;
	use.rope.period = how->period;
	use.rope.start = how->start;
	use.rope.still = (how->flags & TESS_STILL) != 0;
	if (!st)
		st = tess_rope_check(source->name, &use.rope, each, p->max_positions);
	if (!st && use.rope.part != 1 && each == all)
		st = tess_fail(TESS_ENOTSUP,
		               "%s/config.json: partial_rotary_factor %g: the model rotates whole "
		               "heads (1)",
		               source->name, use.rope.part);
	for (int32_t i = 0; i < p->nropes && !st; i++)
		if (p->rope[i].each == each && is_same_rope(&p->rope[i].rope, &use.rope))
			return i;
	list = st ? NULL : tess_arena_grow(&p->arena, p->rope, (size_t)p->nropes, sizeof *list);
	if (!list)
		return tess_recorder_keep_error(r, st ? st : TESS_ENOMEM), -1;
	p->rope = list;
	list[p->nropes] = use;
	return p->nropes++;
}

/* Completes `how` by its defaults, in the form of a record. */
static bool complete_rotary(struct tess_recorder *r, const struct tess_dim *heads,
                            const struct tess_rotary *how, struct tess_rotary *out)
{
	*out = (struct tess_rotary){ 0 };
	if (how)
		memcpy(out, how, how->size < sizeof *out ? how->size : sizeof *out);
	if (!out->width)
		out->width = heads->unit_size - out->first;
	if (!heads->unit_size || out->width <= 0 || out->width % 2 || out->first < 0 ||
	    out->first > heads->unit_size - out->width)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: rope needs an even number of elements inside each "
		                          "head, not %lld from %lld on of %s of %lld",
		                          tess_recorder_format_path(r, NULL), (long long)out->width,
		                          (long long)out->first, heads->name,
		                          (long long)heads->unit_size) != NULL;
	if (out->growth != 0 && !(out->growth > 0 && out->period >= 1 && out->period < 0x1p31))
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: rope grows by %g each %g positions; it needs a "
		                          "number above 0, and a period of 1 or more",
		                          tess_recorder_format_path(r, NULL), out->growth,
		                          out->period) != NULL;
	return true;
}

static struct tess_tensor *record_rope(struct tess_nn *nn, struct tess_tensor *x,
                                       const struct tess_rotary *how)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	struct tess_tensor *in[2], *y;
	struct tess_rotary part;
	struct tess_record *rec;
	int32_t table;

	if (!tess_recorder_check_finished(r, "rope", x) ||
	    !complete_rotary(r, x->dim[1], how, &part))
		return NULL;
	in[0] = x;
	in[1] = tess_tensor_place_rows(r, x, r->p->positions);
	y = tess_tensor_new(r, 2, x->dim, x->place, x->module);
	table = y && in[1] ? find_rope_table(r, &part, x->dim[1]->unit_size) : -1;
	rec = table < 0 ? NULL
	                : tess_record_append(r, TESS_OP_ROPE, x->module, 2, in, 1, &y, 0, NULL);
	if (!rec)
		return NULL;
	rec->nnum = TESS_REC_ROPE_TABLE + 1;
	rec->num[TESS_ROPE_HEAD] = (double)x->dim[1]->unit_size;
	rec->num[TESS_ROPE_FIRST] = (double)part.first;
	rec->num[TESS_ROPE_WIDTH] = (double)part.width;
	rec->num[TESS_ROPE_INTERLEAVED] = part.flags & TESS_INTERLEAVED ? 1 : 0;
	rec->num[TESS_REC_ROPE_TABLE] = table;
	return y;
}

/* Returns the page class of layers with this window; -1 after an error. */
static int32_t get_page_class(struct tess_recorder *r, int64_t window)
{
	struct tess_program *p = r->p;
	int32_t i = 0;
	int64_t *list;

	while (i < p->nclasses && p->class_window[i] != window)
		i++;
	if (i < p->nclasses)
		return i;
	list = tess_arena_grow(&p->arena, p->class_window, (size_t)i, sizeof *list);
	if (!list)
		return tess_recorder_keep_error(r, TESS_ENOMEM), -1;
	list[p->nclasses++] = window;
	p->class_window = list;
	return i;
}

static bool read_attention_options(struct tess_recorder *r, const char *module,
                                   const struct tess_attention *how, struct tess_attention *out)
{
	*out = (struct tess_attention){ 0 };
	if (how)
		memcpy(out, how, how->size < sizeof *out ? how->size : sizeof *out);
	if (out->chunk < 0 || (out->chunk && out->window))
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: attention in chunks of %lld with a window of %lld; "
		                          "chunks have 1 or more positions, and no window",
		                          module, (long long)out->chunk,
		                          (long long)out->window) != NULL;
	if (out->scale == 0 || out->softcap < 0 || out->window < 0)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: attention needs a scale, and a softcap and a window "
		                          "of 0 or more; not %g, %g and %lld",
		                          module, out->scale, out->softcap,
		                          (long long)out->window) != NULL;
	return true;
}

/* Checks that ranges of q's heads share the heads of k, and of v if present. */
static bool check_attention_heads(struct tess_recorder *r, const char *module,
                                  const struct tess_dim *q, const struct tess_dim *k,
                                  const struct tess_dim *v, int64_t value)
{
	if (!q->unit_size || q->group != 1 || k->base != q->base || k->unit_size != q->unit_size ||
	    (v && (v->base != q->base || v->group != k->group)))
		return tess_recorder_fail(r, TESS_EINVAL, "%s: %s and %s do not fit %s", module,
		                          k->name, v ? v->name : "no values", q->name) != NULL;
	if (value <= 0 || (!v && value > k->unit_size))
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: values of %lld elements, of keys of %lld; without "
		                          "v, `value` is from 1 to the elements of a key",
		                          module, (long long)value,
		                          (long long)k->unit_size) != NULL;
	return true;
}

/* Places heads: cut along each mesh dimension along which any operand's are. */
static struct tess_place *place_heads(struct tess_recorder *r, struct tess_tensor *const *in,
                                      int32_t n)
{
	struct tess_place *to = tess_recorder_alloc_places(r);

	for (int32_t d = 0; d < r->p->mesh.ndims && to; d++) {
		to[d] = tess_place_replicate();
		for (int32_t i = 0; i < n; i++)
			if (tess_place_is(in[i]->place[d], TESS_SHARD, 1))
				to[d] = tess_place_shard(1);
	}
	return to;
}

/* Returns the KV cache's dtype: the session's, else the device's for the first linear weight. */
static int32_t find_kv_dtype(const struct tess_recorder *r)
{
	const struct tess_device *device = r->p->device;

	if (r->options->kv_dtype)
		return r->options->kv_dtype;
	for (int32_t i = 0; i < r->p->nrecords && device && device->kv_dtype; i++)
		if (r->p->record[i]->kind == TESS_OP_LINEAR)
			return TESS_PLUGIN_VALUE(device, NULL, kv_dtype,
			                         r->p->record[i]->weight[0]->dtype) == TESS_BF16
			               ? TESS_BF16
			               : TESS_F32;
	return TESS_F32;
}

static struct tess_tensor *record_attention(struct tess_nn *nn, struct tess_tensor *q,
                                            struct tess_tensor *k, struct tess_tensor *v,
                                            const struct tess_attention *how)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	struct tess_tensor *in[6] = { q, k, v }, *y;
	const char *module = tess_recorder_format_path(r, NULL);
	const struct tess_weight *sinks = NULL;
	struct tess_attention wanted;
	const struct tess_dim *out;
	int32_t page_class, n = v ? 3 : 2;
	int64_t site = 0, window;
	struct tess_place *to;
	struct tess_record *rec;

	for (int32_t i = 0; i < n; i++)
		if (!tess_recorder_check_rows(r, "attention", in[i]))
			return NULL;
	if (!read_attention_options(r, module, how, &wanted))
		return NULL;
	if (v)
		wanted.value = v->dim[1]->unit_size;
	if (!check_attention_heads(r, module, q->dim[1], k->dim[1], v ? v->dim[1] : NULL,
	                           wanted.value))
		return NULL;
	out = q->dim[1]->unit_size == wanted.value
	              ? q->dim[1]
	              : tess_dim_new_heads(r, "values", q->dim[1], q->dim[1]->nunits, wanted.value);
	if (wanted.sinks)
		sinks = tess_weight_add_vector(
			r, wanted.sinks,
			tess_dim_new_heads(r, "sinks", q->dim[1], q->dim[1]->nunits, 1),
			"each rank uses those of its heads");
	to = place_heads(r, in, n);
	for (int32_t i = 0; i < n && to; i++)
		in[i] = tess_tensor_slice_operand(r, in[i], to, module);
	/* a chunk has no keys before a window of its size, which pages are kept for */
	window = wanted.chunk ? wanted.chunk : wanted.window;
	page_class = r->p->training ? 0 : get_page_class(r, window);
	y = r->status ? NULL
	              : tess_tensor_new(r, 2, (const struct tess_dim *[]){ q->dim[0], out }, to,
	                                module);
	in[n] = r->p->positions;
	in[n + 1] = r->p->slots;
	in[n + 2] = r->p->random;
	wanted.dropout =
		tess_recorder_choose_dropout(r, module, wanted.dropout, q->dim[1]->nunits, &site);
	rec = y ? tess_record_append(r, TESS_OP_ATTENTION, module, n + 2 + (wanted.dropout > 0), in,
	                             1, &y, sinks != NULL, &sinks)
	        : NULL;
	if (!rec)
		return NULL;
	rec->nnum = TESS_ATTENTION_NUMS;
	rec->num[TESS_ATTENTION_SCALE] = wanted.scale;
	rec->num[TESS_ATTENTION_WINDOW] = (double)window;
	rec->num[TESS_ATTENTION_CHUNKED] = wanted.chunk > 0;
	rec->num[TESS_ATTENTION_SOFTCAP] = wanted.softcap;
	rec->num[TESS_ATTENTION_VALUE] = (double)wanted.value;
	rec->num[TESS_ATTENTION_RATE] = wanted.dropout;
	rec->num[TESS_ATTENTION_SITE] = (double)site;
	rec->num[TESS_REC_ATTENTION_CLASS] = page_class;
	r->p->kv_dtype = r->p->kv_dtype ? r->p->kv_dtype : find_kv_dtype(r);
	rec->num[TESS_ATTENTION_DTYPE] = r->p->kv_dtype;
	return y;
}

static struct tess_tensor *get_positions(struct tess_nn *nn, int64_t first)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	struct tess_tensor *y;

	if (r->status || !first)
		return r->p->positions;
	if (first < 0 || first > INT32_MAX)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: positions from row %lld on; no table has that row",
		                          tess_recorder_format_path(r, NULL), (long long)first);
	y = TESS_NEW(&r->p->arena, struct tess_tensor, 1);
	if (!y)
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	*y = *r->p->positions; /* the same value, for tables whose first rows have other uses */
	y->first = first;
	return y;
}

void tess_ops_install_attention(struct tess_nn *nn)
{
	nn->positions = get_positions;
	nn->rope = record_rope;
	nn->attention = record_attention;
}
