/*
 * dnn.c - attention by cuDNN's fused kernels. A plan for each shape is built on first use, from a
 * graph of operations that cuDNN recognizes as attention, and kept: equal shapes get equal bits.
 * The backward's graph adds gradients of queries in a fixed order.
 */
#include "gpu.h"

#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION_MIN = 91000, COMPUTE_MIN = 9, PIECES_MAX = 160, OPERATIONS_MAX = 32, CONFIGS = 8 };
/* axes of a tensor after those of sequences and heads */
enum layout { ROWS, ROWS_TURNED, PAIRS, PAIRS_TURNED, SUMS, SCALAR };

struct dnn_entry {
	struct dnn_entry *next;
	struct dnn_shape shape;
	void *plan; /* NULL: cuDNN does not support the shape */
	int64_t workspace;
	float value[DNN_OPERANDS - DNN_POINTERS];
	bool used[DNN_OPERANDS];
};

struct dnn {
	void *handle; /* NULL: the library is missing */
	struct dnn_entry *entries;
};

struct graph {
	struct dnn *dnn;
	struct dnn_entry *entry;
	int status, npieces, noperations;
	int64_t next; /* id of the next tensor that is not in memory */
	void *piece[PIECES_MAX], *operation[OPERATIONS_MAX];
};

struct tensor { /* a value */
	void *descriptor;
	enum layout layout;
};

struct attribute { /* descriptor attribute; name -1: the end of a list; value NULL: unset */
	int name, type;
	int64_t n;
	const void *value;
};

#define PIECE(name, p) \
	{ \
		CUDNN_ATTR_##name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, p \
	}
#define DTYPE(name, p) \
	{ \
		CUDNN_ATTR_##name, CUDNN_TYPE_DATA_TYPE, 1, p \
	}
#define LONGS(name, n, p) \
	{ \
		CUDNN_ATTR_##name, CUDNN_TYPE_INT64, n, p \
	}
#define END \
	{ \
		-1, 0, 0, NULL \
	}

static const int f32 = CUDNN_DATA_FLOAT;

/* ---- descriptors */

static void *make_piece(struct graph *g, int kind, const struct attribute *a)
{
	void *d = NULL;

	if (!g->status && g->npieces == PIECES_MAX)
		g->status = -1;
	if (!g->status)
		g->status = cuda.cudnnBackendCreateDescriptor(kind, &d);
	if (g->status)
		return NULL;
	g->piece[g->npieces++] = d;
	for (; a->name >= 0 && !g->status; a++)
		if (a->value)
			g->status =
				cuda.cudnnBackendSetAttribute(d, a->name, a->type, a->n, a->value);
	if (!g->status)
		g->status = cuda.cudnnBackendFinalize(d);
	return d;
}

static void add_operation(struct graph *g, int kind, const struct attribute *a)
{
	if (!g->status && g->noperations == OPERATIONS_MAX)
		g->status = -1;
	if (!g->status)
		g->operation[g->noperations++] = make_piece(g, kind, a);
}

/* Describes a tensor in memory, a number, or, with an operand of -1, a value between operations. */
static struct tensor describe_tensor(struct graph *g, enum layout layout, int type, int operand)
{
	const struct dnn_shape *s = &g->entry->shape;
	int64_t b = s->texts, h = s->heads, n = s->length, d = s->d, align = 16;
	const struct {
		int64_t dim[4], stride[4];
	} all[] = {
		[ROWS] = { { b, h, n, d }, { n * h * d, d, h * d, 1 } },
		[ROWS_TURNED] = { { b, h, d, n }, { n * h * d, d, 1, h * d } },
		[PAIRS] = { { b, h, n, n }, { h * n * n, n * n, n, 1 } },
		[PAIRS_TURNED] = { { b, h, n, n }, { h * n * n, n * n, 1, n } },
		[SUMS] = { { b, h, n, 1 }, { h * n, n, 1, 1 } },
		[SCALAR] = { { 1, 1, 1, 1 }, { 1, 1, 1, 1 } },
	};
	int64_t id = operand >= 0 ? operand + 1 : DNN_OPERANDS + 1 + g->next++;
	bool is_virtual = operand < 0, by_value = operand >= DNN_POINTERS;
	struct tensor t = { .layout = layout };

