/* backward_attention.c - the backward of records of positions and of heads. */
#include "nn/backward.h"

void tess_backward_record_rope(struct tess_backward *b, const struct tess_record *rec)
{
	tess_backward_refuse(b, rec);
}

void tess_backward_record_attention(struct tess_backward *b, const struct tess_record *rec)
{
	tess_backward_refuse(b, rec);
}

void tess_backward_record_split_heads(struct tess_backward *b, const struct tess_record *rec)
{
	tess_backward_refuse(b, rec);
}

void tess_backward_record_join(struct tess_backward *b, const struct tess_record *rec)
{
	tess_backward_refuse(b, rec);
}

void tess_backward_record_head_linear(struct tess_backward *b, const struct tess_record *rec)
{
	tess_backward_refuse(b, rec);
}
