/*
 * tess-style-by_hand.so: styles that communicate and compute by hand, for the tests of
 * host->redistribute and call.
 */
#include <tessera/device.h>
#include <tessera/style.h>

static tess_status keep_layout(const struct tess_site *s, struct tess_io *io)
{
	(void)s, (void)io;
	return TESS_OK;
}

static tess_status shard_in_dim(const struct tess_site *s, const struct tess_param *p,
                                struct tess_param_place *place)
{
	(void)s;
	place->use.kind = TESS_REPLICATE;
	if (p->in_dim >= 0)
		place->use = (struct tess_place){ .kind = TESS_SHARD, .dim = p->in_dim };
	return TESS_OK;
}

/* Vectors, too, which no op but a bias takes so. */
static tess_status shard_first_dim(const struct tess_site *s, const struct tess_param *p,
                                   struct tess_param_place *place)
{
	(void)p;
	place->use = (struct tess_place){ .kind = TESS_SHARD, .zero = *s->config != '\0' };
	return TESS_OK;
}

static tess_status replicate_param(const struct tess_site *s, const struct tess_param *p,
                                   struct tess_param_place *place)
{
	(void)s, (void)p;
	place->use.kind = TESS_REPLICATE;
	return TESS_OK;
}

static tess_status shard_input(const struct tess_site *s, int32_t arg, struct tess_tensor **x)
{
	(void)arg;
	return s->host->redistribute(s, &(struct tess_place){ .kind = TESS_SHARD, .dim = -1 }, x);
}

static tess_status replicate_output(const struct tess_site *s, int32_t arg, struct tess_tensor **y)
{
	(void)arg;
	return s->host->redistribute(s, &(struct tess_place){ .kind = TESS_REPLICATE }, y);
}

/* y = -x, by way of scratch memory. */
static tess_status negate_local(const struct tess_local *at)
{
	const struct tess_view *x = at->in, *y = at->out;
	float *tmp = at->scratch;

	for (int64_t i = 0; i < x->shape[0]; i++) {
		for (int64_t k = 0; k < x->shape[1]; k++) {
			tmp[0] = ((const float *)x->data)[i * x->stride[0] + k * x->stride[1]];
			((float *)y->data)[i * y->stride[0] + k * y->stride[1]] = -tmp[0];
		}
	}
	return TESS_OK;
}

/* d x = -d y; of x and y, which must be what the call had and gave. */
static tess_status negate_gradient(const struct tess_local *at)
{
	const struct tess_view *x = at->in, *y = at->in + 1;
	struct tess_local d = *at;

	d.in = at->in + 2;
	for (int64_t i = 0; i < x->shape[0]; i++)
		for (int64_t k = 0; k < x->shape[1]; k++)
			if (((const float *)x->data)[i * x->stride[0] + k] !=
			    -((const float *)y->data)[i * y->stride[0] + k])
				return TESS_EBUG;
	return negate_local(&d);
}

static tess_status fail_gradient(const struct tess_local *at)
{
	(void)at;
	return TESS_EDEVICE;
}

/* With the configuration `inference` there is no gradient, with `fails` it fails. */
static tess_status call_negate_twice(const struct tess_site *s, int32_t arg, struct tess_tensor **y)
{
	struct tess_call call = { .size = sizeof call,
		                  .run = negate_local,
		                  .grad = *s->config == 'f' ? fail_gradient
		                          : *s->config      ? NULL
		                                            : negate_gradient,
		                  .scratch = 4 };
	tess_status st = s->host->call(s, &call, y);

	(void)arg;
	return st ? st : s->host->call(s, &call, y);
}

/* Stores parameters as the configuration says: cut between uses, or otherwise. */
static tess_status store_elsewhere(const struct tess_site *s, const struct tess_param *p,
                                   struct tess_param_place *place)
{
	char what = s->config[0];

	place->rest = (struct tess_storage){ .kind = what == 'r'   ? TESS_SHARD
		                                     : what == 'k' ? TESS_PARTIAL
		                                                   : TESS_ASIS,
		                             .dtype = p->dtype };
	place->state = (struct tess_storage){ .kind = what == 's' ? TESS_SHARD : TESS_ASIS,
		                              .dtype = what == 't' ? TESS_F64 : 0 };
	return TESS_OK;
}

static const struct tess_style by_hand = { .size = sizeof by_hand,
	                                   .name = "rowsplit_by_hand",
	                                   .summary = "cuts and sums by hand",
	                                   .layout = keep_layout,
	                                   .partition_param = shard_in_dim,
	                                   .prepare_input = shard_input,
	                                   .prepare_output = replicate_output };
static const struct tess_style negated = { .size = sizeof negated,
	                                   .name = "negated_twice",
	                                   .summary = "calls of its own",
	                                   .layout = keep_layout,
	                                   .partition_param = replicate_param,
	                                   .prepare_output = call_negate_twice };
static const struct tess_style stored = { .size = sizeof stored,
	                                  .name = "stored",
	                                  .summary = "stores parameters elsewhere",
	                                  .layout = keep_layout,
	                                  .partition_param = store_elsewhere };
static const struct tess_style first_dim = { .size = sizeof first_dim,
	                                     .name = "first_dim",
	                                     .summary = "cuts the first axis of parameters",
	                                     .layout = keep_layout,
	                                     .partition_param = shard_first_dim };

TESS_DEFINE_PLUGIN("by_hand", "1.0", "Apache-2.0", .summary = "for tests",
                   .styles = TESS_LIST(tess_style, &by_hand, &negated, &stored, &first_dim));
