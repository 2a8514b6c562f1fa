#include "nn/generate/sequence.h"

#include "core/base/status.h"
#include "nn/program/program.h"

#include <stdlib.h>
#include <string.h>

tess_status tess_sequence_new(struct tess_runner *r, bool here, struct tess_sequence **out)
{
	struct tess_sequence *q = calloc(1, sizeof *q);
	tess_status st = TESS_OK;

	if (!q)
		return tess_fail(TESS_ENOMEM, "out of memory");
	q->runner = r;
	q->slot = -1;
	if (here)
		st = tess_runner_open_slot(r, &q->slot);
	if (st) {
		free(q);
		return st;
	}
	*out = q;
	return TESS_OK;
}

tess_status tess_sequence_resize(struct tess_sequence *q, int64_t n)
{
	int64_t capacity = q->capacity ? q->capacity : 64;
	int32_t *more;

	while (capacity < n)
		capacity *= 2;
	if (capacity > q->capacity) {
		more = realloc(q->ids, (size_t)capacity * sizeof *more);
		if (!more)
			return tess_fail(TESS_ENOMEM, "out of memory for a sequence of %lld ids",
			                 (long long)n);
		q->ids = more;
		q->capacity = capacity;
	}
	q->nids = n;
	return TESS_OK;
}

tess_status tess_sequence_append(struct tess_sequence *q, const int32_t *ids, int64_t n)
{
	int64_t from = q->nids;
	tess_status st = tess_ids_check(ids, n, from, tess_runner_vocabulary(q->runner));

	if (!st)
		st = tess_sequence_resize(q, from + n);
	if (!st && n)
		memcpy(q->ids + from, ids, (size_t)n * sizeof *ids);
	return st;
}

void tess_sequence_free(struct tess_sequence *q)
{
	if (!q)
		return;
	if (q->slot >= 0)
		tess_runner_close_slot(q->runner, q->slot);
	free(q->ids);
	free(q);
}

struct tess_rows tess_sequence_get_rows(const struct tess_sequence *q, int64_t n, int64_t nselected)
{
	return (struct tess_rows){
		.slot = q->slot, .ids = q->ids + q->ncached, .n = n, .nselected = nselected
	};
}
