/*
 * tess-style-data.so: data parallel. The ranks along the dimension compute with full parameters on
 * different sequences. The styles differ in the elements of a parameter that each rank keeps.
 */
#include <tessera/style.h>

/* Leaves the values of a module in place. */
static tess_status layout_data(const struct tess_site *s, struct tess_io *out)
{
	tess_status st = tess_site_refuse_config(s);

	(void)out;
	if (st)
		return st;
	if (!s->data)
		return s->host->fail(TESS_EINVAL,
		                     "%s: %s is for ranks that train on different sequences; use "
		                     "it along mesh dimension dp, in training",
		                     s->module, s->style);
	return TESS_OK;
}

static tess_status partition_zero1(const struct tess_site *s, const struct tess_param *p,
                                   struct tess_param_place *out)
{
	out->state = (struct tess_storage){ .kind = TESS_SHARD };
	return tess_param_replicate(s, p, out);
}

static tess_status partition_zero3(const struct tess_site *s, const struct tess_param *p,
                                   struct tess_param_place *out)
{
	out->rest = (struct tess_storage){ .kind = TESS_SHARD };
	return partition_zero1(s, p, out);
}

static const struct tess_style ddp = {
	.size = sizeof ddp,
	.name = "ddp",
	.summary = "replicated, also between steps",
	.layout = layout_data,
	.partition_param = tess_param_replicate,
};
static const struct tess_style zero1 = {
	.size = sizeof zero1,
	.name = "zero1",
	.summary = "gradients and optimizer state cut by elements",
	/* a gradient is reduced once, to the rank that keeps the share: stage 1 includes stage 2 */
	.aliases = (const char *const[]){ "zero2", NULL },
	.layout = layout_data,
	.partition_param = partition_zero1,
};
static const struct tess_style zero3 = {
	.size = sizeof zero3,
	.name = "zero3",
	.summary = "parameters too, gathered before use",
	.aliases = (const char *const[]){ "fsdp", NULL },
	.layout = layout_data,
	.partition_param = partition_zero3,
};

TESS_DEFINE_PLUGIN("data", "1.0", "Apache-2.0", .summary = "data parallel, with ZeRO",
                   .styles = TESS_LIST(tess_style, &ddp, &zero1, &zero3));
