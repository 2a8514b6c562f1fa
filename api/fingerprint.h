/*
 * fingerprint.h - what a rank reads from files, for comparison with other ranks: nodes may have
 * different copies of a checkpoint.
 */
#ifndef TESS_API_FINGERPRINT_H
#define TESS_API_FINGERPRINT_H

#include "hf/checkpoint.h"

#include <stdio.h>
#include <tessera/tessera.h>

struct tess_fingerprint {
	const char *dir; /* borrowed; for paths */
	FILE *out; /* writes `pairs`, as tess_group_compare_pairs takes them */
	char *pairs;
	size_t len;
	/*
	 * TESSERA_CHECK: all bytes of weights are hashed; else the first, the middle and the last
	 * 64 of each tensor.
	 */
	bool complete;
};

/* Opens an empty fingerprint. Close it, even after a failure. */
tess_status tess_fingerprint_open(const char *dir, struct tess_fingerprint *fp);
void tess_fingerprint_close(struct tess_fingerprint *fp);

/* Adds all bytes of a file in the directory; nothing if the file is absent. */
tess_status tess_fingerprint_add_file(struct tess_fingerprint *fp, const char *file);
/* Adds the tensors of a file. Reads it by its path, so that no page of a mapping is touched. */
tess_status tess_fingerprint_add_tensors(struct tess_fingerprint *fp,
                                         const struct tess_safetensors *f);

/*
 * Collective. Agrees on `st`, this rank's status so far, as tess_group_agree_status does. Then
 * fails on all ranks unless the fingerprints are equal; an empty one is not compared. The message
 * contains the rank, the file, and the tensor or key.
 */
tess_status tess_fingerprint_compare(struct tess_fingerprint *fp, struct tess_group *g,
                                     tess_status st, const char *where);
/*
 * Collective. Compares configurations and tensors of a checkpoint like tess_fingerprint_compare.
 * c: not read where `st` is a failure.
 */
tess_status tess_checkpoint_compare(const struct tess_checkpoint *c, struct tess_group *g,
                                    tess_status st, const char *where);

#endif
