/*
 * test_names.c - names in checkpoints from other tools: prefixes of wrappers, base models without
 * their prefix, unused tensors; and missing heads, reported as such.
 */
#include "hf/safetensors.h"
#include "tests/support/command.h"
#include "tests/support/scratch.h"

#include <jansson.h>
#include <stdbool.h>
#include <tessera/tessera.h>

enum { TENSORS_MAX = 128, TEXT = 8192 };

/* A checkpoint written with other names. */
struct renamed {
	struct tess_safetensors *file;
	int32_t n;
	struct tess_slice tensor[TENSORS_MAX];
	char name[TENSORS_MAX][256];
};

static const char *format_golden_path(const char *family, const char *file)
{
	static char path[512];

	snprintf(path, sizeof path, SOURCE_ROOT "/tests/data/goldens/%s/%s", family, file);
	return path;
}

static struct renamed *open_renamed(const char *path)
{
	struct renamed *r = calloc(1, sizeof *r);

	ck_assert(r && !tess_safetensors_open(path, false, &r->file));
	for (size_t i = 0; i < tess_safetensors_count(r->file); i++, r->n++) {
		r->tensor[i] = *tess_safetensors_at(r->file, i);
		snprintf(r->name[i], sizeof r->name[i], "%s", r->tensor[i].name);
	}
	return r;
}

static void close_renamed(struct renamed *r)
{
	tess_safetensors_close(r->file);
	free(r);
}

static void add_named_tensor(struct renamed *r, const char *name)
{
	static const int64_t shape[] = { 2 };
	static const float values[2] = { 0 };

	ck_assert_int_lt(r->n, TENSORS_MAX);
	snprintf(r->name[r->n], sizeof r->name[0], "%s", name);
	r->tensor[r->n++] =
		(struct tess_slice){ .dtype = TESS_F32, .ndim = 1, .shape = shape, .data = values };
}

static void drop_named_tensor(struct renamed *r, const char *name)
{
	int32_t i = 0;

	while (i < r->n && strcmp(r->name[i], name) != 0)
		i++;
	ck_assert_int_lt(i, r->n--);
	memmove(&r->tensor[i], &r->tensor[i + 1], (size_t)(r->n - i) * sizeof *r->tensor);
	memmove(r->name[i], r->name[i + 1], (size_t)(r->n - i) * sizeof r->name[0]);
}

static void add_prefix(struct renamed *r, const char *prefix)
{
	char name[256];

	for (int32_t i = 0; i < r->n; i++) {
		snprintf(name, sizeof name, "%s%.200s", prefix, r->name[i]);
		memcpy(r->name[i], name, sizeof name);
	}
}

static void remove_prefix(struct renamed *r, const char *prefix)
{
	size_t len = strlen(prefix);

	for (int32_t i = 0; i < r->n; i++)
		if (!strncmp(r->name[i], prefix, len))
			memmove(r->name[i], r->name[i] + len, strlen(r->name[i] + len) + 1);
}

static void write_renamed(struct renamed *r, const char *folder)
{
	char path[128];

	mkdir(scratch_format_path(folder), 0700); /* may exist from the last test */
	for (int32_t i = 0; i < r->n; i++)
		r->tensor[i].name = r->name[i];
	snprintf(path, sizeof path, "%s/model.safetensors", folder);
	ck_assert_msg(!tess_safetensors_write(scratch_format_path(path), r->n, r->tensor), "%s",
	              tess_error());
}

/* Writes config.json of `from` with the keys of `change`; a null removes one. */
static void write_config_beside(const char *from, const char *folder, const char *change)
{
	json_t *root = json_load_file(from, 0, NULL), *more = json_loads(change, 0, NULL), *value;
	const char *key;
	char path[128];

	ck_assert(root && more);
	json_object_foreach(more, key, value)
		if (json_is_null(value))
			json_object_del(root, key);
		else
			json_object_set(root, key, value);
	snprintf(path, sizeof path, "%s/config.json", folder);
	ck_assert(!json_dump_file(root, scratch_format_path(path), 0));
	json_decref(root);
	json_decref(more);
}

#define GENERATE "-n 2 --backend loopback --ids 1,5,9,2 --max-tokens 3 --temperature 0 --json"

