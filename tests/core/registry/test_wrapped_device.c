/*
 * test_wrapped_device.c - devices around another one: names, tables, the choice of the device for
 * each op, faults of a wrapper, and its results with those of the inner device.
 */
#include "core/base/status.h"
#include "core/registry/file.h"
#include "tests/support/command.h"

#include <stdlib.h>

static void use_fault(const char *fault)
{
	ck_assert(!setenv("MINE", fault, 1));
}

/* ---- names ----------------------------------------------------------------------------------- */

START_TEST(splits_names)
{
	static const struct {
		const char *text, *name;
		int32_t index;
	} good[] = {
		{ "cpu", "cpu", -1 },
		{ "cpu:0", "cpu", 0 },
		{ "mine:cuda:12", "mine:cuda", 12 },
		{ "mine:ours:cpu", "mine:ours:cpu", -1 },
		{ "mine:8bit", "mine:8bit", -1 },
		{ "cpu:2147483647", "cpu", 2147483647 },
	};
	static const char *const bad[] = { "cpu:",
		                           ":",
		                           "cpu:-1",
		                           "cpu:+1",
		                           "cpu: 1",
		                           "cpu:1:2",
		                           "mine:1:cpu",
		                           "mine::",
		                           "cpu:A",
		                           "cpu:2147483648",
		                           "cpu:99999999999999999999" };
	char name[TESS_DEVICE_NAME], text[2 * TESS_DEVICE_NAME];
	int32_t index;

	for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
		ck_assert_msg(!tess_device_name_parse(good[i].text, name, &index), "%s",
		              tess_error());
		ck_assert_str_eq(name, good[i].name);
		ck_assert_int_eq(index, good[i].index);
	}
	memset(text, 'a', sizeof text - 1);
	text[sizeof text - 1] = '\0';
	for (size_t i = 0; i <= sizeof bad / sizeof *bad; i++) {
		const char *one = i < sizeof bad / sizeof *bad ? bad[i] : text;

		ck_assert_int_eq(tess_device_name_parse(one, name, &index), TESS_EINVAL);
		expect_part(tess_error(), "use NAME, NAME:INDEX or WRAPPER:NAME[:INDEX]");
	}
}
END_TEST

static void expect_device_refused(const char *name, tess_status why, const char *says)
{
	const struct tess_device *d;

	ck_assert_int_eq(tess_plugin_find_device(name, &d), why);
	expect_part(tess_error(), says);
}

START_TEST(refuses_names)
{
	expect_device_refused("mine", TESS_EINVAL,
	                      "device mine wraps another one; append its name: mine:NAME");
	expect_device_refused("mine:", TESS_EINVAL, "append its name: mine:NAME");
	expect_device_refused(
		"cpu:mine", TESS_EINVAL,
		"device cpu:mine: cpu does not wrap another device; use cpu, or cpu:INDEX");
	expect_device_refused("mine:mine:cpu", TESS_EINVAL,
	                      "device mine:mine:cpu: mine cannot wrap");
	expect_device_refused("mine:ours:mine:cpu", TESS_EINVAL, "mine cannot wrap itself");
	expect_device_refused("mine:cpi", TESS_ENOENT, "device mine:cpi: device cpi: not found: ");
	expect_device_refused("mine:cpi", TESS_ENOENT, "did you mean cpu?");
	expect_device_refused("mine:ours", TESS_EINVAL,
	                      "device mine:ours: device ours wraps another one");
}
END_TEST

/* ---- tables ---------------------------------------------------------------------------------- */

enum { FIRST = offsetof(struct tess_device, count), WORD = sizeof(void *) };

/* Returns the function or number at an offset of a table. */
static uintptr_t read_table_word(const void *table, size_t at)
{
	uintptr_t word;

	memcpy(&word, (const char *)table + at, sizeof word);
	return word;
}

