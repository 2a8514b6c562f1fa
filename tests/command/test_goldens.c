/*
 * test_goldens.c - checkpoints and logits made by transformers in float64: generate --logits on the
 * real device, greedy ids, and one digest for every number of ranks that the geometry allows. Other
 * numbers are refused with a list of the possible ones.
 */
#include "hf/safetensors.h"
#include "tests/support/command.h"
#include "tests/support/suite.h"

#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tessera/tessera.h>
#include <unistd.h>

enum { TOKENS = 24, EMULATED_TOKENS = 6, RANKS_MAX = 10 };

static int ntokens = TOKENS; /* number of generated tokens */

/*
 * OTHERS: the norm after attention follows no rule of the families before. The last SPARSE have
 * experts.
 */
static const char *const names[] = { "llama",         "llama-odd",    "llama-bf16",  "mistral",
	                             "qwen2",         "qwen3",        "olmo2",       "phi3-partial",
	                             "gemma2",        "gpt2",         "gemma3_text", "cohere2",
	                             "gpt_neox",      "opt",          "llama4_text", "gpt_oss",
	                             "gpt_oss-mxfp4", "mixtral-bf16", "qwen3_moe",   "deepseek_v3",
	                             "glm4_moe",      "olmoe",        "qwen2_moe" };
enum { NAMES = sizeof names / sizeof *names, OTHERS = 6, SPARSE = 6 };
/*
 * names[_i * STRIDE] are tested: with a sanitizer, another test runs the code of the skipped ones
 */
enum { STRIDE = THIN > 1 ? 3 : 1, STRIDES = (NAMES + STRIDE - 1) / STRIDE };
/*
 * The digests of prompt 1: another digest means another order of sums, which changes the
 * specification.
 */
static const char *const digests[] = {
	"b580d3ea196d7115cec5f19fe9b8bdb5be01042d34e790226e7e80f413b533e5",
	"21c5c437f9c4964ebffbf0291326e2d11c124550c31394112e542d8c45fa9063",
	"9d3956f484f182b93703d4a6808e33165df81323ca9c310b291fd4b445d6ae67",
	"759bce8bf601ad60d3890049156bcb122d54440bedcff1ecfe6a563cedb19f7f",
	"ad8d3f248b3fe5d48a136d2d03d88678390d994add5fc55898341147bb1ab826",
	"67c04b154b6edb7578490d2a535123322046346910f9482fd4fdb89c023517b9",
	"1ef84c1b092d0916eded46d1c2b324d9c42869c86dbb261566bd9308979d7eb5",
	"efc52768a1fe9d7d5371c30886dc341e2d9fa329a4c33ae12aed9876c22c40cd",
	"483030c902852cde73a03ae64153209d63c9c4edf892595d49636c5ce4c1b774",
	"08360d96e6f14c0942b5986633e69b9e4393d841e4003431882034370245ad21",
	"e8540b1310570c87a1ef9c7107d7167832dc5b1ebd322f2b58a937b65370345e",
	"57978ddbef1dacd40ab935ac60b4be47cbe433d221fca50a87159c908b3ed96a",
	"6aff40df248d0d7036e729012d79698693720141fb5f6672ae9f4bb247fa40ca",
	"4b57b7d91063dd6dddcfd4fb150f128551d8a20723848920f2e65ab960934209",
	"39e31fb82b9644a6e76eb125c8e1e03c30c0508ffebba4779a36deddb53ae86b",
	"b1dd5ba48f20ec195b75aa3b89614f96d9d831f116b17f57d17273d5aac7cb01",
	"42f962297d69b12d45ae586ec79d49a7e8333a6a934c87d73b1d194d0c4e4992",
	"6b53617df4dba32def70e9d205af700d69354ab3a968de70ab05a9893b75e746",
	"527ca7e24f6bd7acb7f9797957e98bbe80e7528930a00312b71d726136fdb6f7",
	"5ba318c334b77fa08fd11fb48e796c15abea60b60805fe4e6f6fc6b637471316",
	"28f73e3e5ddf29b9123002e208565a542ecd9ca01419fb37a28b14ad1fc9e309",
	"9ce398cd14a35e91a725515cf7169fedba1c8ac6ba9922ca72b7694e381f7d4a",
	"a44f4ab76eb4e05b787beeb22c298e232856a65e3a966b0231efdbd44cbc526e",
};

static json_t *load_golden_json(const char *name, const char *file)
{
	char path[512];
	json_t *o;

	snprintf(path, sizeof path, "%s/tests/data/goldens/%s/%s", SOURCE_ROOT, name, file);
	o = json_load_file(path, 0, NULL);
	ck_assert(o != NULL);
	return o;
}

static struct tess_safetensors *load_goldens(const char *name)
{
	char path[512];
	struct tess_safetensors *f;

