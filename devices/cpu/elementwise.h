/* elementwise.h - what EXPERTS computes as GLU does. */
#ifndef TESS_DEVICES_CPU_ELEMENTWISE_H
#define TESS_DEVICES_CPU_ELEMENTWISE_H

#include "cpu.h"

/* y = act(a) * b, or act(a) where b is NULL; y may be a or b. */
#define glu_row CPU_NAME(glu_row)
void glu_row(int kind, const float *a, const float *b, int64_t n, float *y);

#endif
