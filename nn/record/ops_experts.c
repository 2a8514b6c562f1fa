/* ops_experts.c - records route and experts, with their placement rules. */
#include "core/base/status.h"
#include "nn/record/recorder.h"

#include <string.h>

/* ---- route ----------------------------------------------------------------------------------- */

/* Reads `how` into the form of a record. */
static bool read_route_options(struct tess_recorder *r, const struct tess_tensor *logits,
                               const struct tess_route *how, struct tess_route *out)
{
	int64_t n = logits->dim[1]->size, each;

	*out = (struct tess_route){ 0 };
	memcpy(out, how, how->size < sizeof *out ? how->size : sizeof *out);
	out->scale = out->scale != 0 ? out->scale : 1;
	out->groups = out->groups > 1 ? out->groups : 1;
	if (out->top < 1 || out->top > n)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: config.json: %lld experts for each token, of %lld",
		                          r->options->source->name, (long long)out->top,
		                          (long long)n) != NULL;
	each = n / out->groups;
	if (out->groups > 1 &&
	    (n % out->groups || each < 2 || out->groups_kept < 1 ||
	     out->groups_kept > out->groups || out->groups_kept * each < out->top))
		return tess_recorder_fail(
			       r, TESS_EINVAL,
			       "%s: config.json: the best %lld of %lld experts in %lld of %lld "
			       "groups: groups must be equal, of two or more, and enough",
			       r->options->source->name, (long long)out->top, (long long)n,
			       (long long)out->groups_kept, (long long)out->groups) != NULL;
	return true;
}

static struct tess_tensor *record_route(struct tess_nn *nn, struct tess_tensor *logits,
                                        const struct tess_route *how)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	const struct tess_weight *w = NULL;
	struct tess_route options;
	struct tess_record *rec;
	struct tess_tensor *y;
	int32_t cut;

	if (!tess_recorder_check_finished(r, "routing", logits) ||
	    !read_route_options(r, logits, how, &options))
		return NULL;
	cut = tess_recorder_find_place(r, logits, TESS_SHARD, 1);
	if (cut >= 0)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: routing needs the logits of all experts, but they "
		                          "are cut%s; use replicate or colwise_rep",
		                          logits->module, tess_recorder_along(r, cut));
	if (options.correction)
		w = tess_weight_add_vector(r, options.correction, logits->dim[1],
		                           "every rank routes whole rows");
	y = r->status ? NULL : tess_tensor_new(r, 2, logits->dim, logits->place, logits->module);
	rec = y ? tess_record_append(r, TESS_OP_ROUTE, logits->module, 1, &logits, 1, &y, w != NULL,
	                             &w)
	        : NULL;
	if (!rec)
		return NULL;
	rec->nnum = TESS_ROUTE_NUMS;
	rec->num[TESS_ROUTE_TOP] = (double)options.top;
	rec->num[TESS_ROUTE_FLAGS] = options.flags;
	rec->num[TESS_ROUTE_EPS] = options.eps;
	rec->num[TESS_ROUTE_SCALE] = options.scale;
	rec->num[TESS_ROUTE_GROUPS] = (double)options.groups;
	rec->num[TESS_ROUTE_GROUPS_KEPT] = (double)options.groups_kept;
	return y;
}

/* ---- experts --------------------------------------------------------------------------------- */

/*
 * TESS_ROWS_FEWER sends requested rows if ranks request at most FEWER_SHARE of all rows, and the
 * others have at least FEWER_BYTES a rank. Packing copies each row twice more, so over shared
 * memory, the backend with the least to gain, fewer savings do not pay (docs/benchmarks.md).
 */
#define FEWER_SHARE 0.5
enum { FEWER_BYTES = 768 << 10 };

struct expert_exchange { /* of rows with the ranks that hold their experts */
	int32_t along; /* the mesh dimension; -1: the style requests none */
	bool requested; /* by all_to_all; else all rows are gathered, and the results summed */
	bool replicated; /* every rank has all rows of x, so none is sent */
	struct tess_tensor *mine, *here; /* routing weights S(0) and S(1) along it; or NULL */
};

