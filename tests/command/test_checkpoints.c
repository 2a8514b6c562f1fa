/*
 * test_checkpoints.c - wrong checkpoints: explain and generate refuse them with one equal message
 * and start no rank; harmless faults give one warning.
 */
#include "hf/safetensors.h"
#include "tests/support/command.h"
#include "tests/support/scratch.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>

enum { TENSORS_MAX = 64, TEXT = 8192 };

static struct tess_safetensors
	*project_file; /* the project's checkpoint, which each test changes */
static struct tess_slice tensors[TENSORS_MAX];
static int32_t ntensors;

static void open_project_checkpoint(void)
{
	ck_assert_int_eq(
		tess_safetensors_open(format_data_path("model.safetensors"), false, &project_file),
		TESS_OK);
	for (size_t i = 0; i < tess_safetensors_count(project_file); i++)
		tensors[ntensors++] = *tess_safetensors_at(project_file, i);
}

static void close_project_checkpoint(void)
{
	tess_safetensors_close(project_file);
}

static void add_test_tensor(const char *name, int64_t *shape, int32_t ndim, const void *data)
{
	tensors[ntensors++] = (struct tess_slice){
		.name = name, .dtype = TESS_F32, .ndim = ndim, .shape = shape, .data = data
	};
}

static void write_changed_config(const char *name, const char *folder, const char *change)
{
	json_t *root = json_load_file(format_data_path(name), 0, NULL),
	       *more = json_loads(change, 0, NULL);
	char path[64];

	ck_assert(root && more);
	json_object_update(root, more);
	snprintf(path, sizeof path, "%s/%s", folder, name);
	ck_assert_int_eq(json_dump_file(root, scratch_format_path(path), 0), 0);
	json_decref(root);
	json_decref(more);
}

/* Writes the checkpoint with the listed tensors, and these keys in its configs. */
static void write_changed_checkpoint(const char *folder, const char *config, const char *generation)
{
	char path[64];

	mkdir(scratch_format_path(folder), 0700);
	write_changed_config("config.json", folder, config);
	write_changed_config("generation_config.json", folder, generation);
	snprintf(path, sizeof path, "%s/model.safetensors", folder);
	ck_assert_int_eq(tess_safetensors_write(scratch_format_path(path), ntensors, tensors),
	                 TESS_OK);
}

/* Returns the exit status; stores the output: stdout and stderr, or with `quiet` stderr. */
static int run_on_checkpoint(const char *command, const char *folder, const char *args, bool quiet,
                             char *text)
{
	return command_run(text, TEXT, "'%s' %s '%s' %s 2>&1 %s", TESSERA, command,
	                   scratch_format_path(folder), args, quiet ? ">/dev/null" : "");
}

#define STORY "-n 2 --backend shm --ids 1,403 --max-tokens 4 --temperature 0 --json"

/* Expects one line from both commands, equal except for the command's name. */
static void expect_both_refuse(const char *folder, const char *says)
{
	char explained[TEXT], generated[TEXT];

	ck_assert_int_eq(run_on_checkpoint("explain", folder, "-n 2", false, explained), 1);
	ck_assert_int_eq(run_on_checkpoint("generate", folder, STORY, false, generated), 1);
	expect_part(explained, says);
	ck_assert_str_eq(strchr(explained, ':'), strchr(generated, ':'));
	ck_assert_ptr_eq(strchr(explained, '\n'), explained + strlen(explained) - 1);
}

static void expect_said_once(const char *text, const char *warning)
{
	const char *at = strstr(text, warning);

	ck_assert_msg(at && !strstr(at + 1, warning), "not once \"%s\": %s", warning, text);
}

