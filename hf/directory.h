/* directory.h - messages for directories that hold no checkpoint, or not all of one. */
#ifndef TESS_HF_DIRECTORY_H
#define TESS_HF_DIRECTORY_H

#include <tessera/plugin.h>

/* In the cache of a hub: the file of a model that names its newest snapshot. */
#define TESS_HUB_REF "refs/main"

/*
 * Reports a directory without config.json: an adapter and its base model, or the folder below it
 * that is a checkpoint, as in the cache of a hub.
 */
tess_status tess_directory_fail_config(const char *dir);

/* Reports a checkpoint without safetensors: a broken link, an adapter, pickle or GGUF. */
tess_status tess_directory_fail_weights(const char *dir);

#endif
