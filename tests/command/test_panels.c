/*
 * test_panels.c - the storage of weights on ranks: the decisions, panels that are packed between
 * steps, and weights that 12 bits cannot store.
 */
#include "api/session.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "hf/safetensors.h"
#include "nn/weights/weights.h"
#include "tests/support/command.h"
#include "tests/support/scratch.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

enum { TEXT = 4096 };

static const struct {
	const char *model, *plan;
} cases[] = {
	{ "data", NULL },
	{ "tests/data/goldens/llama-odd", NULL },
	{ "tests/data/goldens/llama-bf16", NULL },
	{ "tests/data/stories260K-f16", "{\"**.mlp.gate_proj\":\"rowwise\"}" },
	{ "tests/data/stories260K-sharded", NULL },
	{ "tests/data/goldens/phi3", NULL }, /* fused parts, each cut by rank */
	{ "tests/data/goldens/gpt2", NULL }, /* stored [in, out] */
	{ "tests/data/goldens/mixtral", NULL }, /* experts */
	{ "tests/data/goldens/deepseek_v3", NULL }, /* parts of heads */
};

struct opened {
	struct tess_planned_model model;
	struct tess_program *program;
	struct tess_rank_weights held;
};

static void open_packed_case(int i, int32_t nranks, struct opened *o)
{
	struct tess_session_options options = { .size = sizeof options, .plan = cases[i].plan };
	struct tess_mesh_shape mesh = tess_mesh_shape_make("tp", nranks);
	const char *model = format_path_in(SOURCE_ROOT, cases[i].model);

	*o = (struct opened){ 0 };
	ck_assert_msg(!tess_planned_model_open(model, &options, TESS_CHECKPOINT_WHOLE, &o->model) &&
	                      !tess_planned_model_record(&o->model, &mesh, 1, 1, &o->program),
	              "%s", tess_error());
}

static void load_rank(struct opened *o, int32_t rank, const struct tess_opened_device *cpu)
{
	ck_assert_msg(
		!tess_rank_weights_load(o->program, &o->model.source, rank, cpu, NULL, &o->held),
		"%s", tess_error());
}

static void close_packed_case(struct opened *o)
{
	tess_program_free(o->program);
	tess_planned_model_close(&o->model);
}

static const char *find_element(const struct tess_view *v, int64_t e, int64_t o, int64_t i)
{
	const int64_t *stride = v->stride + (v->ndim == 3);
	int64_t at = (v->ndim == 3 ? e * v->stride[0] : 0) +
	             (v->layout == TESS_PANELS ? o / 16 * stride[0] + i * 16 + o % 16
	                                       : o * stride[0] + (v->ndim > 1 ? i * stride[1] : 0));

	return (const char *)v->data + at * (int64_t)tess_width(v->dtype);
}

static void check_view(const struct tess_weight *w, const struct tess_view *have,
                       const struct tess_view *want)
{
	const int64_t *shape = want->shape + (want->ndim == 3);
	uint64_t width = tess_width(want->dtype);

	ck_assert(have->ndim == want->ndim && have->dtype == want->dtype &&
	          have->layout == want->layout &&
	          !memcmp(have->shape, want->shape, (size_t)want->ndim * sizeof *shape));
	if (w->heads) { /* neither is mapped */
		MUST(!memcmp(have->data, want->data,
		             (uint64_t)(shape[0] / w->dim[0]->unit_size * want->stride[0]) *
		                     width));
		return;
	}
	for (int64_t e = 0; e < (want->ndim == 3 ? want->shape[0] : 1); e++)
		for (int64_t o = 0; o < shape[0]; o++)
			for (int64_t i = 0; i < (want->ndim > 1 ? shape[1] : 1); i++)
				MUST(!memcmp(find_element(have, e, o, i),
				             find_element(want, e, o, i), width));
}