	if (operand >= 0)
		g->entry->used[operand] = true;
	t.descriptor = make_piece(
		g, CUDNN_BACKEND_TENSOR_DESCRIPTOR,
		(struct attribute[]){
			DTYPE(TENSOR_DATA_TYPE, &type),
			LONGS(TENSOR_DIMENSIONS, 4, all[layout].dim),
			LONGS(TENSOR_STRIDES, 4, all[layout].stride),
			LONGS(TENSOR_UNIQUE_ID, 1, &id),
			LONGS(TENSOR_BYTE_ALIGNMENT, 1, &align),
			{ CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual },
			{ CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value },
			END });
	return t;
}

static struct tensor describe_rows(struct graph *g, enum dnn_operand operand)
{
	return describe_tensor(g, ROWS, CUDNN_DATA_BFLOAT16, (int)operand);
}

static struct tensor add_number(struct graph *g, enum dnn_operand operand, float value)
{
	g->entry->value[operand - DNN_POINTERS] = value;
	return describe_tensor(g, SCALAR, CUDNN_DATA_FLOAT, (int)operand);
}

/* ---- operations */

struct pointwise { /* y = mode(x, b, t); axis: for GEN_INDEX; in a backward b is the gradient */
	int mode;
	struct tensor x, b, t, y;
	int precision;
	int64_t axis;
};

static void add_pointwise(struct graph *g, struct pointwise p)
{
	bool back = p.mode == CUDNN_POINTWISE_TANH_BWD;
	const struct attribute axis = LONGS(POINTWISE_AXIS, 1, &p.axis);
	void *how = make_piece(
		g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
		(struct attribute[]){
			{ CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &p.mode },
			DTYPE(POINTWISE_MATH_PREC, &p.precision),
			p.mode == CUDNN_POINTWISE_GEN_INDEX ? axis : (struct attribute)END,
			END });

	add_operation(
		g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
		(struct attribute[]){
			PIECE(OPERATION_POINTWISE_PW_DESCRIPTOR, &how),
			PIECE(OPERATION_POINTWISE_XDESC, &p.x.descriptor),
			PIECE(OPERATION_POINTWISE_BDESC,
	                      p.b.descriptor && !back ? &p.b.descriptor : NULL),
			PIECE(OPERATION_POINTWISE_DYDESC, back ? &p.b.descriptor : NULL),
			PIECE(OPERATION_POINTWISE_TDESC, p.t.descriptor ? &p.t.descriptor : NULL),
			PIECE(OPERATION_POINTWISE_YDESC, back ? NULL : &p.y.descriptor),
			PIECE(OPERATION_POINTWISE_DXDESC, back ? &p.y.descriptor : NULL), END });
}

/* Computes a tensor y of x's shape; without b from one operand. */
static struct tensor compute_tensor(struct graph *g, int mode, struct tensor x,
                                    const struct tensor *b)
{
	struct pointwise p = { .mode = mode,
		               .x = x,
		               .b = b ? *b : (struct tensor){ 0 },
		               .y = describe_tensor(g, x.layout, CUDNN_DATA_FLOAT, -1),
		               .precision = CUDNN_DATA_FLOAT };

	add_pointwise(g, p);
	return p.y;
}

static void add_product(struct graph *g, struct tensor a, struct tensor b, struct tensor c)
{
	void *how = make_piece(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR,
	                       (struct attribute[]){ DTYPE(MATMUL_COMP_TYPE, &f32), END });

	add_operation(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
	              (struct attribute[]){ PIECE(OPERATION_MATMUL_ADESC, &a.descriptor),
	                                    PIECE(OPERATION_MATMUL_BDESC, &b.descriptor),
	                                    PIECE(OPERATION_MATMUL_CDESC, &c.descriptor),
	                                    PIECE(OPERATION_MATMUL_DESC, &how), END });
}

/* Computes the sum or maximum of each row. */
static struct tensor reduce_rows(struct graph *g, int operator, struct tensor x)
{
	struct tensor y = describe_tensor(g, SUMS, CUDNN_DATA_FLOAT, -1);
	void *how = make_piece(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
	                       (struct attribute[]){ DTYPE(REDUCTION_COMP_TYPE, &f32),
	                                             { CUDNN_ATTR_REDUCTION_OPERATOR,
	                                               CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
	                                               &operator},
	                                             END });

	add_operation(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
	              (struct attribute[]){ PIECE(OPERATION_REDUCTION_DESC, &how),
	                                    PIECE(OPERATION_REDUCTION_XDESC, &x.descriptor),
	                                    PIECE(OPERATION_REDUCTION_YDESC, &y.descriptor), END });
	return y;
}