	snprintf(path, sizeof path, "%s/tests/data/goldens/%s/golden.safetensors", SOURCE_ROOT,
	         name);
	ck_assert_msg(!tess_safetensors_open(path, false, &f), "%s", tess_error());
	return f;
}

static const struct tess_slice *find_golden_tensor(const struct tess_safetensors *f,
                                                   const char *fmt, int prompt)
{
	const struct tess_slice *s;
	char key[64];

	snprintf(key, sizeof key, fmt, prompt);
	s = tess_safetensors_find(f, key);
	ck_assert_msg(s != NULL, "%s is missing", key);
	return s;
}

/*
 * Runs the command with `ids` as the last text; returns the object of the text that ended last,
 * with the exit status in *status and stderr in `said`.
 */
static json_t *run_generate_json(const char *name, const struct tess_slice *ids, int ranks,
                                 const char *more, int *status, char said[1024])
{
	char command[4096], errors[64] = "/tmp/test_goldens.XXXXXX";
	int fd = mkstemp(errors);
	json_t *o = NULL, *next;
	size_t n;
	FILE *f;

	ck_assert(fd >= 0);
	snprintf(command, sizeof command,
	         "cd '%s/tests/data/goldens' && '%s' generate '%s' -n %d --backend loopback "
	         "--temperature 0 --ignore-eos --max-tokens %d --json %s 2>%s --ids ",
	         SOURCE_ROOT, TESSERA, name, ranks, ntokens, more, errors);
	for (int64_t i = 0; i < ids->shape[0]; i++)
		snprintf(command + strlen(command), sizeof command - strlen(command), "%s%lld",
		         i ? "," : "", (long long)((const int64_t *)ids->data)[i]);
	f = popen(command, "r");
	while ((next = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL))) {
		json_decref(o);
		o = next;
	}
	*status = pclose(f);
	f = fdopen(fd, "r");
	n = fread(said, 1, 1023, f);
	said[n] = 0;
	fclose(f);
	unlink(errors);
	return o;
}

static double get_torch_error(const json_t *about, int prompt)
{
	char key[64];

	snprintf(key, sizeof key, "prompt%d.logits", prompt);
	return json_real_value(json_array_get(
		json_object_get(json_object_get(about, "float32_torch_error_max_abs_and_relative"),
	                        key),
		0));
}

/*
 * Returns the maximum distance from float64 of the logits of a prompt and of the greedy ids after
 * it, which must be equal; *largest: maximum in float64.
 */
static double measure_error_of_logits(const char *name, int prompt, int ranks, const char *options,
                                      double *largest)
{
	int status;
	struct tess_safetensors *g = load_goldens(name), *have;
	const struct tess_slice *ids = find_golden_tensor(g, "prompt%d.ids", prompt),
				*want = find_golden_tensor(g, "prompt%d.logits_f64", prompt);
	const struct tess_slice *greedy = find_golden_tensor(g, "greedy%d.ids", prompt), *rows;
	json_t *out;
	char said[1024], path[64] = "/tmp/test_goldens.XXXXXX", more[1024];
	double error = 0;

	close(mkstemp(path));
	snprintf(more, sizeof more, "--logits %s --prefill-chunk 5 %s", path, options);
	out = run_generate_json(name, ids, ranks, more, &status, said);
	ck_assert_msg(!status && out, "%s, %d ranks, %s: %s", name, ranks, options, said);
	for (int64_t i = 0; i < greedy->shape[0] && i < ntokens; i++)
		ck_assert_int_eq(
			json_integer_value(json_array_get(json_object_get(out, "ids"), (size_t)i)),
			((const int64_t *)greedy->data)[i]);
	ck_assert_msg(!tess_safetensors_open(path, false, &have), "%s", tess_error());
	rows = tess_safetensors_find(have, "logits");
	ck_assert(rows && rows->dtype == TESS_F32 && rows->ndim == 2);
	ck_assert_int_eq(rows->shape[0], ids->shape[0] + ntokens - 1);
	ck_assert_int_eq(rows->shape[1], want->shape[1]);
	*largest = 0;
	for (int64_t i = 0; i < want->shape[0] * want->shape[1]; i++) {
		double x = (double)((const float *)want->data)[i];

		error = fmax(error, fabs((double)((const float *)rows->data)[i] - x));
		*largest = fmax(*largest, fabs(x));
	}
	tess_safetensors_close(have);
	tess_safetensors_close(g);
	unlink(path);
	json_decref(out);
	return error;
}

/*
 * Checks that the errors are at most 3 times those of torch's float32. The compared sums have equal
 * products, each rounded in float32; any order of sums has errors of that size.
 */
static void compare_logits(const char *name, int prompt, int ranks, const char *options)
{
	json_t *about = load_golden_json(name, "golden.json");
	double largest, error = measure_error_of_logits(name, prompt, ranks, options, &largest);

	ck_assert_msg(error <= 3 * get_torch_error(about, prompt),
	              "%s, %d ranks, %s: error %g, torch float32 %g", name, ranks, options, error,
	              get_torch_error(about, prompt));
	json_decref(about);
}

