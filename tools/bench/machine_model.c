/* machine_model.c - writes the checkpoints of `tessera bench machine`. */
#include "machine.h"

#include "api/session.h"
#include "core/base/json.h"
#include "core/base/status.h"
#include "hf/safetensors.h"
#include "nn/program/storage.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tessera/util/random.h>
#include <unistd.h>

/*
 * The sizes: all kinds of ops of the families appear, on up to 12 ranks along tp, and the weights
 * of a step exceed the last-level cache. `quick` ones are for tests.
 */
#define LLAMA(hidden, heads, inner, layers, vocabulary) \
	"{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", " \
	"\"hidden_size\": " #hidden ", \"num_attention_heads\": " #heads \
	", \"num_key_value_heads\": " #heads ", \"intermediate_size\": " #inner \
	", \"num_hidden_layers\": " #layers ", \"vocab_size\": " #vocabulary \
	", \"max_position_embeddings\": 2048, \"rms_norm_eps\": 1e-5, \"hidden_act\": \"silu\", " \
	"\"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\"}"
#define QWEN3_MOE(hidden, heads, kv, inner, experts, top, layers, vocabulary) \
	"{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"model_type\": \"qwen3_moe\", " \
	"\"hidden_size\": " #hidden ", \"num_attention_heads\": " #heads \
	", \"num_key_value_heads\": " #kv ", \"head_dim\": 64, \"moe_intermediate_size\": " #inner \
	", \"intermediate_size\": " #inner ", \"num_experts\": " #experts \
	", \"num_experts_per_tok\": " #top ", \"norm_topk_prob\": true, " \
	"\"decoder_sparse_step\": 1, \"num_hidden_layers\": " #layers \
	", \"vocab_size\": " #vocabulary ", \"max_position_embeddings\": 2048, " \
	"\"rms_norm_eps\": 1e-6, \"hidden_act\": \"silu\", \"tie_word_embeddings\": true, " \
	"\"torch_dtype\": \"bfloat16\"}"
#define GPT2(hidden, heads, layers, vocabulary) \
	"{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\", " \
	"\"n_embd\": " #hidden ", \"n_head\": " #heads ", \"n_layer\": " #layers \
	", \"vocab_size\": " #vocabulary \
	", \"n_positions\": 2048, \"n_ctx\": 2048, \"activation_function\": \"gelu_new\", " \
	"\"layer_norm_epsilon\": 1e-5, \"embd_pdrop\": 0, \"attn_pdrop\": 0, " \
	"\"resid_pdrop\": 0, \"torch_dtype\": \"bfloat16\"}"

static const struct {
	const char *name, *config, *quick;
	const char *layers; /* the key of config.json */
} models[] = {
	{ "llama", LLAMA(768, 12, 2048, 8, 32000), LLAMA(64, 4, 128, 2, 512), "num_hidden_layers" },
	{ "qwen3_moe", QWEN3_MOE(768, 12, 4, 384, 16, 4, 8, 32000),
	  QWEN3_MOE(64, 4, 4, 32, 4, 2, 2, 512), "num_hidden_layers" },
	{ "gpt2", GPT2(768, 12, 8, 50257), GPT2(64, 4, 2, 512), "n_layer" },
};
enum { SHORT_LAYERS = 2 };

int32_t machine_count_models(void)
{
	return (int32_t)(sizeof models / sizeof *models);
}

const char *machine_get_model_name(int32_t i)
{
	return models[i].name;
}

static tess_status write_model_config(const char *dir, json_t *config)
{
	char path[4096];

	snprintf(path, sizeof path, "%.4000s/config.json", dir);
	return json_dump_file(config, path, JSON_INDENT(1))
	               ? tess_fail(TESS_EIO, "%s: cannot be written", path)
	               : TESS_OK;
}

