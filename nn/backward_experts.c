/* backward_experts.c - the backward of records of mixtures of experts. */
#include "nn/backward.h"

void tess_backward_record_route(struct tess_backward *b, const struct tess_record *rec)
{
	tess_backward_refuse(b, rec);
}

void tess_backward_record_experts(struct tess_backward *b, const struct tess_record *rec)
{
	tess_backward_refuse(b, rec);
}

void tess_backward_record_combine(struct tess_backward *b, const struct tess_record *rec)
{
	tess_backward_refuse(b, rec);
}