static bool has_same_elements(const struct tess_view *a, const struct tess_view *b)
{
	bool same = true;

	for (int64_t o = 0; o < a->shape[0]; o++)
		for (int64_t i = 0; i < a->shape[1]; i++)
			same = same && !memcmp(find_element(a, 0, o, i), find_element(b, 0, o, i),
			                       tess_width(a->dtype));
	return same;
}

/* Checks case `_i`: a rank's rows of the mapping are equal in panels, one by one. */
START_TEST(rows_become_panels)
{
	struct tess_opened_device cpu = { 0 };
	struct opened panels, later;
	int32_t rows = 0, waiting;
	bool changed;

	MUST(!tess_option_add("nn/weights/decide.c", tess_weights_options));
	ck_assert_msg(!tess_plugin_find_device("cpu", &cpu.table) &&
	                      !cpu.table->open(0, 2, &cpu.self),
	              "%s", tess_error());
	for (int32_t n = 1; n <= 2; n++) {
		open_packed_case(_i, n, &panels);
		open_packed_case(_i, n, &later);
		tess_option_set("layout", "panels");
		load_rank(&panels, n - 1, &cpu);
		tess_option_set("layout", "");
		load_rank(&later, n - 1, &cpu);
		do {
			waiting = 0;
			for (int32_t k = 0; k < later.held.n; k++) {
				const struct tess_view *have = &later.held.view[k];

				if (have->layout == panels.held.view[k].layout)
					continue;
				waiting += !later.program->weight[k]->table;
				MUST(has_same_elements(have, &panels.held.view[k]));
			}
			rows += waiting;
			ck_assert_msg(!tess_rank_weights_pack(&later.held, 1, &changed), "%s",
			              tess_error());
			MUST(changed == (waiting > 0));
		} while (waiting);
		ck_assert_ptr_null(later.held.loader);
		for (int32_t k = 0; k < later.held.n; k++)
			check_view(later.program->weight[k], &later.held.view[k],
			           &panels.held.view[k]);
		ck_assert_uint_eq(later.held.bytes, panels.held.bytes);
		tess_rank_weights_free(&later.held);
		tess_rank_weights_free(&panels.held);
		close_packed_case(&later);
		close_packed_case(&panels);
	}
	ck_assert_int_gt(rows, 0);
	cpu.table->close(cpu.self);
}
END_TEST

/* ---- decisions ------------------------------------------------------------------------------- */