/* Returns the digest; stores stderr, with lines of level info, in `log`. */
static void run_for_digest(const char *dir, char digest[65], char *log)
{
	char text[TEXT], *at;

	ck_assert_msg(
		!command_run(text, TEXT, "'%s' generate '%s' " GENERATE " 2>&1", TESSERA, dir),
		"%s", text);
	at = strstr(text, "\"digest\":\"");
	ck_assert_msg(at && sscanf(at, "\"digest\":\"%64[0-9a-f]", digest) == 1, "%s", text);
	ck_assert(!command_run(log, TEXT,
	                       "TESSERA_LOG=info '%s' generate '%s' " GENERATE " 2>&1 >/dev/null",
	                       TESSERA, dir));
}

static const struct {
	const char *name, *base, *layer; /* layer: one after the last */
} families[] = {
	{ "llama", "model.", "model.layers.7." },
	{ "mistral", "model.", "model.layers.7." },
	{ "qwen2", "model.", "model.layers.7." },
	{ "qwen3", "model.", "model.layers.7." },
	{ "olmo2", "model.", "model.layers.7." },
	{ "phi3", "model.", "model.layers.7." },
	{ "gemma2", "model.", "model.layers.7." },
	{ "gpt2", "transformer.", "transformer.h.7." },
	{ "mixtral", "model.", "model.layers.7." },
	{ "qwen3_moe", "model.", "model.layers.7." },
	{ "deepseek_v3", "model.", "model.layers.7." },
	{ "cohere2", "model.", "model.layers.7." },
	{ "gemma3_text", "model.", "model.layers.7." },
	{ "glm4_moe", "model.", "model.layers.7." },
	{ "gpt_neox", "gpt_neox.", "gpt_neox.layers.7." },
	{ "gpt_oss", "model.", "model.layers.7." },
	{ "llama4_text", "model.", "model.layers.7." },
	{ "olmoe", "model.", "model.layers.7." },
	{ "opt", "model.", "model.decoder.layers.7." },
	{ "qwen2_moe", "model.", "model.layers.7." },
};

/* Adds tensors that no family uses: of positions, and of multi-token prediction. */
static void add_ignored_tensors(struct renamed *r, const char *layer)
{
	static const char *const ends[] = { "eh_proj.weight", "enorm.weight",
		                            "mlp.experts.0.up_proj.weight" };
	char name[128];

	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof name, "%s%s", layer, ends[i]);
		add_named_tensor(r, name);
	}
	snprintf(name, sizeof name, "%.*s0.self_attn.rotary_emb.inv_freq", (int)strlen(layer) - 2,
	         layer);
	add_named_tensor(r, name);
	add_named_tensor(r, "mtp.layers.0.weight");
}

START_TEST(names_of_each_family)
{
	char plain[65], digest[65], log[TEXT], skipped[128];
	struct renamed *r =
		open_renamed(format_golden_path(families[_i].name, "model.safetensors"));
	const char *config;

	run_for_digest(format_golden_path(families[_i].name, ""), plain, log);
	ck_assert_ptr_null(strstr(log, "hf:"));
	config = format_golden_path(families[_i].name, "config.json");
	/* names left by torch.compile */
	add_prefix(r, "_orig_mod.");
	write_renamed(r, "compiled");
	write_config_beside(config, "compiled", "{}");
	run_for_digest(scratch_format_path("compiled"), digest, log);
	ck_assert_str_eq(digest, plain);
	ck_assert_int_eq(count_occurrences(log, "its names begin with \"_orig_mod.\", "), 1);
	/* a base model with tensors that are ignored, in two wrappers */
	remove_prefix(r, "_orig_mod.");
	add_ignored_tensors(r, families[_i].layer);
	remove_prefix(r, families[_i].base);
	add_prefix(r, "module._orig_mod.");
	write_renamed(r, "base");
	write_config_beside(config, "base", "{}");
	run_for_digest(scratch_format_path("base"), digest, log);
	ck_assert_str_eq(digest, plain);
	ck_assert_int_eq(count_occurrences(log, "its names begin with \"module._orig_mod.\", "), 1);
	snprintf(skipped, sizeof skipped,
	         "/base: %.*s and mtp: for multi-token prediction; not used",
	         (int)(strlen(families[_i].layer) - strlen(families[_i].base)) - 1,
	         families[_i].layer + strlen(families[_i].base));
	ck_assert_int_eq(count_occurrences(log, skipped), 1);
	ck_assert_int_eq(count_occurrences(log, "hf:"), 2);
	close_renamed(r);
}
END_TEST

