/* save.h - the directories that a trainer saves into: DIR/step-N, each whole or not there. */
#ifndef TESS_API_SAVE_H
#define TESS_API_SAVE_H

#include "hf/convert_dir.h"

#include <jansson.h>
#include <tessera/tessera.h>

/* The largest step of a save: 2^20 sequences in each are still counted in 64 bits. */
#define TESS_SAVED_STEP_MAX INT64_C(1000000000000)

/* Hashes config.json, whatever its spaces and the order of its keys. */
tess_status tess_save_hash_config(const json_t *config, char out[17]);
/*
 * Writes training.json of a save into the directory `part`: the format, `keys`, which are step,
 * config, optimizer, program, and checksums, {FILE: {TENSOR: hex}}, and a checksum of all of it.
 */
tess_status tess_save_write_state(const char *part, json_t *keys);
/*
 * Reads training.json of the save `dir`: every key is there, in its range, and as it was saved; the
 * step is that of the name of the directory. *out is yours: json_decref. TESS_ENOENT: no save.
 */
tess_status tess_save_read_state(const char *dir, json_t **out);
/* Fails, with file and tensor, unless the state has this checksum of the tensor. */
tess_status tess_save_compare_checksum(const char *dir, const json_t *state, const char *file,
                                       const char *tensor, uint32_t sum);
/*
 * Reads all tensors of the save `dir`, and compares them with the checksums of its `state`;
 * `report` gets the message of each failure. Returns TESS_OK however many there are. *checked:
 * tensors whose checksum is right.
 */
tess_status tess_save_check(const char *dir, const json_t *state,
                            void (*report)(void *self, const char *message), void *self,
                            int64_t *checked);
/* Returns the largest step of a save in `dir` that is below `below`; -1: there is none. */
int64_t tess_save_find_step(const char *dir, int64_t below);

/* Makes `dir` if it is absent, and gives the path of the save of a step, which must not exist. */
tess_status tess_save_choose_path(const char *dir, int64_t step, char path[PATH_MAX]);
/*
 * Removes all saves of `dir` but the `keep` with the most steps (0: all), `kept` and the directory
 * `used`; and what saves that were killed have left. Failures are logged.
 */
void tess_save_remove_old(const char *dir, const char *kept, const char *used, int32_t keep);

#endif