START_TEST(logits)
{
	if (_i / 3 % 3 == _i % 3 || THIN == 1)
		compare_logits(names[_i / 3], _i % 3, 3, "");
}
END_TEST

START_TEST(every_number_of_ranks)
{
	const char *name = names[_i];
	struct tess_safetensors *g = load_goldens(name);
	const struct tess_slice *ids = find_golden_tensor(g, "prompt%d.ids", 1);
	json_t *config = load_golden_json(name, "config.json"), *first = NULL;
	const json_t *heads_key = json_object_get(config, "num_attention_heads");
	int heads =
		(int)json_integer_value(heads_key ? heads_key : json_object_get(config, "n_head"));
	char said[1024], want[64];

	snprintf(want, sizeof want, "use 1 to %d", heads);
	for (int n = THIN > 1 ? 4 : 1; n <= RANKS_MAX; n += THIN > 1 ? 6 : 1) {
		int status;
		/* on some ranks the head is cut and its table is not */
		const char *plan = n % 2 ? "" : "--plan '{\"lm_head\":\"colwise_rep\"}'";
		json_t *out = run_generate_json(name, ids, n, n > heads ? "" : plan, &status, said);

		if (n > heads) {
			ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1 &&
			                      strstr(said, want),
			              "%d ranks: %s", n, said);
			continue;
		}
		ck_assert_msg(!status && out, "%d ranks: %s", n, said);
		if (!first)
			first = json_incref(out);
		ck_assert_str_eq(json_string_value(json_object_get(out, "digest")), digests[_i]);
		ck_assert_msg(json_equal(json_object_get(out, "digest"),
		                         json_object_get(first, "digest")),
		              "%d ranks", n);
		json_decref(out);
	}
	json_decref(first);
	json_decref(config);
	tess_safetensors_close(g);
}
END_TEST

/* Returns the digest of the last text, prompt 2. */
static void get_last_digest(const char *name, const char *folder, int ranks, const char *options,
                            char out[65])
{
	struct tess_safetensors *g = load_goldens(name);
	const struct tess_slice *ids = find_golden_tensor(g, "prompt%d.ids", 2);
	char said[1024];
	int status;
	json_t *o = run_generate_json(folder, ids, ranks, options, &status, said);

	ck_assert_msg(!status && o, "%s, %d ranks, %s: %s", name, ranks, options, said);
	ck_assert_int_eq(json_array_size(json_object_get(o, "prompt_ids")), ids->shape[0]);
	snprintf(out, 65, "%s", json_string_value(json_object_get(o, "digest")));
	json_decref(o);
	tess_safetensors_close(g);
}

struct way {
	int ranks;
	const char *options;
};

/*
 * Checks that all ways give the digest of one rank, which is returned; `more`: options of all. With
 * a sanitizer each call tries a third of the ways, and the next call another third.
 */
static void compare_digests(const char *name, const struct way *ways, size_t n, const char *more,
                            char want[65])
{
	static size_t turn;
	char have[65], options[1024];

	get_last_digest(name, name, 1, more, want);
	for (size_t i = turn++ % STRIDE; i < n; i += STRIDE) {
		snprintf(options, sizeof options, "%s %s", ways[i].options, more);
		get_last_digest(name, name, ways[i].ranks, options, have);
		ck_assert_msg(!strcmp(want, have), "%s, %d ranks, %s", name, ways[i].ranks,
		              options);
	}
}

static const struct way ways[] = {
	{ 2, "--plan tp+sp" },
	{ 3, "--plan tp+sp --backend shm --prefill-chunk 7" },
	{ 4, "--plan tp --prefill-chunk 1" },
	{ 4, "--mesh dp=2,tp=2" },
	{ 2, "--ids 7,8,9,1,2,3 --ids 1 --prefill-chunk 9" },
};
enum { WAYS = sizeof ways / sizeof *ways };

/*
 * Checks that plans, backends, chunks and other texts change no bit of a text that outgrows any
 * window.
 */
START_TEST(every_way)
{
	char digest[65];

	compare_digests(names[_i * STRIDE], ways, WAYS, "", digest);
}
END_TEST

/* Checks every way with 8-bit or 4-bit linear weights, which have other bits. */
START_TEST(every_way_rounded)
{
	const char *weights = _i % 2 ? "--weights mxfp4" : "--weights q8";
	char file[65], rounded[65];

	get_last_digest(names[3 * _i], names[3 * _i], 1, "", file);
	compare_digests(names[3 * _i], ways, WAYS, weights, rounded);
	ck_assert_str_ne(file, rounded);
}
END_TEST