/*
 * Checks that a prefix is kept unless all names have it, including names in files that the index
 * does not list.
 */
START_TEST(keeps_a_prefix_of_some)
{
	char text[TEXT];
	struct renamed *r = open_renamed(format_data_path("model.safetensors"));

	add_prefix(r, "module.");
	add_named_tensor(r, "step");
	write_renamed(r, "mixed");
	write_config_beside(format_data_path("config.json"), "mixed", "{}");
	ck_assert_int_eq(command_run(text, TEXT, "'%s' explain '%s' 2>&1", TESSERA,
	                             scratch_format_path("mixed")),
	                 1);
	expect_part(text, "tensor model.embed_tokens.weight is not among its 48; the nearest is "
	                  "module.model.embed_tokens.weight");
	close_renamed(r);
}
END_TEST

/* Writes config.json whose text_config is that of `from`. */
static void write_config_of_parts(const char *from, const char *folder)
{
	json_t *root = json_pack("{s:s, s:{}, s:o}", "model_type", "parts", "vision_config",
	                         "text_config", json_load_file(from, 0, NULL));
	char path[128];

	snprintf(path, sizeof path, "%s/config.json", folder);
	ck_assert(root && !json_dump_file(root, scratch_format_path(path), 0));
	json_decref(root);
}

/*
 * Checks that the text part of a model that reads images gives the digest of a model of text alone,
 * by its names in transformers 4 or 5, or without a prefix.
 */
START_TEST(text_of_a_model_with_images)
{
	static const char *const prefixes[] = { "language_model.", "model.language_model.", "" };
	char plain[65], digest[65], log[TEXT];
	struct renamed *r;

	run_for_digest(format_golden_path("gemma3_text", ""), plain, log);
	ck_assert_ptr_null(strstr(log, "images"));
	r = open_renamed(format_golden_path("gemma3_text", "model.safetensors"));
	if (_i == 1)
		remove_prefix(r, "model.");
	add_prefix(r, prefixes[_i]);
	if (_i < 2) {
		add_named_tensor(r, "model.vision_tower.layers.0.norm.weight");
		add_named_tensor(r, "multi_modal_projector.weight");
	}
	write_renamed(r, "parts");
	write_config_of_parts(format_golden_path("gemma3_text", "config.json"), "parts");
	run_for_digest(scratch_format_path("parts"), digest, log);
	ck_assert_str_eq(digest, plain);
	ck_assert_int_eq(count_occurrences(log, "/parts: of this model only the text part, "
	                                        "gemma3_text, is read; images"),
	                 1);
	ck_assert_int_eq(command_run(log, TEXT, "'%s' convert '%s' '%s' --dtype bf16 2>&1", TESSERA,
	                             scratch_format_path("parts"), scratch_format_path("out")),
	                 1);
	expect_part(log, "its other parts would be lost");
	close_renamed(r);
}
END_TEST

/* ---- what is written ------------------------------------------------------------------------- */

/* Converts the checkpoint, and saves it after a training step, into folders next to it. */
static void write_again(const char *folder)
{
	const char *dir = scratch_format_path(folder);
	char text[TEXT];

	scratch_write("ids.u16", "\1\0\5\0\11\0\2\0\7\0\3\0\4\0\6\0\10", 18);
	ck_assert_msg(!command_run(text, TEXT,
	                           "'%s' convert '%s' '%s-as-bf16' -n 2 --dtype bf16 2>&1", TESSERA,
	                           dir, dir),
	              "%s", text);
	ck_assert_msg(!command_run(text, TEXT,
	                           "TESSERA_LOG=info '%s' train '%s' -n 2 --data '%s' --sequence 8 "
	                           "--batch 1 --steps 1 --save '%s-trained' 2>&1",
	                           TESSERA, dir, scratch_format_path("ids.u16"), dir),
	              "%s", text);
	ck_assert_int_le(count_occurrences(text, "its names begin with"), 1);
}

static bool have_equal_weights(const char *a, const char *b)
{
	char text[TEXT];

	return !command_run(text, TEXT, "cmp '%s/model.safetensors' '%s/model.safetensors' 2>&1",
	                    scratch_format_path(a), scratch_format_path(b));
}

