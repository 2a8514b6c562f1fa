/* task.h - recognizes checkpoints with the head of another task than a language model. */
#ifndef TESS_NN_TASK_H
#define TESS_NN_TASK_H

#include "nn/program/source.h"

/*
 * Returns the architecture in config.json, or the tensor, of a classifier or reward model, borrowed
 * from the source; NULL: none.
 */
const char *tess_source_find_classifier(const struct tess_source *source);

/* Reports such a checkpoint, with what `shows` it. TESS_ENOTSUP. */
tess_status tess_source_fail_classifier(const struct tess_source *source, const char *shows);

#endif
