/* elementwise.h - rows of GLU and GLU_D, also used by EXPERTS and its backward. */
#ifndef TESS_DEVICES_CPU_ELEMENTWISE_H
#define TESS_DEVICES_CPU_ELEMENTWISE_H

#include "cpu.h"

/* Computes y = act(a) * b, or act(a) if b is NULL; y may be a or b. */
#define glu_row CPU_NAME(glu_row)
void glu_row(int kind, const float *a, const float *b, int64_t n, float *y);

/* Computes da and, unless b is NULL, db; each may be a, b or g. */
#define glu_derive_row CPU_NAME(glu_derive_row)
void glu_derive_row(int kind, const float *a, const float *b, const float *g, int64_t n, float *da,
                    float *db);

/*
 * Computes the activation with a limit of a row of gate and up, which alternate; y may be gate_up.
 * num: the numbers of EXPERTS.
 */
#define limited_glu_row CPU_NAME(limited_glu_row)
void limited_glu_row(const double *num, const float *gate_up, int64_t n, float *y);

/* Computes the gradients d of gate and up, which alternate, from g. */
#define limited_glu_derive_row CPU_NAME(limited_glu_derive_row)
void limited_glu_derive_row(const double *num, const float *gate_up, const float *g, int64_t n,
                            float *d);

#endif
