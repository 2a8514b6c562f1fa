/* balance.c - the load balancing loss of mixtures of experts, and its gradient. */
#include "nn/backward/backward.h"

static const char balance_name[] = "the load balancing loss";

struct tess_tensor *tess_backward_record_balance_d(struct tess_backward *b,
                                                   const struct tess_record *rec)
{
	struct tess_program *p = b->r->p;
	struct tess_tensor *in[2] = { rec->in[0], p->balance };
	struct tess_tensor *d = tess_backward_make_like(b, in[0], in[0]->place, rec->module);
	struct tess_record *balance =
		d ? tess_record_append(b->r, TESS_OP_BALANCE_D, rec->module, 2, in, 1, &d, 0, NULL)
		  : NULL;

	if (!balance)
		return NULL;
	balance->nnum = TESS_BALANCE_NUMS;
	balance->num[TESS_BALANCE_FACTOR] = p->training->balance;
	balance->num[TESS_BALANCE_TOP] = rec->num[TESS_ROUTE_TOP];
	return d;
}

/* Checks that route record `rec` matches `first`, so that their mixtures have one loss. */
static bool check_balanced(struct tess_backward *b, const struct tess_record *first,
                           const struct tess_record *rec)
{
	if ((int)rec->num[TESS_ROUTE_FLAGS] & TESS_SIGMOID)
		return tess_recorder_fail(b->r, TESS_ENOTSUP,
		                          "%s: %s is of experts that softmax chooses, but sigmoid "
		                          "does here; train without --aux-loss",
		                          rec->module, balance_name) != NULL;
	if (rec->in[0]->dim[1]->size != first->in[0]->dim[1]->size ||
	    rec->num[TESS_ROUTE_TOP] != first->num[TESS_ROUTE_TOP])
		return tess_recorder_fail(
			       b->r, TESS_ENOTSUP,
			       "%s: %s is of mixtures that are alike, but %s has another "
			       "number of experts; train without --aux-loss",
			       rec->module, balance_name, first->module) != NULL;
	return true;
}

/* Lists logits and weights of each mixture among the first n records, placed alike. */
static int32_t list_balanced(struct tess_backward *b, int32_t n, struct tess_tensor **in)
{
	const struct tess_program *p = b->r->p;
	const struct tess_record *first = NULL;
	const struct tess_place *to = NULL;
	int32_t count = 0;

	for (int32_t i = 0; i < n; i++) {
		const struct tess_record *rec = p->record[i];

		if (rec->kind != TESS_OP_ROUTE)
			continue;
		first = first ? first : rec;
		b->r->p->balance_top = first->num[TESS_ROUTE_TOP];
		if (!check_balanced(b, first, rec))
			return 0;
		to = to ? to : rec->in[0]->place;
		for (int32_t k = 0; k < p->mesh.ndims; k++)
			to = tess_place_equal(to[k], rec->in[0]->place[k]) ? to : b->r->whole;
		in[count++] = rec->in[0];
		in[count++] = rec->out[0];
	}
	for (int32_t i = 0; i < count; i++)
		in[i] = tess_tensor_redistribute(b->r, in[i], to, balance_name);
	return count;
}

static struct tess_dim *make_balance_rows(struct tess_backward *b, int32_t n)
{
	struct tess_dim *rows = tess_dim_new(b->r, "mixtures", n, 1);

	if (rows)
		rows->nunits = n;
	return rows;
}

/* Records the sums over tokens of mixtures, two rows of each. */
static struct tess_tensor *record_balance_sums(struct tess_backward *b, int32_t nrows,
                                               struct tess_tensor **in)
{
	struct tess_program *p = b->r->p;
	struct tess_place *place = tess_recorder_alloc_places(b->r);
	struct tess_dim *rows = make_balance_rows(b, nrows);
	struct tess_record *rec;
	struct tess_tensor *sums;

	if (!rows || !place)
		return NULL;
	for (int32_t i = 0; i < p->mesh.ndims; i++)
		place[i] = tess_place_replicate();
	rec = tess_backward_append_token_sum(b, TESS_OP_BALANCE, balance_name, nrows, in, 2,
	                                     (const struct tess_dim *[]){ rows, in[0]->dim[1] },
	                                     place);
	sums = rec ? tess_backward_finish_tokens(b, rec->out[0], balance_name) : NULL;
	if (!sums || p->data_along < 0)
		return sums;
	return tess_tensor_move(b->r, sums, p->data_along, tess_place_replicate(), balance_name);
}

/* Records the sums of each mixture where it is computed, so that stages send no logits. */
static struct tess_tensor *record_balance_of_stages(struct tess_backward *b, int32_t nrows,
                                                    struct tess_tensor **in)
{
	struct tess_tensor **sums = TESS_NEW(&b->r->p->arena, struct tess_tensor *, nrows / 2), *y;
	struct tess_dim *rows = make_balance_rows(b, nrows);

	for (int32_t i = 0; i < nrows / 2 && sums && rows; i++) {
		sums[i] = record_balance_sums(b, 2, in + 2 * (int64_t)i);
		if (!sums[i])
			return NULL;
	}
	if (!sums || !rows)
		return tess_recorder_keep_error(b->r, TESS_ENOMEM);
	y = tess_tensor_new(b->r, 2, (const struct tess_dim *[]){ rows, in[0]->dim[1] },
	                    sums[0]->place, balance_name);
	return y && tess_record_append(b->r, TESS_REC_JOIN, balance_name, nrows / 2, sums, 1, &y, 0,
	                               NULL)
	               ? y
	               : NULL;
}

void tess_program_record_balance(struct tess_recorder *r)
{
	struct tess_program *p = r->p;
	struct tess_backward b = { .r = r };
	struct tess_tensor **in = TESS_NEW(&p->arena, struct tess_tensor *, 2 * p->nrecords);
	int32_t count;

	if (!in) {
		tess_recorder_keep_error(r, TESS_ENOMEM);
		return;
	}
	count = list_balanced(&b, p->nrecords, in);
	if (!count && !r->status)
		tess_recorder_fail(r, TESS_EINVAL,
		                   "%s: the model has no experts; train it without --aux-loss",
		                   balance_name);
	if (!r->status)
		p->balance = p->pipeline_along < 0 ? record_balance_sums(&b, count, in)
		                                   : record_balance_of_stages(&b, count, in);
}

double tess_program_compute_balance(const struct tess_program *p, const float *totals)
{
	int64_t n = p->balance ? p->balance->dim[1]->size : 0,
		rows = n ? p->balance->dim[0]->size : 0;
	double sum = 0, tokens = 0;

	for (int64_t i = 0; i < n; i++) {
		double c = 0, probability = 0;

		for (int64_t l = 0; l < rows; l += 2) {
			c += (double)totals[l * n + i];
			probability += (double)totals[(l + 1) * n + i];
		}
		tokens += c / p->balance_top;
		sum += c * probability;
	}
	return n ? p->training->balance * (double)n * sum / tokens / tokens : 0;
}