/* Expects success with the digest in `digest`, and `warning` once, from rank 0; NULL: no output. */
static void expect_accepted(const char *folder, const char *args, const char *warning,
                            char digest[65])
{
	char command[256], text[TEXT], *at;

	snprintf(command, sizeof command, STORY " %s", args);
	ck_assert_msg(!run_on_checkpoint("generate", folder, command, false, text), "%s", text);
	at = strstr(text, "\"digest\":\"");
	ck_assert_msg(at && sscanf(at, "\"digest\":\"%64[0-9a-f]", digest) == 1, "%s", text);
	ck_assert_msg(!run_on_checkpoint("generate", folder, command, true, text), "%s", text);
	if (!warning) {
		ck_assert_str_eq(text, "");
		return;
	}
	expect_said_once(text, warning);
}

/* ---- tensors that no module asks for --------------------------------------------------------- */

START_TEST(names_unused_tensors)
{
	static float zeros[64];
	static int64_t some[] = { 64 }, four[] = { 4 };
	char plain[65], digest[65], text[TEXT];

	write_changed_checkpoint("plain", "{}", "{}");
	expect_accepted("plain", "", NULL, plain);
	/* more layers than config.json has */
	write_changed_checkpoint("layers", "{\"num_hidden_layers\": 4}", "{}");
	expect_both_refuse(
		"layers",
		"no module of model llama asks for model.layers.4.input_layernorm.weight, "
		"model.layers.4.mlp.down_proj.weight, model.layers.4.mlp.gate_proj.weight "
		"and 6 more");
	expect_accepted(
		"layers", "--ignore-unexpected",
		"no module asks for model.layers.4.input_layernorm.weight, "
		"model.layers.4.mlp.down_proj.weight, model.layers.4.mlp.gate_proj.weight and 6 "
		"more; "
		"ignored",
		digest);
	ck_assert_str_ne(digest, plain);
	ck_assert_int_eq(run_on_checkpoint("explain", "layers", "--ignore-unexpected", true, text),
	                 0);
	expect_said_once(text, "and 6 more; ignored");
	/* tensors that the model declares optional */
	add_test_tensor("model.layers.0.self_attn.rotary_emb.inv_freq", four, 1, zeros);
	write_changed_checkpoint("inv_freq", "{}", "{}");
	expect_accepted("inv_freq", "", NULL, digest);
	ck_assert_str_eq(digest, plain);
	/* biases that config.json excludes */
	add_test_tensor("model.layers.1.self_attn.q_proj.bias", some, 1, zeros);
	write_changed_checkpoint("biases", "{}", "{}");
	expect_both_refuse("biases",
	                   "asks for model.layers.1.self_attn.q_proj.bias (the nearest is "
	                   "model.layers.1.self_attn.q_proj)");
	/* a module that the model lacks; two */
	ntensors--;
	add_test_tensor("model.embed_positions.weight", some, 1, zeros);
	add_test_tensor("model.norm.bias", some, 1, zeros);
	write_changed_checkpoint("positions", "{}", "{}");
	expect_both_refuse("positions",
	                   "asks for model.embed_positions.weight and model.norm.bias (the nearest "
	                   "is model.embed_tokens)");
	expect_accepted("positions", "--ignore-unexpected",
	                "model.embed_positions.weight and model.norm.bias; ignored", digest);
	ck_assert_str_eq(digest, plain);
}
END_TEST

/* Checks tied embeddings: many checkpoints also store the head's weight, which equals the table. */
START_TEST(knows_tied_heads)
{
	static float other[512 * 64];
	const struct tess_slice *table;
	char plain[65], digest[65];

	write_changed_checkpoint("untied", "{}", "{}");
	expect_accepted("untied", "", NULL, plain);
	table = tess_safetensors_find(project_file, "model.embed_tokens.weight");
	add_test_tensor("lm_head.weight", (int64_t *)(uintptr_t)table->shape, 2, table->data);
	write_changed_checkpoint("tied", "{}", "{}");
	expect_accepted("tied", "", NULL, digest);
	ck_assert_str_eq(digest, plain);
	write_changed_checkpoint("tied", "{\"tie_word_embeddings\": false}", "{}");
	expect_accepted("tied", "", NULL, digest);
	ck_assert_str_eq(digest, plain);
	for (int i = 0; i < 512 * 64; i++)
		other[i] = ((const float *)table->data)[i] + 1;
	tensors[ntensors - 1].data = other;
	write_changed_checkpoint("other", "{}", "{}");
	expect_accepted(
		"other", "",
		"lm_head.weight differs from model.embed_tokens.weight, but config.json ties the "
		"two",
		digest);
	ck_assert_str_eq(digest, plain);
}
END_TEST

