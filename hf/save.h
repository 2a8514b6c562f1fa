/* save.h - the directories that a trainer saves into: DIR/step-N, each whole or not there. */
#ifndef TESS_HF_SAVE_H
#define TESS_HF_SAVE_H

#include <limits.h>
#include <tessera/tessera.h>

/* Beside the files of the checkpoint: what else a run needs to go on. */
#define TESS_SAVED_STATE "training.json"
#define TESS_SAVED_OPTIMIZER "optimizer.safetensors"

/* Makes `dir` if it is absent, and gives the path of the save of a step, which must not exist. */
tess_status tess_save_choose_path(const char *dir, int64_t step, char path[PATH_MAX]);
/*
 * Removes all saves of `dir` but the `keep` with the most steps (0: all), `kept` and the directory
 * `used`; and what saves that were killed have left. Failures are logged.
 */
void tess_save_remove_old(const char *dir, const char *kept, const char *used, int32_t keep);

#endif