static void fill_table(struct tess_device *d, uintptr_t value)
{
	memset(d, 0, sizeof *d);
	for (size_t at = FIRST; at < sizeof *d; at += WORD, value++)
		memcpy((char *)d + at, &value, sizeof value);
	d->size = sizeof *d;
	d->exact = 1;
	d->layout = TESS_PANELS;
	d->mem = TESS_HOST;
}

/* Returns whether the core sets a field itself; layout and exact are one word. */
static bool is_set_by_core(size_t at)
{
	return at == offsetof(struct tess_device, supports) ||
	       at == offsetof(struct tess_device, run) ||
	       at == offsetof(struct tess_device, fuses) ||
	       at == offsetof(struct tess_device, wrap) ||
	       at == offsetof(struct tess_device, rounds) ||
	       at == offsetof(struct tess_device, layout);
}

/* Checks that every function, appended ones too, is the inner device's or replaces it. */
START_TEST(passes_on_every_field)
{
	const struct tess_device outer = { .name = "outer", .summary = "of the wrapper" };
	struct tess_device own, inner, table;
	int replaced = 0;

	fill_table(&inner, 1000);
	for (int full = 0; full < 2; full++) {
		fill_table(&own, 2000);
		if (!full)
			own = (struct tess_device){ .size = sizeof own, .exact = 1 };
		ck_assert(!tess_wrapped_device_complete(&outer, &own, &inner, "a:b", &table));
		for (size_t at = FIRST; at < sizeof table; at += WORD) {
			if (is_set_by_core(at))
				continue;
			ck_assert_uint_eq(read_table_word(&table, at),
			                  read_table_word(full ? &own : &inner, at));
			replaced += full;
		}
		ck_assert(table.supports && table.supports != inner.supports);
		ck_assert(table.run && table.run != inner.run);
		ck_assert(table.fuses && table.fuses != inner.fuses);
		ck_assert(!table.wrap && !table.rounds && table.layout == TESS_PANELS &&
		          table.exact == 1);
		ck_assert(table.mem == TESS_HOST && table.size == sizeof table);
		ck_assert_str_eq(table.name, "a:b");
		ck_assert_str_eq(table.summary, "of the wrapper");
	}
	ck_assert_int_ge(replaced, 18);
	inner.fuses = NULL;
	ck_assert(!tess_wrapped_device_complete(&outer, &own, &inner, "a:b", &table));
	ck_assert(!table.fuses);
}
END_TEST

START_TEST(wraps_a_limited_number)
{
	static const char *const outer[] = { "mine", "ours", "mine:ours", "ours:mine" },
				 *const inner[] = { "cpu", "discrete", "discrete_exact",
		                                    "discrete_cuda" };
	const struct tess_device *d;
	char name[64];

	for (int i = 0; i < 16; i++) {
		snprintf(name, sizeof name, "%s:%s", outer[i / 4], inner[i % 4]);
		ck_assert_msg(!tess_plugin_find_device(name, &d), "%s", tess_error());
		ck_assert_str_eq(d->name, name);
	}
	for (int i = 0; i < 2; i++)
		expect_device_refused("mine:defective", TESS_ENOTSUP,
		                      "device mine:defective: this process wraps 16 devices");
	ck_assert(!tess_plugin_find_device("mine:cpu", &d) && d->supports);
}
END_TEST

/* ---- ops ------------------------------------------------------------------------------------- */

static tess_status own_answer, inner_answer; /* of supports() */
static int own_runs, inner_runs, inner_fuses;

static tess_status support_own(const struct tess_op *op)
{
	return op->kind == TESS_OP_ADD ? own_answer : tess_fail(TESS_ENOTSUP, "not an ADD");
}

static tess_status support_inner(const struct tess_op *op)
{
	return inner_answer ? tess_fail(inner_answer, "no kind %d", (int)op->kind) : TESS_OK;
}

static tess_status run_own(void *self, const struct tess_op *op)
{
	ck_assert(self == &own_runs && op->kind == TESS_OP_ADD && !op->next);
	own_runs++;
	return TESS_OK;
}

