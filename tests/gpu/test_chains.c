/* test_chains PLUGIN - compares the outputs of fused steps with those of ops that run alone. */
#include "device.h"

#include "tests/support/suite.h"

enum { OPS = 7, WAYS = 3 };
enum way { ALONE, FUSED, ENDS }; /* ENDS: as FUSED, with only_next */

struct chain {
	struct tess_op op[OPS];
	struct tess_view in[OPS][6], out[OPS][2];
	int n;
	bool fused[OPS]; /* with the op before it, at least */
	bool ends[OPS]; /* ENDS: only the next op reads its outputs */
};

/* Links the ops of the step that begins with op i, like the core; returns its end. */
static int link_step(const struct chain *c, struct tess_op *op, int i, enum way way)
{
	int end = i + 1;

	for (; way != ALONE && end < c->n; end++) {
		struct tess_op *last = &op[end - 1];

		last->next = last + 1;
		last->only_next = way == ENDS && c->ends[end - 1];
		if (gpu_table->fuses(&op[i]) == 1)
			continue;
		ck_assert_msg(!c->fused[end], "op %d begins a step", end);
		last->next = NULL;
		last->only_next = 0;
		break;
	}
	return end;
}

static tess_status try_chain(const struct chain *c, enum way way)
{
	struct chain moved = *c;
	tess_status st = TESS_OK;

	for (int i = 0; i < nbuffers; i++)
		copy_buffer(&buffers[i], false);
	for (int i = 0; i < c->n; i++) {
		struct tess_op *op = &moved.op[i];

		op->in = moved.in[i];
		op->out = moved.out[i];
		op->stream = gpu_stream;
		for (int k = 0; k < op->nin; k++)
			if (moved.in[i][k].ndim)
				moved.in[i][k].data = find_copy(moved.in[i][k].data);
		for (int k = 0; k < op->nout; k++)
			moved.out[i][k].data = find_copy(moved.out[i][k].data);
	}
	for (int i = 0, end; i < c->n && !st; i = end) {
		end = link_step(c, moved.op, i, way);
		st = gpu_table->run(gpu, &moved.op[i]);
	}
	return st ? st : gpu_table->sync(gpu, gpu_stream);
}

static void run_chain(const struct chain *c, enum way way)
{
	EXPECT_OK(try_chain(c, way));
}

static void *read_buffer(const struct buffer *b)
{
	void *got = malloc(b->bytes);

	EXPECT_OK(gpu_table->copy(gpu, got, b->device, b->bytes, gpu_stream));
	EXPECT_OK(gpu_table->sync(gpu, gpu_stream));
	return got;
}

/* Returns whether a buffer has its initial contents on the device. */
static bool is_unwritten(const struct buffer *b)
{
	void *got = read_buffer(b);
	bool same = !memcmp(got, b->host, b->bytes);

	free(got);
	return same;
}

static struct buffer *find_buffer(const void *host)
{
	for (int i = 0; i < nbuffers; i++)
		if (buffers[i].host == host)
			return &buffers[i];
	ck_abort_msg("no such buffer");
	return NULL;
}

/* Compares all buffers after each way to run the chain, bit by bit; after ENDS those that count. */
static void compare_chain_ways(const struct chain *c, int ways, bool (*counts)(const void *host))
{
	void *want[BUFFERS];

	for (int way = 0; way < ways; way++) {
		run_chain(c, (enum way)way);
		for (int i = 0; i < nbuffers; i++) {
			void *got = read_buffer(&buffers[i]);

			if (way == ALONE)
				want[i] = got;
			else if (way != ENDS || counts(buffers[i].host))
				ck_assert_msg(!memcmp(got, want[i], buffers[i].bytes),
				              "way %d, buffer %d", way, i);
			if (way != ALONE)
				free(got);
		}
	}
	for (int i = 0; i < nbuffers; i++)
		free(want[i]);
}