/* Checks every way with bf16 weights in 12 bits, which have the bits of 16. */
START_TEST(every_way_in_12_bits)
{
	const char *name = _i ? "mixtral-bf16" : "llama-bf16";
	char file[65], bf12[65];

	get_last_digest(name, name, 1, "", file);
	compare_digests(name, ways, WAYS, "--weights bf12", bf12);
	ck_assert_str_eq(file, bf12);
	get_last_digest(name, name, 1, "--math bf16", file);
	get_last_digest(name, name, 2, "--math bf16 --weights bf12", bf12);
	ck_assert_str_eq(file, bf12);
}
END_TEST

/* Checks every way with products of bf16, on any instruction set. */
START_TEST(every_way_of_bf16_products)
{
	const char *name = _i ? "mixtral-bf16" : "llama-bf16";
	char file[65], bf16[65], scalar[65];

	get_last_digest(name, name, 1, "", file);
	compare_digests(name, ways, WAYS, "--math bf16", bf16);
	ck_assert_str_ne(file, bf16);
	setenv("TESSERA_CPU", "scalar", 1);
	get_last_digest(name, name, 2, "--math bf16", scalar);
	unsetenv("TESSERA_CPU");
	ck_assert_str_eq(scalar, bf16);
}
END_TEST

/*
 * Checks every way of a checkpoint with experts in MXFP4: their values, not how they are stored or
 * kept in memory, decide the bits.
 */
START_TEST(every_way_of_stored_mxfp4)
{
	static const struct way stored[] = {
		{ 1, "--weights bf16" },
		{ 1, "--weights bf12" },
		{ 2, "--plan tp+sp --weights bf16" },
		{ 3, "--plan ep --mesh ep=3,tp=1" },
		{ 5, "--plan ep --mesh ep=5,tp=1 --backend shm --prefill-chunk 7" },
		{ 7, "--plan tp" },
		{ 8, "--plan ep --mesh ep=8,tp=1 --check" },
		{ 8, "--plan ep --mesh ep=4,tp=2" },
		{ 2, "--plan none" },
	};
	const char *name = "gpt_oss-mxfp4";
	char folder[] = "/tmp/test_goldens.XXXXXX", out[512], text[1024], want[65], have[65];

	compare_digests(name, stored, sizeof stored / sizeof *stored, "", want);
	ck_assert(mkdtemp(folder));
	snprintf(out, sizeof out, "%s/bf16", folder);
	ck_assert_msg(!command_run(text, sizeof text,
	                           "'" TESSERA "' convert '" SOURCE_ROOT "/tests/data/goldens/%s' "
	                           "'%s' --dtype bf16 -n 3",
	                           name, out),
	              "%s", text);
	get_last_digest(name, out, 2, "", have);
	ck_assert_str_eq(want, have);
	get_last_digest(name, name, 2, "--math bf16 --weights bf16", want);
	get_last_digest(name, out, 1, "--math bf16", have);
	ck_assert_str_eq(want, have);
	ck_assert(!command_run(text, sizeof text, "rm -r '%s'", folder));
}
END_TEST

#define RULE(pattern, style) "\"" pattern "\":\"" style "\""
#define BY_EXPERT(style) \
	RULE("ep:**.experts.gate_up_proj", "grouped_gemm") \
	"," RULE("ep:**.experts.down_proj", "grouped_gemm") "," RULE("ep:**.experts", style)
#define INSIDE(up, down, style) \
	RULE("**.experts.gate_up_proj", up) \
	"," RULE("**.experts.down_proj", down) "," RULE("**.experts", style)
#define SEQUENCE(style) \
	RULE("**.self_attn", style) \
	"," RULE("**.mlp", style) "," RULE("**.input_layernorm", "sequence_parallel") "," RULE( \
		"model.norm", "sequence_parallel") "," RULE("**.embed_tokens", \
	                                                    "vocab_reduce_scatter")

