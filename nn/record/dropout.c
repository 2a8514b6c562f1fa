/*
 * dropout.c - records dropout, in training only, and its sites. Seed, step, site and element decide
 * what is dropped (tessera/device.h).
 */
#include "core/base/status.h"
#include "nn/record/recorder.h"

double tess_recorder_choose_dropout(struct tess_recorder *r, const char *module, double rate,
                                    int64_t sites, int64_t *site)
{
	const struct tess_training *t = r->p->training;

	if (!t || t->dropout < 0)
		return 0;
	rate = t->dropout > 0 ? t->dropout : rate;
	if (!(rate >= 0 && rate < 1)) {
		tess_recorder_fail(r, TESS_EINVAL,
		                   "%s: a dropout of %g; use 0 or more, and less than 1", module,
		                   rate);
		return 0;
	}
	*site = r->p->nsites;
	r->p->nsites += rate > 0 ? sites : 0;
	return rate;
}

struct tess_tensor *tess_tensor_place_rows(struct tess_recorder *r, const struct tess_tensor *x,
                                           struct tess_tensor *input)
{
	struct tess_place *to = tess_recorder_alloc_places(r);

	for (int32_t i = 0; i < r->p->mesh.ndims && to; i++)
		if (tess_place_is(x->place[i], TESS_SHARD, 0))
			to[i] = x->place[i];
	return to ? tess_tensor_redistribute(r, input, to, x->module) : NULL;
}

struct tess_record *tess_record_append_dropout(struct tess_recorder *r,
                                               struct tess_tensor *const in[4], double rate,
                                               double site)
{
	struct tess_tensor *y =
		in[0] && in[1] && in[2]
			? tess_tensor_new(r, 2, in[0]->dim, in[0]->place, in[0]->module)
			: NULL;
	struct tess_record *rec =
		y ? tess_record_append(r, TESS_OP_DROPOUT, y->module, 4, in, 1, &y, 0, NULL) : NULL;

	if (!rec)
		return NULL;
	rec->nnum = TESS_DROPOUT_FIRST; /* the last number differs between ranks */
	rec->num[TESS_DROPOUT_RATE] = rate;
	rec->num[TESS_DROPOUT_SITE] = site;
	return rec;
}

static struct tess_tensor *record_dropout(struct tess_nn *nn, struct tess_tensor *x, double rate)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	struct tess_record *rec;
	int64_t site = 0;
	int32_t cut;

	if (!tess_recorder_check_rows(r, "dropout", x))
		return NULL;
	if (!(rate >= 0 && rate < 1)) /* also in inference */
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: a dropout of %g; use 0 or more, and less than 1",
		                          x->module, rate);
	rate = tess_recorder_choose_dropout(r, x->module, rate, 1, &site);
	if (rate == 0)
		return r->status ? NULL : x;
	if (!tess_recorder_check_finished(r, "dropout", x))
		return NULL;
	cut = tess_recorder_find_place(r, x, TESS_SHARD, 1);
	if (cut >= 0 && tess_dim_count_pieces(x->dim[1]) > 1)
		return tess_recorder_fail(r, TESS_ENOTSUP,
		                          "%s: dropout of several parts that ranks cut%s is not "
		                          "supported; split them first",
		                          x->module, tess_recorder_along(r, cut));
	rec = tess_record_append_dropout(
		r,
		(struct tess_tensor *[]){ x, tess_tensor_place_rows(r, x, r->p->positions),
	                                  tess_tensor_place_rows(r, x, r->p->slots), r->p->random },
		rate, (double)site);
	return rec ? rec->out[0] : NULL;
}

void tess_ops_install_dropout(struct tess_nn *nn)
{
	nn->dropout = record_dropout;
}
