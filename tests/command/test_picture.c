/*
 * test_picture.c - tessera explain --svg: the picture is XML without external references, shows the
 * share of each parameter on each rank, and every move and kind of layer.
 */
#include "tests/support/command.h"
#include "tests/support/scratch.h"
#include "tests/support/xml.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>

static char picture[1 << 21];

/* Draws into `picture`, which must be well-formed; `args`: arguments of explain. */
static void draw_picture(const char *args)
{
	char text[1 << 16];
	FILE *f;

	ck_assert_msg(!command_run(text, sizeof text, "cd '%s' && '%s' explain %s --svg '%s' 2>&1",
	                           SOURCE_ROOT, TESSERA, args, scratch_format_path("picture.svg")),
	              "%s", text);
	expect_part(text, "memory of a rank"); /* the table too */
	f = fopen(scratch_format_path("picture.svg"), "r");
	ck_assert_ptr_nonnull(f);
	picture[fread(picture, 1, sizeof picture - 1, f)] = 0;
	fclose(f);
	ck_assert(is_well_formed(picture));
	ck_assert(!strstr(picture, "<script") && !strstr(picture, "href") &&
	          !strstr(picture, "url(") && !strstr(picture, "nan") && !strstr(picture, "inf"));
}

static int count_parts(const char *part)
{
	int n = 0;

	for (const char *at = picture; (at = strstr(at, part)); at += strlen(part))
		n++;
	return n;
}

static double read_attribute(const char *tag, const char *name)
{
	char key[16];
	const char *at;

	snprintf(key, sizeof key, " %s=\"", name);
	at = strstr(tag, key);
	ck_assert_ptr_nonnull(at);
	return strtod(at + strlen(key), NULL);
}

/*
 * Checks that the filled area of each box is the share in its title, "16 of 64, 64 of 64". Returns
 * the number of boxes; *whole: of full ones.
 */
static int expect_shares(int *whole)
{
	const char *at = picture, *end;
	int n = 0;

	*whole = 0;
	for (; (at = strstr(at, "<g><title>rank ")); at = end, n++) {
		const char *box = strstr(at, "<rect class=\"box"), *title = strchr(at, ':');
		double share = 1, filled = 0, area;

		end = strstr(at, "</g>");
		for (const char *t = title; t && t < strstr(at, "</title>");
		     t = strchr(t + 1, ',')) {
			double part, all;

			ck_assert_int_eq(sscanf(t + 1, "%lf of %lf", &part, &all), 2);
			share *= part / all;
		}
		area = read_attribute(box, "width") * read_attribute(box, "height");
		for (const char *r = strstr(box + 1, "<rect"); r && r < end;
		     r = strstr(r + 1, "<rect"))
			filled += read_attribute(r, "width") * read_attribute(r, "height");
		*whole += share == 1;
		if (!strstr(box, "box tied") || strstr(box, "box tied") > end)
			ck_assert_msg(fabs(filled / area - share) < 0.02, "%.300s: %g of %g", at,
			              filled / area, share);
	}
	return n;
}

/*
 * Checks columns of a plan in one dimension: the part of each rank of 3 begins where the last one
 * ends.
 */
static void expect_staircase(const char *name, int ranks)
{
	char title[96];
	const char *at;
	double last = 0;

	snprintf(title, sizeof title, ">%s</text>", name);
	at = strstr(picture, title);
	ck_assert_ptr_nonnull(at);
	for (at -= 1; strncmp(at, "<g><title>rank 0", 16) != 0; at--) /* its boxes precede it */
		ck_assert(at > picture);
	for (int r = 0; r < ranks; r++, at = strstr(at + 1, "<g><title>rank ")) {
		const char *box = strstr(at, "<rect class=\"box"), *held = strstr(box + 1, "<rect");
		double from = read_attribute(held, "x") - read_attribute(box, "x");

		ck_assert_msg(fabs(from - last) < 0.1, "rank %d: %g, not %g", r, from, last);
		last = from + read_attribute(held, "width");
	}
}

