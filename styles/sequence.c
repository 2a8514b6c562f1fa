/*
 * tess-style-sequence.so: sequence parallel. Activations [tokens, hidden] are cut by tokens, the
 * parameters of a norm are replicated.
 */
#include <tessera/style.h>

static tess_status layout_sequence(const struct tess_site *s, struct tess_io *out)
{
	tess_status st = tess_site_refuse_config(s);

	if (st)
		return st;
	out->in[0] = out->out[0] = (struct tess_place){ .kind = TESS_SHARD, .dim = 0 };
	return TESS_OK;
}

static const struct tess_style sequence_parallel = {
	.size = sizeof sequence_parallel,
	.name = "sequence_parallel",
	.summary = "replicated parameters; values cut by tokens",
	.aliases = (const char *const[]){ "activation", NULL },
	.layout = layout_sequence,
	.partition_param = tess_param_replicate,
};

TESS_DEFINE_PLUGIN("sequence", "1.0", "Apache-2.0", .summary = "activations cut by tokens",
                   .styles = TESS_LIST(tess_style, &sequence_parallel));
