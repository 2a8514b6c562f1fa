/* test_mxfp4.c - weights that a checkpoint stores in MXFP4: read in blocks, widened, refused. */
#include "core/base/status.h"
#include "hf/checkpoint.h"
#include "tests/support/scratch.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <tessera/device.h>

enum { EXPERTS = 3, OUTPUTS = 5, GROUPS = 2, CODES = 16, BLOCKS = EXPERTS * OUTPUTS * GROUPS };
enum { INPUTS = GROUPS * 32, EACH = OUTPUTS * INPUTS, ELEMENTS = EXPERTS * EACH };

static const int64_t blocks_shape[] = { EXPERTS, OUTPUTS, GROUPS, CODES };
static uint8_t blocks[BLOCKS * CODES], scales[BLOCKS];

static const struct tess_slice pair[] = {
	{ .name = "a.w_blocks",
	  .dtype = TESS_U8,
	  .ndim = 4,
	  .shape = blocks_shape,
	  .data = blocks },
	{ .name = "a.w_scales",
	  .dtype = TESS_U8,
	  .ndim = 3,
	  .shape = blocks_shape,
	  .data = scales },
};

/* Opens a checkpoint of these tensors, of which two are in MXFP4 by its config.json. */
static tess_status open_tensors(int32_t n, const struct tess_slice *slices,
                                struct tess_checkpoint **out)
{
	scratch_write_text("config.json", "{\"model_type\": \"x\", \"quantization_config\": "
	                                  "{\"quant_method\": \"mxfp4\"}}");
	ck_assert_msg(!tess_safetensors_write(scratch_format_path("model.safetensors"), n, slices),
	              "%s", tess_error());
	return tess_checkpoint_open(scratch, TESS_CHECKPOINT_WHOLE, out);
}

static tess_status open_pair(const struct tess_slice slices[2], struct tess_checkpoint **out)
{
	return open_tensors(2, slices, out);
}

/* Returns an element by its definition. */
static float widen_by_definition(int64_t expert, int64_t output, int64_t input)
{
	static const float values[] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
	int64_t block = (expert * OUTPUTS + output) * GROUPS + input / 32;
	int byte = blocks[block * CODES + input % 32 / 2], code = input % 2 ? byte / 16 : byte % 16;

	return ldexpf(code < 8 ? values[code] : -values[code - 8], scales[block] - 127);
}

static void fill_pair(void)
{
	for (int i = 0; i < BLOCKS * CODES; i++)
		blocks[i] = (uint8_t)(i * 37 + i / 256);
	for (int i = 0; i < BLOCKS; i++)
		scales[i] = (uint8_t)(i < 2 ? i : i == 2 ? 252 : 100 + 2 * i);
}

/* Finds the two tensors as one weight, and reads some of its blocks. */
static void read_both(int i)
{
	struct tess_checkpoint *c;
	struct tess_source source;
	struct tess_view v;
	uint8_t read[4][CODES + 1];

	fill_pair();
	setenv("TESSERA_LOAD", i ? "copy" : "map", 1);
	ck_assert_msg(!open_pair(pair, &c), "%s", tess_error());
	source = tess_checkpoint_make_source(c);
	ck_assert_uint_eq(source.count, 1);
	ck_assert_str_eq(source.at(c, 0), "a.w");
	ck_assert(source.has(c, "a.w") && !source.has(c, "a.w_blocks"));
	ck_assert_int_eq(source.find(c, "a.w", &v), TESS_OK);
	ck_assert(v.dtype == TESS_MXFP4 && v.ndim == 3 && !v.data && v.shape[0] == EXPERTS &&
	          v.shape[1] == OUTPUTS && v.shape[2] == INPUTS && v.stride[0] == EACH);
	ck_assert_int_eq(source.read(c, "a.w", 7 * sizeof *read, sizeof read, read), TESS_OK);
	for (int b = 0; b < 4; b++) {
		ck_assert_int_eq(read[b][0], scales[7 + b]);
		ck_assert_mem_eq(read[b] + 1, blocks + (7 + b) * CODES, CODES);
	}
	tess_checkpoint_close(c);
}

START_TEST(reads_blocks)
{
	read_both(0);
	read_both(1);
}
END_TEST