static tess_status run_inner(void *self, const struct tess_op *op)
{
	ck_assert(self == &own_runs && op);
	inner_runs++;
	return TESS_OK;
}

static int32_t fuse_inner(const struct tess_op *op)
{
	ck_assert(op->next);
	inner_fuses++;
	return 1;
}

static void wrap_own(struct tess_device *table)
{
	static const struct tess_device outer = { .name = "outer" };
	static const struct tess_device inner = { .size = sizeof inner,
		                                  .name = "inner",
		                                  .supports = support_inner,
		                                  .run = run_inner,
		                                  .fuses = fuse_inner };
	static const struct tess_device own = { .size = sizeof own,
		                                .supports = support_own,
		                                .run = run_own };

	ck_assert(!tess_wrapped_device_check(&own, &inner));
	ck_assert(!tess_wrapped_device_complete(&outer, &own, &inner, "outer:inner", table));
}

START_TEST(runs_an_op_where_it_is_supported)
{
	struct tess_op add = { .size = sizeof add, .kind = TESS_OP_ADD }, norm = add;
	struct tess_device d;

	norm.kind = TESS_OP_NORM;
	wrap_own(&d);
	ck_assert(!d.supports(&add) && !d.supports(&norm));
	ck_assert(!d.run(&own_runs, &add) && own_runs == 1 && inner_runs == 0);
	ck_assert(!d.run(&own_runs, &norm) && own_runs == 1 && inner_runs == 1);
	inner_answer = TESS_ENOTSUP;
	ck_assert(!d.supports(&add)); /* the inner device need not have it */
	ck_assert_int_eq(d.supports(&norm), TESS_ENOTSUP);
	expect_part(tess_error(), "no kind ");
	inner_answer = TESS_OK;
	own_answer = TESS_ENOTSUP; /* as for other shapes */
	ck_assert(!d.supports(&add) && !d.run(&own_runs, &add));
	ck_assert(own_runs == 1 && inner_runs == 2);
	own_answer = TESS_EINVAL;
	ck_assert_int_eq(d.run(&own_runs, &add), TESS_EINVAL);
	ck_assert(own_runs == 1 && inner_runs == 2);
	expect_part(tess_error(), "supports() failed (TESS_EINVAL) without a sentence");
}
END_TEST

START_TEST(fuses_no_op_of_the_wrapper)
{
	struct tess_op last = { .size = sizeof last, .kind = TESS_OP_NORM }, first = last;
	struct tess_device d;

	wrap_own(&d);
	first.next = &last;
	ck_assert_int_eq(d.fuses(&first), 1);
	ck_assert(!d.run(&own_runs, &first) && inner_runs == 1);
	last.kind = TESS_OP_ADD;
	ck_assert_int_eq(d.fuses(&first), 0);
	last.kind = TESS_OP_NORM;
	first.kind = TESS_OP_ADD;
	ck_assert_int_eq(d.fuses(&first), 0);
	ck_assert_int_eq(inner_fuses, 1);
	/* a step that was fused for other shapes stays with the device that fused it */
	ck_assert(!d.run(&own_runs, &first) && own_runs == 0 && inner_runs == 2);
}
END_TEST

/* ---- faults of a wrapper --------------------------------------------------------------------- */

static const struct {
	const char *fault, *inner, *says;
	tess_status why;
} faults[] = {
	{ "wrap=7", "cpu", "tess-device-mine.so): wrap() returned 7, which is not a status",
	  TESS_EABI },
	{ "wrap=silent", "cpu", "tess-device-mine.so): wrap() failed (TESS_EIO) without",
	  TESS_EIO },
	{ "no table", "cpu", ": wrap() gave no table with supports and run", TESS_EABI },
	{ "no run", "cpu", ": wrap() gave no table with supports and run", TESS_EABI },
	{ "fuses", "cpu", ": the table of wrap() has fuses: a wrapper runs single ops", TESS_EABI },
	{ "inexact", "cpu", ": cpu is exact, and the wrapper is not; ", TESS_ENOTSUP },
	{ "memory", "cpu", ": the wrapper computes on memory of kind 2, and cpu has memory of kind",
	  TESS_ENOTSUP },
	{ "layout", "discrete", ": weights are in the layout of discrete; ", TESS_ENOTSUP },
};