/* Checks every way of mixtures of experts: by expert, inside each, and both. */
START_TEST(every_way_of_experts)
{
	static const struct way of_experts[] = {
		{ 2, "--plan ep" },
		{ 3, "--plan ep --backend shm --prefill-chunk 7" },
		{ 4, "--plan ep --mesh ep=4,tp=1 --prefill-chunk 1" },
		{ 6, "--plan ep --mesh ep=3,tp=2 --check" },
		{ 8, "--mesh ep=4,tp=2 --plan '{" BY_EXPERT("ep_dispatch_experts") "," INSIDE(
			     "packed_colwise", "rowwise", "moe_tp_experts") "}'" },
		/* one result is cut by tokens, the other is summed */
		{ 6,
		  "--mesh tp=3,ep=2 --check --prefill-chunk 3 --plan "
		  "'{" BY_EXPERT("moe_experts_reduce_scatter") "," INSIDE(
			  "moe_tp_gate_up_colwise", "moe_tp_down_rowwise",
			  "moe_experts_allreduce") "," RULE("ep:**.mlp",
		                                            "prepare_output:out=replicate") "}'" },
		{ 5, "--plan '{" SEQUENCE("module_allgather_split") "," RULE("**.experts",
		                                                             "grouped_gemm") "}'" },
		/* rows go to the ranks of their experts; in single rows, some ranks have none */
		{ 4, "--prefill-chunk 7 --plan "
		     "'{" RULE("**.mlp", "prepare_input_output:in=shard(0),out=replicate") "," RULE(
			     "ep:**.experts", "ep_all_to_all") "}'" },
		{ 3, "--backend shm --check --plan "
		     "'{" RULE("**.mlp", "prepare_input_output:in=shard(0),out=replicate") "," RULE(
			     "ep:**.experts", "ep_all_to_all") "}'" },
		{ 4, "--mesh ep=2,tp=2 --backend loopback --plan "
		     "'{" RULE("ep:**.experts", "ep_all_to_all") "," INSIDE(
			     "packed_colwise", "rowwise", "moe_tp_experts") "}'" },
		/* each rank computes all experts of some rows */
		{ 3, "--plan '{" RULE("**.mlp",
		                      "prepare_input_output:in=shard(0),out=replicate") "}'" },
	};
	const char *name = names[NAMES - SPARSE + _i % SPARSE];
	char digest[65];

	compare_digests(name, of_experts, sizeof of_experts / sizeof *of_experts,
	                _i < SPARSE ? "" : "--weights q8", digest);
}
END_TEST

/* Checks that config.json in the spelling of transformers 4 gives an equal program. */
START_TEST(older_config)
{
	static const char *const files[] = { "model.safetensors", "generation_config.json" };
	char from[512], to[512], want[65], have[65], folder[64] = "/tmp/test_goldens.XXXXXX";
	const char *name = names[_i * STRIDE];

	ck_assert(mkdtemp(folder));
	for (int i = 0; i < 3; i++) {
		snprintf(from, sizeof from, "%s/tests/data/goldens/%s/%s", SOURCE_ROOT, name,
		         i < 2 ? files[i] : "config_v4.json");
		snprintf(to, sizeof to, "%s/%s", folder, i < 2 ? files[i] : "config.json");
		ck_assert_int_eq(symlink(from, to), 0);
	}
	get_last_digest(name, name, 1, "", want);
	get_last_digest(name, folder, 2, "", have);
	ck_assert_str_eq(want, have);
	for (int i = 0; i < 3; i++) {
		snprintf(to, sizeof to, "%s/%s", folder, i < 2 ? files[i] : "config.json");
		unlink(to);
	}
	rmdir(folder);
}
END_TEST

/*
 * Checks that GPT2Model's own checkpoints, without `transformer.` before the names, are accepted.
 */
START_TEST(names_without_prefix)
{
	static const char prefix[] = "\"transformer.";
	char from[512], to[512], want[65], have[65], folder[64] = "/tmp/test_goldens.XXXXXX", *at;
	const size_t len = sizeof prefix - 1;
	static char bytes[1 << 20];
	size_t n;
	FILE *f;

	ck_assert(mkdtemp(folder));
	snprintf(from, sizeof from, "%s/tests/data/goldens/gpt2/config.json", SOURCE_ROOT);
	snprintf(to, sizeof to, "%s/config.json", folder);
	ck_assert_int_eq(symlink(from, to), 0);
	snprintf(from, sizeof from, "%s/tests/data/goldens/gpt2/model.safetensors", SOURCE_ROOT);
	f = fopen(from, "r");
	n = fread(bytes, 1, sizeof bytes, f);
	fclose(f);
	while ((at = memmem(bytes, n, prefix, len)))
		memcpy(at, "            \"", len);
	snprintf(from, sizeof from, "%s/model.safetensors", folder);
	f = fopen(from, "w");
	ck_assert(fwrite(bytes, 1, n, f) == n && !fclose(f));
	get_last_digest("gpt2", "gpt2", 1, "", want);
	get_last_digest("gpt2", folder, 2, "", have);
	ck_assert_str_eq(want, have);
	unlink(from);
	unlink(to);
	rmdir(folder);
}
END_TEST

/* ---- a device with memory that the host cannot read (discrete.c) ----------------------------- */

#define OVERRIDE(rule) "--plan-override 'model.layers.*." rule "' "
#define ONE_TERM OVERRIDE("post_attention_layernorm=prepare_output:out=partial")

static const struct {
	int ranks;
	const char *options, *layout;
} device_cases[] = {
	{ 1, "", "" },
	{ 2, "--check", "" },
	{ 3, "", "" },
	{ 4, "", "" },
	{ 2, "--backend shm", "" },
	{ 4, "--device discrete:1", "panels" },
	{ 3, "--plan tp+sp", "" },
	{ 3, ONE_TERM "--check", "" },
	{ 3, ONE_TERM OVERRIDE("mlp=prepare_input:in=shard(-1)"), "" },
};
enum { DEVICE_CASES = sizeof device_cases / sizeof *device_cases };

