/*
 * tess-style-gather.so: replicates the output of a module: a Partial is summed, a Shard is
 * gathered. (In plans of Transformers `gather` means the sum.)
 */
#include <tessera/style.h>

static tess_status layout_gather(const struct tess_site *s, struct tess_io *out)
{
	if (s->config[0])
		return s->host->fail(TESS_EINVAL, "%s: %s takes no configuration, not \"%s\"",
		                     s->module, s->style, s->config);
	out->out[0] = (struct tess_place){ .kind = TESS_REPLICATE };
	return TESS_OK;
}

static tess_status partition_gather(const struct tess_site *s, const struct tess_param *p,
                                    struct tess_param_place *out)
{
	(void)s;
	(void)p;
	out->use = (struct tess_place){ .kind = TESS_REPLICATE };
	return TESS_OK;
}

static const struct tess_style gather = {
	.size = sizeof gather,
	.name = "gather",
	.summary = "y is replicated: summed or gathered",
	.aliases = (const char *const[]){ "all_reduce", "all_gather", NULL },
	.layout = layout_gather,
	.partition_param = partition_gather,
};

TESS_DEFINE_PLUGIN("gather", "1.0", "Apache-2.0", .summary = "replicated outputs",
                   .styles = TESS_LIST(tess_style, &gather));