START_TEST(refuses_tables)
{
	const struct tess_device *d;
	char name[64], says[256];

	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
		snprintf(name, sizeof name, "mine:%s", faults[i].inner);
		snprintf(says, sizeof says, "device %s", name);
		use_fault(faults[i].fault);
		expect_device_refused(name, faults[i].why, says);
		expect_part(tess_error(), faults[i].says);
	}
	use_fault("memory");
	ck_assert(!tess_plugin_find_device("mine:discrete_cuda", &d));
	ck_assert_int_eq(d->mem, TESS_CUDA);
	use_fault("inexact");
	ck_assert(!tess_plugin_find_device("mine:discrete", &d));
	ck_assert_int_eq(d->exact, 0);
}
END_TEST

static const struct {
	const char *fault, *says;
} op_faults[] = {
	{ "supports=7",
	  "model.layers.0: device mine:cpu: device mine (|tess-device-mine.so): supports() "
	  "returned 7" },
	{ "supports=refusal", "model.layers.0: device mine:cpu: device mine: no sums today" },
	{ "run=7", "model.layers.0: device mine:cpu: device mine (|run() returned 7" },
	{ "run=silent", "model.layers.0: device mine:cpu: |run() failed (TESS_EIO) without" },
	{ "run=refusal", "model.layers.0: device mine:cpu: device mine: the kernel failed" },
};

/* Generates on `device`, and stores the output, with stderr. Returns the exit status. */
static int generate_on_device(char out[4096], int ranks, const char *device)
{
	return command_run(out, 4096,
	                   "'%s' generate '%s' -n %d --device %s --prompt 'Once upon a time' "
	                   "--temperature 0 --max-tokens 12 --digest 2>&1",
	                   getenv("TOOL"), getenv("DATA_DIR"), ranks, device);
}

START_TEST(names_both_devices)
{
	char out[4096], says[512];

	use_fault(op_faults[_i].fault);
	ck_assert_int_eq(generate_on_device(out, 2, "mine:cpu"), 1);
	snprintf(says, sizeof says, "%s", op_faults[_i].says);
	for (char *part = strtok(says, "|"); part; part = strtok(NULL, "|"))
		expect_part(out, part);
}
END_TEST

/* ---- results --------------------------------------------------------------------------------- */

static void expect_digest(int ranks, const char *device, const char *expected)
{
	char out[4096];

	ck_assert_msg(!generate_on_device(out, ranks, device), "%s", out);
	ck_assert_msg(strstr(out, "digest "), "%s", out);
	ck_assert_msg(!strcmp(strstr(out, "digest "), strstr(expected, "digest ")), "%s: %s",
	              device, out);
}

START_TEST(has_the_bits_of_the_inner_device)
{
	char expected[4096], out[4096];

	ck_assert_msg(!generate_on_device(expected, 1, "cpu"), "%s", expected);
	expect_digest(1, "mine:cpu", expected);
	expect_digest(3, "mine:ours:cpu:0", expected);
	expect_digest(3, "mine:discrete_exact:1", expected);
	ck_assert(!setenv("DISCRETE_FUSES", "1", 1));
	expect_digest(2, "mine:discrete_exact", expected);
	/* the wrapper computes: a fault in one module changes the logits */
	use_fault("wrong");
	ck_assert_msg(!generate_on_device(out, 1, "mine:cpu"), "%s", out);
	ck_assert_str_ne(strstr(out, "digest "), strstr(expected, "digest "));
}
END_TEST