static void use_discrete_device(void)
{
	ck_assert_int_eq(setenv("TESSERA_DEVICE", "discrete", 1), 0);
}

START_TEST(logits_of_a_device_with_memory)
{
	/*
	 * olmo2 and gemma2 add the output of that norm, which must be finished; gpt2 has no such
	 * norm
	 */
	size_t names_that_fit = strstr(device_cases[_i].options, ONE_TERM) ? OTHERS : NAMES;
	/* each family in a third of the cases, or each case with one family */
	size_t stride = THIN > 1 ? names_that_fit : 3;

	use_discrete_device();
	setenv("TESSERA_LAYOUT", device_cases[_i].layout, 1);
	for (size_t i = (size_t)_i % stride; i < names_that_fit; i += stride)
		compare_logits(names[i], 1, device_cases[_i].ranks, device_cases[_i].options);
}
END_TEST

/* Checks that a device refuses styles that read or store in host memory. */
START_TEST(styles_that_need_host_memory)
{
	static const char *const refused[][2] = {
		{ "--plan-override 'model.layers.0.mlp=negated_twice'",
		  "model.layers.0.mlp: style negated_twice calls a function of its own" },
		{ "--plan-override 'model.norm=stored:host'",
		  "stores it in host memory, which is for training only" },
	};
	struct tess_safetensors *g = load_goldens("llama");
	char said[1024];
	int status;

	use_discrete_device();
	for (int i = 0; i < 2; i++) {
		json_decref(run_generate_json("llama", find_golden_tensor(g, "prompt%d.ids", 0), 2,
		                              refused[i][0], &status, said));
		ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "%s", said);
		expect_part(said, refused[i][1]);
	}
	tess_safetensors_close(g);
}
END_TEST

/*
 * Checks that a device with exact sums has the bits of the cpu: its nodes are added in host memory.
 */
START_TEST(digests_of_an_exact_device)
{
	setenv("TESSERA_LAYOUT", "", 1);
	for (int i = 0; i < 3; i++) {
		struct tess_safetensors *g = load_goldens(names[i]);
		char said[1024];
		int status;
		json_t *out = run_generate_json(
			names[i], find_golden_tensor(g, "prompt%d.ids", 1), 3,
			_i ? "--device discrete_exact --plan tp+sp" : "--device discrete_exact",
			&status, said);

		ck_assert_msg(!status && out, "%s", said);
		ck_assert_str_eq(json_string_value(json_object_get(out, "digest")), digests[i]);
		json_decref(out);
		tess_safetensors_close(g);
	}
}
END_TEST

/* Returns whether the command prints `part` for llama on that device. */
static bool prints_on_device(const char *command, const char *options, const char *part)
{
	static char out[1 << 16];

	ck_assert_int_eq(command_run(out, sizeof out,
	                             "'" TESSERA "' %s '" SOURCE_ROOT "/tests/data/goldens/llama' "
	                             "--device discrete_exact %s",
	                             command, options),
	                 0);
	return strstr(out, part);
}

/* Checks that only steps that the device declares are fused, and that digests do not change. */
START_TEST(fused_steps_of_a_device)
{
	struct tess_safetensors *g = load_goldens("llama");
	char said[1024];
	int status;
	json_t *out;

	setenv("TESSERA_LAYOUT", "", 1);
	if (_i)
		setenv("DISCRETE_FUSES", "1", 1);
	out = run_generate_json("llama", find_golden_tensor(g, "prompt%d.ids", 1), 3,
	                        "--device discrete_exact", &status, said);
	ck_assert_msg(!status && out, "%s", said);
	ck_assert_str_eq(json_string_value(json_object_get(out, "digest")), digests[0]);
	ck_assert_int_eq(prints_on_device("explain", "--program", " +glu "), _i);
	ck_assert_int_eq(prints_on_device("explain", "--program", " +norm "), _i);
	ck_assert_int_eq(prints_on_device("explain", "--program --json", "\"fused\":"), _i);
	ck_assert(!prints_on_device("explain", "--program", " +add "));
	ck_assert_int_eq(prints_on_device("bench decode", "--breakdown --rounds 1 --tokens 2",
	                                  " linear+glu "),
	                 _i);
	json_decref(out);
	tess_safetensors_close(g);
}
END_TEST

/*
 * Checks that a device may prefer a cache of bf16, only next to linear weights of bf16, and that a
 * session overrides it.
 */
