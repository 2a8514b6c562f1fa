/*
 * fake_dnn.c - cuDNN's backend API over host memory: descriptors are lists of attributes, and a
 * plan computes the operations of its graph one by one, in f32, each tensor then rounded to its
 * dtype. FAKE_CUDA_FAILS=plans: cuDNN cannot run any graph; =version: it is older than 9.10.
 */
#include "fake_dnn.h"
#include "gpu.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

enum { ATTRIBUTES_MAX = 10, BAD = 2000 };

struct piece {
	struct piece *next; /* links all pieces until the last handle is closed */
	int kind, n;
	struct {
		int name;
		int64_t n;
		void *data;
	} attribute[ATTRIBUTES_MAX];
	float *value; /* elements of a tensor while its graph runs, densely */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct piece *pieces;
static int handles;

static int64_t get_width(int type)
{
	return type == CUDNN_TYPE_BOOLEAN ? 1
	       : type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_HANDLE ||
	                       type == CUDNN_TYPE_VOID_PTR || type == CUDNN_TYPE_BACKEND_DESCRIPTOR
	               ? 8
	               : 4;
}

static void *find_attribute(const struct piece *p, int name)
{
	for (int i = 0; i < p->n; i++)
		if (p->attribute[i].name == name)
			return p->attribute[i].data;
	return NULL;
}

static int64_t count_values(const struct piece *p, int name)
{
	for (int i = 0; i < p->n; i++)
		if (p->attribute[i].name == name)
			return p->attribute[i].n;
	return 0;
}

static struct piece *follow_attribute(const struct piece *p, int name)
{
	struct piece **at = find_attribute(p, name);

	return at ? *at : NULL;
}

static int get_int(const struct piece *p, int name)
{
	return *(int *)find_attribute(p, name);
}

static bool is_set(const struct piece *p, int name)
{
	return *(bool *)find_attribute(p, name);
}

/* ---- tensors */

static int64_t count_elements(const struct piece *t)
{
	const int64_t *dim = find_attribute(t, CUDNN_ATTR_TENSOR_DIMENSIONS);

	return dim[0] * dim[1] * dim[2] * dim[3];
}

/* Returns the offset of element i in memory, or, with `of`, in a tensor broadcast to that shape. */
static int64_t locate_in_tensor(const struct piece *t, const struct piece *of, int64_t i)
{
	const int64_t *dim = find_attribute(t, CUDNN_ATTR_TENSOR_DIMENSIONS),
		      *all = find_attribute(of ? of : t, CUDNN_ATTR_TENSOR_DIMENSIONS),
		      *stride = find_attribute(t, CUDNN_ATTR_TENSOR_STRIDES);
	int64_t at = 0, dense = 1;

	for (int axis = 3; axis >= 0; i /= all[axis--]) {
		at += i % all[axis] % dim[axis] * (of ? dense : stride[axis]);
		dense *= dim[axis];
	}
	return at;
}

static void *find_pointer(const struct piece *pack, const struct piece *t)
{
	const int64_t *id = find_attribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS),
		      *mine = find_attribute(t, CUDNN_ATTR_TENSOR_UNIQUE_ID);
	int64_t last = locate_in_tensor(t, NULL, count_elements(t) - 1),
		width = get_int(t, CUDNN_ATTR_TENSOR_DATA_TYPE) == CUDNN_DATA_BFLOAT16 ? 2 : 4;
	void **at = find_attribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);

	for (int64_t i = 0; i < count_values(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS); i++)
		if (id[i] == *mine)
			return is_set(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE) ||
			                       (!((uintptr_t)at[i] % 16) &&
			                        fake_cuda_has_bytes(at[i],
			                                            (size_t)((last + 1) * width)))
			               ? at[i]
			               : NULL;
	return NULL;
}

static bool load_tensor(const struct piece *pack, struct piece *t)
{
	int64_t n = count_elements(t);
	const void *from;

	if (t->value)
		return true;
	from = find_pointer(pack, t);
	t->value = calloc((size_t)n, sizeof *t->value);
	for (int64_t i = 0; i < n && from; i++)
		t->value[i] =
			get_int(t, CUDNN_ATTR_TENSOR_DATA_TYPE) == CUDNN_DATA_BFLOAT16
				? tess_bf16_load(
					  ((const uint16_t *)from)[locate_in_tensor(t, NULL, i)])
				: ((const float *)from)[locate_in_tensor(t, NULL, i)];
	return from != NULL;
}