/* Transposes the last axes of x, as bf16. */
static struct tensor turn_tensor(struct graph *g, struct tensor x, enum layout layout)
{
	struct tensor y = describe_tensor(g, layout, CUDNN_DATA_BFLOAT16, -1);

	add_operation(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
	              (struct attribute[]){ PIECE(OPERATION_RESHAPE_XDESC, &x.descriptor),
	                                    PIECE(OPERATION_RESHAPE_YDESC, &y.descriptor), END });
	return y;
}

/* ---- attention */

static struct tensor list_indices(struct graph *g, struct tensor x, int64_t axis)
{
	struct tensor y = describe_tensor(g, x.layout, CUDNN_DATA_INT32, -1);

	add_pointwise(g, (struct pointwise){ .mode = CUDNN_POINTWISE_GEN_INDEX,
	                                     .x = x,
	                                     .y = y,
	                                     .precision = CUDNN_DATA_FLOAT,
	                                     .axis = axis });
	return y;
}

/* Keeps the pairs with mode(a, b), and sets the others to -inf. */
static struct tensor keep_pairs(struct graph *g, struct tensor x, int mode, struct tensor a,
                                struct tensor b)
{
	struct tensor keep = describe_tensor(g, PAIRS, CUDNN_DATA_BOOLEAN, -1);
	struct tensor y = describe_tensor(g, PAIRS, CUDNN_DATA_FLOAT, -1);

	add_pointwise(g,
	              (struct pointwise){ mode, a, b, .y = keep, .precision = CUDNN_DATA_BOOLEAN });
	add_pointwise(g, (struct pointwise){ CUDNN_POINTWISE_BINARY_SELECT, x,
	                                     add_number(g, DNN_HIDDEN, -INFINITY), keep, .y = y });
	return y;
}

static struct tensor hide_pairs(struct graph *g, struct tensor x)
{
	float window = g->entry->shape.window;
	struct tensor row = list_indices(g, x, 2), column = list_indices(g, x, 3), size;

	x = keep_pairs(g, x, CUDNN_POINTWISE_CMP_GE, row, column);
	if (window == 0.0f)
		return x;
	size = add_number(g, DNN_WINDOW, window);
	row = list_indices(g, x, 2);
	column = list_indices(g, x, 3);
	column = compute_tensor(g, CUDNN_POINTWISE_ADD, column, &size);
	return keep_pairs(g, x, CUDNN_POINTWISE_CMP_GT, column, row);
}

struct scores {
	struct tensor z, scale, cap, capped; /* capped: input of the tangent */
};

/* Computes q k' * scale, with the softcap, of all pairs. */
static struct scores add_scores(struct graph *g, struct tensor q, struct tensor turned_k)
{
	const struct dnn_shape *s = &g->entry->shape;
	struct scores x = { .z = describe_tensor(g, PAIRS, CUDNN_DATA_FLOAT, -1) };

	add_product(g, q, turned_k, x.z);
	x.scale = add_number(g, DNN_SCALE, s->scale);
	x.z = compute_tensor(g, CUDNN_POINTWISE_MUL, x.z, &x.scale);
	if (s->softcap == 0.0f)
		return x;
	x.cap = add_number(g, DNN_SOFTCAP, s->softcap);
	x.capped = compute_tensor(g, CUDNN_POINTWISE_DIV, x.z, &x.cap);
	x.z = compute_tensor(g, CUDNN_POINTWISE_TANH_FWD, x.capped, NULL);
	x.z = compute_tensor(g, CUDNN_POINTWISE_MUL, x.z, &x.cap);
	return x;
}

static void add_forward(struct graph *g)
{
	struct tensor q = describe_rows(g, DNN_Q);
	struct tensor k = describe_tensor(g, ROWS_TURNED, CUDNN_DATA_BFLOAT16, DNN_K);
	struct tensor z = hide_pairs(g, add_scores(g, q, k).z);
	struct tensor max = reduce_rows(g, CUDNN_REDUCE_TENSOR_MAX, z), sum, log, w;

	z = compute_tensor(g, CUDNN_POINTWISE_EXP, compute_tensor(g, CUDNN_POINTWISE_SUB, z, &max),
	                   NULL);
	sum = reduce_rows(g, CUDNN_REDUCE_TENSOR_ADD, z);
	log = compute_tensor(g, CUDNN_POINTWISE_LOG, sum, NULL);
	add_pointwise(g, (struct pointwise){
				 CUDNN_POINTWISE_ADD, max, log,
				 .y = describe_tensor(g, SUMS, CUDNN_DATA_FLOAT, DNN_STATS) });
	w = describe_tensor(g, PAIRS, CUDNN_DATA_BFLOAT16, -1);
	add_pointwise(g, (struct pointwise){ CUDNN_POINTWISE_DIV, z, sum, .y = w });
	add_product(g, w, describe_rows(g, DNN_V), describe_rows(g, DNN_O));
}

