/* norm.h - the moments of a run, for NORM and NORM_DW. */
#ifndef TESS_DEVICES_CPU_NORM_H
#define TESS_DEVICES_CPU_NORM_H

#include "cpu.h"

struct norm_moments { /* a run is normalised as (x - mean) * scale */
	float mean, scale;
};

/* Measures a run. sum: over a run; num: TESS_NORM_*; level: sum->levels floats of scratch. */
#define norm_measure CPU_NAME(norm_measure)
struct norm_moments norm_measure(const struct sum *sum, const double *num, const float *x,
                                 int64_t each, float *level);

#endif
