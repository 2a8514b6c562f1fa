/*
 * tess-style-isolated.so: each rank computes the full module. An enclosing sum is reduced first, so
 * that the module's result is added once.
 */
#include <tessera/style.h>

static tess_status layout_isolated(const struct tess_site *s, struct tess_io *out)
{
	tess_status st = tess_site_refuse_config(s);

	if (st)
		return st;
	out->in[0] = out->out[0] = (struct tess_place){ .kind = TESS_REPLICATE };
	return TESS_OK;
}

static const struct tess_style local = {
	.size = sizeof local,
	.name = "local",
	.summary = "every rank computes the full module",
	.aliases = (const char *const[]){ "isolated", NULL },
	.layout = layout_isolated,
	.partition_param = tess_param_replicate,
};

TESS_DEFINE_PLUGIN("isolated", "1.0", "Apache-2.0", .summary = "modules that ranks compute alone",
                   .styles = TESS_LIST(tess_style, &local));