/* Compares the output of the last op of a fused chain with that of ops that run alone. */
static void compare_last_out(const struct chain *c, float within)
{
	struct tess_view got = c->out[c->n - 1][0];
	const struct buffer *b = find_buffer(got.data);
	void *want;

	got.data = read_buffer(b);
	run_chain(c, ALONE);
	want = read_buffer(b);
	expect_near_view("the last op", &got, want, within);
	free(got.data);
	free(want);
}

/* ---- a layer's second half ------------------------------------------------------------------- */

enum { WIDE = 64 };
static int64_t layer_width = WIDE, layer_ffn = WIDE;

static struct layer { /* the buffers of its chain */
	float *x, *more, *sum, *y, *gate, *up, *glu, *z, *total;
} layer;

static bool counts_in_layer(const void *host)
{
	return host != layer.y && host != layer.gate && host != layer.up && host != layer.glu &&
	       host != layer.z;
}

/*
 * Makes ADD, NORM, LINEAR of two weights, GLU, LINEAR, ADD. `shift`: offset in rows of the NORM's
 * output in the first ADD's x. The GLU's output replaces its second operand, or with 7 or 8 rows
 * the first LINEAR's x.
 */
static void make_layer_chain(struct chain *c, int64_t rows, int64_t shift, int32_t dtype)
{
	static struct tess_tree tree = { 1, 0, 1, 0, 1 };
	static int64_t bound[4];
	static struct tess_term term[] = { { 0, 0, bound }, { 0, 0, bound + 2 } };
	static double eps[] = { TESS_RMS, 1e-5, 0, 1 }, silu[] = { TESS_SILU };
	struct layer *l = &layer;
	struct tess_view x, more, sum, y, gate, up, glu, z, total;
	void *w[4] = { make_weight_buffer(dtype, layer_width, NULL),
		       make_weight_buffer(dtype, layer_ffn * layer_width, NULL),
		       make_weight_buffer(dtype, layer_width * layer_ffn, NULL),
		       make_weight_buffer(dtype, layer_ffn * layer_width, NULL) };

	bound[1] = layer_width;
	bound[3] = layer_ffn;
	*c = (struct chain){ .n = 6, .fused = { [1] = shift < 1 }, .ends = { 0, 1, 1, 1, 1, 0 } };
	c->fused[3] = rows < 7;
	l->x = make_buffer((rows + 1) * layer_width, true);
	l->more = make_buffer(rows * layer_width, true);
	l->sum = make_buffer(rows * layer_width, false);
	l->y = shift < 0 ? make_buffer(rows * layer_width, false) : l->x + shift * layer_width;
	l->gate = make_buffer(rows * layer_ffn, false);
	l->up = make_buffer(rows * layer_ffn, false);
	l->glu = rows > 8 ? make_buffer(rows * layer_ffn, false) : rows > 6 ? l->y : l->up;
	l->z = make_buffer(rows * layer_width, false);
	l->total = make_buffer(rows * layer_width, false);
	x = cpu_make_rows(l->x, rows, layer_width, layer_width);
	more = cpu_make_rows(l->more, rows, layer_width, layer_width);
	sum = cpu_make_rows(l->sum, rows, layer_width, layer_width);
	y = cpu_make_rows(l->y, rows, layer_width, layer_width);
	gate = cpu_make_rows(l->gate, rows, layer_ffn, layer_ffn);
	up = cpu_make_rows(l->up, rows, layer_ffn, layer_ffn);
	glu = cpu_make_rows(l->glu, rows, layer_ffn, layer_ffn);
	z = cpu_make_rows(l->z, rows, layer_width, layer_width);
	total = cpu_make_rows(l->total, rows, layer_width, layer_width);
	c->in[0][0] = x;
	c->in[0][1] = more;
	c->out[0][0] = c->in[1][0] = sum;
	c->in[1][1] = cpu_make_list(w[0], dtype, layer_width);
	c->out[1][0] = c->in[2][0] = y;
	c->in[2][1] = cpu_make_view(w[1], dtype, layer_ffn, layer_width, layer_width, 1);
	c->in[2][2] = cpu_make_view(w[3], dtype, layer_ffn, layer_width, layer_width, 1);
	c->out[2][0] = c->in[3][0] = gate;
	c->out[2][1] = c->in[3][1] = up;
	c->out[3][0] = c->in[4][0] = glu;
	c->in[4][1] = cpu_make_view(w[2], dtype, layer_width, layer_ffn, layer_ffn, 1);
	c->out[4][0] = cpu_make_partial(l->z, 1, rows, layer_width, layer_width);
	c->in[5][0] = sum;
	c->in[5][1] = z;
	c->out[5][0] = total;
	c->op[0] = cpu_make_op(TESS_OP_ADD, c->in[0], 2, c->out[0], NULL, 0);
	c->op[1] = cpu_make_sum_op(TESS_OP_NORM, c->in[1], 2, c->out[1], eps, TESS_NORM_NUMS, &tree,
	                           1, term, 1);
	c->op[2] =
		cpu_make_sum_op(TESS_OP_LINEAR, c->in[2], 3, c->out[2], NULL, 0, &tree, 1, term, 1);
	c->op[2].nout = 2;
	c->op[3] = cpu_make_op(TESS_OP_GLU, c->in[3], 2, c->out[3], silu, 1);
	c->op[4] = cpu_make_sum_op(TESS_OP_LINEAR, c->in[4], 2, c->out[4], NULL, 0, &tree, 1,
	                           &term[1], 1);
	c->op[5] = cpu_make_op(TESS_OP_ADD, c->in[5], 2, c->out[5], NULL, 0);
}