/* Computes the sum of g * o of each row, which is also written to memory. */
static struct tensor add_products_of_rows(struct graph *g, struct tensor d)
{
	struct tensor o = describe_rows(g, DNN_O),
		      x = compute_tensor(g, CUDNN_POINTWISE_MUL, d, &o);
	struct tensor sum = describe_tensor(g, SUMS, CUDNN_DATA_FLOAT, DNN_SUM);

	x = reduce_rows(g, CUDNN_REDUCE_TENSOR_ADD, x);
	add_pointwise(g, (struct pointwise){ CUDNN_POINTWISE_MUL, x, add_number(g, DNN_ONE, 1.0f),
	                                     .y = sum });
	return sum;
}

static void add_backward(struct graph *g)
{
	struct tensor q = describe_rows(g, DNN_Q), d = describe_rows(g, DNN_G);
	struct tensor k = describe_tensor(g, ROWS_TURNED, CUDNN_DATA_BFLOAT16, DNN_K);
	struct tensor v = describe_tensor(g, ROWS_TURNED, CUDNN_DATA_BFLOAT16, DNN_V);
	struct tensor stats = describe_tensor(g, SUMS, CUDNN_DATA_FLOAT, DNN_STATS);
	struct tensor sum = add_products_of_rows(g, d), w, u;
	struct scores s = add_scores(g, q, k);

	w = hide_pairs(g, compute_tensor(g, CUDNN_POINTWISE_SUB, s.z, &stats));
	w = compute_tensor(g, CUDNN_POINTWISE_EXP, w, NULL);
	add_product(g, turn_tensor(g, w, PAIRS_TURNED), d, describe_rows(g, DNN_DV));
	u = describe_tensor(g, PAIRS, CUDNN_DATA_FLOAT, -1);
	add_product(g, d, v, u);
	u = compute_tensor(g, CUDNN_POINTWISE_SUB, u, &sum);
	u = compute_tensor(g, CUDNN_POINTWISE_MUL, u, &w);
	if (s.cap.descriptor) {
		u = compute_tensor(g, CUDNN_POINTWISE_MUL, u, &s.cap);
		u = compute_tensor(g, CUDNN_POINTWISE_TANH_BWD, s.capped, &u);
		u = compute_tensor(g, CUDNN_POINTWISE_DIV, u, &s.cap);
	}
	u = compute_tensor(g, CUDNN_POINTWISE_MUL, u, &s.scale);
	add_product(g, turn_tensor(g, u, PAIRS_TURNED), q, describe_rows(g, DNN_DK));
	add_product(g, u, turn_tensor(g, k, ROWS), describe_rows(g, DNN_DQ));
}

/* ---- plans */

static void *try_config(struct dnn *d, void *config)
{
	void *plan = NULL;
	int st = cuda.cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan);

	if (!st)
		st = cuda.cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
		                                   CUDNN_TYPE_HANDLE, 1, &d->handle);
	if (!st)
		st = cuda.cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
		                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
	if (!st)
		st = cuda.cudnnBackendFinalize(plan);
	if (st && plan)
		cuda.cudnnBackendDestroyDescriptor(plan);
	return st ? NULL : plan;
}

/* Returns the first of cuDNN's proposed engines that can run the graph. */
static void *choose_plan(struct graph *g, void *operations, int mode)
{
	void *config[CONFIGS] = { NULL }, *plan = NULL;
	int64_t n = 0, made = 0;
	void *list =
		make_piece(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
	                   (struct attribute[]){
				   PIECE(ENGINEHEUR_OPERATION_GRAPH, &operations),
				   { CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode },
				   END });

	while (!g->status && made < CONFIGS &&
	       !cuda.cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
	                                          &config[made]))
		made++;
	if (made && cuda.cudnnBackendGetAttribute(list, CUDNN_ATTR_ENGINEHEUR_RESULTS,
	                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, made, &n, config))
		n = 0;
	for (int64_t i = 0; i < n && i < made && !plan; i++)
		plan = try_config(g->dnn, config[i]);
	while (made)
		cuda.cudnnBackendDestroyDescriptor(config[--made]);
	g->status = 0;
	return plan;
}