struct mixture { /* a module of experts that is being recorded */
	const struct tess_module *m;
	struct tess_tensor *x, *routing;
	const struct tess_weight *w[3]; /* gate_up_proj, down_proj; biases of the first, or NULL */
	struct tess_place *x_place, *routing_place, *out; /* along each mesh dimension */
	int32_t inside; /* the mesh dimension that cuts inside the experts; -1: none */
	struct tess_experts how;
	int64_t top; /* maximum number of experts of a row */
	struct expert_exchange rows;
};

/* Makes the dimension of gate and up: two parts, or alternating elements in the units of ffn. */
static const struct tess_dim *make_gate_up_dim(struct tess_recorder *r, const struct mixture *e)
{
	struct tess_dim *ffn = e->how.ffn;

	if (!(e->how.limit > 0))
		return tess_op_fused(&r->nn, (struct tess_dim *const[]){ ffn, ffn, NULL });
	if (!ffn->unit_size)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: experts with a limit need an intermediate "
		                          "dimension of units of one size",
		                          e->m->site.module);
	return tess_dim_new_heads(r, "gate and up", ffn, ffn->nunits, 2 * ffn->unit_size);
}

static bool add_expert_weights(struct tess_recorder *r, struct mixture *e)
{
	const struct tess_dim *experts = e->routing->dim[1], *hidden = e->x->dim[1],
			      *ffn = e->how.ffn, *gate_up = make_gate_up_dim(r, e);
	bool in_out = e->how.flags & TESS_IN_OUT;
	struct tess_weight_request up = { "gate_up_proj",
		                          3,
		                          1 + in_out,
		                          2 - in_out,
		                          { experts, in_out ? hidden : gate_up,
		                            in_out ? gate_up : hidden },
		                          in_out };
	struct tess_weight_request down = {
		"down_proj",
		3,
		1 + in_out,
		2 - in_out,
		{ experts, in_out ? ffn : hidden, in_out ? hidden : ffn },
		in_out
	};

	struct tess_weight_request bias = { "gate_up_proj_bias",  2,    1, -1,
		                            { experts, gate_up }, false };

	if (!gate_up)
		return false;
	if (hidden->nparts)
		return tess_recorder_fail(r, TESS_ENOTSUP, "%s: experts of a fused dimension",
		                          e->m->site.module) != NULL;
	e->w[0] = tess_weight_add(r, e->m, &up);
	e->w[1] = e->w[0] ? tess_weight_add(r, e->m, &down) : NULL;
	if (e->w[1] && e->how.flags & TESS_BIAS)
		e->w[2] = tess_weight_add(r, e->m, &bias);
	return !r->status;
}

/* Checks that the biases are cut like gate_up_proj. */
static bool check_expert_biases(struct tess_recorder *r, const struct mixture *e, int32_t i)
{
	char a[TESS_PLACE_SIZE], b[TESS_PLACE_SIZE];

	if (!e->w[2] || tess_weight_role(e->w[2], i) == tess_weight_role(e->w[0], i))
		return true;
	return tess_recorder_fail(
		       r, TESS_EINVAL,
		       "%s: gate_up_proj is %s (style %s) and gate_up_proj_bias %s (style %s)%s; "
		       "cut both by expert (grouped_gemm), or inside (moe_tp_gate_up_colwise)",
		       e->m->site.module, tess_place_format(e->w[0]->place[i], a),
		       e->w[0]->style[i], tess_place_format(e->w[2]->place[i], b),
		       e->w[2]->style[i], tess_recorder_along(r, i)) != NULL;
}

static bool fail_pair(struct tess_recorder *r, const struct mixture *e, int32_t i)
{
	char a[TESS_PLACE_SIZE], b[TESS_PLACE_SIZE];

	return tess_recorder_fail(
		       r, TESS_EINVAL,
		       "%s: gate_up_proj is %s (style %s) and down_proj %s (style %s)%s; cut both "
		       "by expert (grouped_gemm), or inside (packed_colwise and rowwise)",
		       e->m->site.module, tess_place_format(e->w[0]->place[i], a),
		       e->w[0]->style[i], tess_place_format(e->w[1]->place[i], b),
		       e->w[1]->style[i], tess_recorder_along(r, i)) != NULL;
}

