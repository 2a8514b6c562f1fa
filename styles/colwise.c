/*
 * tess-style-colwise.so: column parallel. A rank holds rows of W [out, in], thus columns of
 * y = x W^T. The core cuts each declared part of a fused weight separately.
 */
#include <string.h>
#include <tessera/style.h>

static const struct tess_place whole = { .kind = TESS_REPLICATE };
static const struct tess_place columns = { .kind = TESS_SHARD, .dim = -1 };

static tess_status set_colwise_layout(const struct tess_site *s, struct tess_place out,
                                      struct tess_io *io)
{
	tess_status st = tess_site_refuse_config(s);

	if (st)
		return st;
	if (!strcmp(s->kind, "module"))
		return s->host->fail(TESS_EINVAL,
		                     "%s: %s cuts a weight, and this module has none of its own; "
		                     "name the linear modules in it",
		                     s->module, s->style);
	io->in[0] = whole;
	io->out[0] = out;
	return TESS_OK;
}

static tess_status layout_colwise(const struct tess_site *s, struct tess_io *out)
{
	return set_colwise_layout(s, columns, out);
}

static tess_status layout_colwise_rep(const struct tess_site *s, struct tess_io *out)
{
	return set_colwise_layout(s, whole, out);
}

static tess_status partition_colwise(const struct tess_site *s, const struct tess_param *p,
                                     struct tess_param_place *out)
{
	if (p->out_dim < 0)
		return s->host->fail(TESS_EINVAL,
		                     "%s.%s: no output dimension to cut; use replicate", s->module,
		                     p->name);
	out->use = (struct tess_place){ .kind = TESS_SHARD, .dim = p->out_dim };
	return TESS_OK;
}

static const struct tess_style colwise = {
	.size = sizeof colwise,
	.name = "colwise",
	.summary = "cut by output; y stays cut",
	.aliases = (const char *const[]){ "local_colwise", NULL },
	.layout = layout_colwise,
	.partition_param = partition_colwise,
};
static const struct tess_style colwise_rep = {
	.size = sizeof colwise_rep,
	.name = "colwise_rep",
	.summary = "cut by output; y is gathered",
	.aliases = (const char *const[]){ "colwise_gather_output", "colwise_allgather", NULL },
	.layout = layout_colwise_rep,
	.partition_param = partition_colwise,
};

TESS_DEFINE_PLUGIN("colwise", "1.0", "Apache-2.0", .summary = "column parallel linear layers",
                   .styles = TESS_LIST(tess_style, &colwise, &colwise_rep));