static void test_layer(int64_t rows, int64_t shift, int32_t dtype)
{
	struct chain c;

	make_layer_chain(&c, rows, shift, dtype);
	compare_chain_ways(&c, shift > 0 || rows > 8 || rows == 1 ? ENDS : WAYS, counts_in_layer);
	free_host_buffers();
}

/* Fused ops have the bits of ops that run alone. */
START_TEST(layers)
{
	set_up_devices("auto");
	/* 1: other rows of x, which are read later */
	for (int64_t shift = -1; shift < 2; shift++) {
		test_layer(1, shift, TESS_BF16);
		test_layer(3, shift, TESS_BF16);
		test_layer(7, shift, TESS_BF16);
		test_layer(12, shift, TESS_BF16);
	}
	test_layer(70, -1, TESS_BF16);
	test_layer(12, -1, TESS_F16);
	test_layer(1, -1, TESS_F16);
	test_layer(1, -1, TESS_F32);
	tear_down_devices();
}
END_TEST

/*
 * Compares many rows, where outputs that only the next op reads are not written, or as bf16. With
 * more than 64 rows gate and up are rounded once more, which changes a sum of 64 of their products
 * by less than 2^-7 of the largest. `over`: the last sum replaces the GLU's output. `fails`:
 * products that cuBLASLt does not support.
 */
static void test_ends(int64_t rows, int32_t dtype, bool over, const char *fails)
{
	bool narrow = dtype == TESS_BF16;
	struct chain c;

	if (fails)
		ck_assert_int_eq(setenv("FAKE_CUDA_FAILS", fails, 1), 0);
	set_up_devices("auto");
	make_layer_chain(&c, rows, -1, dtype);
	if (over)
		c.out[5][0] = c.out[3][0];
	run_chain(&c, ENDS);
	ck_assert_int_eq(is_unwritten(find_buffer(layer.y)), narrow && !fails);
	ck_assert_int_eq(is_unwritten(find_buffer(layer.glu)), narrow && !fails && !over);
	ck_assert_int_eq(is_unwritten(find_buffer(layer.z)), (narrow || !over) && !fails);
	compare_last_out(&c, rows > 64 || !narrow ? 0x1p-7f : 0x1p-9f);
	free_host_buffers();
	tear_down_devices();
}

