/* attention.c - lowers rope and attention. */
#include "nn/lower/build.h"

#include <tessera/reduce.h>

void build_add_rope(struct build *b, const struct tess_record *rec)
{
	struct value *x = build_get_value(b, rec->in[0]), *y = build_get_value(b, rec->out[0]);
	int64_t width = (int64_t)rec->num[TESS_ROPE_WIDTH], before = 0;
	struct tess_view *table;
	struct tess_step *s;

	if (!x->rows || !x->cols)
		return;
	s = build_add_op(b, TESS_OP_ROPE, 3, 1);
	build_set_input(b, s, 0, x);
	build_set_input(b, s, 1, build_get_value(b, rec->in[1]));
	build_set_output(b, s, 0, y);
	build_allow_in_place(b, x, y);
	build_set_numbers(b, &s->op, TESS_ROPE_NUMS, rec->num);
	if (b->status)
		return;
	s->in[1].ndim = 1;
	table = &s->in[2];
	*table = (struct tess_view){
		.dtype = TESS_F32, .ndim = 2, .shape = { 0, width }, .stride = { width, 1 }
	};
	for (int32_t i = 0; i < (int32_t)rec->num[TESS_REC_ROPE_TABLE]; i++)
		before += b->p->rope[i].each;
	build_add_patch(b, (struct tess_patch){ .pointer = &table->data,
	                                        .space = TESS_SPACE_ROPE,
	                                        .offset = (uint64_t)before,
	                                        .view = table });
}

/* Measures sequences without pages: the longest length, and their number. */
static void measure_texts(const struct tess_training *t, uint64_t *longest, uint64_t *texts)
{
	*longest = 0;
	*texts = (uint64_t)t->nsequences;
	for (int64_t i = 0; i < t->nsequences; i++)
		if ((uint64_t)t->lengths[i] > *longest)
			*longest = (uint64_t)t->lengths[i];
}

/* Sets the sinks of this rank's heads from `lo` on, of which every rank has all. */
static void set_sinks(struct build *b, struct tess_step *s, const struct tess_weight *w, int64_t lo,
                      int64_t n)
{
	struct tess_view part = build_describe_weight(b, w);

	part.shape[0] = n;
	build_set_weight_part(b, s, 7, w, &part, lo);
}

/* Adds attention or its backward, without operand 5 and the outs. */
static struct tess_step *add_attention(struct build *b, const struct tess_record *rec, int32_t nout,
                                       uint64_t keys, uint64_t values)
{
	bool drops = rec->num[TESS_ATTENTION_RATE] > 0;
	struct tess_step *s = build_add_op(b, rec->kind, rec->nweight ? 8 : drops ? 7 : 6, nout);
	const struct tess_dim *q = rec->in[0]->dim[1], *k = rec->in[1]->dim[1];
	struct tess_cut cut = build_find_cut(b, rec->in[0]->place, 1);
	int32_t n = tess_attention_has_values(rec) ? 5 : 4;
	int64_t lo, hi;

	if (b->p->training)
		measure_texts(b->p->training, &keys, &values);
	tess_dim_get_rank_units(q, cut.nranks, cut.rank, &lo, &hi);
	for (int32_t i = 0; i < n; i++)
		build_set_input(b, s, i < 2 ? i : i + 5 - n, build_get_value(b, rec->in[i]));
	build_set_numbers(b, &s->op, TESS_ATTENTION_NUMS,
	                  (double[TESS_ATTENTION_NUMS]){
				  [TESS_ATTENTION_SCALE] = rec->num[TESS_ATTENTION_SCALE],
				  [TESS_ATTENTION_WINDOW] = rec->num[TESS_ATTENTION_WINDOW],
				  [TESS_ATTENTION_HEAD] = (double)q->unit_size,
				  [TESS_ATTENTION_FIRST] = (double)lo,
				  [TESS_ATTENTION_GROUP] = (double)k->group,
				  [TESS_ATTENTION_KEYS] = (double)keys,
				  [TESS_ATTENTION_VALUES] = (double)values,
				  [TESS_ATTENTION_DTYPE] = rec->num[TESS_ATTENTION_DTYPE],
				  [TESS_ATTENTION_SOFTCAP] = rec->num[TESS_ATTENTION_SOFTCAP],
				  [TESS_ATTENTION_VALUE] = rec->num[TESS_ATTENTION_VALUE],
				  [TESS_ATTENTION_RATE] = rec->num[TESS_ATTENTION_RATE],
				  [TESS_ATTENTION_SITE] = rec->num[TESS_ATTENTION_SITE],
				  [TESS_ATTENTION_CHUNKED] = rec->num[TESS_ATTENTION_CHUNKED] });
	if (rec->nweight)
		set_sinks(b, s, rec->weight[0], lo, hi - lo);
	if (drops)
		build_set_input(b, s, 6, build_get_value(b, rec->in[rec->nin - 1]));
	if (!b->status)
		s->in[3].ndim = s->in[4].ndim = 1;
	if (drops && !b->status)
		s->in[6].ndim = 1;
	return s;
}

void build_add_attention(struct build *b, const struct tess_record *rec)
{
	int32_t page_class = (int32_t)rec->num[TESS_REC_ATTENTION_CLASS];
	uint64_t *page = &b->l->page_class[page_class].bytes, keys = *page, width, bytes;
	struct tess_view *pages;
	struct tess_step *s;

	width = 64 * tess_width((int32_t)rec->num[TESS_ATTENTION_DTYPE]);
	bytes = width * (uint64_t)build_get_value(b, rec->in[1])->cols;
	*page += bytes;
	if (tess_attention_has_values(rec))
		*page += width * (uint64_t)build_get_value(b, rec->in[2])->cols;
	if (!build_get_value(b, rec->in[0])->rows)
		return;
	s = add_attention(b, rec, 1, keys, keys + bytes);
	build_set_output(b, s, 0, build_get_value(b, rec->out[0]));
	if (b->status || b->p->training) /* without a cache */
		return;
	pages = &s->in[5];
	*pages = (struct tess_view){ .dtype = TESS_I64, .ndim = 2, .stride = { 0, 1 } };
	build_add_patch(b, (struct tess_patch){ .pointer = &pages->data,
	                                        .space = TESS_SPACE_PAGES,
	                                        .page_class = page_class,
	                                        .view = pages });
}

void build_add_attention_d(struct build *b, const struct tess_record *rec)
{
	struct tess_step *s;

	if (!build_get_value(b, rec->in[0])->rows)
		return;
	s = add_attention(b, rec, 3 + rec->nweight, 0, 0);
	build_set_input(b, s, 5,
	                build_get_value(b, rec->in[tess_attention_has_values(rec) ? 5 : 4]));
	for (int32_t i = 0; i < rec->nout; i++)
		build_set_output(b, s, i == rec->nout - 1 && rec->nweight ? 3 : i,
		                 build_get_value(b, rec->out[i]));
}
