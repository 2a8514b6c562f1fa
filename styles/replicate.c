/*
 * tess-style-replicate.so: replicated parameters; values are not moved. Where a sharded computation
 * reads such a weight, the sum of its gradient is derived, so the names of styles that request that
 * sum are aliases.
 */
#include <tessera/style.h>

static tess_status layout_replicate(const struct tess_site *s, struct tess_io *out)
{
	(void)out; /* zero: as is */
	if (s->config[0])
		return s->host->fail(TESS_EINVAL, "%s: %s takes no configuration, not \"%s\"",
		                     s->module, s->style, s->config);
	return TESS_OK;
}

static tess_status partition_replicate(const struct tess_site *s, const struct tess_param *p,
                                       struct tess_param_place *out)
{
	(void)s;
	(void)p;
	out->use = (struct tess_place){ .kind = TESS_REPLICATE };
	return TESS_OK;
}

static const struct tess_style replicate = {
	.size = sizeof replicate,
	.name = "replicate",
	.summary = "replicated parameters; values stay in place",
	.aliases = (const char *const[]){ "replicated_with_grad_allreduce", "mla_kv_a_proj",
	                                  "ep_router", "local_params", NULL },
	.layout = layout_replicate,
	.partition_param = partition_replicate,
};

TESS_DEFINE_PLUGIN("replicate", "1.0", "Apache-2.0", .summary = "replicated modules",
                   .styles = TESS_LIST(tess_style, &replicate));
