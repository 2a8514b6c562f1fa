#include "mixture.h"

#include "draw.h"

#include <stdio.h>

const struct mixture_shape *mixture;

static struct tess_tensor *record_mixture(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_dim *vocabulary = nn->dim(nn, "vocabulary", VOCABULARY, 0);
	struct tess_dim *hidden = nn->dim(nn, "hidden", mixture->hidden, TESS_HIDDEN);
	struct tess_dim *experts = nn->dim(nn, "experts", mixture->experts, 1);
	const struct tess_linear gate[] = { { "gate", experts, 0, 0 }, { 0 } };
	const struct tess_linear head[] = { { "head", vocabulary, 0, 0 }, { 0 } };
	const struct tess_experts how = {
		sizeof how, mixture->flags, TESS_SILU, 0, nn->dim(nn, "ffn", mixture->ffn, 0), 0, 0
	};
	struct tess_tensor *x = nn->embed(nn, "table", ids, vocabulary, hidden), *y = NULL;

	x = nn->enter(nn, x, "mlp");
	nn->linear(nn, x, gate, &y);
	y = nn->leave(nn, nn->experts(nn, "experts", x, nn->route(nn, y, &mixture->route), &how));
	nn->linear(nn, y, head, &y);
	return y;
}

static const struct tess_stored stored[] = {
	{ "mlp.experts.gate_up_proj", (const char *const[]){ "x.#.w1", "x.#.w3", NULL } },
	{ "mlp.experts.down_proj", (const char *const[]){ "x.#.w2", NULL } },
	{ "*.weight", (const char *const[]){ "renamed.*", NULL } },
	{ 0 }
};
const struct tess_model mixture_model = {
	.size = sizeof mixture_model, .name = "mixture", .forward = record_mixture, .stored = stored
};

static struct stored_file *add_file(struct store *s, const char *name, int32_t ndim, int64_t a,
                                    int64_t b, int64_t c)
{
	struct stored_file *f = &s->file[s->n++];
	int64_t n = a * (ndim > 1 ? b : 1) * (ndim > 2 ? c : 1);

	snprintf(f->name, sizeof f->name, "%s", name);
	f->ndim = ndim;
	f->shape[0] = a;
	f->shape[1] = b;
	f->shape[2] = c;
	f->data = calloc((size_t)n, sizeof *f->data);
	return f;
}

float mixture_get_element(int which, int64_t e, int64_t out, int64_t in)
{
	uint64_t seed = (uint64_t)(((which * 64 + e) * 512 + out) * 512 + in) + 1;

	return (float)draw_below(&seed, 1 << 16) / (1 << 15) - 1;
}

static void fill_file(struct stored_file *f)
{
	uint64_t seed = 7 + (uint64_t)f->name[0];

	for (int64_t i = 0; i < f->shape[0] * (f->ndim > 1 ? f->shape[1] : 1); i++)
		f->data[i] = (float)draw_below(&seed, 1 << 16) / (1 << 15) - 1;
}

/* Fills `to` with one matrix [out, in] of expert e, or its transpose, from out `first` on. */
static void fill_expert(float *to, int which, int64_t e, int64_t first, int64_t outs, int64_t ins)
{
	for (int64_t o = 0; o < outs; o++)
		for (int64_t i = 0; i < ins; i++)
			to[mixture->flags & TESS_IN_OUT ? i * outs + o : o * ins + i] =
				mixture_get_element(which, e, first + o, i);
}

static void add_expert_files(struct store *s)
{
	int64_t f = mixture->ffn, h = mixture->hidden;
	bool turned = mixture->flags & TESS_IN_OUT;
	char name[NAME_MAX_BYTES];

	for (int64_t e = 0; e < mixture->experts; e++) {
		for (int w = 1; w <= 3; w++) {
			int64_t outs = w == 2 ? h : f, ins = w == 2 ? f : h;
			struct stored_file *file;

			snprintf(name, sizeof name, "x.%d.w%d", (int)e, w);
			file = add_file(s, name, 2, turned ? ins : outs, turned ? outs : ins, 1);
			fill_expert(file->data, w == 2 ? 2 : 1, e, w == 3 ? f : 0, outs, ins);
		}
	}
}