/* ---- configs --------------------------------------------------------------------------------- */

static const struct {
	const char *config, *generation, *says;
} bad[] = {
	{ "{\"rms_norm_eps\": -1}", "{}", "/config.json: rms_norm_eps: a number from 0 to 1" },
	{ "{\"eos_token_id\": \"x\"}", "{}", "/config.json: eos_token_id: an id is a whole" },
	{ "{}", "{\"eos_token_id\": \"x\"}", "/generation_config.json: eos_token_id: an id is" },
	{ "{\"quantization_config\": {\"quant_method\": \"fp8\"}}", "{}",
	  "/config.json: quantization_config: the weights are quantised by fp8" },
	{ "{\"rope_theta\": 0}", "{}", "/config.json: rope_theta: a number from 1" },
	{ "{\"rope_theta\": \"abc\"}", "{}", "/config.json: rope_theta: a number from 1" },
	{ "{\"rope_scaling\": 2}", "{}", "/config.json: rope_scaling: an object or null" },
	{ "{\"rope_scaling\": {\"rope_type\": \"ntk\", \"factor\": 4}}", "{}",
	  "/config.json: rope_scaling: rope_type \"ntk\" is not supported; default, linear, " },
	{ "{\"rope_parameters\": {\"type\": \"linear\"}}", "{}",
	  "/config.json: rope_parameters: rope_type linear needs factor" },
	{ "{\"rope_scaling\": {\"rope_type\": \"llama3\"}}", "{}",
	  "/config.json: rope_scaling: rope_type llama3 needs" },
	{ "{\"partial_rotary_factor\": 0.5}", "{}", "/config.json: partial_rotary_factor 0.5" },
	{ "{\"model_type\": \"lama\"}", "{}", "did you mean llama?; the types are " },
	{ "{\"model_type\": \"qwen4\"}", "{}", "tessera-2; the types are " },
	{ "{\"model_type\": \"lama\"}", "{}", "; a plugin adds others (docs/model-tutorial.md)" },
};

START_TEST(refuses_before_ranks_start)
{
	write_changed_checkpoint("bad", bad[_i].config, bad[_i].generation);
	expect_both_refuse("bad", bad[_i].says);
}
END_TEST

START_TEST(warns_once)
{
	char digest[65], text[TEXT];

	write_changed_checkpoint("ids", "{}", "{\"eos_token_id\": [512, 2, -1], \"num_beams\": 4}");
	expect_accepted("ids", "",
	                "/generation_config.json: eos_token_id: no token has the id 512,", digest);
	expect_accepted("ids", "", "/generation_config.json: eos_token_id: no token has the id -1,",
	                digest);
	expect_accepted("ids", "", "/generation_config.json: num_beams is not supported", digest);
	ck_assert_int_eq(run_on_checkpoint("explain", "ids", "", true, text), 0);
	expect_said_once(text, "no token has the id 512,");
}
END_TEST

/* Writes an index next to a model.safetensors, with all its files. */
START_TEST(warns_of_two_copies)
{
	static const char index[] = "twice/model.safetensors.index.json";
	char digest[65];

	write_changed_checkpoint("twice", "{}", "{}");
	scratch_write_text(index, "{\"weight_map\": {\"a\": \"model.safetensors\"}}");
	expect_accepted("twice", "", NULL, digest);
	scratch_write_text(index, "{\"weight_map\": {\"a\": \"part.safetensors\"}}");
	expect_accepted("twice", "", NULL, digest);
	scratch_write_text("twice/part.safetensors", "");
	expect_accepted("twice", "", "/twice/model.safetensors is used, and not the 1 files of ",
	                digest);
	expect_accepted("twice", "",
	                "/twice/model.safetensors.index.json beside it; remove what is stale",
	                digest);
}
END_TEST