/* Checks that the prefix of a wrapper is not written, and that a base model remains one. */
START_TEST(names_that_are_written)
{
	struct renamed *r = open_renamed(format_golden_path("qwen3", "model.safetensors"));
	static const char *const folders[] = { "plain", "wrapped", "bare" };
	static const char *const first[] = { "lm_head.weight", "lm_head.weight",
		                             "embed_tokens.weight" };

	for (int i = 0; i < 3; i++) {
		if (i == 1)
			add_prefix(r, "module.");
		remove_prefix(r, i == 2 ? "module.model." : "");
		remove_prefix(r, i == 2 ? "module." : "");
		write_renamed(r, folders[i]);
		write_config_beside(format_golden_path("qwen3", "config.json"), folders[i], "{}");
		write_again(folders[i]);
	}
	ck_assert(have_equal_weights("plain-as-bf16", "wrapped-as-bf16"));
	ck_assert(have_equal_weights("plain-trained/step-1", "wrapped-trained/step-1"));
	close_renamed(r);
	for (int i = 0; i < 6; i++) {
		char path[128];

		snprintf(path, sizeof path, "%s-%s/model.safetensors", folders[i % 3],
		         i < 3 ? "as-bf16" : "trained/step-1");
		r = open_renamed(scratch_format_path(path));
		ck_assert_str_eq(r->name[0], first[i % 3]);
		close_renamed(r);
	}
}
END_TEST

/* ---- heads ----------------------------------------------------------------------------------- */

#define TIE \
	"if it shares model.embed_tokens.weight, put \"tie_word_embeddings\": true into config.json"

/*
 * Changes to the project's checkpoint, which has tied embeddings: another tensor, or no `model.`.
 */
static const struct {
	const char *config, *tensor, *base, *says;
} heads[] = {
	{ "{\"tie_word_embeddings\": null}", NULL, "", TIE ", which lacks that key; if not, " },
	{ "{\"tie_word_embeddings\": false}", NULL, "",
	  TIE ", which has another value; if not, the model was saved without its head" },
	{ "{\"tie_word_embeddings\": false}", NULL, "model.",
	  "the model was saved without its head (AutoModel): save it as AutoModelForCausalLM" },
	{ "{\"tie_word_embeddings\": null, "
	  "\"architectures\": [\"LlamaForSequenceClassification\"]}",
	  "score.weight", "",
	  "is a classifier (LlamaForSequenceClassification), not a language model" },
	{ "{\"tie_word_embeddings\": null, \"architectures\": null}", "score.weight", "",
	  "is a classifier (score.weight), not a language model" },
	{ "{\"architectures\": [\"LlamaForQuestionAnswering\"]}", "qa_outputs.weight", "",
	  "is a classifier (LlamaForQuestionAnswering)" }, /* despite tied embeddings */
	{ "{\"architectures\": [\"LlamaModel\"]}", "classifier.weight", "",
	  "is a classifier (classifier.weight)" },
	{ "{\"tie_word_embeddings\": null}", "classify.weight", "", TIE },
};

START_TEST(names_missing_heads)
{
	struct renamed *r = open_renamed(format_data_path("model.safetensors"));
	char text[TEXT];

	if (heads[_i].tensor)
		add_named_tensor(r, heads[_i].tensor);
	remove_prefix(r, heads[_i].base);
	write_renamed(r, "head");
	write_config_beside(format_data_path("config.json"), "head", heads[_i].config);
	for (int k = 0; k < 2; k++) {
		ck_assert_int_eq(command_run(text, TEXT, "'%s' %s '%s' 2>&1", TESSERA,
		                             k ? "explain" : "generate --ids 1 --max-tokens 1",
		                             scratch_format_path("head")),
		                 1);
		expect_part(text, heads[_i].says);
	}
	close_renamed(r);
}
END_TEST