/* Widens ranges across rows and experts: [experts, inputs, outputs]. */
START_TEST(widens_and_transposes)
{
	struct tess_checkpoint *c;
	float wide[ELEMENTS];

	fill_pair();
	ck_assert_msg(!open_pair(pair, &c), "%s", tess_error());
	ck_assert(tess_checkpoint_get_mxfp4(c, 0) == tess_checkpoint_get_mxfp4(c, 1));
	for (uint64_t first = 0, n; first < ELEMENTS; first += n) {
		n = first + 213 < ELEMENTS ? 213 : ELEMENTS - first;
		ck_assert_int_eq(
			tess_mxfp4_widen(tess_checkpoint_get_mxfp4(c, 0), first, n, wide + first),
			TESS_OK);
	}
	for (int64_t i = 0; i < ELEMENTS; i++)
		ck_assert(wide[i] ==
		          widen_by_definition(i / EACH, i % OUTPUTS, i % EACH / OUTPUTS));
	tess_checkpoint_close(c);
}
END_TEST

static const int64_t turned[] = { EXPERTS, GROUPS, OUTPUTS, CODES },
		     narrow[] = { EXPERTS, OUTPUTS, GROUPS, 15 };
static const struct {
	int which; /* of the pair */
	const char *name;
	const int64_t *shape;
	int32_t dtype, ndim;
	const char *says;
} bad[] = {
	{ 1, "b.w_scales", blocks_shape, TESS_U8, 3,
	  "tensor a.w_blocks is half of a weight in MXFP4, and a.w_scales is not in the" },
	{ 0, "z.w_blocks", blocks_shape, TESS_U8, 4,
	  "tensor a.w_scales is half of a weight in MXFP4, and a.w_blocks is not in the" },
	{ 1, "a.w_scales", blocks_shape, TESS_I8, 3,
	  "tensor a.w_scales: MXFP4 is stored as U8 [experts, outputs, inputs / 32];" },
	{ 1, "a.w_scales", blocks_shape, TESS_U8, 2, "a.w_scales: MXFP4 is stored as U8 [experts" },
	{ 0, "a.w_blocks", narrow, TESS_U8, 4,
	  "tensor a.w_blocks: MXFP4 is stored as U8 [experts, outputs, inputs / 32, 16]; fetch" },
	{ 0, "a.w_blocks", blocks_shape, TESS_U8, 3, "a.w_blocks: MXFP4 is stored as U8 [experts" },
	{ 1, "a.w_scales", turned, TESS_U8, 3,
	  "tensor a.w_scales has 3 x 2 x 5 scales, and a.w_blocks 3 x 5 x 2 blocks; MXFP4 has a "
	  "scale for each block" },
};

START_TEST(refuses_pairs)
{
	struct tess_checkpoint *c;

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct tess_slice both[2] = { pair[0], pair[1] };
		struct tess_slice *one = &both[bad[i].which];

		one->name = bad[i].name;
		one->shape = bad[i].shape;
		one->dtype = bad[i].dtype;
		one->ndim = bad[i].ndim;
		ck_assert_int_eq(open_pair(both, &c), TESS_EINVAL);
		expect_part(tess_error(), bad[i].says);
	}
	ck_assert_int_eq(open_tensors(3,
	                              (const struct tess_slice[]){ pair[0],
	                                                           pair[1],
	                                                           { .name = "a.w",
	                                                             .dtype = TESS_U8,
	                                                             .ndim = 3,
	                                                             .shape = blocks_shape,
	                                                             .data = scales } },
	                              &c),
	                 TESS_EINVAL);
	expect_part(tess_error(), "a.w is in the checkpoint twice, in MXFP4 (a.w_blocks) and as");
}
END_TEST

/* Refuses scales with which some values are not finite. */
START_TEST(refuses_scales)
{
	uint8_t read[BLOCKS * (CODES + 1)];
	struct tess_checkpoint *c;

	fill_pair();
	for (int scale = 252; scale < 256; scale++) {
		scales[19] = (uint8_t)scale;
		ck_assert_msg(!open_pair(pair, &c), "%s", tess_error());
		ck_assert_int_eq(
			tess_checkpoint_make_source(c).read(c, "a.w", 0, sizeof read, read),
			scale == 252 ? TESS_OK : TESS_ENOTSUP);
		if (scale > 252)
			expect_part(tess_error(), "tensor a.w_scales: byte 19 is 25");
		if (scale > 252)
			expect_part(tess_error(), scale == 255 ? "which is NaN; scales of MXFP4"
			                                       : "are too large for f32; scales");
		tess_checkpoint_close(c);
	}
}
END_TEST

SCRATCH_MAIN("mxfp4", reads_blocks, widens_and_transposes, refuses_pairs, refuses_scales)
