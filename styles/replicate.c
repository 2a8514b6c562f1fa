/*
 * tess-style-replicate.so: replicated parameters; values are not moved. Where a sharded computation
 * reads such a weight, the sum of its gradient is derived, so the names of styles that request that
 * sum are aliases.
 */
#include <tessera/style.h>

static tess_status layout_replicate(const struct tess_site *s, struct tess_io *out)
{
	(void)out; /* zero: as is */
	return tess_site_refuse_config(s);
}

static const struct tess_style replicate = {
	.size = sizeof replicate,
	.name = "replicate",
	.summary = "replicated parameters; values stay in place",
	.aliases = (const char *const[]){ "replicated_with_grad_allreduce", "mla_kv_a_proj",
	                                  "ep_router", "local_params", NULL },
	.layout = layout_replicate,
	.partition_param = tess_param_replicate,
};

TESS_DEFINE_PLUGIN("replicate", "1.0", "Apache-2.0", .summary = "replicated modules",
                   .styles = TESS_LIST(tess_style, &replicate));
