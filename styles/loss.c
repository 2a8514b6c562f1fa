/*
 * tess-style-loss.so: loss parallel: the head of a model, cut by vocabulary. Its logits stay cut;
 * ids are chosen among the candidates of each rank.
 */
#include <string.h>
#include <tessera/style.h>

static tess_status layout_loss_parallel(const struct tess_site *s, struct tess_io *out)
{
	tess_status st = tess_site_refuse_config(s);

	if (st)
		return st;
	if (strcmp(s->kind, "linear"))
		return s->host->fail(TESS_EINVAL,
		                     "%s: %s is for the linear module that gives the "
		                     "logits, lm_head, not for a module of kind %s",
		                     s->module, s->style, s->kind);
	out->in[0] = (struct tess_place){ .kind = TESS_REPLICATE };
	out->out[0] = (struct tess_place){ .kind = TESS_SHARD, .dim = -1 };
	return TESS_OK;
}

static tess_status partition_loss_parallel(const struct tess_site *s, const struct tess_param *p,
                                           struct tess_param_place *out)
{
	(void)s;
	out->use = (struct tess_place){ .kind = TESS_SHARD, .dim = p->out_dim };
	return TESS_OK;
}

static const struct tess_style loss_parallel = {
	.size = sizeof loss_parallel,
	.name = "loss_parallel",
	.summary = "cut by output, for lm_head; logits stay cut",
	.aliases = (const char *const[]){ "colwise_loss_parallel", NULL },
	.layout = layout_loss_parallel,
	.partition_param = partition_loss_parallel,
};

TESS_DEFINE_PLUGIN("loss", "1.0", "Apache-2.0", .summary = "logits that stay cut by vocabulary",
                   .styles = TESS_LIST(tess_style, &loss_parallel));
