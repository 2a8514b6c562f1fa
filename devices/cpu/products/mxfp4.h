/* mxfp4.h - packs panels of TESS_MXFP4 weights; quantized.h multiplies them. */
#ifndef TESS_DEVICES_CPU_MXFP4_H
#define TESS_DEVICES_CPU_MXFP4_H

#include "cpu.h"

/*
 * Quantizes the elements of one unit in 4 bits, or moves those of TESS_MXFP4: a pool_fn over
 * panels; arg: struct pack.
 */
#define mxfp4_pack_panels CPU_NAME(mxfp4_pack_panels)
pool_fn mxfp4_pack_panels;

#endif
