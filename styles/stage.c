/*
 * tess-style-stage.so: pipeline parallel: a stage begins with the module, along mesh dimension pp.
 * Transfers follow from the values that stages read; the style places nothing.
 */
#include <tessera/style.h>

static tess_status layout_stage(const struct tess_site *s, struct tess_io *out)
{
	(void)out;
	return tess_site_refuse_config(s);
}

static const struct tess_style stage = {
	.size = sizeof stage,
	.name = "stage",
	.summary = "a stage of a pipeline begins with the module, along pp",
	.layout = layout_stage,
	.partition_param = tess_param_replicate,
	.begins_stage = 1,
};

TESS_DEFINE_PLUGIN("stage", "1.0", "Apache-2.0", .summary = "pipeline parallel: begins of stages",
                   .styles = TESS_LIST(tess_style, &stage));