START_TEST(ends)
{
	static const int64_t rows[] = { 12, 64, 70 };

	test_ends(rows[_i / 4], _i & 1 ? TESS_BF16 : TESS_F32, _i & 2, NULL);
}
END_TEST

/* Without multiprocessors to fill, blocks have 128 columns. */
START_TEST(wide_ends)
{
	ck_assert_int_eq(setenv("FAKE_CUDA_PROCESSORS", "0", 1), 0);
	test_ends(61, TESS_BF16, _i, NULL);
}
END_TEST

/* Clusters add the parts of sums of many terms: 6 blocks of the GLU, or 5 of the last sum. */
START_TEST(cluster_ends)
{
	layer_width = _i ? 64 : 1528;
	layer_ffn = _i ? 1240 : 64;
	test_ends(40, TESS_BF16, false, NULL);
}
END_TEST

/* A GPU's cuBLASLt supports all of them: the variable has no effect there. */
START_TEST(ends_without_blas)
{
	if (strstr(gpu_file, "cuda_emulated"))
		test_ends(70, TESS_BF16, _i, "heuristic");
}
END_TEST

/*
 * Compares one row that is normed by the product: the norm's scale is a factor of its sums, so they
 * are rounded differently. `how`: 1, 2: the first LINEAR, or the GLU, replaces the NORM's x; 3: the
 * last ADD replaces the second LINEAR's x; 4, 5: another NORM.
 */
static void test_row_ends(int32_t dtype, int how)
{
	static const double layer_norm[] = { TESS_LAYER, 1e-5, 0, 0 },
			    halves[] = { TESS_RMS, 1e-5, WIDE / 2, 0 };
	struct chain c;

	set_up_devices("auto");
	make_layer_chain(&c, 1, -1, dtype);
	c.fused[1] = how != 5;
	c.fused[3] = how != 2;
	if (how == 1)
		c.out[2][0] = c.in[3][0] = c.in[1][0];
	if (how == 2)
		c.out[3][0] = c.in[4][0] = c.in[1][0];
	if (how == 3)
		c.out[5][0] = c.in[4][0];
	if (how > 3)
		c.op[1].num = how > 4 ? halves : layer_norm;
	run_chain(&c, ENDS);
	ck_assert_int_eq(is_unwritten(find_buffer(layer.y)), how == 0 || how == 2 || how == 3);
	ck_assert_int_eq(is_unwritten(find_buffer(layer.z)), how != 3);
	compare_last_out(&c, 1e-6f);
	free_host_buffers();
	tear_down_devices();
}

START_TEST(row_ends)
{
	static const int32_t dtype[] = { TESS_F32, TESS_BF16, TESS_F16 };

	test_row_ends(dtype[_i % 3], _i / 3);
}
END_TEST

/* NORM and a LINEAR of more elements than a warp loads at once. */
START_TEST(long_rows)
{
	enum { LONG = 1160, COLUMNS = 6 };
	static const int32_t types[] = { TESS_F32, TESS_BF16, TESS_F16 };
	static double num[] = { TESS_RMS, 1e-5, LONG, 0 };
	static struct tess_tree tree = { 1, 0, 1, 0, 1 };
	static const int64_t bound[] = { 0, LONG };
	static struct tess_term term = { 0, 0, bound };
	struct chain c = { .n = 2, .ends = { 1 } };
	int32_t dtype = types[_i];

	set_up_devices("auto");
	c.in[0][0] = cpu_make_rows(make_buffer(LONG, true), 1, LONG, LONG);
	c.in[0][1] = cpu_make_list(make_weight_buffer(dtype, LONG, NULL), dtype, LONG);
	c.out[0][0] = c.in[1][0] = cpu_make_rows(make_buffer(LONG, false), 1, LONG, LONG);
	c.in[1][1] = cpu_make_view(make_weight_buffer(dtype, COLUMNS * LONG, NULL), dtype, COLUMNS,
	                           LONG, LONG, 1);
	c.out[1][0] = cpu_make_rows(make_buffer(COLUMNS, false), 1, COLUMNS, COLUMNS);
	c.op[0] = cpu_make_sum_op(TESS_OP_NORM, c.in[0], 2, c.out[0], num, TESS_NORM_NUMS, &tree, 1,
	                          &term, 1);
	c.op[1] =
		cpu_make_sum_op(TESS_OP_LINEAR, c.in[1], 2, c.out[1], NULL, 0, &tree, 1, &term, 1);
	run_chain(&c, ENDS);
	ck_assert(is_unwritten(find_buffer(c.out[0][0].data)));
	compare_last_out(&c, 1e-6f);
	free_host_buffers();
	tear_down_devices();
}
END_TEST