static void add_stacked_files(struct store *s)
{
	int64_t f = mixture->ffn, h = mixture->hidden, n = mixture->experts;
	bool turned = mixture->flags & TESS_IN_OUT;
	struct stored_file *up = add_file(s, "mlp.experts.gate_up_proj", 3, n, turned ? h : 2 * f,
	                                  turned ? 2 * f : h),
			   *down = add_file(s, "mlp.experts.down_proj", 3, n, turned ? f : h,
	                                    turned ? h : f);

	for (int64_t e = 0; e < n; e++) {
		fill_expert(up->data + e * 2 * f * h, 1, e, 0, 2 * f, h);
		fill_expert(down->data + e * f * h, 2, e, 0, h, f);
	}
}

static int compare_file_names(const void *a, const void *b)
{
	return strcmp(((const struct stored_file *)a)->name, ((const struct stored_file *)b)->name);
}

struct stored_file *store_find(const struct store *s, const char *name)
{
	struct stored_file key;

	snprintf(key.name, sizeof key.name, "%s", name);
	return bsearch(&key, s->file, s->n, sizeof *s->file, compare_file_names);
}

static bool has_stored(void *self, const char *name)
{
	((struct store *)self)->finds++;
	return store_find(self, name) != NULL;
}

static tess_status find_stored(void *self, const char *name, struct tess_view *out)
{
	const struct stored_file *f = store_find(self, name);
	int64_t stride = 1;

	((struct store *)self)->finds++;
	if (!f)
		return tess_fail(TESS_ENOENT, "store: tensor %s is not there", name);
	*out = (struct tess_view){ .dtype = TESS_F32, .ndim = f->ndim };
	for (int32_t i = f->ndim - 1; i >= 0; i--) {
		out->shape[i] = f->shape[i];
		out->stride[i] = stride;
		stride *= f->shape[i];
	}
	return TESS_OK;
}

static tess_status read_stored(void *self, const char *name, uint64_t at, uint64_t bytes, void *out)
{
	const struct stored_file *f = store_find(self, name);
	struct store *s = self;
	char quoted[NAME_MAX_BYTES + 2];

	memcpy(out, (const char *)f->data + at, bytes);
	s->bytes_read += bytes;
	snprintf(quoted, sizeof quoted, "[%s]", name);
	if (!strstr(s->read_names, quoted))
		strncat(s->read_names, quoted, sizeof s->read_names - strlen(s->read_names) - 1);
	return TESS_OK;
}

static const char *get_stored_name(void *self, size_t i)
{
	return ((struct store *)self)->file[i].name;
}

struct tess_source store_make_source(struct store *s)
{
	return (struct tess_source){ .self = s,
		                     .name = "store",
		                     .find = find_stored,
		                     .has = has_stored,
		                     .read = read_stored,
		                     .drop = lockstep_ignore_drop,
		                     .count = s->n,
		                     .at = get_stored_name };
}

struct store *store_make(bool stacked)
{
	struct store *s = calloc(1, sizeof *s);

	fill_file(add_file(s, "renamed.table", 2, VOCABULARY, mixture->hidden, 1));
	fill_file(add_file(s, "renamed.head", 2, VOCABULARY, mixture->hidden, 1));
	fill_file(add_file(s, "mlp.gate.weight", 2, mixture->experts, mixture->hidden, 1));
	if (mixture->route.correction)
		fill_file(add_file(s, "mlp.gate.bias", 1, mixture->experts, 1, 1));
	if (stacked)
		add_stacked_files(s);
	else
		add_expert_files(s);
	qsort(s->file, s->n, sizeof *s->file, compare_file_names);
	return s;
}

void store_free(struct store *s)
{
	for (size_t i = 0; i < s->n; i++)
		free(s->file[i].data);
	free(s);
}

const struct mixture_shape mixtures[MIXTURES] = {
	{ 12, 13, 5, { .size = sizeof(struct tess_route), .flags = TESS_NORMALIZE, .top = 2 }, 0 },
	{ 8,
	  6,
	  12,
	  { sizeof(struct tess_route), TESS_SIGMOID | TESS_NORMALIZE, 5, 3, 2, 1e-20, 2.5,
	    "gate.bias" },
	  TESS_IN_OUT },
	{ 7, 33, 3, { .size = sizeof(struct tess_route), .top = 3 }, 0 },
	{ 16, 3, 7, { .size = sizeof(struct tess_route), .top = 1 }, TESS_IN_OUT },
};