START_TEST(caches_of_a_device)
{
	static const char device[] = "--device discrete_exact";
	char preset[65], want[65], text[4096];

	setenv("DISCRETE_KV", "1", 1);
	for (int i = 0; i < 2; i++) {
		const char *name = i ? "llama" : "llama-bf16", *dtype = i ? "f32" : "bf16";

		get_last_digest(name, name, 2, device, preset);
		snprintf(text, sizeof text, "--kv %s", dtype);
		get_last_digest(name, name, 1, text, want);
		ck_assert_str_eq(preset, want);
		command_run(text, sizeof text,
		            "'" TESSERA "' explain '" SOURCE_ROOT "/tests/data/goldens/%s' %s",
		            name, device);
		snprintf(want, sizeof want, "KV cache for 256 positions in %s,", dtype);
		expect_part(text, want);
	}
	get_last_digest("llama-bf16", "llama-bf16", 2, "--device discrete_exact --kv f32", preset);
	unsetenv("DISCRETE_KV");
	get_last_digest("llama-bf16", "llama-bf16", 1, "", want);
	ck_assert_str_eq(preset, want);
}
END_TEST

/*
 * Fails a kernel when the host waits for it, in the step of its op; the job ends with that failure.
 */
START_TEST(kernel_that_fails)
{
	struct tess_safetensors *g = load_goldens("llama");
	char said[1024];
	int status;

	use_discrete_device();
	setenv("DISCRETE_FAILS", "model.layers.1.mlp.down_proj", 1);
	json_decref(run_generate_json("llama", find_golden_tensor(g, "prompt%d.ids", 0), 2, "",
	                              &status, said));
	unsetenv("DISCRETE_FAILS");
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "%s", said);
	expect_part(said, "model.layers.1.mlp.down_proj: discrete: a kernel failed");
	tess_safetensors_close(g);
}
END_TEST

/* Checks the digest of script/demo, shown in README.md. */
START_TEST(documented_digest)
{
	char said[256];

	ck_assert_int_eq(command_run(said, sizeof said,
	                             "'" TESSERA "' generate '" SOURCE_ROOT
	                             "/data' --prompt 'Once upon a time' --temperature 0 "
	                             "--max-tokens 127 -n 3 --backend loopback --digest "
	                             "2>&1 >/dev/null"),
	                 0);
	expect_part(said, "digest 116fd1c99b8648b2");
}
END_TEST

/* ---- a GPU, or an emulated one (GPU_DEVICE) -------------------------------------------------- */

enum { EXIT_SKIPPED = 77 };
static const int gpu_ranks[] = { 1, 3 };

/* Checks logits in steps of at most 8 rows, which multiply weights of 16 bits in f32, too. */
START_TEST(logits_of_a_gpu)
{
	const char *name = names[_i % NAMES];

	compare_logits(name, 1, gpu_ranks[(_i + _i / NAMES) % 2],
	               strstr(name, "bf16") || strstr(name, "mxfp4") ? "--kv f32" : "");
}
END_TEST

static const char *const rounded[] = { "llama-bf16", "mixtral-bf16" };

/*
 * Checks the default cache, of bf16 next to weights of bf16. Keys and values are rounded, each by
 * 2^-8 at most, in each layer. With two layers logits stay within 2^-7 of the largest one; with a
 * prompt in one step, whose activations are also rounded before each product, within 2^-6. Rows of
 * a mixture may choose other experts, for which there is no such bound.
 */
START_TEST(caches_of_a_gpu)
{
	char preset[65], bf16[65], f32[65], said[4096];
	double largest, error;

	setenv("TESSERA_CUDA_MATH", "f32", 1);
	command_run(said, sizeof said,
	            "'" TESSERA "' explain '" SOURCE_ROOT "/tests/data/goldens/%s'", rounded[_i]);
	unsetenv("TESSERA_CUDA_MATH");
	expect_part(said, "KV cache for 256 positions in f32,");
	get_last_digest(rounded[_i], rounded[_i], gpu_ranks[_i], "", preset);
	get_last_digest(rounded[_i], rounded[_i], gpu_ranks[_i], "--kv bf16", bf16);
	get_last_digest(rounded[_i], rounded[_i], gpu_ranks[_i], "--kv f32", f32);
	ck_assert_str_eq(preset, bf16);
	ck_assert_str_ne(preset, f32);
	if (_i)
		return;
	error = measure_error_of_logits(rounded[_i], 1, gpu_ranks[_i], "", &largest);
	ck_assert_msg(error <= ldexp(largest, -7), "error %g of %g", error, largest);
	error = measure_error_of_logits(rounded[_i], 1, gpu_ranks[_i], "--prefill-chunk 512",
	                                &largest);
	ck_assert_msg(error <= ldexp(largest, -6), "a prompt: error %g of %g", error, largest);
}
END_TEST

/*
 * Checks prompts in one step, whose activations are rounded to bf16 like the weights. Ids do not
 * change, except in a mixture whose keys and values are rounded, too. The last two have them in
 * f32.
 */