/* ---- queries and keys ------------------------------------------------------------------------ */

enum { HEADS = 4, KV = 2, EACH = 24, GAP = 16, BLOCKS = 2 };

static float *turned_keys;

static bool counts_in_attention(const void *host)
{
	return host != turned_keys;
}

/*
 * Makes ROPEs of queries and keys, in either order, and ATTENTION of `rows` rows from position
 * `before` on; `latent`: values are part of keys.
 */
static void make_attention_chain(struct chain *c, int64_t rows, int64_t before, int32_t dtype,
                                 bool latent, bool keys_first)
{
	static double rope[TESS_ROPE_NUMS] = { EACH, 8, 16 };
	static double num[TESS_ATTENTION_NUMS];
	int64_t width = cpu_get_width(dtype), keys = KV * EACH * 64 * width, page = GAP + 2 * keys;
	int32_t *position = malloc(4 * (size_t)rows), *slot = calloc((size_t)rows, 4);
	int64_t *table = calloc(2 * BLOCKS, sizeof *table);
	char *pages = calloc(BLOCKS, (size_t)page);
	struct tess_view q = cpu_make_rows(make_buffer(rows * HEADS * EACH, true), rows,
	                                   HEADS * EACH, HEADS * EACH),
			 k = cpu_make_rows(make_buffer(rows * KV * EACH, true), rows, KV * EACH,
	                                   KV * EACH),
			 v = cpu_make_rows(make_buffer(rows * KV * EACH, true), rows, KV * EACH,
	                                   KV * EACH),
			 to_q = q, to_k = k, out = q, angles, at;

	for (int64_t t = 0; t < rows; t++) {
		position[t] = (int32_t)(before + t);
		slot[t] = 1;
	}
	add_buffer(pages, (uint64_t)(BLOCKS * page));
	for (int64_t i = 0; i < BLOCKS; i++)
		table[BLOCKS + i] = (int64_t)(uintptr_t)(pages + i * page);
	add_buffer(table, 2 * BLOCKS * sizeof *table);
	buffers[nbuffers - 1].pages = true;
	to_q.data = make_buffer(rows * HEADS * EACH, false);
	to_k.data = turned_keys = make_buffer(rows * KV * EACH, false);
	out.data = make_buffer(rows * HEADS * EACH, false);
	angles = cpu_make_rows(make_buffer(128 * 16, true), 128, 16, 16);
	at = cpu_make_list(add_buffer(position, 4 * (uint64_t)rows), TESS_I32, rows);
	memcpy(num,
	       (double[]){ 0.2, 0, EACH, 0, HEADS / KV, GAP, (double)(GAP + keys), dtype, 0, EACH },
	       10 * sizeof *num);
	*c = (struct chain){ .n = 3, .fused = { [1] = true }, .ends = { 1, 1 } };
	c->op[0] = cpu_make_op(TESS_OP_ROPE, c->in[0], 3, c->out[0], rope, TESS_ROPE_NUMS);
	c->op[1] = cpu_make_op(TESS_OP_ROPE, c->in[1], 3, c->out[1], rope, TESS_ROPE_NUMS);
	c->op[2] = cpu_make_op(TESS_OP_ATTENTION, c->in[2], 6, c->out[2], num, TESS_ATTENTION_NUMS);
	for (int i = 0; i < 2; i++) {
		c->in[i][0] = i == keys_first ? q : k;
		c->in[i][1] = at;
		c->in[i][2] = angles;
		c->out[i][0] = i == keys_first ? to_q : to_k;
	}
	c->in[2][0] = to_q;
	c->in[2][1] = to_k;
	c->in[2][2] = latent ? (struct tess_view){ 0 } : v;
	c->in[2][3] = at;
	c->in[2][4] = cpu_make_list(add_buffer(slot, 4 * (uint64_t)rows), TESS_I32, rows);
	c->in[2][5] = cpu_make_view(table, TESS_I64, 2, BLOCKS, BLOCKS, 1);
	c->out[2][0] = out;
}

