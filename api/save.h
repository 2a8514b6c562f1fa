/* save.h - the directories that a trainer saves into: DIR/step-N, each complete or absent. */
#ifndef TESS_API_SAVE_H
#define TESS_API_SAVE_H

#include "hf/convert_dir.h"

#include <jansson.h>
#include <tessera/tessera.h>

/* The largest step of a save; with 2^20 sequences in each step, their count fits in 64 bits. */
#define TESS_SAVED_STEP_MAX INT64_C(1000000000000)

/* Hashes config.json, independently of spaces and the order of keys. */
tess_status tess_save_hash_config(const json_t *config, char out[17]);
/*
 * Writes training.json of a save into the directory `part`: the format, `keys`, and a checksum of
 * the file. `keys`: step, config, optimizer, program, and checksums {FILE: {TENSOR: hex}}.
 */
tess_status tess_save_write_state(const char *part, json_t *keys);
/*
 * Reads training.json of the save `dir`. Checks that every key is present, in its range and
 * undamaged, and that the step equals that of the directory's name. Free *out by json_decref.
 * TESS_ENOENT: no save.
 */
tess_status tess_save_read_state(const char *dir, json_t **out);
/* Fails, naming file and tensor, unless the state has this checksum of the tensor. */
tess_status tess_save_compare_checksum(const char *dir, const json_t *state, const char *file,
                                       const char *tensor, uint32_t sum);
/*
 * Reads all tensors of the save `dir` and compares them with the checksums of its `state`. `report`
 * receives the message of each failure; failures do not change the status. *checked: the number of
 * tensors whose checksum is right.
 */
tess_status tess_save_check(const char *dir, const json_t *state,
                            void (*report)(void *self, const char *message), void *self,
                            int64_t *checked);
/* Returns the largest step of a save in `dir` below `below`; -1: none. */
int64_t tess_save_find_step(const char *dir, int64_t below);

/* Creates `dir` if absent, and returns the path of the save of a step, which must not exist. */
tess_status tess_save_choose_path(const char *dir, int64_t step, char path[PATH_MAX]);
/*
 * Removes the saves of `dir` except the `keep` newest (0: all), `kept` and the directory `used`,
 * and removes the remains of killed saves. Failures are logged.
 */
void tess_save_remove_old(const char *dir, const char *kept, const char *used, int32_t keep);

#endif