/*
 * Infers a place. x, W -> y: R, R -> R; S(0), R -> S(0); R, S(experts) -> Partial over the experts;
 * R, cut inside -> the results of a row's experts are finished separately.
 */
static bool infer_experts_place(struct tess_recorder *r, struct mixture *e, int32_t i)
{
	int32_t up = tess_weight_role(e->w[0], i), down = tess_weight_role(e->w[1], i);
	struct tess_place from = e->x->place[i];
	char text[TESS_PLACE_SIZE];

	e->x_place[i] = from;
	e->routing_place[i] = e->out[i] = tess_place_replicate();
	if (from.kind != TESS_REPLICATE &&
	    !(up == TESS_ROLE_WHOLE && down == up && tess_place_is(from, TESS_SHARD, 0)))
		return tess_recorder_fail(
			       r, TESS_EINVAL,
			       "%s: style %s: experts that are %s need whole rows%s, but %s gives "
			       "%s; let a layout replicate them (module_allgather on the mlp)",
			       e->m->site.module, e->m[i].spec,
			       up == TESS_ROLE_WHOLE && down == up ? "replicated" : "cut",
			       tess_recorder_along(r, i), e->x->module,
			       tess_place_format(from, text)) != NULL;
	if (up == TESS_ROLE_WHOLE && down == up) {
		e->routing_place[i] = e->out[i] = from;
	} else if (up == TESS_ROLE_EXPERTS && down == up) {
		e->routing_place[i] = tess_place_shard(1);
		e->out[i] = tess_place_partial();
	} else if (up == TESS_ROLE_OUT && down == TESS_ROLE_IN) {
		e->inside = i;
	} else {
		return fail_pair(r, e, i);
	}
	return check_expert_biases(r, e, i);
}

/* Returns the maximum number of experts of a row. */
static int64_t find_top(const struct tess_recorder *r, const struct tess_tensor *routing)
{
	for (int32_t i = r->p->nrecords - 1; i >= 0; i--)
		if (r->p->record[i]->kind == TESS_OP_ROUTE && r->p->record[i]->out[0] == routing)
			return (int64_t)r->p->record[i]->num[TESS_ROUTE_TOP];
	return routing->dim[1]->size;
}

/* Makes the dim of slots for the results of `top` experts of a row, or fewer if a rank has less. */
static const struct tess_dim *make_slots_dim(struct tess_recorder *r, const struct mixture *e,
                                             int64_t top)
{
	int64_t each = e->x->dim[1]->size;
	struct tess_dim *d = tess_dim_new(r, "experts' results", top, each);

	if (!d)
		return NULL;
	d->size = top * each;
	d->unit_size = each;
	d->slots = top;
	d->nunits = e->routing->dim[1]->nunits;
	d->base = e->routing->dim[1];
	return d;
}

/* Returns the routing weights for the experts of each rank. */
static struct tess_tensor *slice_routing(struct tess_recorder *r, const struct mixture *e)
{
	return tess_tensor_slice_operand(r, e->rows.here ? e->rows.here : e->routing,
	                                 e->routing_place, e->m->site.module);
}

static struct tess_tensor *append_experts(struct tess_recorder *r, const struct mixture *e,
                                          const struct tess_dim *columns, int64_t slots,
                                          const struct tess_place *place,
                                          const struct tess_dim *sum)
{
	const char *module = e->m->site.module;
	struct tess_tensor *in[2] = { e->x, slice_routing(r, e) };
	struct tess_tensor *y =
		in[1] && columns
			? tess_tensor_new(r, 2,
	                                  (const struct tess_dim *[]){ e->x->dim[0], columns },
	                                  place, module)
			: NULL;
	struct tess_record *rec = y ? tess_record_append(r, TESS_OP_EXPERTS, module, 2, in, 1, &y,
	                                                 e->w[2] ? 3 : 2, e->w)
	                            : NULL;

	if (!rec)
		return NULL;
	rec->nnum = TESS_EXPERTS_NUMS;
	rec->num[TESS_EXPERTS_ACTIVATION] = e->how.act;
	rec->num[TESS_EXPERTS_LIMIT] = e->how.limit;
	rec->num[TESS_EXPERTS_ALPHA] = e->how.alpha;
	rec->num[TESS_EXPERTS_SLOTS] = (double)slots;
	rec->num[TESS_EXPERTS_TOP] = (double)e->top;
	y->sum = tess_recorder_find_partial(r, place) >= 0 ? sum : NULL;
	return y;
}