static const struct {
	const char *generation, *args;
	int ids;
	const char *warning;
} limits[] = {
	{ "{\"max_length\": 20}", "--ids 1,403,2,3,4", 15, NULL },
	{ "{\"max_length\": 20, \"max_new_tokens\": 7}", "--ids 1,403,2,3,4", 7, NULL },
	{ "{\"max_length\": 20}", "--ids 1,403 --max-tokens 3", 3, NULL },
	{ "{\"max_length\": 5}", "--ids 1,403,2,3,4", 1,
	  "max_length of generation_config.json is 5, and the prompt has 5 tokens" },
};

START_TEST(limits_new_tokens)
{
	char text[TEXT], args[128];
	int n = 1;

	write_changed_checkpoint("limit", "{}", limits[_i].generation);
	snprintf(args, sizeof args, "--temperature 0 --ignore-eos --json %s", limits[_i].args);
	ck_assert_msg(!run_on_checkpoint("generate", "limit", args, false, text), "%s", text);
	if (limits[_i].warning)
		expect_said_once(text, limits[_i].warning);
	for (const char *at = strchr(strstr(text, "\"ids\":["), '['); *at != ']'; at++)
		n += *at == ',';
	ck_assert_int_eq(n, limits[_i].ids);
}
END_TEST

/* Writes a checkpoint in which the second layer's weight `module` has one non-finite element. */
static void write_odd_weight(const char *folder, const char *module)
{
	static float copy[172 * 64];
	char name[128], path[64];
	int32_t i = 0;

	snprintf(name, sizeof name, "model.layers.1.%s.weight", module);
	while (i < ntensors && strcmp(tensors[i].name, name) != 0)
		i++;
	ck_assert(i < ntensors && tensors[i].bytes <= sizeof copy);
	memcpy(copy, tensors[i].data, tensors[i].bytes);
	copy[5] = NAN;
	tensors[i].data = copy;
	write_changed_checkpoint(folder, "{}", "{}");
	ck_assert(!command_run(path, sizeof path, "cp %s '%s'", format_data_path("tokenizer.json"),
	                       scratch_format_path(folder)));
}

/* q, k and v share an input, and so do gate and up: the message names the weight */
static const char *const odd_weights[] = { "self_attn.q_proj", "self_attn.k_proj",
	                                   "self_attn.v_proj", "mlp.gate_proj",
	                                   "mlp.up_proj",      "mlp.down_proj" };

START_TEST(names_the_odd_weight)
{
	char text[TEXT], says[128], args[512];

	snprintf(args, sizeof args, "--text '%s'", format_data_path("README.md"));
	write_odd_weight("odd", odd_weights[_i]);
	snprintf(says, sizeof says, ": model.layers.1.%s: linear gives NaN on rank 0, at row 0, ",
	         odd_weights[_i]);
	ck_assert_int_eq(run_on_checkpoint("generate", "odd", STORY " --check", true, text), 1);
	expect_part(text, says);
	/* perplexity reports the option, which it has too */
	ck_assert_int_eq(run_on_checkpoint("perplexity", "odd", args, true, text), 1);
	expect_part(text, "some logits are not finite; ");
	expect_part(text, "TESSERA_CHECK=1, or tessera generate --check, names the first module");
	setenv("TESSERA_CHECK", "1", 1);
	ck_assert_int_eq(run_on_checkpoint("perplexity", "odd", args, true, text), 1);
	unsetenv("TESSERA_CHECK");
	expect_part(text, says);
}
END_TEST

