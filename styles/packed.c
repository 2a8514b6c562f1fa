/*
 * tess-style-packed.so: colwise and rowwise for a fused weight. They fail unless the model declares
 * the parts that the plan names: "packed_colwise:parts=4,1,1", by default two equal parts. The
 * numbers are ratios, so sizes work too.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/style.h>

enum { PARTS_MAX = 16 };

static const struct tess_place whole = { .kind = TESS_REPLICATE };
static const struct tess_place columns = { .kind = TESS_SHARD, .dim = -1 };
static const struct tess_place as_is = { .kind = TESS_ASIS };

static int64_t compute_gcd(int64_t a, int64_t b)
{
	return b ? compute_gcd(b, a % b) : a;
}

/* Parses the ratios of the configuration into lowest terms. Returns their count; 0: invalid. */
static int parse_ratios(const char *config, int64_t out[PARTS_MAX])
{
	int64_t by = 0;
	int n = 0;
	char *end;

	if (!config[0])
		config = "parts=1,1";
	if (strncmp(config, "parts=", 6))
		return 0;
	for (end = (char *)config + 5; *end && n < PARTS_MAX; n++) {
		const char *at = end + 1;

		if (*at < '1' || *at > '9')
			return 0;
		out[n] = strtoll(at, &end, 10);
		if (out[n] > INT32_MAX || (*end && *end != ','))
			return 0;
		by = compute_gcd(out[n], by);
	}
	for (int k = 0; k < n; k++)
		out[k] /= by;
	return *end ? 0 : n;
}

static tess_status set_packed_layout(const struct tess_site *s, struct tess_place in,
                                     struct tess_place out, struct tess_io *io)
{
	int64_t want[PARTS_MAX];

	if (!parse_ratios(s->config, want))
		return s->host->fail(TESS_EINVAL,
		                     "%s: %s takes parts= and at most %d positive numbers, "
		                     "as in parts=4,1,1, not \"%s\"",
		                     s->module, s->style, PARTS_MAX, s->config);
	if (!strcmp(s->kind, "module"))
		return s->host->fail(TESS_EINVAL,
		                     "%s: %s cuts a weight, and this module has none of its own; "
		                     "name the linear modules in it",
		                     s->module, s->style);
	io->in[0] = in;
	io->out[0] = out;
	return TESS_OK;
}

static tess_status layout_packed_colwise(const struct tess_site *s, struct tess_io *out)
{
	return set_packed_layout(s, whole, columns, out);
}

static tess_status layout_packed_rowwise(const struct tess_site *s, struct tess_io *out)
{
	return set_packed_layout(s, columns, whole, out);
}

static tess_status layout_packed_local(const struct tess_site *s, struct tess_io *out)
{
	return set_packed_layout(s, columns, as_is, out);
}

/* Cuts `dim`, if its declared parts have the ratios of the plan. */
static tess_status cut_dim(const struct tess_site *s, const struct tess_param *p, int32_t dim,
                           struct tess_param_place *out)
{
	const int64_t one[] = { p->shape[dim], 0 };
	const int64_t *have = p->parts && p->parts[dim] ? p->parts[dim] : one;
	int64_t want[PARTS_MAX], all = 0;
	char parts[16 * PARTS_MAX] = "";
	int n = parse_ratios(s->config, want), same = 1, k;

	for (k = 0; k < n; k++)
		all += want[k];
	for (k = 0; same && k < n; k++) /* the 0 that ends a shorter list differs */
		same = have[k] == p->shape[dim] / all * want[k];
	for (k = 0; have[k] && k < PARTS_MAX; k++)
		snprintf(parts + strlen(parts), sizeof parts - strlen(parts), "%s%lld",
		         k ? "," : "", (long long)have[k]);
	if (!same || have[n])
		return s->host->fail(
			TESS_EINVAL,
			"%s.%s: dimension %d consists of %s %s, and not of the parts that the plan "
			"names (%s); use %s%s%s without packed_",
			s->module, p->name, (int)dim, k > 1 ? "the parts" : "one part,", parts,
			s->config[0] ? s->config : "two equal ones", k > 1 ? ":parts=" : "",
			k > 1 ? parts : "", k > 1 ? ", or the style" : "the style");
	out->use = (struct tess_place){ .kind = TESS_SHARD, .dim = dim };
	return TESS_OK;
}

static tess_status partition_packed_out(const struct tess_site *s, const struct tess_param *p,
                                        struct tess_param_place *out)
{
	if (p->out_dim < 0)
		return s->host->fail(TESS_EINVAL,
		                     "%s.%s: no output dimension to cut; use replicate", s->module,
		                     p->name);
	return cut_dim(s, p, p->out_dim, out);
}

static tess_status partition_packed_in(const struct tess_site *s, const struct tess_param *p,
                                       struct tess_param_place *out)
{
	if (p->in_dim >= 0)
		return cut_dim(s, p, p->in_dim, out);
	if (p->out_dim < 0)
		return s->host->fail(TESS_EINVAL, "%s.%s: no input dimension to cut; use replicate",
		                     s->module, p->name);
	out->use = whole; /* the bias: added once, after the sum */
	return TESS_OK;
}

static const struct tess_style packed_colwise = {
	.size = sizeof packed_colwise,
	.name = "packed_colwise",
	.summary = "colwise, if the output consists of these parts",
	.layout = layout_packed_colwise,
	.partition_param = partition_packed_out,
};
static const struct tess_style packed_rowwise = {
	.size = sizeof packed_rowwise,
	.name = "packed_rowwise",
	.summary = "rowwise, if the input consists of these parts",
	.layout = layout_packed_rowwise,
	.partition_param = partition_packed_in,
};
static const struct tess_style local = {
	.size = sizeof local,
	.name = "local_packed_rowwise",
	.summary = "packed_rowwise; the module around it sums y",
	.layout = layout_packed_local,
	.partition_param = partition_packed_in,
};

TESS_DEFINE_PLUGIN("packed", "1.0", "Apache-2.0",
                   .summary = "fused weights, with their parts asserted",
                   .styles = TESS_LIST(tess_style, &packed_colwise, &packed_rowwise, &local));