/*
 * Combines the experts of a row. Each is finished over the ranks that cut inside it, then weighted.
 */
static struct tess_tensor *combine_experts(struct tess_recorder *r, struct mixture *e)
{
	const struct tess_dim *experts = e->routing->dim[1];
	struct tess_place *place = tess_recorder_alloc_places(r), to;
	const char *module = e->m->site.module;
	struct tess_tensor *in[2], *y = NULL;
	bool whole = true;

	for (int32_t i = 0; i < r->p->mesh.ndims && place; i++) {
		place[i] = i == e->inside                   ? tess_place_partial()
		           : e->out[i].kind == TESS_PARTIAL ? tess_place_shard(1)
		                                            : e->out[i];
		whole = whole && e->out[i].kind != TESS_PARTIAL;
	}
	in[0] = place ? append_experts(r, e, make_slots_dim(r, e, e->top), e->top, place,
	                               e->w[1]->dim[e->w[1]->in_dim])
	              : NULL;
	if (e->inside >= 0) {
		to = tess_place_normalize(e->m[e->inside].io.out[0], 2);
		if (!tess_place_is(to, TESS_SHARD, 0))
			to = tess_place_replicate();
		e->out[e->inside] = e->routing_place[e->inside] = to;
		in[0] = tess_tensor_move(r, in[0], e->inside, to, module);
	}
	in[1] = slice_routing(r, e);
	if (in[0] && in[1])
		y = tess_tensor_new(r, 2, (const struct tess_dim *[]){ e->x->dim[0], e->x->dim[1] },
		                    e->out, module);
	if (!y || !tess_record_append(r, TESS_OP_COMBINE, module, 2, in, 1, &y, 0, NULL))
		return NULL;
	y->sum = whole ? NULL : experts;
	return y;
}

/* ---- exchanges of rows ----------------------------------------------------------------------- */

/* Returns the share of the rows that a rank requests on average. */
static double find_average_share(const struct tess_dim *experts, int64_t top, int32_t nranks)
{
	double shares = 0;

	for (int32_t q = 0; q < nranks; q++)
		shares += tess_experts_find_share(experts->size, top,
		                                  tess_dim_get_owned_size(experts, nranks, q));
	return shares / nranks;
}

/*
 * Returns why sending requested rows is not clearly faster than a gather of all rows, or NULL. Rows
 * that are replicated need no gather.
 */
static const char *find_few_savings(const struct tess_recorder *r, const struct mixture *e)
{
	int32_t n = r->p->mesh.dim[e->rows.along].size;
	double share = find_average_share(e->routing->dim[1], e->top, n);
	double bytes = sizeof(float) * (double)e->x->dim[0]->size * (double)e->x->dim[1]->size / n;

	if (e->rows.replicated)
		return "each rank has all of them";
	if (share > FEWER_SHARE)
		return "a rank requests most of them";
	return bytes * (1 - share) < FEWER_BYTES ? "requested rows alone would save few bytes"
	                                         : NULL;
}

/* Returns why all rows are exchanged; NULL: each rank gets the rows that it requests. */
static const char *find_why_all_rows(const struct tess_recorder *r, const struct mixture *e)
{
	const struct tess_program *p = r->p;

	if (p->mesh.dim[e->rows.along].size < 2)
		return "there is one rank";
	if (!tess_program_is_on_host(p))
		return "the host, which counts requested rows, cannot read the device's memory";
	if (!tess_program_is_exact(p))
		return "the device adds in an order of its own";
	for (int32_t i = 0; i < p->mesh.ndims; i++)
		if (i != e->rows.along && tess_place_is(e->x->place[i], TESS_SHARD, 0))
			return "another mesh dimension cuts them";
	return e->m[e->rows.along].style->expert_rows == TESS_ROWS_FEWER ? find_few_savings(r, e)
	                                                                 : NULL;
}

