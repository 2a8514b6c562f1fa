/*
 * slots.c - finds the rows of each slot of ATTENTION, and their pages of keys and values. Without a
 * cache each slot is a complete sequence, and gets pages in scratch memory.
 */
#include "attention.h"

struct attention attention_read(struct cpu *cpu, const struct tess_op *op)
{
	bool latent = !op->in[2].ndim; /* a value is the beginning of its key */
	bool cached = op->kind == TESS_OP_ATTENTION && op->in[5].ndim;
	const int32_t *position = op->in[3].data;
	struct attention a = {
		.cpu = cpu,
		.op = op,
		.d = (int64_t)op->num[TESS_ATTENTION_HEAD],
		.value = (int64_t)op->num[TESS_ATTENTION_VALUE],
		.scale = (float)op->num[TESS_ATTENTION_SCALE],
		.softcap = (float)op->num[TESS_ATTENTION_SOFTCAP],
		.window = (int64_t)op->num[TESS_ATTENTION_WINDOW],
		.chunked = op->num[TESS_ATTENTION_CHUNKED] != 0,
		.lo = (int64_t)op->num[TESS_ATTENTION_FIRST],
		.group = (int64_t)op->num[TESS_ATTENTION_GROUP],
		.keys = cached ? (int64_t)op->num[TESS_ATTENTION_KEYS] : 0,
		.dtype = cached ? (int32_t)op->num[TESS_ATTENTION_DTYPE] : TESS_F32,
	};

	a.sinks = op->nin > 7 ? &op->in[7] : NULL;
	if (op->nin > 6 && op->in[6].ndim)
		a.drop = dropout_read(op->num[TESS_ATTENTION_RATE], &op->in[6]);
	a.site = (int64_t)op->num[TESS_ATTENTION_SITE] + a.lo;
	a.heads = op->in[0].shape[1] / a.d;
	a.kv = op->in[1].shape[1] / a.d;
	a.width = (int64_t)tess_width(a.dtype);
	a.value_step = latent ? a.d : a.value;
	a.values = latent   ? a.keys
	           : cached ? (int64_t)op->num[TESS_ATTENTION_VALUES]
	                    : KEYS * a.kv * a.d * a.width;
	for (int64_t t = 0; t < op->in[0].shape[0] && !cached; t++)
		a.blocks += position[t] % KEYS == 0;
	return a;
}

/* Counts the bytes of a page in scratch memory. */
static int64_t count_page_bytes(const struct attention *a)
{
	return KEYS * a->kv * (a->d + (a->op->in[2].ndim ? a->value : 0)) * a->width;
}

static size_t count_slot_bytes(const struct attention *a)
{
	size_t bytes = sizeof(struct slot_rows) * (size_t)a->op->in[0].shape[0] +
	               sizeof(int64_t) * (size_t)a->blocks;

	return (bytes + 63) / 64 * 64;
}

size_t attention_count_list_bytes(const struct attention *a)
{
	return count_slot_bytes(a) + (size_t)(a->blocks * count_page_bytes(a));
}

/* Finds the rows of a slot from row t on, and checks that it has pages for their keys. */
static tess_status find_slot_run(const struct attention *a, int64_t t, struct slot_rows *of)
{
	const struct tess_op *op = a->op;
	const struct tess_view *pages = &op->in[5];
	const int32_t *position = op->in[3].data, *slot = op->in[4].data;
	int64_t capacity = pages->shape[1] * KEYS, tokens = op->in[0].shape[0], p = position[t];

	*of = (struct slot_rows){ .row = t };
	for (; t < tokens && slot[t] == slot[of->row]; t++, of->rows++)
		if (slot[t] < 0 || slot[t] >= pages->shape[0] || position[t] < 0 ||
		    position[t] >= capacity || position[t] != p + of->rows)
			return cpu_host->fail(
				TESS_EINVAL,
				"%s: cpu: attention: row %lld: position %d of slot %d; of %lld "
				"slots each has %lld positions, which increase by one",
				op->where, (long long)t, (int)position[t], (int)slot[t],
				(long long)pages->shape[0], (long long)capacity);
	of->page = (const int64_t *)pages->data + slot[of->row] * pages->stride[0];
	of->lo = get_first_key(a, p) / KEYS;
	of->hi = (p + of->rows - 1) / KEYS + 1;
	for (int64_t u = of->lo; u < of->hi; u++)
		if (!of->page[u])
			return cpu_host->fail(TESS_EINVAL,
			                      "%s: cpu: attention: row %lld: slot %d has no page "
			                      "for positions from %lld on",
			                      op->where, (long long)of->row, (int)slot[of->row],
			                      (long long)(u * KEYS));
	return TESS_OK;
}

/* Finds the rows of a complete sequence from row t on. */
static tess_status find_text(const struct attention *a, int64_t t, struct slot_rows *of)
{
	const struct tess_op *op = a->op;
	const int32_t *position = op->in[3].data, *slot = op->in[4].data;
	int64_t tokens = op->in[0].shape[0];

	*of = (struct slot_rows){ .row = t };
	for (; t < tokens && slot[t] == slot[of->row]; t++, of->rows++)
		if (position[t] != of->rows)
			return cpu_host->fail(TESS_EINVAL,
			                      "%s: cpu: attention: row %lld: position %d of slot "
			                      "%d; without pages the rows of a slot are the "
			                      "positions from 0 on",
			                      op->where, (long long)t, (int)position[t],
			                      (int)slot[t]);
	of->hi = tess_up(of->rows, KEYS);
	return TESS_OK;
}

tess_status attention_list_slots(struct attention *a, void *memory)
{
	struct slot_rows *list = memory;
	int64_t *page = (int64_t *)(list + a->op->in[0].shape[0]), made = 0;
	bool cached = a->op->kind == TESS_OP_ATTENTION && a->op->in[5].ndim;
	tess_status st = TESS_OK;

	a->list = list;
	a->nlist = 0;
	for (int64_t i = 0; i < a->blocks; i++)
		page[i] = (int64_t)(uintptr_t)memory + (int64_t)count_slot_bytes(a) +
		          i * count_page_bytes(a);
	for (int64_t t = 0; t < a->op->in[0].shape[0] && !st; t += list[a->nlist++].rows) {
		struct slot_rows *of = &list[a->nlist];

		st = cached ? find_slot_run(a, t, of) : find_text(a, t, of);
		if (!cached) {
			of->page = page + made;
			made += of->hi;
		}
	}
	return st;
}