/* The decisions of a rank: times, kind, dtype, mapped and allocated bytes, reason. */
static const struct {
	const char *model, *mesh, *override, *layout;
	int32_t nranks, rank, weights;
	bool trains, own_memory;
	const char *want;
} decided[] = {
	{ "data", "tp", NULL, "", 2, 0, 0, false, false,
	  "36 mapped, then panels f32 518656 544256: packed between steps\n"
	  "11 mapped rows f32 2816 0: read as stored\n"
	  "1 tied f32 0 0: the head reads its table\n" },
	{ "data", "tp", NULL, "rows", 2, 0, 0, false, false,
	  "47 mapped rows f32 521472 0: read as stored\n"
	  "1 tied f32 0 0: the head reads its table\n" },
	{ "data", "tp", NULL, "panels", 2, 1, 0, false, false,
	  "36 panels f32 0 544256: TESSERA_LAYOUT\n"
	  "11 mapped rows f32 2816 0: read as stored\n"
	  "1 tied f32 0 0: the head reads its table\n" },
	{ "data", "tp", NULL, "", 1, 0, TESS_Q8, false, false,
	  "12 mapped rows f32 133888 0: read as stored\n"
	  "36 compressed panels q8 0 334080: linear ops read it\n" },
	{ "data", "tp", NULL, "", 1, 0, TESS_MXFP4, false, false,
	  "12 mapped rows f32 133888 0: read as stored\n"
	  "36 compressed panels mxfp4 0 180480: linear ops read it\n" },
	{ "data", "tp", NULL, "rows", 2, 0, 0, false, true,
	  "47 rows f32 0 521472: the device has memory of its own\n"
	  "1 tied f32 0 0: the head reads its table\n" },
	{ "data", "pp", NULL, "", 2, 1, 0, false, false,
	  "28 elsewhere f32 0 0: another stage has it\n"
	  "5 mapped rows f32 1280 0: read as stored\n"
	  "15 mapped, then panels f32 493568 497664: packed between steps\n" },
	{ "data", "dp=2", "dp:**=zero3", "", 2, 1, 0, true, false,
	  "47 share of rows f32 0 520064: cut along dp at rest\n"
	  "1 tied f32 0 0: the head reads its table\n" },
	{ "tests/data/goldens/gpt2", "tp", NULL, "", 1, 0, 0, false, false,
	  "19 mapped rows f32 20736 0: read as stored\n"
	  "1 mapped, then panels f32 18624 21504: packed between steps\n"
	  "8 panels f32 0 221184: stored [in, out]\n"
	  "1 tied f32 0 0: the head reads its table\n" },
	{ "tests/data/goldens/phi3", "tp", NULL, "", 2, 0, 0, false, false,
	  "6 mapped rows f32 13568 0: read as stored\n"
	  "4 panels f32 0 73728: not in one piece, or not mapped\n"
	  "5 mapped, then panels f32 50176 50176: packed between steps\n" },
	{ "tests/data/goldens/mixtral", "tp", NULL, "", 2, 0, 0, false, false,
	  "6 mapped rows f32 6784 0: read as stored\n"
	  "11 mapped, then panels f32 20480 26624: packed between steps\n"
	  "4 panels f32 0 98304: experts\n" },
	{ "tests/data/goldens/gpt_oss-mxfp4", "tp", NULL, "", 2, 0, TESS_Q8, false, false,
	  "11 mapped rows bf16 10944 0: read as stored\n"
	  "6 compressed panels q8 0 15936: linear ops read it\n"
	  "1 mapped, then panels bf16 1536 3072: packed between steps\n"
	  "2 compressed panels mxfp4 0 156672: stored in MXFP4\n" },
	{ "tests/data/goldens/gpt_oss-mxfp4", "tp", NULL, "", 2, 0, TESS_BF16, false, false,
	  "11 mapped rows bf16 10944 0: read as stored\n"
	  "6 mapped, then panels bf16 22848 27648: packed between steps\n"
	  "2 panels bf16 0 589824: experts\n"
	  "1 panels bf16 0 1536: stored [in, out]\n" },
	{ "tests/data/goldens/deepseek_v3", "tp", NULL, "", 1, 0, 0, false, false,
	  "16 mapped rows f32 12816 0: read as stored\n"
	  "24 mapped, then panels f32 81152 83968: packed between steps\n"
	  "3 panels f32 0 15360: packed head by head\n"
	  "4 panels f32 0 98304: experts\n" },
};

static void format_weights(const struct tess_weight_storage *list, int32_t n, char *text)
{
	bool seen[256] = { false };
	size_t len = 0;

	*text = 0;
	for (int32_t i = 0; i < n; i++) {
		struct tess_weight_storage sum = list[i];
		int times = 1;

		for (int32_t k = i + 1; k < n && !seen[i]; k++) {
			const struct tess_weight_storage *w = &list[k];

			if (w->kind != sum.kind || w->dtype != sum.dtype || w->reason != sum.reason)
				continue;
			seen[k] = true;
			times++;
			sum.mapped += w->mapped;
			sum.bytes += w->bytes;
		}
		if (!seen[i])
			len += (size_t)snprintf(text + len, TEXT - len, "%d %s %s %llu %llu: %s\n",
			                        times, sum.kind, tess_dtype_name(sum.dtype),
			                        (unsigned long long)sum.mapped,
			                        (unsigned long long)sum.bytes, sum.reason);
	}
}

static const struct tess_device *cpu_device;
static uint64_t allocated;

