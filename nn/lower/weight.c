/* weight.c - describes weights, and binds them to the operands of ops. */
#include "nn/lower/build.h"

#include "nn/program/compressed.h"
#include "nn/program/storage.h"

#include <tessera/reduce.h>

/* Describes a dense weight: axes in stored order; a tied head in the order of its table. */
static struct tess_view describe_dense_weight(const struct build *b, const struct tess_weight *w)
{
	const struct tess_weight *home = tess_weight_get_home(w);
	struct tess_view v = { .dtype = w->dtype, .ndim = w->ndim };
	int64_t each = 1;

	for (int32_t a = w->ndim - 1; a >= 0; a--) {
		int32_t to = w->in_out && a >= w->ndim - 2 ? 2 * w->ndim - 3 - a : a;

		v.shape[to] = tess_weight_get_local_size(b->p, w, b->l->rank, a);
		v.stride[to] = each;
		each *= tess_weight_get_local_size(b->p, home, b->l->rank, a);
	}
	return v;
}

struct tess_view build_describe_weight(struct build *b, const struct tess_weight *w)
{
	struct tess_view v = b->weights && !build_is_gathered(b, w) ? b->weights[w->index]
	                     : w->compressed ? tess_weight_view_compressed(b->p, w, b->l->rank)
	                                     : describe_dense_weight(b, w);

	v.data = NULL;
	return v;
}

void build_set_weight_piece(struct build *b, struct tess_step *s, int32_t i,
                            const struct tess_weight *w, const struct build_piece *piece,
                            const struct tess_view *part, int64_t at)
{
	if (b->status)
		return;
	s->in[i] = *part;
	if (build_is_gathered(b, w))
		build_add_gathered_pointer(b, &s->in[i].data, w, piece, at);
	else if (b->weights)
		s->in[i].data =
			(char *)b->weights[w->index].data + at * (int64_t)tess_width(w->dtype);
}

void build_set_weight_part(struct build *b, struct tess_step *s, int32_t i,
                           const struct tess_weight *w, const struct tess_view *part, int64_t at)
{
	build_set_weight_piece(b, s, i, w, NULL, part, at);
}

void build_set_weight(struct build *b, struct tess_step *s, int32_t i, const struct tess_weight *w)
{
	struct tess_view whole = build_describe_weight(b, w);

	build_set_weight_part(b, s, i, w, &whole, 0);
}