static bool store_tensor(const struct piece *pack, struct piece *t, float *value)
{
	bool half = get_int(t, CUDNN_ATTR_TENSOR_DATA_TYPE) == CUDNN_DATA_BFLOAT16,
	     is_virtual = is_set(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
	void *to = is_virtual ? NULL : find_pointer(pack, t);

	t->value = value;
	for (int64_t i = 0; i < count_elements(t); i++) {
		uint16_t rounded = tess_bf16_round(value[i]);

		if (half)
			value[i] = tess_bf16_load(rounded);
		if (to && half)
			((uint16_t *)to)[locate_in_tensor(t, NULL, i)] = rounded;
		else if (to)
			((float *)to)[locate_in_tensor(t, NULL, i)] = value[i];
	}
	return to || is_virtual;
}

/* ---- operations */

static float compute_one(int mode, float x, float b, float t)
{
	switch (mode) {
	case CUDNN_POINTWISE_ADD:
		return x + b;
	case CUDNN_POINTWISE_MUL:
		return x * b;
	case CUDNN_POINTWISE_DIV:
		return x / b;
	case CUDNN_POINTWISE_SUB:
		return x - b;
	case CUDNN_POINTWISE_EXP:
		return expf(x);
	case CUDNN_POINTWISE_LOG:
		return logf(x);
	case CUDNN_POINTWISE_TANH_FWD:
		return tanhf(x);
	case CUDNN_POINTWISE_TANH_BWD:
		return b * (1 - tanhf(x) * tanhf(x));
	case CUDNN_POINTWISE_CMP_GT:
		return x > b;
	case CUDNN_POINTWISE_CMP_GE:
		return x >= b;
	case CUDNN_POINTWISE_BINARY_SELECT:
		return t != 0 ? x : b;
	default:
		return NAN;
	}
}

static bool run_pointwise(const struct piece *pack, const struct piece *op)
{
	const struct piece *how =
		follow_attribute(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
	int mode = get_int(how, CUDNN_ATTR_POINTWISE_MODE);
	bool back = mode == CUDNN_POINTWISE_TANH_BWD;
	struct piece *x = follow_attribute(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
	struct piece *b = follow_attribute(op, back ? CUDNN_ATTR_OPERATION_POINTWISE_DYDESC
	                                            : CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
	struct piece *t = follow_attribute(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
	struct piece *y = follow_attribute(op, back ? CUDNN_ATTR_OPERATION_POINTWISE_DXDESC
	                                            : CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
	const int64_t *dim = find_attribute(y, CUDNN_ATTR_TENSOR_DIMENSIONS);
	float *value = calloc((size_t)count_elements(y), sizeof *value);

	for (int64_t i = 0; i < count_elements(y); i++) {
		if (mode == CUDNN_POINTWISE_GEN_INDEX) {
			bool rows = *(int64_t *)find_attribute(how, CUDNN_ATTR_POINTWISE_AXIS) == 2;

			value[i] = (float)(rows ? i / dim[3] % dim[2] : i % dim[3]);
			continue;
		}
		if (!load_tensor(pack, x) || (b && !load_tensor(pack, b)) ||
		    (t && !load_tensor(pack, t))) {
			free(value);
			return false;
		}
		value[i] = compute_one(mode, x->value[locate_in_tensor(x, y, i)],
		                       b ? b->value[locate_in_tensor(b, y, i)] : 0,
		                       t ? t->value[locate_in_tensor(t, y, i)] : 0);
	}
	return store_tensor(pack, y, value);
}

static bool run_matmul(const struct piece *pack, const struct piece *op)
{
	struct piece *a = follow_attribute(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC),
		     *b = follow_attribute(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC),
		     *c = follow_attribute(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
	const int64_t *left = find_attribute(a, CUDNN_ATTR_TENSOR_DIMENSIONS),
		      *right = find_attribute(b, CUDNN_ATTR_TENSOR_DIMENSIONS),
		      *dim = find_attribute(c, CUDNN_ATTR_TENSOR_DIMENSIONS);
	float *value;

	if (!load_tensor(pack, a) || !load_tensor(pack, b) || left[3] != right[2] ||
	    left[2] != dim[2] || right[3] != dim[3] || left[0] != dim[0] || left[1] != dim[1])
		return false;
	value = calloc((size_t)count_elements(c), sizeof *value);
	for (int64_t i = 0; i < count_elements(c); i++) {
		int64_t row = i / dim[3], part = row / dim[2];

		for (int64_t k = 0; k < left[3]; k++)
			value[i] += a->value[row * left[3] + k] *
			            b->value[(part * left[3] + k) * dim[3] + i % dim[3]];
	}
	return store_tensor(pack, c, value);
}

static bool run_reduction(const struct piece *pack, const struct piece *op)
{
	const struct piece *how = follow_attribute(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
	struct piece *x = follow_attribute(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC),
		     *y = follow_attribute(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
	bool max = get_int(how, CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_MAX;
	int64_t rows = count_elements(y), n = count_elements(x) / rows;
	float *value;

	if (!load_tensor(pack, x))
		return false;
	value = calloc((size_t)rows, sizeof *value);
	for (int64_t i = 0; i < rows; i++) {
		value[i] = max ? -INFINITY : 0;
		for (int64_t k = 0; k < n; k++)
			value[i] = max ? fmaxf(value[i], x->value[i * n + k])
			               : value[i] + x->value[i * n + k];
	}
	return store_tensor(pack, y, value);
}

/* Copies a tensor with its last axes exchanged. */
static bool run_reshape(const struct piece *pack, const struct piece *op)
{
	struct piece *x = follow_attribute(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC),
		     *y = follow_attribute(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
	const int64_t *dim = find_attribute(y, CUDNN_ATTR_TENSOR_DIMENSIONS);
	int64_t each = dim[2] * dim[3];
	float *value;

	if (!load_tensor(pack, x))
		return false;
	value = calloc((size_t)count_elements(y), sizeof *value);
	for (int64_t i = 0; i < count_elements(y); i++)
		value[i] = x->value[i / each * each + i % dim[3] * dim[2] + i / dim[3] % dim[2]];
	return store_tensor(pack, y, value);
}

static bool run_operation(const struct piece *pack, const struct piece *op)
{
	switch (op->kind) {
	case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
		return run_pointwise(pack, op);
	case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
		return run_matmul(pack, op);
	case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
		return run_reduction(pack, op);
	default:
		return run_reshape(pack, op);
	}
}

/* Frees the tensors that an operation names. */
static void drop_values(const struct piece *op)
{
	for (int i = 0; i < op->n; i++) {
		struct piece *t = *(struct piece **)op->attribute[i].data;

		if (t->kind == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
			free(t->value);
			t->value = NULL;
		}
	}
}

static int fake_execute(void *handle, void *plan, void *pack)
{
	const struct piece *config =
		follow_attribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
	const struct piece *graph = follow_attribute(config, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
	struct piece **op = find_attribute(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
	int64_t n = count_values(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
	bool ok = handle && !fake_cuda_fails("cudnnBackendExecute") &&
	          fake_cuda_has_bytes(
			  *(void **)find_attribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE), 256);

	for (int64_t i = 0; i < n && ok; i++)
		ok = run_operation(pack, op[i]);
	for (int64_t i = 0; i < n; i++)
		drop_values(op[i]);
	return ok ? 0 : BAD;
}

/* ---- descriptors */

static int fake_create_piece(int kind, void **out)
{
	struct piece *p = calloc(1, sizeof *p);

	p->kind = kind;
	pthread_mutex_lock(&lock);
	p->next = pieces;
	pieces = p;
	pthread_mutex_unlock(&lock);
	*out = p;
	return 0;
}

/* Destroys nothing: a plan uses its pieces after their destruction. */
static int fake_destroy_piece(void *d)
{
	return d ? 0 : BAD;
}

static int fake_set(void *d, int name, int type, int64_t n, const void *values)
{
	struct piece *p = d;
	size_t bytes = (size_t)(n * get_width(type));

	if (p->n == ATTRIBUTES_MAX || find_attribute(p, name) ||
	    (type == CUDNN_TYPE_BACKEND_DESCRIPTOR && !*(void *const *)values))
		return BAD;
	p->attribute[p->n].name = name;
	p->attribute[p->n].n = n;
	p->attribute[p->n].data = memcpy(malloc(bytes), values, bytes);
	p->n++;
	return 0;
}

/* Returns the only engine of a graph, or the workspace of a plan. */
static int fake_get(void *d, int name, int type, int64_t room, int64_t *n, void *values)
{
	struct piece *graph;

	*n = 0;
	if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)
		return memcpy(values, &(int64_t){ 256 }, 8) ? 0 : BAD;
	if (name != CUDNN_ATTR_ENGINEHEUR_RESULTS || !room || fake_cuda_fails("plans"))
		return BAD;
	graph = follow_attribute(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
	*n = 1;
	return fake_set(*(void **)values, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, type, 1, &graph);
}

static int fake_finalize(void *d)
{
	return d ? 0 : BAD;
}

static int fake_open(void **handle)
{
	if (fake_cuda_fails("cudnnCreate"))
		return BAD;
	pthread_mutex_lock(&lock);
	handles++;
	pthread_mutex_unlock(&lock);
	*handle = &handles;
	return 0;
}

static int fake_close(void *handle)
{
	struct piece *p;

	pthread_mutex_lock(&lock);
	handles--;
	while (!handles && pieces) {
		p = pieces;
		pieces = p->next;
		for (int i = 0; i < p->n; i++)
			free(p->attribute[i].data);
		free(p);
	}
	pthread_mutex_unlock(&lock);
	return handle ? 0 : BAD;
}

static int fake_set_stream(void *handle, void *stream)
{
	return handle && stream ? 0 : BAD;
}

static size_t fake_get_dnn_version(void)
{
	return fake_cuda_fails("version") ? 90900 : 91900;
}

void fake_dnn_fill_table(void)
{
	cuda.cudnnGetVersion = fake_get_dnn_version;
	cuda.cudnnCreate = fake_open;
	cuda.cudnnDestroy = fake_close;
	cuda.cudnnSetStream = fake_set_stream;
	cuda.cudnnBackendCreateDescriptor = fake_create_piece;
	cuda.cudnnBackendDestroyDescriptor = fake_destroy_piece;
	cuda.cudnnBackendSetAttribute = fake_set;
	cuda.cudnnBackendGetAttribute = fake_get;
	cuda.cudnnBackendFinalize = fake_finalize;
	cuda.cudnnBackendExecute = fake_execute;
}
