/*
 * tess-style-embedding.so: a table [vocabulary, hidden], cut by vocabulary (a rank returns zeros
 * for ids of other ranks, and the sum is reduced) or by hidden (each rank looks up a slice of each
 * row).
 */
#include <string.h>
#include <tessera/style.h>

static const struct tess_place whole = { .kind = TESS_REPLICATE };
static const struct tess_place columns = { .kind = TESS_SHARD, .dim = -1 };
static const struct tess_place tokens = { .kind = TESS_SHARD, .dim = 0 };

static tess_status set_embedding_layout(const struct tess_site *s, const char *instead,
                                        struct tess_place out, struct tess_io *io)
{
	if (strcmp(s->kind, "embedding"))
		return s->host->fail(TESS_EINVAL,
		                     "%s: %s is for an embedding, not for a module of kind "
		                     "%s; use %s",
		                     s->module, s->style, s->kind,
		                     strcmp(s->kind, "linear") ? "replicate" : instead);
	io->in[0] = whole;
	io->out[0] = out;
	return TESS_OK;
}

static tess_status set_vocab_layout(const struct tess_site *s, const char *instead,
                                    struct tess_place out, struct tess_io *io)
{
	tess_status st = tess_site_refuse_config(s);

	return st ? st : set_embedding_layout(s, instead, out, io);
}

static tess_status layout_embedding_rowwise(const struct tess_site *s, struct tess_io *out)
{
	return set_vocab_layout(s, "rowwise", whole, out);
}

static tess_status layout_vocab_reduce_scatter(const struct tess_site *s, struct tess_io *out)
{
	return set_vocab_layout(s, "rowwise_reduce_scatter", tokens, out);
}

static tess_status layout_embedding_colwise(const struct tess_site *s, struct tess_io *out)
{
	int keep = !strcmp(s->config, "keep");

	if (!keep && s->config[0] && strcmp(s->config, "gather"))
		return s->host->fail(
			TESS_EINVAL,
			"%s: %s takes gather (the default: rows are whole) or keep (they stay "
			"cut), not \"%s\"",
			s->module, s->style, s->config);
	return set_embedding_layout(s, "colwise_rep", keep ? columns : whole, out);
}

static tess_status partition_vocab(const struct tess_site *s, const struct tess_param *p,
                                   struct tess_param_place *out)
{
	(void)s;
	out->use = (struct tess_place){ .kind = TESS_SHARD, .dim = p->in_dim };
	return TESS_OK;
}

static tess_status partition_hidden(const struct tess_site *s, const struct tess_param *p,
                                    struct tess_param_place *out)
{
	(void)s;
	out->use = (struct tess_place){ .kind = TESS_SHARD, .dim = p->out_dim };
	return TESS_OK;
}

static const struct tess_style embedding_rowwise = {
	.size = sizeof embedding_rowwise,
	.name = "embedding_rowwise",
	.summary = "cut by vocabulary; rows are summed",
	.aliases = (const char *const[]){ "vocab_allreduce", NULL },
	.layout = layout_embedding_rowwise,
	.partition_param = partition_vocab,
};
static const struct tess_style vocab_reduce_scatter = {
	.size = sizeof vocab_reduce_scatter,
	.name = "vocab_reduce_scatter",
	.summary = "cut by vocabulary; rows are summed and cut by tokens",
	.layout = layout_vocab_reduce_scatter,
	.partition_param = partition_vocab,
};
static const struct tess_style embedding_colwise = {
	.size = sizeof embedding_colwise,
	.name = "embedding_colwise",
	.summary = "cut by hidden; rows are gathered (:keep: stay cut)",
	.layout = layout_embedding_colwise,
	.partition_param = partition_hidden,
};

TESS_DEFINE_PLUGIN("embedding", "1.0", "Apache-2.0",
                   .summary = "embeddings cut by vocabulary or by hidden",
                   .styles = TESS_LIST(tess_style, &embedding_rowwise, &vocab_reduce_scatter,
                                       &embedding_colwise));
