/*
 * fingerprint.h - compares the files of ranks: nodes may have different copies of a checkpoint.
 */
#ifndef TESS_API_FINGERPRINT_H
#define TESS_API_FINGERPRINT_H

#include "hf/checkpoint.h"

#include <tessera/tessera.h>

/*
 * Collective. Agrees on `st`, this rank's status so far, as tess_group_agree_status does. Then
 * fails on all ranks unless they read equal configurations and tensors. With TESSERA_CHECK all
 * bytes of weights are compared; else the first, the middle and the last 64 of each tensor, or none
 * if all ranks are on one host and have opened the same files there. The message contains the rank,
 * the file, and the tensor or key. c: not read where `st` is a failure.
 */
tess_status tess_checkpoint_compare(const struct tess_checkpoint *c, struct tess_group *g,
                                    tess_status st, const char *where);
/*
 * Collective. Compares all bytes of `n` files of a directory like tess_checkpoint_compare; a file
 * may be absent on all ranks. A rank with n 0 is not compared.
 */
tess_status tess_files_compare(const char *dir, const char *const *files, int32_t n,
                               struct tess_group *g, tess_status st, const char *where);

#endif