/* Finds the mesh dimension whose style exchanges rows of experts that are cut along it. */
static int32_t find_exchange_dim(const struct tess_recorder *r, const struct mixture *e)
{
	for (int32_t i = 0; i < r->p->mesh.ndims; i++)
		if (e->m[i].style->expert_rows &&
		    tess_weight_role(e->w[0], i) == TESS_ROLE_EXPERTS &&
		    tess_weight_role(e->w[1], i) == TESS_ROLE_EXPERTS)
			return i;
	return -1;
}

/* Appends an exchange of the rows of x, which are then in `place`. */
static struct tess_tensor *append_row_exchange(struct tess_recorder *r, const struct mixture *e,
                                               struct tess_tensor *x, struct tess_place place)
{
	struct tess_tensor *in[3] = { x, e->rows.mine, e->rows.here };
	struct tess_place *to = tess_tensor_replace_place(r, x, e->rows.along, place);
	struct tess_tensor *y = to ? tess_tensor_new(r, 2, x->dim, to, e->m->site.module) : NULL;
	struct tess_record *rec = y ? tess_record_append(r, TESS_REC_EXPERT_ROWS, e->m->site.module,
	                                                 3, in, 1, &y, 0, NULL)
	                            : NULL;

	if (!rec)
		return NULL;
	rec->along = e->rows.along;
	rec->nnum = TESS_REC_EXPERT_ROWS_NUMS;
	rec->num[TESS_REC_EXPERT_ROWS_TOP] = (double)e->top;
	rec->num[TESS_REC_EXPERT_ROWS_REPLICATED] = e->rows.replicated;
	return y;
}

/* Sends rows to the ranks of their experts, if the style exchanges them. False: failure. */
static bool send_rows(struct tess_recorder *r, struct mixture *e)
{
	const char *module = e->m->site.module;
	int32_t i = e->rows.along = find_exchange_dim(r, e);
	const char *why;

	if (i < 0)
		return true;
	e->rows.replicated = !tess_place_is(e->x->place[i], TESS_SHARD, 0);
	why = find_why_all_rows(r, e);
	e->rows.requested = !why;
	if (why && r->p->mesh.dim[i].size > 1)
		r->p->all_expert_rows = why;
	if (e->rows.replicated || !e->rows.requested)
		e->x = tess_tensor_move(r, e->x, i, tess_place_replicate(), module);
	if (e->rows.requested)
		e->rows.mine = tess_tensor_move(r, e->routing, i, tess_place_shard(0), module);
	e->rows.here = tess_tensor_move(r, e->routing, i, tess_place_shard(1), module);
	if (e->x && e->rows.requested && !e->rows.replicated && !r->status)
		e->x = append_row_exchange(r, e, e->x, tess_place_replicate());
	return !r->status;
}

/* Returns results to the owners of their rows, in the place in which the rows came. */
static struct tess_tensor *return_rows(struct tess_recorder *r, const struct mixture *e,
                                       struct tess_tensor *y)
{
	struct tess_place to = e->rows.replicated ? tess_place_replicate() : tess_place_shard(0);

	if (!y || e->rows.along < 0)
		return y;
	if (e->rows.requested)
		y = append_row_exchange(r, e, y, tess_place_shard(0));
	return y ? tess_tensor_move(r, y, e->rows.along, to, e->m->site.module) : NULL;
}

/* ---- biases of results ----------------------------------------------------------------------- */

/* Infers the places of the routing weights and of their product with the biases w. */
static bool infer_bias_places(struct tess_recorder *r, const struct mixture *e,
                              const struct tess_weight *w, const struct tess_tensor *y,
                              struct tess_place *from, struct tess_place *to)
{
	for (int32_t i = 0; i < r->p->mesh.ndims; i++) {
		int32_t role = tess_weight_role(w, i);

		from[i] = to[i] = tess_place_is(y->place[i], TESS_SHARD, 0)
		                          ? tess_place_shard(0)
		                          : tess_place_replicate();
		if (role == TESS_ROLE_IN) {
			from[i] = tess_place_shard(1);
			to[i] = tess_place_partial();
		}
		if (role == TESS_ROLE_OUT || y->place[i].kind == TESS_PARTIAL ||
		    (role == TESS_ROLE_IN && tess_place_is(e->routing->place[i], TESS_SHARD, 0)))
			return tess_recorder_fail(
				       r, TESS_EINVAL,
				       "%s: style %s: biases need finished rows of all outputs%s; "
				       "replicate them, or cut them by expert (grouped_gemm)",
				       w->name, w->style[i], tess_recorder_along(r, i)) != NULL;
	}
	return true;
}

