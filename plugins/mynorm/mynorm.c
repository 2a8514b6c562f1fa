/* tess-device-mynorm.so: computes RMS norms, and leaves all other ops to the device it wraps. */
#include <math.h>
#include <string.h>
#include <tessera/device.h>

/* Adds the squares of the units of node (depth, i): left + right; a leaf is a chain. */
static float add_units(const float *x, const struct tess_tree *tree, const int64_t *bound,
                       int32_t depth, int64_t i)
{
	int64_t lo = tess_edge(tree->n, (int64_t)1 << depth, i),
		hi = tess_edge(tree->n, (int64_t)1 << depth, i + 1);
	float sum = 0;

	if (hi - lo > 1)
		return add_units(x, tree, bound, depth + 1, 2 * i) +
		       add_units(x, tree, bound, depth + 1, 2 * i + 1);
	for (int64_t k = bound[lo]; k < bound[hi]; k++)
		sum = fmaf(x[k], x[k], sum);
	return sum;
}

/* Loads an element of a vector, which is unaligned in some files. */
static float load_vector_element(const struct tess_view *w, int64_t k)
{
	float value;

	memcpy(&value, (const char *)w->data + k * w->stride[0] * 4, sizeof value);
	return value;
}

static tess_status compute_norm(void *self, const struct tess_op *op)
{
	const struct tess_view *x = &op->in[0], *w = &op->in[1], *y = &op->out[0];
	const int64_t *bound = op->term[op->tree[0].first].bound;

	(void)self;
	for (int64_t t = 0; t < x->shape[0]; t++) {
		const float *in = (const float *)x->data + t * x->stride[0];
		float *out = (float *)y->data + t * y->stride[0];
		float mean = add_units(in, &op->tree[0], bound, 0, 0) / (float)x->shape[1];
		float scale = 1 / sqrtf(mean + (float)op->num[TESS_NORM_EPS]);

		for (int64_t k = 0; k < x->shape[1]; k++)
			out[k] = (in[k] * scale) * load_vector_element(w, k);
	}
	return TESS_OK;
}

/* Selects the ops of this kernel; the others run in the inner device. */
static tess_status select_norm(const struct tess_op *op)
{
	return op->kind == TESS_OP_NORM && op->num[TESS_NORM_KIND] == TESS_RMS &&
	                       op->num[TESS_NORM_RUN] == 0 && op->num[TESS_NORM_OFFSET] == 0 &&
	                       op->in[1].dtype == TESS_F32
	               ? TESS_OK
	               : TESS_ENOTSUP;
}

static tess_status wrap_in_mynorm(const char *name, const struct tess_device **out)
{
	static const struct tess_device table = {
		.size = sizeof table,
		.mem = TESS_HOST, /* compute_norm() reads memory of the host */
		.supports = select_norm,
		.run = compute_norm,
		.exact = 1, /* add_units() has the order of split.h */
	};

	(void)name;
	*out = &table;
	return TESS_OK;
}

static const struct tess_device mynorm = {
	.size = sizeof mynorm,
	.name = "mynorm",
	.summary = "RMS norms, around another device",
	.wrap = wrap_in_mynorm,
};

TESS_DEFINE_PLUGIN("mynorm", "1.0", "Apache-2.0", .devices = TESS_LIST(tess_device, &mynorm));
