/* directory.h - messages for directories without a complete checkpoint. */
#ifndef TESS_HF_DIRECTORY_H
#define TESS_HF_DIRECTORY_H

#include <tessera/plugin.h>

/* In a model's folder of a hub cache, the file that contains the newest snapshot's name. */
#define TESS_HUB_REF "refs/main"

/*
 * Reports a directory without config.json. The message names the base model of an adapter, or the
 * folder below that is a checkpoint, as in the cache of a hub.
 */
tess_status tess_directory_fail_config(const char *dir);

/* Reports a checkpoint without safetensors: a broken link, an adapter, a pickle or a GGUF file. */
tess_status tess_directory_fail_weights(const char *dir);

#endif