/* Adds the product of the routing weights and the biases of down_proj. */
static struct tess_tensor *add_down_bias(struct tess_recorder *r, const struct mixture *e,
                                         struct tess_tensor *y)
{
	const struct tess_weight_request bias = {
		"down_proj_bias", 2, 1, 0, { e->routing->dim[1], e->x->dim[1] }, true
	};
	struct tess_place *from = tess_recorder_alloc_places(r),
			  *to = tess_recorder_alloc_places(r);
	const struct tess_weight *w = y && to ? tess_weight_add(r, e->m, &bias) : NULL;
	const char *module = e->m->site.module;
	struct tess_tensor *x, *in[2], *sum;

	if (!w || !from || !infer_bias_places(r, e, w, y, from, to))
		return NULL;
	x = tess_tensor_slice_operand(r, e->routing, from, module);
	sum = x ? tess_tensor_new(r, 2, y->dim, to, module) : NULL;
	if (!sum || !tess_record_append(r, TESS_OP_LINEAR, module, 1, &x, 1, &sum, 1, &w))
		return NULL;
	sum->sum = tess_recorder_find_partial(r, to) >= 0 ? e->routing->dim[1] : NULL;
	in[0] = y;
	in[1] = tess_tensor_redistribute(r, sum, y->place, module);
	y = in[1] ? tess_tensor_new(r, 2, y->dim, y->place, module) : NULL;
	return y && tess_record_append(r, TESS_OP_ADD, module, 2, in, 1, &y, 0, NULL) ? y : NULL;
}

static struct tess_tensor *record_experts(struct tess_nn *nn, const char *name,
                                          struct tess_tensor *x, struct tess_tensor *weights,
                                          const struct tess_experts *how)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	struct mixture e = { .routing = weights, .inside = -1, .rows = { .along = -1 } };
	struct tess_tensor *y;

	if (!tess_recorder_check_rows(r, "experts", x) ||
	    !tess_recorder_check_rows(r, "experts", weights))
		return NULL;
	if (how)
		memcpy(&e.how, how, how->size < sizeof e.how ? how->size : sizeof e.how);
	if (!e.how.ffn)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: experts without a dimension of what is inside them",
		                          tess_recorder_format_path(r, name));
	e.m = tess_module_open(r, tess_recorder_format_path(r, name), "experts");
	e.x = e.m ? tess_module_prepare_input(r, e.m, x) : NULL;
	if (!e.x || !add_expert_weights(r, &e))
		return NULL;
	e.top = find_top(r, weights);
	if (!send_rows(r, &e))
		return NULL;
	e.x_place = tess_recorder_alloc_places(r);
	e.routing_place = tess_recorder_alloc_places(r);
	e.out = tess_recorder_alloc_places(r);
	for (int32_t i = 0; i < r->p->mesh.ndims && !r->status; i++)
		if (!infer_experts_place(r, &e, i))
			return NULL;
	if (r->status)
		return NULL;
	y = e.inside >= 0 || r->p->training
	            ? combine_experts(r, &e)
	            : append_experts(r, &e, e.x->dim[1], 0, e.out, weights->dim[1]);
	y = tess_module_prepare_output(r, e.m, return_rows(r, &e, y));
	if (!y || !(e.how.flags & TESS_BIAS))
		return y;
	y = add_down_bias(r, &e, y);
	if (y && r->options->values)
		r->last_output->value = y; /* what the module returns */
	return y;
}

void tess_ops_install_experts(struct tess_nn *nn)
{
	nn->route = record_route;
	nn->experts = record_experts;
}