static tess_status count_alloc(void *self, uint64_t bytes, void **out)
{
	allocated += bytes;
	return cpu_device->alloc(self, bytes, out);
}

/*
 * Checks that the sums of the list are the loaded bytes; memory of a device is one block of them.
 */
static void check_sums(const struct tess_rank_weights *held)
{
	uint64_t mapped = 0, bytes = 0, block = 0;

	for (int32_t i = 0; i < held->n; i++) {
		const struct tess_weight_decision *d = &held->decision[i];

		mapped += d->mapped;
		bytes += d->kind == TESS_STORE_WAITING ? 0 : d->bytes;
		block += d->kind < TESS_STORE_ROWS ? 0 : (d->bytes + 255) / 256 * 256;
	}
	ck_assert_uint_eq(held->mapped, mapped);
	ck_assert_uint_eq(held->bytes, bytes);
	if (held->device.table->mem != TESS_HOST)
		ck_assert_uint_eq(allocated, block);
}

static void open_decided_case(int i, const struct tess_session_options *options, struct opened *o)
{
	static const int64_t lengths[] = { 4 };
	static const struct tess_training training = {
		.lengths = lengths, .nsequences = 1, .all_sequences = 2, .first = 1
	};
	struct tess_mesh_shape mesh;
	tess_status st;

	*o = (struct opened){ 0 };
	ck_assert_msg(!tess_planned_model_open(format_path_in(SOURCE_ROOT, decided[i].model),
	                                       options, TESS_CHECKPOINT_WHOLE, &o->model) &&
	                      !tess_mesh_shape_parse(decided[i].mesh, decided[i].nranks, &mesh),
	              "%s", tess_error());
	mesh = tess_mesh_shape_complete(&mesh);
	st = decided[i].trains ? tess_planned_model_record_training(&o->model, &mesh, &training,
	                                                            NULL, &o->program)
	                       : tess_planned_model_record(&o->model, &mesh, 1, 1, &o->program);
	ck_assert_msg(!st, "%s", tess_error());
}

/* Checks that `explain` lists the decisions of loading. */
static void check_explained(int i, const struct tess_session_options *options,
                            const struct tess_weight_storage *list, int32_t n)
{
	const char *model = format_path_in(SOURCE_ROOT, decided[i].model);
	const struct tess_trainer_options training = { .size = sizeof training,
		                                       .overrides = options->overrides };
	struct tess_weight_storage explained[256];
	struct tess_explanation *e;
	tess_status st =
		decided[i].trains
			? tess_explain_training(model, decided[i].mesh, decided[i].nranks, 2, 4,
	                                        &training, &e)
			: tess_explain(model, decided[i].mesh, decided[i].nranks, 1, options, &e);

	ck_assert_msg(!st, "%s", tess_error());
	ck_assert_int_eq(e->nparameters, n);
	ck_assert(!tess_explanation_list_weights(e, decided[i].rank, explained));
	for (int32_t k = 0; k < n; k++) {
		ck_assert_str_eq(explained[k].name, list[k].name);
		explained[k].name = list[k].name;
	}
	ck_assert_mem_eq(explained, list, (size_t)n * sizeof *list);
	tess_explanation_free(e);
}

