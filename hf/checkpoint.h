/* checkpoint.h - a Hugging Face directory: config files, and model.safetensors or its parts. */
#ifndef TESS_HF_CHECKPOINT_H
#define TESS_HF_CHECKPOINT_H

#include "hf/config.h"
#include "hf/mxfp4.h"
#include "hf/safetensors.h"
#include "nn/program/source.h"

struct tess_checkpoint;

/*
 * WHOLE opens all data; HEADERS only the headers of weights, whose data are then NULL; CONFIG the
 * headers of those files that exist, else the names in the index, or without an index any name.
 */
enum { TESS_CHECKPOINT_WHOLE, TESS_CHECKPOINT_HEADERS, TESS_CHECKPOINT_CONFIG };

/*
 * Opens the directory and validates everything but the values of weights. model.safetensors
 * precedes an index in the same directory, as in transformers. Tensors that the index does not
 * name are logged (info) and cannot be found. Of a model with a text_config, only the tensors of
 * the text part are there, by their names in a model of text alone. A prefix of a wrapper
 * (torch.compile, DDP) that all names begin with is removed. An open checkpoint is read-only and
 * may be used from any thread: ranks that are threads share one.
 */
tess_status tess_checkpoint_open(const char *dir, int32_t how, struct tess_checkpoint **out);

/*
 * Sets `settings`: config.json with the defaults of its family. The ids of special tokens come from
 * it if generation_config.json is absent.
 */
tess_status tess_checkpoint_set_settings(struct tess_checkpoint *c, const json_t *settings);

/* Logs (info) the prefix of wrappers that was removed from the names. */
void tess_checkpoint_log_prefix(const struct tess_checkpoint *c);

/*
 * Logs the removed prefix, parts that are not read, and settings without effect: unsupported ones,
 * ids of no token.
 */
void tess_checkpoint_warn_unused(const struct tess_checkpoint *c);

const char *tess_checkpoint_dir(const struct tess_checkpoint *c);
const struct tess_config *tess_checkpoint_config(const struct tess_checkpoint *c);
const struct tess_generation_config *tess_checkpoint_generation(const struct tess_checkpoint *c);

/* Returns the object of generation_config.json, borrowed; NULL: the file is absent. */
const json_t *tess_checkpoint_generation_root(const struct tess_checkpoint *c);
/* Returns the i-th file of weights; i < count. NULL: absent (TESS_CHECKPOINT_CONFIG). Borrowed. */
size_t tess_checkpoint_count_parts(const struct tess_checkpoint *c);
const struct tess_safetensors *tess_checkpoint_part(const struct tess_checkpoint *c, size_t i);

/* Returns the i-th tensor by name, borrowed; i < count. */
size_t tess_checkpoint_count(const struct tess_checkpoint *c);
const struct tess_slice *tess_checkpoint_at(const struct tess_checkpoint *c, size_t i);

/*
 * Returns the weight in MXFP4 of which the i-th tensor is a part, or NULL. Such a weight is NAME
 * without _blocks or _scales in tess_checkpoint_find and in the source.
 */
const struct tess_mxfp4 *tess_checkpoint_get_mxfp4(const struct tess_checkpoint *c, size_t i);

/*
 * Finds a weight: contiguous rows of any alignment, read-only though tess_view.data is not const.
 * The data are NULL with TESSERA_LOAD=copy. ndim -1: its file is absent; the shape is unknown, and
 * config.json gives the dtype.
 * TESS_ENOENT: no such weight; the message has the nearest name. TESS_ENOTSUP: its type is not F32,
 * BF16, F16 or TESS_MXFP4, whose data are NULL.
 */
tess_status tess_checkpoint_find(const struct tess_checkpoint *c, const char *name,
                                 struct tess_view *out);

/* Returns the first tensor of the files that the index does not list, borrowed; NULL: none. */
const char *tess_checkpoint_find_unlisted(const struct tess_checkpoint *c);

/* Drops the complete pages of a range if the file is mapped; they are read again on demand. */
void tess_checkpoint_drop(const struct tess_checkpoint *c, const void *data, uint64_t bytes);

/* Copies bytes [at, at + bytes) of a weight, from memory or from the file. */
tess_status tess_checkpoint_read(const struct tess_checkpoint *c, const char *name, uint64_t at,
                                 uint64_t bytes, void *out);

/*
 * Opens mapped files again, so that weights are read from them and not from their mapping. Call it
 * before other threads use the checkpoint. TESS_EIO: a file has been replaced.
 */
tess_status tess_checkpoint_reopen(struct tess_checkpoint *c);

/* Returns the checkpoint as a source for nn; valid until the checkpoint is closed. */
struct tess_source tess_checkpoint_make_source(struct tess_checkpoint *c);

void tess_checkpoint_close(struct tess_checkpoint *c);

#endif
