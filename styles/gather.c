/*
 * tess-style-gather.so: replicates the output of a module: a Partial is summed, a Shard is
 * gathered. (In plans of Transformers `gather` means the sum.)
 */
#include <tessera/style.h>

static tess_status layout_gather(const struct tess_site *s, struct tess_io *out)
{
	tess_status st = tess_site_refuse_config(s);

	if (st)
		return st;
	out->out[0] = (struct tess_place){ .kind = TESS_REPLICATE };
	return TESS_OK;
}

static const struct tess_style gather = {
	.size = sizeof gather,
	.name = "gather",
	.summary = "y is replicated: summed or gathered",
	.aliases = (const char *const[]){ "all_reduce", "all_gather", NULL },
	.layout = layout_gather,
	.partition_param = tess_param_replicate,
};

TESS_DEFINE_PLUGIN("gather", "1.0", "Apache-2.0", .summary = "replicated outputs",
                   .styles = TESS_LIST(tess_style, &gather));