/* Writes config.json of both directories, and links the weights of the short one. */
static tess_status write_configs(int32_t i, bool quick, const char *dir)
{
	const char *text = quick ? models[i].quick : models[i].config;
	char path[4096], weights[4096];
	json_t *config;
	tess_status st = tess_json_parse(models[i].name, text, strlen(text), &config);

	if (st)
		return st;
	snprintf(weights, sizeof weights, "%.4000s/model.safetensors", dir);
	unlink(weights); /* of the model before */
	st = write_model_config(dir, config);
	snprintf(path, sizeof path, "%.4000s/" MACHINE_SHORT, dir);
	if (!st && mkdir(path, 0700) && errno != EEXIST)
		st = tess_fail(TESS_EIO, "%s: %s", path, strerror(errno));
	json_object_set_new(config, models[i].layers, json_integer(SHORT_LAYERS));
	if (!st)
		st = write_model_config(path, config);
	snprintf(path, sizeof path, "%.4000s/" MACHINE_SHORT "/model.safetensors", dir);
	if (!st && symlink(weights, path) && errno != EEXIST)
		st = tess_fail(TESS_EIO, "%s: %s", path, strerror(errno));
	json_decref(config);
	return st;
}

/* Fills n elements of bf16 with small random numbers around `mean`. */
static void fill_weights(uint16_t *out, int64_t n, uint32_t seed, float mean)
{
	for (int64_t i = 0; i < n; i += 8) {
		uint32_t word[4] = { (uint32_t)i, (uint32_t)(i >> 32) };

		tess_philox(seed, 0, word);
		for (int j = 0; j < 8 && i + j < n; j++) {
			uint32_t half = word[j / 2] >> 16 * (j % 2) & 0xffff;
			float x = mean + 0.1F * ((float)half / 65536.0F - 0.5F);
			uint32_t bits;

			memcpy(&bits, &x, sizeof bits);
			out[i + j] = (uint16_t)(bits >> 16);
		}
	}
}

static tess_status write_tensors(const char *dir, const struct tess_stored_tensor *tensor,
                                 int64_t n)
{
	struct tess_slice *slice = calloc((size_t)n + 1, sizeof *slice);
	struct tess_safetensors_writer *w = NULL;
	int64_t largest = 0;
	uint16_t *data;
	char path[4096];
	tess_status st;

	for (int64_t i = 0; i < n && slice; i++) {
		const struct tess_trained *t = &tensor[i].about;

		slice[i] = (struct tess_slice){
			.name = t->name, .dtype = TESS_BF16, .ndim = t->ndim, .shape = t->shape
		};
		largest = t->size > largest ? t->size : largest;
	}
	data = malloc(sizeof *data * (size_t)largest + 1);
	st = slice && data ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
	snprintf(path, sizeof path, "%.4000s/model.safetensors", dir);
	if (!st)
		st = tess_safetensors_writer_open(path, (int32_t)n, slice, &w);
	for (int64_t i = 0; i < n && !st; i++) {
		const struct tess_trained *t = &tensor[i].about;
		float mean = t->ndim == 1 && strstr(t->name, "norm") ? 1 : 0;

		fill_weights(data, t->size, (uint32_t)i, mean);
		st = tess_safetensors_writer_put(w, (int32_t)i, 0, sizeof *data * (uint64_t)t->size,
		                                 data);
	}
	if (!st)
		st = tess_safetensors_writer_finish(w);
	tess_safetensors_writer_close(w);
	free(slice);
	free(data);
	return st;
}

/* Finds the tensors by the program that reads them. */
tess_status machine_write_model(int32_t i, bool quick, const char *dir)
{
	struct tess_session_options options = { .size = sizeof options };
	struct tess_mesh_shape mesh = tess_mesh_shape_make("tp", 1);
	struct tess_planned_model model = { 0 };
	struct tess_program *program = NULL;
	struct tess_stored_tensor *tensor;
	struct tess_arena arena = { 0 };
	int64_t n;
	tess_status st = write_configs(i, quick, dir);

	if (!st)
		st = tess_planned_model_open(dir, &options, TESS_CHECKPOINT_CONFIG, &model);
	if (st)
		return st;
	st = tess_planned_model_record(&model, &mesh, 1, 1, &program);
	if (!st)
		st = tess_stored_tensors_list(program, &arena, &tensor, &n);
	if (!st)
		st = write_tensors(dir, tensor, n);
	tess_program_free(program);
	tess_planned_model_close(&model);
	tess_arena_free(&arena);
	return st;
}
