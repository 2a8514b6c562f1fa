/* settings.h - the settings of a model: config.json, completed by the defaults of its family. */
#ifndef TESS_NN_SETTINGS_H
#define TESS_NN_SETTINGS_H

#include <jansson.h>
#include <tessera/model.h>

/*
 * Completes `config` by the keys that only the defaults of `model` have; null is a value. *out
 * shares the values of `config`; free it by json_decref. TESS_EINVAL: the defaults are no JSON
 * object.
 */
tess_status tess_settings_merge(const struct tess_model *model, const json_t *config, json_t **out);

#endif