/* Returns whether part of this module is drawn: only the first layer of each kind is. */
static bool is_drawn(const char *name, const char *layers)
{
	const char *at = strstr(name, ".layers.");

	return !at || strchr(layers, at[8]);
}

static const struct {
	const char *args, *layers, *title; /* drawn layers, and the last one's title */
	int ranks, tied;
} cases[] = {
	{ "data -n 3", "0", "layers 0 to 4: 5 alike", 3, 1 },
	{ "data -n 4 --plan tp+sp --tokens 100", "0", "layers 0 to 4: 5 alike", 4, 1 },
	{ "data --mesh dp=2,tp=4", "0", "layers 0 to 4: 5 alike", 8, 1 },
	{ "tests/data/goldens/llama-odd -n 3", "0", "layers 0 to 1: 2 alike", 3, 1 },
	{ "tests/data/goldens/qwen2 --mesh tp=2,dp=3", "0", "layers 0 to 1: 2 alike", 6, 1 },
	{ "tests/data/goldens/phi3-partial -n 2", "0", "layers 0 to 1: 2 alike", 2, 0 },
	{ "data --mesh xp=2,tp=3 --plan '{\"tp\":{\"**.up_proj\":\"colwise_rep\"},\"xp\":"
	  "{\"**.up_proj\":\"rowwise\"}}'",
	  "0", "layers 0 to 4: 5 alike", 6, 1 },
	{ "data -n 2 --plan-override model.layers.2.mlp.gate_proj=replicate --plan-override "
	  "model.layers.2.mlp.up_proj=replicate --plan-override "
	  "model.layers.2.mlp.down_proj=replicate",
	  "02", "layer 2", 2, 1 },
	{ "tests/data/goldens/qwen3_moe --mesh tp=2,ep=3 --plan ep", "01", "layer 1", 6, 0 },
	{ "tests/data/goldens/deepseek_v3 -n 3 --plan ep", "01", "layers 1 to 2: 2 alike", 3, 0 },
	{ "data", "0", "layers 0 to 4: 5 alike", 1, 1 },
};
enum { CASES = sizeof cases / sizeof *cases };

START_TEST(draws_what_is_held)
{
	static char text[1 << 20];
	json_t *all, *value;
	int boxes = cases[_i].tied, moves = 0, whole = 0;
	size_t i;

	ck_assert_int_eq(command_run(text, sizeof text, "cd '%s' && '%s' explain %s --json",
	                             SOURCE_ROOT, TESSERA, cases[_i].args),
	                 0);
	all = json_loads(text, 0, NULL);
	json_array_foreach(json_object_get(all, "parameters"), i, value)
		boxes += is_drawn(json_string_value(json_object_get(value, "name")),
		                  cases[_i].layers);
	json_array_foreach(json_object_get(all, "collectives"), i, value)
		moves += is_drawn(json_string_value(json_object_get(value, "module")),
		                  cases[_i].layers);
	json_decref(all);
	draw_picture(cases[_i].args);
	ck_assert_int_eq(expect_shares(&whole), boxes * cases[_i].ranks);
	ck_assert_int_gt(whole, 0);
	ck_assert_int_eq(count_parts(">a rank sends "), moves);
	snprintf(text, sizeof text, "\">%s</text>", cases[_i].title);
	expect_part(picture, text);
}
END_TEST

START_TEST(draws_where_it_lies)
{
	draw_picture("data -n 3");
	expect_staircase("self_attn.q_proj", 3);
	expect_staircase("mlp.down_proj", 3);
	draw_picture("tests/data/goldens/llama-odd -n 3 --plan tp+sp");
	expect_staircase("mlp.up_proj", 3);
}
END_TEST

