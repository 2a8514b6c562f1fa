/* tess-style-rowsplit.so: a row-parallel linear layer that cuts its own input. */
#include <tessera/style.h>

static tess_status layout_rowsplit(const struct tess_site *s, struct tess_io *io)
{
	if (s->config[0])
		return s->host->fail(TESS_EINVAL, "%s: rowsplit takes no \"%s\"", s->module,
		                     s->config);
	io->in[0] = (struct tess_place){ .kind = TESS_SHARD, .dim = -1 };
	io->out[0] = (struct tess_place){ .kind = TESS_REPLICATE };
	return TESS_OK;
}

static tess_status partition_rowsplit(const struct tess_site *s, const struct tess_param *p,
                                      struct tess_param_place *place)
{
	(void)s;
	place->use.kind = TESS_REPLICATE; /* the bias: added once, after the sum */
	if (p->in_dim >= 0)
		place->use = (struct tess_place){ .kind = TESS_SHARD, .dim = p->in_dim };
	return TESS_OK;
}

static const struct tess_style rowsplit = {
	.size = sizeof rowsplit,
	.name = "rowsplit",
	.summary = "row parallel, cuts its own input",
	.layout = layout_rowsplit,
	.partition_param = partition_rowsplit,
};

TESS_DEFINE_PLUGIN("rowsplit", "1.0", "Apache-2.0", .styles = TESS_LIST(tess_style, &rowsplit));
