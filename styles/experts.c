/*
 * tess-style-experts.so: mixtures of experts. The weights [experts, out, in] of a module are cut by
 * expert, or inside each expert. All ranks receive complete rows, and the results of the ranks are
 * summed. Names are those of Transformers' plans, where rules for the two parameters cut them and a
 * rule for the module sums its output.
 */
#include <string.h>
#include <tessera/style.h>

static const struct tess_place whole = { .kind = TESS_REPLICATE };
static const struct tess_place tokens = { .kind = TESS_SHARD, .dim = 0 };

/* Refuses what follows the colon, and modules of kinds other than experts and `other`. */
static tess_status check_experts_kind(const struct tess_site *s, const char *other)
{
	tess_status st = tess_site_refuse_config(s);

	if (st || !strcmp(s->kind, "experts") || !strcmp(s->kind, other))
		return st;
	return s->host->fail(TESS_EINVAL, "%s: %s is for experts, not for a module of kind %s",
	                     s->module, s->style, s->kind);
}

/* Leaves rows as they are: the core exchanges them. */
static tess_status layout_as_is(const struct tess_site *s, struct tess_io *out)
{
	(void)out;
	return check_experts_kind(s, "experts");
}

static tess_status layout_experts(const struct tess_site *s, struct tess_io *out)
{
	tess_status st = check_experts_kind(s, "module");

	if (!st)
		out->in[0] = out->out[0] = whole;
	return st;
}

static tess_status layout_reduce_scatter(const struct tess_site *s, struct tess_io *out)
{
	tess_status st = layout_experts(s, out);

	if (!st)
		out->out[0] = tokens;
	return st;
}

static tess_status cut_axis(const struct tess_site *s, const struct tess_param *p, int32_t dim,
                            struct tess_param_place *out)
{
	if (p->expert_dim < 0 || dim < 0)
		return s->host->fail(TESS_EINVAL,
		                     "%s.%s: not a weight of several experts; use colwise, rowwise "
		                     "or replicate",
		                     s->module, p->name);
	out->use = (struct tess_place){ .kind = TESS_SHARD, .dim = dim };
	return TESS_OK;
}

static tess_status partition_experts(const struct tess_site *s, const struct tess_param *p,
                                     struct tess_param_place *out)
{
	return cut_axis(s, p, p->expert_dim, out);
}

/* Replicates biases that are added to finished rows. */
static tess_status partition_by_rows(const struct tess_site *s, const struct tess_param *p,
                                     struct tess_param_place *out)
{
	return p->ndim == 2 && p->in_dim == p->expert_dim ? tess_param_replicate(s, p, out)
	                                                  : partition_experts(s, p, out);
}

static tess_status partition_inside_out(const struct tess_site *s, const struct tess_param *p,
                                        struct tess_param_place *out)
{
	return cut_axis(s, p, p->out_dim, out);
}

static tess_status partition_inside_in(const struct tess_site *s, const struct tess_param *p,
                                       struct tess_param_place *out)
{
	return cut_axis(s, p, p->in_dim, out);
}

static const struct tess_style grouped = {
	.size = sizeof grouped,
	.name = "grouped_gemm",
	.summary = "cut by expert; y is summed",
	.layout = layout_experts,
	.partition_param = partition_experts,
};
static const struct tess_style all_to_all = {
	.size = sizeof all_to_all,
	.name = "ep_all_to_all",
	.summary = "cut by expert; a rank gets the rows that request its experts",
	.layout = layout_as_is,
	.partition_param = partition_by_rows,
	.expert_rows = TESS_ROWS_REQUESTED,
};
static const struct tess_style fewer = {
	.size = sizeof fewer,
	.name = "ep_fewer_bytes",
	.summary = "as ep_all_to_all where that moves fewer bytes, else as grouped_gemm",
	.layout = layout_as_is,
	.partition_param = partition_by_rows,
	.expert_rows = TESS_ROWS_FEWER,
};
static const struct tess_style dispatch = {
	.size = sizeof dispatch,
	.name = "ep_dispatch_experts",
	.summary = "rows are replicated, y is summed; parameters by their own rules",
	.layout = layout_experts,
	.partition_param = tess_param_replicate,
};
static const struct tess_style sum = {
	.size = sizeof sum,
	.name = "moe_tp_experts",
	.summary = "y is summed; parameters by their own rules",
	.aliases = (const char *const[]){ "moe_experts_allreduce", NULL },
	.layout = layout_experts,
	.partition_param = tess_param_replicate,
};
static const struct tess_style reduce_scatter = {
	.size = sizeof reduce_scatter,
	.name = "moe_experts_reduce_scatter",
	.summary = "y is summed and cut by tokens; parameters by their own rules",
	.layout = layout_reduce_scatter,
	.partition_param = tess_param_replicate,
};
static const struct tess_style gate_up = {
	.size = sizeof gate_up,
	.name = "moe_tp_gate_up_colwise",
	.summary = "gate_up_proj of experts: each is cut by its output",
	.layout = layout_experts,
	.partition_param = partition_inside_out,
};
static const struct tess_style down = {
	.size = sizeof down,
	.name = "moe_tp_down_rowwise",
	.summary = "down_proj of experts: each is cut by its input",
	.layout = layout_experts,
	.partition_param = partition_inside_in,
};
static const struct tess_style identity = {
	.size = sizeof identity,
	.name = "moe_identity_expert",
	.summary = "experts without weights: computed on every rank, added once",
	.layout = layout_experts,
	.partition_param = tess_param_replicate,
};

TESS_DEFINE_PLUGIN("experts", "1.0", "Apache-2.0", .summary = "mixtures of experts",
                   .styles = TESS_LIST(tess_style, &grouped, &all_to_all, &fewer, &dispatch, &sum,
                                       &reduce_scatter, &gate_up, &down, &identity));
