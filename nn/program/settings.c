#include "nn/program/settings.h"

#include "core/base/status.h"

tess_status tess_settings_merge(const struct tess_model *model, const json_t *config, json_t **out)
{
	const char *text = TESS_HAS(model, tess_model, defaults) ? model->defaults : NULL;
	json_t *defaults = json_loads(text ? text : "{}", JSON_REJECT_DUPLICATES, NULL);
	json_t *settings = json_object();
	tess_status st = TESS_OK;

	if (!json_is_object(defaults))
		st = tess_fail(TESS_EINVAL, "model %s: its defaults are not a JSON object",
		               model->name);
	else if (json_object_update(settings, defaults) ||
	         (config && json_object_update(settings, (json_t *)config)))
		st = tess_fail(TESS_ENOMEM, "out of memory");
	json_decref(defaults);
	if (st)
		json_decref(settings);
	else
		*out = settings;
	return st;
}
