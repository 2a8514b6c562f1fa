/*
 * tess-style-rowwise.so: row parallel. A rank holds columns of W [out, in] and computes a partial
 * sum of every output. The replicated bias is added once, after the sum is reduced.
 *
 * A replicated input is sliced in place, so rowwise_rep needs no style of its own. For an
 * embedding, whose input dimension is the vocabulary, the ids stay replicated.
 */
#include <string.h>
#include <tessera/style.h>

static const struct tess_place whole = { .kind = TESS_REPLICATE };
static const struct tess_place columns = { .kind = TESS_SHARD, .dim = -1 };
static const struct tess_place tokens = { .kind = TESS_SHARD, .dim = 0 };
static const struct tess_place as_is = { .kind = TESS_ASIS };

static tess_status set_rowwise_layout(const struct tess_site *s, struct tess_place out,
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
	io->in[0] = strcmp(s->kind, "embedding") ? columns : whole;
	io->out[0] = out;
	return TESS_OK;
}

static tess_status layout_rowwise(const struct tess_site *s, struct tess_io *out)
{
	return set_rowwise_layout(s, whole, out);
}

static tess_status layout_rowwise_reduce_scatter(const struct tess_site *s, struct tess_io *out)
{
	return set_rowwise_layout(s, tokens, out);
}

static tess_status layout_rowwise_local(const struct tess_site *s, struct tess_io *out)
{
	return set_rowwise_layout(s, as_is, out);
}

static tess_status partition_rowwise(const struct tess_site *s, const struct tess_param *p,
                                     struct tess_param_place *out)
{
	if (p->in_dim < 0 && p->out_dim < 0)
		return s->host->fail(TESS_EINVAL, "%s.%s: no input dimension to cut; use replicate",
		                     s->module, p->name);
	out->use = whole;
	if (p->in_dim >= 0)
		out->use = (struct tess_place){ .kind = TESS_SHARD, .dim = p->in_dim };
	return TESS_OK;
}

static const struct tess_style rowwise = {
	.size = sizeof rowwise,
	.name = "rowwise",
	.summary = "cut by input; y is summed",
	.aliases = (const char *const[]){ "rowwise_rep", "rowwise_split_input", "rowwise_allreduce",
	                                  NULL },
	.layout = layout_rowwise,
	.partition_param = partition_rowwise,
};
static const struct tess_style reduce_scatter = {
	.size = sizeof reduce_scatter,
	.name = "rowwise_reduce_scatter",
	.summary = "cut by input; y is summed and cut by tokens",
	.layout = layout_rowwise_reduce_scatter,
	.partition_param = partition_rowwise,
};
static const struct tess_style local = {
	.size = sizeof local,
	.name = "local_rowwise",
	.summary = "cut by input; the module around it sums y",
	.layout = layout_rowwise_local,
	.partition_param = partition_rowwise,
};

TESS_DEFINE_PLUGIN("rowwise", "1.0", "Apache-2.0", .summary = "row parallel linear layers",
                   .styles = TESS_LIST(tess_style, &rowwise, &reduce_scatter, &local));