/* Checks that weights at any address give equal bits. */
START_TEST(any_alignment)
{
	char plain[65], digest[65], *bytes;
	uint64_t header, size;
	struct stat about;
	FILE *f;

	write_changed_checkpoint("moved", "{}", "{}");
	expect_accepted("moved", "", NULL, plain);
	ck_assert_int_eq(stat(scratch_format_path("moved/model.safetensors"), &about), 0);
	size = (uint64_t)about.st_size;
	bytes = malloc(size);
	f = fopen(scratch_format_path("moved/model.safetensors"), "rb");
	ck_assert(f && bytes && fread(bytes, 1, size, f) == size);
	fclose(f);
	memcpy(&header, bytes, sizeof header); /* little-endian machines only */
	for (int i = 1; i < 8; i++) {
		uint64_t longer = header + (uint64_t)i;

		f = fopen(scratch_format_path("moved/model.safetensors"), "wb");
		fwrite(&longer, 1, sizeof longer, f);
		fwrite(bytes + 8, 1, header, f);
		fwrite("       ", 1, (size_t)i, f);
		fwrite(bytes + 8 + header, 1, size - 8 - header, f);
		ck_assert_int_eq(fclose(f), 0);
		expect_accepted("moved", i % 2 ? "--plan none" : "", NULL, digest);
		ck_assert_str_eq(digest, plain);
	}
	free(bytes);
}
END_TEST

/* Returns the MiB of rank 0's weights, as printed: allocated; *mapped: in the files. */
static double parse_stated_weights(const char *folder, double *mapped)
{
	char text[TEXT], *at;
	double mib = 0;

	ck_assert_msg(!run_on_checkpoint("generate", folder, STORY " --stats", true, text), "%s",
	              text);
	at = strstr(text, "rank 0 ");
	ck_assert_msg(at && sscanf(at, "rank 0 %lf MiB weights %*f MiB KV cache %*f MiB step (%lf",
	                           &mib, mapped) == 2,
	              "%s", text);
	return mib;
}

/*
 * Checks that a rank without mmap allocates the norms, which it would have left in the mapping, and
 * no more. Matrices are packed at load in both: the number packed later depends on a run's speed.
 */
START_TEST(counts_what_is_copied)
{
	double packed, copied, in_files;

	write_changed_checkpoint("counted", "{}", "{}");
	setenv("TESSERA_LAYOUT", "panels", 1);
	packed = parse_stated_weights("counted", &in_files);
	ck_assert_double_le(in_files, 0.011);
	setenv("TESSERA_LOAD", "copy", 1);
	copied = parse_stated_weights("counted", &in_files);
	unsetenv("TESSERA_LAYOUT");
	unsetenv("TESSERA_LOAD");
	ck_assert_double_eq(in_files, 0);
	ck_assert_double_ge(copied, packed);
	ck_assert_double_le(copied, packed + 0.011);
	setenv("TESSERA_LAYOUT", "rows", 1); /* all of it stays in place */
	ck_assert_double_eq(parse_stated_weights("counted", &in_files), 0);
	unsetenv("TESSERA_LAYOUT");
	ck_assert_double_ge(in_files, 0.9 * packed); /* panels have rows to spare */
}
END_TEST

int main(void)
{
	int failed;
	SRunner *r;
	TCase *t;

	scratch_make();
	t = suite_begin("checkpoints", 60, &r);
	tcase_add_checked_fixture(t, open_project_checkpoint, close_project_checkpoint);
	tcase_add_test(t, names_unused_tensors);
	tcase_add_test(t, knows_tied_heads);
	tcase_add_loop_test(t, refuses_before_ranks_start, 0, (int)(sizeof bad / sizeof *bad));
	tcase_add_test(t, warns_once);
	tcase_add_test(t, warns_of_two_copies);
	tcase_add_loop_test(t, limits_new_tokens, 0, (int)(sizeof limits / sizeof *limits));
	tcase_add_loop_test(t, names_the_odd_weight, 0,
	                    (int)(sizeof odd_weights / sizeof *odd_weights));
	tcase_add_test(t, any_alignment);
	tcase_add_test(t, counts_what_is_copied);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}
