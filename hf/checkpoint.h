/* checkpoint.h - a Hugging Face directory: its configs, and model.safetensors or its parts. */
#ifndef TESS_HF_CHECKPOINT_H
#define TESS_HF_CHECKPOINT_H

#include "hf/config.h"
#include "hf/safetensors.h"
#include "nn/source.h"

struct tess_checkpoint;

/*
 * Opens the directory and judges all of it but the values of weights. model.safetensors is taken
 * where it lies beside an index, as transformers does; tensors of a part that the index does not
 * name are noted (info) and not found. Read-only from then on, and safe from any thread: ranks that
 * are threads share one.
 */
tess_status tess_checkpoint_open(const char *dir, struct tess_checkpoint **out);

/* The same of headers alone: the data of what is found is NULL. For checks that read no weight. */
tess_status tess_checkpoint_open_headers(const char *dir, struct tess_checkpoint **out);

/* Logs what in the configs has no effect: settings that are not computed here, ids that no token has. */
void tess_checkpoint_warn_unused(const struct tess_checkpoint *c);

const char *tess_checkpoint_dir(const struct tess_checkpoint *c);
const struct tess_config *tess_checkpoint_config(const struct tess_checkpoint *c);
const struct tess_generation *tess_checkpoint_generation(const struct tess_checkpoint *c);

/* Tensors in order of names; i < count. Borrowed. */
size_t tess_checkpoint_count(const struct tess_checkpoint *c);
const struct tess_slice *tess_checkpoint_at(const struct tess_checkpoint *c, size_t i);

/*
 * A weight: rows, contiguous, of any alignment, read-only though tess_view's data is not const. Not there:
 * TESS_ENOENT with the nearest name; another type than F32, BF16 and F16: TESS_ENOTSUP.
 */
tess_status tess_checkpoint_find(const struct tess_checkpoint *c, const char *name,
                                 struct tess_view *out);

/* The whole pages inside may go, where the file is mapped; reading them again brings them back. */
void tess_checkpoint_drop(const struct tess_checkpoint *c, const void *data, uint64_t bytes);

/* Bytes of its files that were read into memory of this process (TESSERA_LOAD=copy). */
uint64_t tess_checkpoint_get_memory(const struct tess_checkpoint *c);

/* The checkpoint as nn sees it; valid until the close. */
struct tess_source tess_checkpoint_make_source(struct tess_checkpoint *c);

void tess_checkpoint_close(struct tess_checkpoint *c);

#endif