/* Checks entry `_i` of `decided`. Waiting weights are panels once they are packed. */
START_TEST(decisions_are_executed)
{
	struct tess_opened_device device = { 0 };
	const char *const overrides[] = { decided[_i].override, NULL };
	const struct tess_session_options options = { .size = sizeof options,
		                                      .overrides = overrides,
		                                      .weights = decided[_i].weights };
	struct tess_weight_storage list[256];
	struct tess_device own;
	struct opened o;
	char text[TEXT];
	bool changed;

	MUST(!tess_option_add("nn/weights/decide.c", tess_weights_options));
	ck_assert(!tess_plugin_find_device("cpu", &cpu_device) &&
	          !cpu_device->open(0, 1, &device.self));
	own = *cpu_device;
	own.alloc = count_alloc;
	own.mem = decided[_i].own_memory ? TESS_MEM_MAX : TESS_HOST;
	device.table = &own;
	tess_option_set("layout", decided[_i].layout);
	allocated = 0;
	open_decided_case(_i, &options, &o);
	load_rank(&o, decided[_i].rank, &device);
	ck_assert_int_le(o.held.n, 256);
	tess_weight_decisions_describe(o.held.decision, o.held.n, list);
	format_weights(list, o.held.n, text);
	ck_assert_str_eq(text, decided[_i].want);
	check_sums(&o.held);
	if (!decided[_i].own_memory)
		check_explained(_i, &options, list, o.held.n);
	MUST(!tess_rank_weights_pack(&o.held, INT64_MAX / 2, &changed));
	MUST(changed == !!strstr(text, "mapped, then panels"));
	check_sums(&o.held);
	for (int32_t i = 0; i < o.held.n; i++)
		MUST(o.held.decision[i].kind != TESS_STORE_WAITING);
	tess_rank_weights_free(&o.held);
	close_packed_case(&o);
	tess_option_set("layout", "");
	cpu_device->close(device.self);
}
END_TEST

static tess_status fail_alloc(void *self, uint64_t bytes, void **out)
{
	(void)self, (void)bytes, (void)out;
	return tess_fail(TESS_ENOMEM, "out of memory");
}

/* Checks that weights stay rows if memory runs out while they are queued. */
START_TEST(rows_stay_without_memory)
{
	struct tess_opened_device cpu = { 0 };
	struct tess_device poor;
	struct tess_view *rows;
	struct opened o;
	bool changed;

	MUST(!tess_option_add("nn/weights/decide.c", tess_weights_options));
	ck_assert(!tess_plugin_find_device("cpu", &cpu.table) && !cpu.table->open(0, 1, &cpu.self));
	open_packed_case(0, 1, &o);
	load_rank(&o, 0, &cpu);
	rows = malloc((size_t)o.held.n * sizeof *rows);
	memcpy(rows, o.held.view, (size_t)o.held.n * sizeof *rows);
	poor = *cpu.table;
	poor.alloc = fail_alloc;
	o.held.device.table = &poor;
	ck_assert_int_eq(tess_rank_weights_pack(&o.held, 1, &changed), TESS_OK);
	ck_assert(!changed && !o.held.loader);
	ck_assert(!memcmp(rows, o.held.view, (size_t)o.held.n * sizeof *rows));
	check_sums(&o.held);
	tess_rank_weights_free(&o.held);
	free(rows);
	close_packed_case(&o);
	cpu.table->close(cpu.self);
}
END_TEST

/* Runs `tessera ARGS`; returns the exit status, with all output in `text`. */
static int run_tessera(const char *args, const char *model, const char *rest, char *text)
{
	return command_run(text, TEXT, "'%s' %s '%s' %s 2>&1", TESSERA, args, model, rest);
}

static void generate_digest(const char *model, int ranks, const char *more, char digest[80])
{
	char text[TEXT], rest[128];
	const char *at;

	snprintf(rest, sizeof rest,
	         "-n %d --backend loopback --ids 1,403 --max-tokens 8 --temperature 0 --json %s",
	         ranks, more);
	ck_assert_msg(!run_tessera("generate", model, rest, text), "%s", text);
	at = strstr(text, "\"digest\":\"");
	ck_assert_msg(at && sscanf(at, "\"digest\":\"%64[0-9a-f]", digest) == 1, "%s", text);
}