/* Draws some of many ranks; names with XML's own characters, and long ones. */
START_TEST(many_ranks_and_odd_names)
{
	char text[4096], folder[] = "<a>&amp;\"'\xff \xc3\xa9", args[512];

	scratch_make_folder(folder);
	ck_assert(!command_run(text, sizeof text, "cp '%s' '%s/<a>&amp;\"'\\''\xff \xc3\xa9/'",
	                       format_data_path("config.json"), scratch));
	snprintf(args, sizeof args, "'%s/<a>&amp;\"'\\''\xff \xc3\xa9' --mesh dp=64,tp=8", scratch);
	draw_picture(args);
	expect_part(picture, "&#60;a&#62;&#38;amp;&#34;'? \xc3\xa9</text>");
	ck_assert_int_eq(count_parts("head\" x="), 16 + 4); /* including the titles of sections */
	expect_part(picture, ": 512 ranks, 16 of them drawn; ");
	expect_part(picture, ">dp 63</text>");
	expect_part(picture, ">rank 511</text>");
}
END_TEST

START_TEST(draws_a_timeline)
{
	const char *times = scratch_write_text("times.json", "{\"F\": 0.5, \"I\": 1, \"W\": 0.5}");
	char text[1 << 16];
	FILE *f;

	ck_assert_msg(!command_run(text, sizeof text,
	                           "'%s' explain '%s' --train --mesh pp=2,tp=2 --micro-batches 4 "
	                           "--pipeline-schedule interleaved:2 --timeline '%s' 2>&1",
	                           TESSERA, format_data_path(""), scratch_format_path("line.svg")),
	              "%s", text);
	expect_part(text, "(a micro-batch of 2 sequences of 512 tokens, one of 4: values of all");
	expect_part(text, "a step takes 27, work 24: bubble 12.5% of the work");
	f = fopen(scratch_format_path("line.svg"), "r");
	ck_assert_ptr_nonnull(f);
	picture[fread(picture, 1, sizeof picture - 1, f)] = 0;
	fclose(f);
	ck_assert(is_well_formed(picture));
	ck_assert(!strstr(picture, "nan") && !strstr(picture, "inf"));
	ck_assert_int_eq(count_parts("<title>"), 2 * 4 * 4); /* both ways, stages, micro-batches */
	ck_assert_int_eq(count_parts("<rect class=\"F later\""), 2 * 4);
	ck_assert_int_eq(count_parts("<path class=\"kept\""), 2);
	expect_part(picture, "2 ranks along pp, 4 stages, 4 micro-batches; a step takes 27, ");
	ck_assert(!command_run(text, sizeof text,
	                       "'%s' explain '%s' --train --mesh pp=2 --micro-batches 2 "
	                       "--timeline-times '%s' 2>&1",
	                       TESSERA, format_data_path(""), times));
	expect_part(text, "a step takes 12, work 8: bubble 50.0% of the work");
	expect_part(text, "unit of time: the shortest computation, 0.5 of the times given");
	/* without stages, too: the gradient of a tied head is apart */
	ck_assert(!command_run(text, sizeof text, "'%s' explain '%s' --train --micro-batches 2",
	                       TESSERA, format_data_path("")));
	expect_part(text, "0                           1    1.04 MB    1.17 MB ");
	expect_part(text, "(a micro-batch of 4 sequences of 512 tokens, one of 2: values of all");
}
END_TEST

START_TEST(says_why_it_cannot)
{
	char text[4096];

	ck_assert_int_eq(command_run(text, sizeof text,
	                             "'%s' explain '%s' --svg /nowhere/x.svg 2>&1", TESSERA,
	                             format_data_path("")),
	                 1);
	ck_assert_str_eq(text,
	                 "tessera explain: --svg /nowhere/x.svg: No such file or directory\n");
	ck_assert_int_eq(command_run(text, sizeof text,
	                             "'%s' explain '%s' --svg /dev/full 2>&1 >/dev/null", TESSERA,
	                             format_data_path("")),
	                 1);
	ck_assert_str_eq(text, "tessera explain: --svg /dev/full: No space left on device\n");
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("picture", 60, &r);
	int failed;

	scratch_make();
	tcase_add_loop_test(t, draws_what_is_held, 0, CASES);
	tcase_add_test(t, draws_where_it_lies);
	tcase_add_test(t, many_ranks_and_odd_names);
	tcase_add_test(t, draws_a_timeline);
	tcase_add_test(t, says_why_it_cannot);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}