/* Changes to one tensor, renamed or added, that give a refusal. */
START_TEST(refuses_strays)
{
	static const struct {
		const char *removed, *added, *says;
	} cases[] = {
		/* names with `model.` exist */
		{ "model.norm.weight", "norm.weight",
		  "tensor model.norm.weight is not among its 47" },
		/* the layer is in use, or not for multi-token prediction */
		{ NULL, "model.layers.0.eh_proj.weight",
		  "no module of model llama asks for model.layers.0.eh_proj.weight" },
		{ NULL, "model.layers.5.proj.weight",
		  "no module of model llama asks for model.layers.5.proj.weight" },
	};
	char text[TEXT];

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct renamed *r = open_renamed(format_data_path("model.safetensors"));

		if (cases[i].removed)
			drop_named_tensor(r, cases[i].removed);
		add_named_tensor(r, cases[i].added);
		write_renamed(r, "stray");
		write_config_beside(format_data_path("config.json"), "stray", "{}");
		ck_assert_int_eq(command_run(text, TEXT, "'%s' explain '%s' 2>&1", TESSERA,
		                             scratch_format_path("stray")),
		                 1);
		expect_part(text, cases[i].says);
		close_renamed(r);
	}
}
END_TEST

/*
 * Checks that other missing weights are not reported as a classifier's, and that a classifier with
 * a head runs.
 */
START_TEST(names_other_weights)
{
	struct renamed *r = open_renamed(format_data_path("model.safetensors"));
	char text[TEXT];

	add_named_tensor(r, "score.weight");
	write_renamed(r, "scored");
	write_config_beside(format_data_path("config.json"), "scored", "{}");
	ck_assert_int_eq(command_run(text, TEXT,
	                             "'%s' generate '%s' --ids 1 --max-tokens 1 "
	                             "--ignore-unexpected 2>&1",
	                             TESSERA, scratch_format_path("scored")),
	                 0);
	expect_part(text, "no module asks for score.weight; ignored");
	drop_named_tensor(r, "model.layers.1.self_attn.q_proj.weight");
	write_renamed(r, "cut");
	write_config_beside(format_data_path("config.json"), "cut", "{}");
	ck_assert_int_eq(command_run(text, TEXT, "'%s' explain '%s' 2>&1", TESSERA,
	                             scratch_format_path("cut")),
	                 1);
	expect_part(text, "tensor model.layers.1.self_attn.q_proj.weight is not among its 47");
	ck_assert_ptr_null(strstr(text, "classifier"));
	ck_assert_ptr_null(strstr(text, "tie_word_embeddings"));
	close_renamed(r);
}
END_TEST

/* ---- tokenizers ------------------------------------------------------------------------------ */

#define UNREAD "tokenizer.json: model: type: \"Unigram\" is not supported"

/* Checks that ids need no tokenizer: an unreadable one gives a warning, and texts are ids. */
START_TEST(ids_beside_an_unread_tokenizer)
{
	static const char *const refused[] = { "--prompt a", "--prompt a --prompt b",
		                               "--ids 1 --prompt a" };
	struct renamed *r = open_renamed(format_data_path("model.safetensors"));
	char text[TEXT];

	write_renamed(r, "unigram");
	close_renamed(r);
	write_config_beside(format_data_path("config.json"), "unigram", "{}");
	scratch_write_text("unigram/tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
	ck_assert_msg(!command_run(text, TEXT,
	                           "'%s' generate '%s' -n 2 --ids 1,403 --ids 1,5 --max-tokens 2 "
	                           "--temperature 0 2>&1",
	                           TESSERA, scratch_format_path("unigram")),
	              "%s", text);
	ck_assert_int_eq(count_occurrences(text, UNREAD), 1);
	expect_part(text, "warning: ");
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		ck_assert_int_eq(command_run(text, TEXT, "'%s' generate '%s' %s 2>&1", TESSERA,
		                             scratch_format_path("unigram"), refused[i]),
		                 1);
		expect_part(text, UNREAD);
		ck_assert_ptr_null(strstr(text, "warning: "));
	}
}
END_TEST

int main(void)
{
	int failed;
	SRunner *r;
	TCase *t;

	scratch_make();
	t = suite_begin("names", 60, &r);
	tcase_add_loop_test(t, names_of_each_family, 0, (int)(sizeof families / sizeof *families));
	tcase_add_test(t, keeps_a_prefix_of_some);
	tcase_add_loop_test(t, text_of_a_model_with_images, 0, 3);
	tcase_add_test(t, names_that_are_written);
	tcase_add_loop_test(t, names_missing_heads, 0, (int)(sizeof heads / sizeof *heads));
	tcase_add_test(t, names_other_weights);
	tcase_add_test(t, refuses_strays);
	tcase_add_test(t, ids_beside_an_unread_tokenizer);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}
