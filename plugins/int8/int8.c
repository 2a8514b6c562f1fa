/* tess-style-int8.so: sums over ranks in 8 bits. "int8:rowwise" goes over a style that sums y. */
#include <math.h>
#include <string.h>
#include <tessera/device.h>
#include <tessera/group.h>
#include <tessera/style.h>

/* A block: up to 256 elements of one row in 8 bits, after their scale. A local value of u8 has a
 * block in each of its rows. */
enum { BLOCK = 256, SCALE = 4 };

static int64_t divide_up(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

static int64_t get_block_width(int64_t columns)
{
	return columns < BLOCK ? columns : BLOCK;
}

/* ---- one block ------------------------------------------------------------------------------- */

/* Stores n floats as round(x / scale), where the largest has 127. NaN and Inf give a NaN scale, and
 * blocks below 1e-35 zeros. */
static void round_block(const float *x, int64_t n, uint8_t *block)
{
	float most = 0, scale;

	for (int64_t i = 0; i < n; i++)
		most = fabsf(x[i]) > most || x[i] != x[i] ? fabsf(x[i]) : most;
	scale = most <= 3e38f ? most / 127 : NAN;
	memcpy(block, &scale, SCALE);
	for (int64_t i = 0; i < n; i++)
		((int8_t *)block)[SCALE + i] = scale > 1e-37f ? (int8_t)rintf(x[i] / scale) : 0;
}

/* Adds the n elements of a block to x. */
static void add_packed(const uint8_t *block, int64_t n, float *x)
{
	float scale;

	memcpy(&scale, block, SCALE);
	for (int64_t i = 0; i < n; i++)
		x[i] += scale * ((const int8_t *)block)[SCALE + i];
}

/* ---- what a rank computes -------------------------------------------------------------------- */

static uint8_t *get_packed(const struct tess_view *v, int64_t i)
{
	return (uint8_t *)v->data + i * v->stride[0];
}

/* Adds the nodes of x [nodes, rows, columns], and stores the sum in blocks of 8 bits. */
static tess_status pack_sum(const struct tess_local *at)
{
	const struct tess_view *x = at->in;
	int64_t columns = x->shape[2], each = divide_up(columns, BLOCK);
	float sum[BLOCK];

	memset(at->out->data, 0, (size_t)(at->out->shape[0] * at->out->stride[0]));
	for (int64_t i = 0; i < x->shape[1] * each; i++) {
		int64_t from = i % each * BLOCK, n = get_block_width(columns - from);

		memset(sum, 0, sizeof sum);
		for (int64_t node = 0; node < x->shape[0]; node++) {
			const float *row = (const float *)x->data + node * x->stride[0] +
			                   i / each * x->stride[1] + from;

			for (int64_t k = 0; k < n; k++)
				sum[k] += row[k];
		}
		round_block(sum, n, get_packed(at->out, i));
	}
	return TESS_OK;
}

/* Adds the blocks that all ranks sent to this one, rank 0 first. */
static tess_status add_received(const struct tess_local *at)
{
	int64_t blocks = at->out->shape[0], n = at->out->shape[1] - SCALE;
	float sum[BLOCK];

	for (int64_t i = 0; i < blocks; i++) {
		memset(sum, 0, sizeof sum);
		for (int32_t r = 0; r < at->nranks; r++)
			add_packed(get_packed(at->in, r * blocks + i), n, sum);
		round_block(sum, n, get_packed(at->out, i));
	}
	return TESS_OK;
}

/* Writes y [rows, columns] from its blocks. */
static tess_status unpack_sum(const struct tess_local *at)
{
	const struct tess_view *y = at->out;
	int64_t columns = y->shape[1], each = divide_up(columns, BLOCK);

	for (int64_t i = 0; i < y->shape[0] * each; i++) {
		int64_t from = i % each * BLOCK, n = get_block_width(columns - from);
		float *row = (float *)y->data + i / each * y->stride[0] + from;

		memset(row, 0, sizeof(float) * (size_t)n);
		add_packed(get_packed(at->in, i), n, row);
	}
	return TESS_OK;
}

/* ---- what is recorded ------------------------------------------------------------------------ */

/* Records the sum of *y over the ranks: blocks to the ranks that add them, and sums to all. */
static tess_status record_sum(const struct tess_site *s, const struct tess_operand *about,
                              struct tess_tensor **y)
{
	int64_t blocks = about->shape[0] * divide_up(about->shape[1], BLOCK);
	int64_t n = s->nranks, own = divide_up(blocks, n),
		bytes = SCALE + get_block_width(about->shape[1]);
	const struct tess_call parts = { .size = sizeof parts,
		                         .compute = pack_sum,
		                         .rows = n * n * own,
		                         .columns = bytes,
		                         .dtype = TESS_U8 };
	const struct tess_call sums = { .size = sizeof sums,
		                        .compute = add_received,
		                        .rows = n * own,
		                        .columns = bytes,
		                        .dtype = TESS_U8 };
	const struct tess_call whole = { .size = sizeof whole,
		                         .compute = unpack_sum,
		                         .like = *y,
		                         .out = { .kind = TESS_REPLICATE } };
	const struct tess_collective exchange = { .size = sizeof exchange,
		                                  .kind = TESS_ALL_TO_ALL };
	const struct tess_collective gather = { .size = sizeof gather, .kind = TESS_ALL_GATHER };
	tess_status st = s->host->call(s, &parts, y);

	if (!st)
		st = s->host->collective(s, &exchange, y);
	if (!st)
		st = s->host->call(s, &sums, y);
	if (!st)
		st = s->host->collective(s, &gather, y);
	return st ? st : s->host->call(s, &whole, y);
}

static tess_status record_output(const struct tess_site *s, int32_t arg, struct tess_tensor **y)
{
	struct tess_tensor *was = *y;
	struct tess_operand about;
	tess_status st = s->host->describe(s, *y, &about);

	(void)arg;
	if (st)
		return st;
	if (about.place.kind != TESS_PARTIAL)
		return s->host->fail(TESS_EINVAL,
		                     "%s: %s gives no sum over ranks; use it without int8",
		                     s->module, s->config);
	st = record_sum(s, &about, y);
	return st ? st : s->host->straight_through(s, was, y);
}

/* ---- the style under this one ---------------------------------------------------------------- */

static tess_status place_as_inner(const struct tess_site *s, struct tess_io *io)
{
	const struct tess_site *inner;
	tess_status st = s->host->inner(s, s->config, &inner);

	return st ? st : s->host->layout(inner, io);
}

static tess_status partition_as_inner(const struct tess_site *s, const struct tess_param *p,
                                      struct tess_param_place *place)
{
	const struct tess_site *inner;
	tess_status st = s->host->inner(s, s->config, &inner);

	return st ? st : s->host->partition_param(inner, p, place);
}

static const struct tess_style int8 = {
	.size = sizeof int8,
	.name = "int8",
	.summary = "over a style that sums y: sums in 8 bits",
	.layout = place_as_inner,
	.partition_param = partition_as_inner,
	.prepare_output = record_output,
};

TESS_DEFINE_PLUGIN("int8", "1.0", "Apache-2.0", .styles = TESS_LIST(tess_style, &int8),
                   .needs = TESS_UPTO(tess_host, partition_param));