/* Writes the checkpoint in bf16, with 30 exponents in some weights. */
static void write_odd_weights(const char *folder, const char *const *names, int n)
{
	static const char from[] = SOURCE_ROOT "/tests/data/stories260K-bf16";
	struct tess_slice slices[64];
	struct tess_safetensors *f;
	uint16_t *changed[4] = { NULL };
	char text[TEXT], path[64];
	int32_t count = 0;

	ck_assert(!tess_safetensors_open(format_path_in(from, "model.safetensors"), false, &f));
	for (; count < (int32_t)tess_safetensors_count(f); count++) {
		slices[count] = *tess_safetensors_at(f, (size_t)count);
		for (int i = 0; i < n; i++) {
			if (strcmp(slices[count].name, names[i]))
				continue;
			changed[i] = malloc(slices[count].bytes);
			memcpy(changed[i], slices[count].data, slices[count].bytes);
			for (uint64_t j = 0; j < slices[count].bytes / 2; j++)
				changed[i][j] =
					(uint16_t)((changed[i][j] & 0x807f) | (90 + j % 30) << 7);
			slices[count].data = changed[i];
		}
	}
	scratch_make_folder(folder);
	snprintf(path, sizeof path, "%s/model.safetensors", folder);
	ck_assert(!tess_safetensors_write(scratch_format_path(path), count, slices));
	for (int i = 0; i < n; i++) {
		ck_assert_ptr_nonnull(changed[i]);
		free(changed[i]);
	}
	tess_safetensors_close(f);
	ck_assert(!command_run(text, TEXT, "cp '%s/config.json' '%s'", from,
	                       scratch_format_path(folder)));
}

/*
 * Checks that weights that --weights bf12 cannot store do not change, and that the others change no
 * bit.
 */
START_TEST(weights_in_12_bits)
{
	static const char *const odd[] = { "model.embed_tokens.weight", /* and tied embeddings */
		                           "model.layers.1.mlp.down_proj.weight" };
	char text[TEXT], want[80], have[80];

	write_odd_weights("odd", odd, 2);
	for (int n = 1; n <= 3; n += 2) {
		generate_digest(scratch_format_path("odd"), n, "", want);
		generate_digest(scratch_format_path("odd"), n, "--weights bf12", have);
		ck_assert_str_eq(have, want);
	}
	setenv("TESSERA_LOG", "info", 1);
	ck_assert(!run_tessera("generate --ids 1 --max-tokens 2 --weights bf12 --stats",
	                       scratch_format_path("odd"), "", text));
	unsetenv("TESSERA_LOG");
	expect_part(text,
	            "model.embed_tokens.weight: device cpu: too many elements have another "
	            "exponent than the 16 "
	            "most frequent of their panel for 12-bit weights; it stays as in the file");
	expect_part(text, "model.layers.1.mlp.down_proj.weight: device cpu: too many");
	ck_assert_ptr_null(strstr(text, "layers.0."));
	expect_part(text, "tied                 bf16        0.00 MiB mapped       0.00 MiB  the "
	                  "device cannot compress its values\n");
	expect_part(text, "weights    34  compressed panels    bf12 ");
}
END_TEST

/* Checks that `explain --storage` adds up the layers and ranks of a weight. */
START_TEST(storage_is_printed)
{
	char text[TEXT];

	ck_assert(!run_tessera("explain --storage -n 2", SOURCE_ROOT "/data", "", text));
	expect_part(text, "\nmodel.layers.*.mlp.up_proj.weight              mapped, then panels  "
	                  "f32          22016        24576  packed between steps                "
	                  "     10\n");
	ck_assert(!run_tessera("explain --storage --mesh pp=2", SOURCE_ROOT "/data", "", text));
	ck_assert_ptr_null(strstr(text, "elsewhere"));
	ck_assert(run_tessera("explain --storage --json", SOURCE_ROOT "/data", "", text));
	expect_part(text, "--storage prints text");
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("panels", 60, &r);
	int failed;

	scratch_make();
	tcase_add_loop_test(t, rows_become_panels, 0, sizeof cases / sizeof *cases);
	tcase_add_test(t, rows_stay_without_memory);
	tcase_add_loop_test(t, decisions_are_executed, 0, sizeof decided / sizeof *decided);
	tcase_add_test(t, weights_in_12_bits);
	tcase_add_test(t, storage_is_printed);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}
