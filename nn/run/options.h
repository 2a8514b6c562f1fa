/* options.h - the environment variables that decide how programs run. */
#ifndef TESS_NN_RUN_OPTIONS_H
#define TESS_NN_RUN_OPTIONS_H

#include "core/base/option.h"

#include <stdbool.h>
#include <stdint.h>
#include <tessera/plugin.h>

extern const struct tess_option tess_run_options[];

/* Reads TESSERA_CHECK and TESSERA_GRAPHS. TESS_EINVAL: an unknown value. */
tess_status tess_run_read_options(bool *check, int32_t *graphs);

/* Reads TESSERA_OFFLOAD_MIN and TESSERA_OFFLOAD_BUCKET. TESS_EINVAL: not such a number. */
tess_status tess_run_read_offload(uint64_t *min, uint64_t *bucket);

/*
 * Checks TESSERA_DEVICE, TESSERA_THREADS (unless `threads` is given), TESSERA_CHECK and
 * TESSERA_LAYOUT before there is a group, and that the device has `weights` (0, TESS_Q8,
 * TESS_BF12, TESS_MXFP4).
 */
tess_status tess_run_check_options(int32_t threads, int32_t weights);

#endif
