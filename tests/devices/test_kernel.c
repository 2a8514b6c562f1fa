/*
 * test_kernel.c - the kernel of docs/kernel-tutorial.md, plugins/mynorm, bit for bit against its
 * definition, and what it leaves to the inner device.
 */
#include "tests/devices/compare.h"

static const struct tess_device *kernel; /* the table of its wrap() */

static void open_kernel(void)
{
	void *file = dlopen(KERNEL, RTLD_NOW | RTLD_LOCAL);
	const struct tess_plugin *plugin;

	ck_assert_msg(file != NULL, "%s", dlerror());
	plugin = dlsym(file, "tess_plugin_v2");
	ck_assert_int_eq(plugin->devices[0]->wrap("cpu", &kernel), TESS_OK);
	ck_assert(kernel->mem == TESS_HOST && kernel->exact == 1);
}

struct norm_case {
	int32_t kind, dtype; /* of the weight */
	int64_t tokens, runs, each, units;
	bool offset, in_place;
};

/* Checks an op of the kernel, or that it does not select one of another kind of norm. */
static void check_norm_case(const struct norm_case *c, bool selected)
{
	int64_t columns = c->runs * c->each, bound[65];
	double num[] = { c->kind, 1e-5, c->runs > 1 ? (double)c->each : 0, c->offset };
	struct tess_tree tree = { .n = c->units, .hi = c->units, .terms = 1 };
	struct tess_term term = { .bound = bound };
	struct cpu_weights w = cpu_make_weights(c->dtype, c->each);
	float *x = cpu_make_floats(c->tokens * columns), *y = cpu_make_floats(c->tokens * columns);
	struct tess_view in[2] = { cpu_make_rows(c->in_place ? y : x, c->tokens, columns, columns),
		                   cpu_make_list(w.data, w.dtype, c->each) };
	struct tess_view out = cpu_make_rows(y, c->tokens, columns, columns), views[2][3];
	struct tess_op op = cpu_make_sum_op(TESS_OP_NORM, in, 2, &out, num, 4, &tree, 1, &term, 1),
		       want, got;

	for (int64_t u = 0; u <= c->units; u++)
		bound[u] = tess_edge(c->each, c->units, u);
	ck_assert_int_eq(kernel->supports(&op), selected ? TESS_OK : TESS_ENOTSUP);
	if (selected) {
		copy_outs(&want, views[0], views[0] + 2, &op);
		copy_outs(&got, views[1], views[1] + 2, &op);
		scalar_run(&want);
		ck_assert_int_eq(kernel->run(NULL, &got), TESS_OK);
		expect_outs("mynorm", &got, &want);
		free_outs(&want);
		free_outs(&got);
	}
	cpu_free_weights(&w);
	free(x);
	free(y);
}

START_TEST(has_the_bits_of_the_definition)
{
	static const int64_t widths[][2] = {
		{ 288, 8 }, { 100, 8 }, { 5, 5 }, { 700, 28 }, { 64, 1 }
	};

	open_kernel();
	for (int t = 0; t < NTOKENS; t++)
		for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
			struct norm_case c = { TESS_RMS,     TESS_F32,     tokens_of[t],     1,
				               widths[i][0], widths[i][1], .in_place = t % 2 };

			check_norm_case(&c, true);
		}
}
END_TEST

START_TEST(selects_its_op)
{
	const struct norm_case good = { TESS_RMS, TESS_F32, 2, 1, 64, 8, false, false };
	struct norm_case bad[4] = { good, good, good, good };
	struct tess_op add = { .kind = TESS_OP_ADD };

	bad[0].kind = TESS_LAYER;
	bad[1].dtype = TESS_BF16;
	bad[2].runs = 3;
	bad[2].units = 1;
	bad[3].offset = true;
	open_kernel();
	check_norm_case(&good, true);
	for (int i = 0; i < 4; i++)
		check_norm_case(&bad[i], false);
	ck_assert_int_eq(kernel->supports(&add), TESS_ENOTSUP);
}
END_TEST

int main(void)
{
	return suite_main("kernel", (const TTest *const[]){ has_the_bits_of_the_definition,
	                                                    selects_its_op, NULL });
}