START_TEST(prompts_of_a_gpu)
{
	const char *name = rounded[_i % 2];
	const char *options = _i < 2 ? "--prefill-chunk 512" : "--prefill-chunk 512 --kv f32";
	struct tess_safetensors *g = load_goldens(name);
	const struct tess_slice *ids = find_golden_tensor(g, "prompt%d.ids", 1);
	const struct tess_slice *greedy = find_golden_tensor(g, "greedy%d.ids", 1);
	json_t *first = NULL, *out;
	char said[1024];
	int status;

	for (int again = 0; again < 2; again++) {
		out = run_generate_json(name, ids, 1, options, &status, said);
		ck_assert_msg(!status && out, "%s", said);
		for (int64_t i = 0; i < greedy->shape[0] && i < ntokens && _i != 1; i++)
			ck_assert_int_eq(json_integer_value(json_array_get(
						 json_object_get(out, "ids"), (size_t)i)),
			                 ((const int64_t *)greedy->data)[i]);
		if (!first)
			first = json_incref(out);
		ck_assert(json_equal(json_object_get(first, "digest"),
		                     json_object_get(out, "digest")));
		json_decref(out);
	}
	json_decref(first);
	tess_safetensors_close(g);
}
END_TEST

/* Checks that a step is queued as a graph from its second time on; without graphs, op by op. */
START_TEST(graphs_of_a_gpu)
{
	struct tess_safetensors *g = load_goldens("llama");
	const struct tess_slice *ids = find_golden_tensor(g, "prompt%d.ids", 1);
	char said[1024];
	int status;

	setenv("FAKE_CUDA_FAILS", "cuGraphLaunch", 1);
	json_decref(run_generate_json("llama", ids, 1, "", &status, said));
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "%s", said);
	expect_part(said, "cuda: cuGraphLaunch: simulated failure");
	setenv("FAKE_CUDA_FAILS", "cuStreamBeginCapture", 1);
	compare_logits("llama", 1, 1, "");
	unsetenv("FAKE_CUDA_FAILS");
	tess_safetensors_close(g);
}
END_TEST

static bool is_gpu_usable(void)
{
	char command[1024], said[512] = "";
	FILE *f;

	snprintf(command, sizeof command,
	         "'%s' generate '%s/data' --ids 1 --max-tokens 1 2>&1 >/dev/null", TESSERA,
	         SOURCE_ROOT);
	f = popen(command, "r");
	if (!f || !fgets(said, sizeof said, f) || !strstr(said, "not usable here"))
		said[0] = 0;
	if (f)
		pclose(f);
	fprintf(stderr, "%s%s", *said ? "skipped: " : "", said);
	return !*said;
}

int main(void)
{
	SRunner *r;
	const char *gpu = getenv("GPU_DEVICE");
	TCase *t = suite_begin("goldens", 120, &r);

	srunner_set_fork_status(r, CK_NOFORK);
	if (gpu) {
		setenv("TESSERA_DEVICE", gpu, 1);
		if (strstr(gpu, "emulated"))
			ntokens = EMULATED_TOKENS;
		if (!is_gpu_usable()) {
			srunner_free(r);
			return EXIT_SKIPPED;
		}
		/* an emulated GPU is slow: each checkpoint on one number of ranks */
		tcase_add_loop_test(t, logits_of_a_gpu, 0,
		                    strstr(gpu, "emulated") ? NAMES : 2 * NAMES);
		tcase_add_loop_test(t, caches_of_a_gpu, 0, 2);
		tcase_add_loop_test(t, prompts_of_a_gpu, 0, 4);
		if (strstr(gpu, "emulated"))
			tcase_add_test(t, graphs_of_a_gpu);
		return suite_end(r);
	}
	tcase_add_loop_test(t, logits, 0, 3 * NAMES);
	tcase_add_loop_test(t, every_number_of_ranks, 0, NAMES);
	tcase_add_loop_test(t, every_way, 0, STRIDES);
	tcase_add_loop_test(t, every_way_rounded, 0, (NAMES + 2) / 3);
	tcase_add_loop_test(t, every_way_in_12_bits, 0, 2);
	tcase_add_loop_test(t, every_way_of_bf16_products, 0, 2);
	tcase_add_test(t, every_way_of_stored_mxfp4);
	tcase_add_loop_test(t, every_way_of_experts, 0, SPARSE + 1);
	tcase_add_loop_test(t, older_config, 0, STRIDES);
	tcase_add_test(t, names_without_prefix);
	tcase_add_test(t, documented_digest);
	tcase_add_loop_test(t, logits_of_a_device_with_memory, 0, DEVICE_CASES);
	tcase_add_test(t, digests_of_an_exact_device);
	tcase_add_loop_test(t, fused_steps_of_a_device, 0, 2);
	tcase_add_test(t, caches_of_a_device);
	tcase_add_test(t, kernel_that_fails);
	tcase_add_test(t, styles_that_need_host_memory);
	return suite_end(r);
}