START_TEST(trains_as_the_inner_device)
{
	char out[2][4096];

	for (int i = 0; i < 2; i++) {
		command_run(out[i], sizeof out[i],
		            "'%s' train '%s' --data '%s/texts/stories.jsonl' -n 2 --sequence 32 "
		            "--batch 2 --steps 2 --digest --device %s 2>&1 | "
		            "grep -E '^(losses|weights) '",
		            getenv("TOOL"), getenv("DATA_DIR"), getenv("DATA_DIR"),
		            i ? "mine:discrete_exact" : "discrete_exact");
		expect_part(out[i], "weights ");
	}
	ck_assert_str_eq(out[0], out[1]);
}
END_TEST

/* The records that are marked by + are fused with the one before. */
START_TEST(fuses_as_the_inner_device)
{
	char out[2][1 << 15];

	ck_assert(!setenv("DISCRETE_FUSES", "1", 1));
	for (int i = 0; i < 2; i++)
		ck_assert(!command_run(out[i], sizeof out[i],
		                       "'%s' explain '%s' --program --device %s", getenv("TOOL"),
		                       getenv("DATA_DIR"), i ? "mine:discrete" : "discrete"));
	expect_part(out[0], " +norm ");
	expect_part(out[0], " +glu ");
	expect_part(out[1], " +glu ");
	ck_assert_ptr_null(strstr(out[1], " +norm "));
}
END_TEST

/* GPU_DEVICE: an emulated GPU, with streams, graphs and fused steps. */
START_TEST(has_the_bits_of_a_gpu)
{
	const char *gpu = getenv("GPU_DEVICE");
	char expected[4096], out[4096], wrapped[64];

	if (!gpu)
		return;
	snprintf(wrapped, sizeof wrapped, "mine:%s:1", gpu);
	ck_assert_msg(!generate_on_device(expected, 2, gpu), "%s", expected);
	expect_digest(2, wrapped, expected);
	use_fault("wrong");
	ck_assert_msg(!generate_on_device(out, 2, wrapped), "%s", out);
	ck_assert_str_ne(strstr(out, "digest "), strstr(expected, "digest "));
}
END_TEST

START_TEST(is_listed)
{
	static char out[1 << 18];

	ck_assert(!command_run(out, sizeof out, "TESSERA_DEVICE=mine:discrete:1 '%s' info",
	                       getenv("TOOL")));
	expect_part(out, "mine: adds on the host\n"
	                 "      wraps another device: TESSERA_DEVICE=mine:NAME[:INDEX]\n");
	expect_part(out, "\nTESSERA_DEVICE=mine:discrete:1: 2 devices, own memory, weights in rows,"
	                 " fast sums\n");
	ck_assert(
		!command_run(out, sizeof out, "TESSERA_DEVICE=mine:gpu '%s' info", getenv("TOOL")));
	expect_part(out, "\nTESSERA_DEVICE=mine:gpu: none (device mine:gpu: device gpu: not found");
	ck_assert(!command_run(out, sizeof out, "'%s' info --json", getenv("TOOL")));
	expect_part(out, "\"wraps\": true");
}
END_TEST

int main(void)
{
	SRunner *runner;
	TCase *tcase = suite_begin("wrapped_device", 120, &runner);

	tcase_add_test(tcase, splits_names);
	tcase_add_test(tcase, refuses_names);
	tcase_add_test(tcase, passes_on_every_field);
	tcase_add_test(tcase, wraps_a_limited_number);
	tcase_add_test(tcase, runs_an_op_where_it_is_supported);
	tcase_add_test(tcase, fuses_no_op_of_the_wrapper);
	tcase_add_test(tcase, refuses_tables);
	tcase_add_loop_test(tcase, names_both_devices, 0, sizeof op_faults / sizeof *op_faults);
	tcase_add_test(tcase, has_the_bits_of_the_inner_device);
	tcase_add_test(tcase, trains_as_the_inner_device);
	tcase_add_test(tcase, fuses_as_the_inner_device);
	tcase_add_test(tcase, has_the_bits_of_a_gpu);
	tcase_add_test(tcase, is_listed);
	return suite_end(runner);
}
