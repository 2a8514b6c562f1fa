#include "nn/program/settings.h"

#include "core/base/json.h"
#include "core/base/status.h"

#include <string.h>

tess_status tess_settings_merge(const struct tess_model *model, const json_t *config, json_t **out)
{
	const char *text = TESS_HAS(model, tess_model, defaults) ? model->defaults : NULL;
	json_t *defaults = NULL, *settings = json_object();
	tess_status st;

	text = text ? text : "{}";
	st = tess_json_parse(model->name, text, strlen(text), &defaults);
	if (st == TESS_EINVAL || (!st && !json_is_object(defaults)))
		st = tess_fail(TESS_EINVAL, "model %s: its defaults are not a JSON object",
		               model->name);
	else if (!st && (json_object_update(settings, defaults) ||
	                 (config && json_object_update(settings, (json_t *)config))))
		st = tess_fail(TESS_ENOMEM, "out of memory");
	json_decref(defaults);
	if (st)
		json_decref(settings);
	else
		*out = settings;
	return st;
}