/*
 * Builds a plan; leaves e->plan NULL if cuDNN cannot. Restores the floating-point environment,
 * which libraries that cuDNN opens may change.
 */
static void make_plan(struct dnn *d, struct dnn_entry *e)
{
	struct graph g = { .dnn = d, .entry = e };
	void *all;
	int64_t n;
	fenv_t before;

	fegetenv(&before);
	if (e->shape.backward)
		add_backward(&g);
	else
		add_forward(&g);
	all = make_piece(
		&g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
		(struct attribute[]){
			{ CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
	                  g.noperations, g.operation },
			{ CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &d->handle },
			END });
	if (!g.status)
		e->plan = choose_plan(&g, all, CUDNN_HEUR_MODE_A);
	if (!g.status && !e->plan)
		e->plan = choose_plan(&g, all, CUDNN_HEUR_MODE_FALLBACK);
	if (e->plan)
		cuda.cudnnBackendGetAttribute(e->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
		                              CUDNN_TYPE_INT64, 1, &n, &e->workspace);
	while (g.npieces)
		cuda.cudnnBackendDestroyDescriptor(g.piece[--g.npieces]);
	fesetenv(&before);
}

static struct dnn_entry *find_planned(const struct dnn *d, const struct dnn_shape *s)
{
	struct dnn_entry *e = d->entries;

	while (e && memcmp(&e->shape, s, sizeof *s) != 0)
		e = e->next;
	return e;
}

bool dnn_is_usable(struct gpu *g)
{
	if (!g->dnn) {
		g->dnn = calloc(1, sizeof *g->dnn);
		if (g->dnn && g->major >= COMPUTE_MIN && !cuda_loader.load_dnn() &&
		    cuda.cudnnGetVersion() >= VERSION_MIN && cuda.cudnnCreate(&g->dnn->handle))
			g->dnn->handle = NULL;
	}
	return g->dnn && g->dnn->handle;
}

tess_status dnn_plan(struct gpu *g, const struct tess_op *op, const struct dnn_shape *s,
                     int64_t *workspace)
{
	struct dnn_entry *e = find_planned(g->dnn, s);

	if (!e) {
		e = calloc(1, sizeof *e);
		if (!e)
			return cuda_host->fail(TESS_ENOMEM, "%s: cuda: out of memory", op->where);
		e->shape = *s;
		make_plan(g->dnn, e);
		e->next = g->dnn->entries;
		g->dnn->entries = e;
	}
	*workspace = e->workspace;
	return e->plan ? TESS_OK : TESS_ENOTSUP;
}

tess_status dnn_attend(struct gpu *g, const struct tess_op *op, const struct dnn_shape *s,
                       void *const operand[DNN_POINTERS], void *workspace)
{
	struct dnn_entry *e = find_planned(g->dnn, s);
	struct graph pack = { 0 };
	void *at[DNN_OPERANDS], *d;
	int64_t id[DNN_OPERANDS], n = 0;

	for (int i = 0; i < DNN_OPERANDS; i++) {
		if (!e->used[i])
			continue;
		id[n] = i + 1;
		at[n++] = i < DNN_POINTERS ? operand[i] : &e->value[i - DNN_POINTERS];
	}
	d = make_piece(
		&pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
		(struct attribute[]){
			{ CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, at },
			LONGS(VARIANT_PACK_UNIQUE_IDS, n, id),
			{ CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace },
			END });
	if (!pack.status)
		pack.status = cuda.cudnnSetStream(g->dnn->handle, op->stream);
	if (!pack.status)
		pack.status = cuda.cudnnBackendExecute(g->dnn->handle, e->plan, d);
	if (pack.npieces)
		cuda.cudnnBackendDestroyDescriptor(d);
	if (!pack.status)
		return TESS_OK;
	return cuda_host->fail(TESS_EDEVICE, "%s: cuda: cudnnBackendExecute: cuDNN status %d",
	                       op->where, pack.status);
}

void dnn_close(struct gpu *g)
{
	struct dnn_entry *next;

	if (!g->dnn)
		return;
	for (struct dnn_entry *e = g->dnn->entries; e; e = next) {
		next = e->next;
		if (e->plan)
			cuda.cudnnBackendDestroyDescriptor(e->plan);
		free(e);
	}
	if (g->dnn->handle)
		cuda.cudnnDestroy(g->dnn->handle);
	free(g->dnn);
	g->dnn = NULL;
}
