/*
 * tess-style-sequence.so: sequence parallel. Activations [tokens, hidden] are cut by tokens, the
 * parameters of a norm are replicated.
 */
#include <tessera/style.h>

static tess_status layout_sequence(const struct tess_site *s, struct tess_io *out)
{
	if (s->config[0])
		return s->host->fail(TESS_EINVAL, "%s: %s takes no configuration, not \"%s\"",
		                     s->module, s->style, s->config);
	out->in[0] = out->out[0] = (struct tess_place){ .kind = TESS_SHARD, .dim = 0 };
	return TESS_OK;
}

static tess_status partition_sequence(const struct tess_site *s, const struct tess_param *p,
                                      struct tess_param_place *out)
{
	(void)s;
	(void)p;
	out->use = (struct tess_place){ .kind = TESS_REPLICATE };
	return TESS_OK;
}

static const struct tess_style sequence_parallel = {
	.size = sizeof sequence_parallel,
	.name = "sequence_parallel",
	.summary = "replicated parameters; values cut by tokens",
	.aliases = (const char *const[]){ "activation", NULL },
	.layout = layout_sequence,
	.partition_param = partition_sequence,
};

TESS_DEFINE_PLUGIN("sequence", "1.0", "Apache-2.0", .summary = "activations cut by tokens",
                   .styles = TESS_LIST(tess_style, &sequence_parallel));
