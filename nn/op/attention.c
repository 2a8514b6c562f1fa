/* attention.c - checks ATTENTION and ATTENTION_D. */
#include "nn/op/kinds.h"
#include "nn/op/operands.h"

#include <tessera/reduce.h>

/* Returns whether `v` has `value` elements for each head of q. */
static bool is_values_of_queries(const struct tess_op *op, const struct tess_view *v)
{
	return operand_is_rows(v, 2) && v->shape[0] == op->in[0].shape[0] &&
	       v->shape[1] == op->in[0].shape[1] / (int64_t)op->num[TESS_ATTENTION_HEAD] *
	                              (int64_t)op->num[TESS_ATTENTION_VALUE];
}

static bool is_page_table(const struct tess_view *v)
{
	return v->dtype == TESS_I64 && v->layout == TESS_ROWS && v->ndim == 2 && v->shape[0] >= 0 &&
	       v->shape[1] >= 0 && v->stride[0] >= v->shape[1] && v->stride[1] == 1;
}

/* Returns whether keys or values may begin at this byte of a page, an element of `dtype`. */
static bool is_page_offset(double offset, int32_t dtype)
{
	return is_integer(offset, 0, 0x1p53) && (int64_t)offset % (int64_t)tess_width(dtype) == 0;
}

/* Returns whether v has g values per row, or is absent because values are parts of keys. */
static bool has_values(const struct tess_op *op, int64_t g)
{
	const struct tess_view *v = &op->in[2];
	double value = op->num[TESS_ATTENTION_VALUE];

	if (!v->ndim)
		return is_integer(value, 1, op->num[TESS_ATTENTION_HEAD]);
	return operand_is_rows(v, 2) && v->shape[0] == op->in[0].shape[0] &&
	       is_integer(value, 1, 0x1p20) && v->shape[1] == g * (int64_t)value;
}

/* Checks the optional table of pages, and the offsets in a page. */
static const char *check_pages(const struct tess_op *op)
{
	if (!op->in[5].ndim)
		return NULL;
	if (!is_page_table(&op->in[5]))
		return "the pages must be i64, [slots, blocks]";
	if (op->num[TESS_ATTENTION_DTYPE] != TESS_F32 && op->num[TESS_ATTENTION_DTYPE] != TESS_BF16)
		return "the cache must be f32 or bf16";
	if (!is_page_offset(op->num[TESS_ATTENTION_KEYS], (int32_t)op->num[TESS_ATTENTION_DTYPE]) ||
	    !is_page_offset(op->num[TESS_ATTENTION_VALUES], (int32_t)op->num[TESS_ATTENTION_DTYPE]))
		return "keys and values must begin at a whole element of a page";
	return NULL;
}

/* Checks the optional operands: the step of dropout, and sinks. */
static const char *check_dropout_and_sinks(const struct tess_op *op, int64_t heads)
{
	struct tess_op plain = *op;

	if (op->nin == 8) {
		if (!operand_is_vector(&op->in[7], heads))
			return "sinks must be a vector, one for each head of q";
		plain.nin = op->in[6].ndim ? 7 : 6;
	}
	return op_is_dropout(&plain, op->num[TESS_ATTENTION_RATE], op->num[TESS_ATTENTION_SITE], 6)
	               ? NULL
	               : "dropout has a rate from 0 to less than 1, a site and the i32 [4] of the "
	                 "step";
}

/* Checks q, k, v, positions, slots and the numbers. */
static const char *check_query_heads(const struct tess_op *op)
{
	int64_t d, heads, g, lo, group;

	for (int i = 0; i < 2; i++)
		if (!operand_is_rows(&op->in[i], 2) || op->in[i].shape[0] != op->in[0].shape[0])
			return "q and k must be f32 rows of the same tokens";
	if (!is_integer(op->num[TESS_ATTENTION_WINDOW], 0, 0x1p31) ||
	    !is_integer(op->num[TESS_ATTENTION_HEAD], 1, 0x1p20) ||
	    !is_integer(op->num[TESS_ATTENTION_FIRST], 0, 0x1p31) ||
	    !is_integer(op->num[TESS_ATTENTION_GROUP], 1, 0x1p31))
		return "window, head, first and group must be integers, head and group at least 1";
	if (!is_integer(op->num[TESS_ATTENTION_CHUNKED], 0, 1) ||
	    op->num[TESS_ATTENTION_CHUNKED] > op->num[TESS_ATTENTION_WINDOW])
		return "chunked must be 0, or 1 with a window";
	d = (int64_t)op->num[TESS_ATTENTION_HEAD], lo = (int64_t)op->num[TESS_ATTENTION_FIRST],
	group = (int64_t)op->num[TESS_ATTENTION_GROUP];
	heads = op->in[0].shape[1] / d;
	g = op->in[1].shape[1] / d;
	if (!heads || op->in[0].shape[1] % d || op->in[1].shape[1] % d)
		return "heads of `head` elements must fill q and k";
	if (!has_values(op, g))
		return "v must be f32 rows of the same tokens, g heads of `value` elements; "
		       "without v, `value` is at most d";
	if ((lo + heads - 1) / group - lo / group + 1 != g)
		return "the key-value heads must be those that the query heads read";
	if (!operand_is_list(&op->in[3], op->in[0].shape[0]) ||
	    !operand_is_list(&op->in[4], op->in[0].shape[0]))
		return "positions and slots must be i32, one for each row";
	if (!(op->num[TESS_ATTENTION_SOFTCAP] >= 0))
		return "the softcap must not be negative";
	return check_dropout_and_sinks(op, heads);
}

const char *op_check_attention(const struct tess_op *op)
{
	const char *why;

	if (op->nin < 6 || op->nout != 1 || op->nnum != TESS_ATTENTION_NUMS)
		return "it takes q, k, v, positions, slots and pages, and has thirteen numbers";
	why = check_query_heads(op);
	why = why ? why : check_pages(op);
	if (!why && !is_values_of_queries(op, &op->out[0]))
		return "the out must be f32 rows of the same tokens, `value` elements for each "
		       "head of q";
	return why;
}

const char *op_check_attention_d(const struct tess_op *op)
{
	const struct tess_view *q = &op->in[0];
	const char *why;

	if (op->nin < 6 || op->nout != 3 + (op->nin == 8) || op->nnum != TESS_ATTENTION_NUMS)
		return "it takes q, k, v, positions, slots and g, gives dq, dk, dv and with sinks "
		       "theirs, and has the numbers of attention";
	why = check_query_heads(op);
	if (why)
		return why;
	if (!is_values_of_queries(op, &op->in[5]) ||
	    (op->in[2].ndim ? !is_values_of_queries(op, &op->out[2]) : op->out[2].ndim))
		return "g, and dv where there is v, must be f32 rows of the same tokens, `value` "
		       "elements for each head of q";
	for (int i = 0; i < 2; i++)
		if (!operand_is_rows(&op->out[i], 2) || !operand_has_same_shape(&op->out[i], q))
			return "dq and dk must be f32 rows of the shape of q";
	return op->nout == 3 || operand_is_table(&op->out[3], q->shape[0], op->in[7].shape[0])
	               ? NULL
	               : "the gradients of sinks must be f32 rows, one for each head";
}