/* Returns how many kernels the chain launches; on a GPU, which does not count them, `want`. */
static unsigned count_launches(const struct chain *c, enum way way, unsigned want)
{
	void *file = dlopen(gpu_file, RTLD_NOW | RTLD_NOLOAD);
	const unsigned *launches = dlsym(file, "emulated_launch");
	unsigned before = launches ? *launches : 0;

	run_chain(c, way);
	return launches ? *launches - before : want;
}

/*
 * Compares attention chains. If the keys are last they are written to their pages only. If nothing
 * else reads them, up to 64 rows of two slots are one launch. More rows are three: they are rotated
 * and stored, then 16 rows and more are tiles.
 */
START_TEST(attention)
{
	static const struct {
		int64_t rows, before;
	} step[] = { { 1, 0 }, { 1, 64 }, { 3, 62 }, { 40, 20 }, { 70, 20 } };
	bool latent = _i & 1, keys_first = _i & 2;
	int32_t dtype = _i & 4 ? TESS_BF16 : TESS_F32;
	struct chain c;

	set_up_devices("auto");
	for (int i = 0; i < 5; i++) {
		unsigned want = step[i].rows <= 64 ? 1 : latent ? 2 : 3;

		make_attention_chain(&c, step[i].rows, step[i].before, dtype, latent, keys_first);
		compare_chain_ways(&c, WAYS, counts_in_attention);
		ck_assert_int_eq(is_unwritten(find_buffer(turned_keys)), !keys_first);
		if (!keys_first)
			ck_assert_int_eq(count_launches(&c, ENDS, want), want);
		free_host_buffers();
	}
	tear_down_devices();
}
END_TEST

/* A fused chain reports a row without a slot, and one without angles. */
START_TEST(faults)
{
	struct chain c;

	set_up_devices("auto");
	make_attention_chain(&c, 1, 0, TESS_F32, false, false);
	for (int i = 0; i < 2; i++) {
		*(int32_t *)c.in[2][4].data = i ? 1 : 2;
		*(int32_t *)c.in[2][3].data = i ? 128 : 0;
		c.n = i ? 2 : 3;
		ck_assert_int_eq(try_chain(&c, FUSED), TESS_EINVAL);
		ck_assert_msg(strstr(cpu_sentence,
		                     i ? "rope: a position" : "attention: a row has no slot"),
		              "%s", cpu_sentence);
	}
	free_host_buffers();
	tear_down_devices();
}
END_TEST

int main(int argc, char **argv)
{
	SRunner *r;
	TCase *t = begin_gpu_suite(argc, argv, "gpu_chains", 300, &r);

	tcase_add_test(t, layers);
	tcase_add_loop_test(t, ends, 0, 12);
	tcase_add_loop_test(t, wide_ends, 0, 2);
	tcase_add_loop_test(t, cluster_ends, 0, 2);
	tcase_add_loop_test(t, ends_without_blas, 0, 2);
	tcase_add_loop_test(t, row_ends, 0, 18);
	tcase_add_loop_test(t, long_rows, 0, 3);
	tcase_add_loop_test(t, attention, 0, 8);
	tcase_add_test(t, faults);
	return suite_end(r);
}
