/* test_config.c - config.json and generation_config.json: values and refusals. */
#include "core/base/json.h"
#include "core/base/status.h"
#include "hf/config.h"
#include "tests/support/scratch.h"

static json_t *parse_text(const char *text)
{
	json_t *root = NULL;

	ck_assert_msg(!tess_json_parse("test", text, strlen(text), &root), "%s", tess_error());
	return root;
}

START_TEST(names_the_type)
{
	static const char *const good[][2] = {
		{ "{\"model_type\": \"llama\"}", "llama" },
		{ "{\"model_type\": \"llama\", \"architectures\": [\"GPT2LMHeadModel\"]}",
		  "llama" },
		{ "{\"architectures\": [\"LlamaForCausalLM\"]}", "llama" },
		{ "{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": null}", "gpt2" },
		{ "{\"architectures\": [\"Qwen3MoeForCausalLM\"]}", "qwen3_moe" },
		{ "{\"architectures\": [\"DeepseekV3ForCausalLM\"]}", "deepseek_v3" },
		{ "{\"architectures\": [\"Phi3ForCausalLM\", \"LlamaForCausalLM\"]}", "phi3" },
		{ "{\"model_type\": \"gemma3\", \"text_config\": {\"model_type\": "
		  "\"gemma3_text\"}}",
		  "gemma3_text" },
	};
	struct tess_config c;

	for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
		ck_assert_msg(!tess_config_make("config.json", parse_text(good[i][0]), &c), "%s",
		              tess_error());
		ck_assert_str_eq(c.type, good[i][1]);
		tess_config_free(&c);
	}
	ck_assert_int_eq(tess_config_load(format_data_path("config.json"), &c), TESS_OK);
	ck_assert_str_eq(c.type, "llama");
	ck_assert_int_eq(json_integer_value(json_object_get(c.root, "hidden_size")), 64);
	tess_config_free(&c);
}
END_TEST

/* Checks that the text part has its own keys, and those beside it that apply to all parts. */
START_TEST(reads_the_text_part)
{
	struct tess_config c;
	json_t *want = parse_text("{\"model_type\": \"llama\", \"hidden_size\": 8, "
	                          "\"eos_token_id\": 3, \"dtype\": \"float16\", "
	                          "\"bos_token_id\": 7}");

	ck_assert_msg(!tess_config_make("config.json",
	                                parse_text("{\"model_type\": \"both\", \"dtype\": "
	                                           "\"float16\", \"hidden_size\": 9, "
	                                           "\"eos_token_id\": 4, \"bos_token_id\": 7, "
	                                           "\"vision_config\": {\"hidden_size\": 0}, "
	                                           "\"text_config\": {\"model_type\": \"llama\", "
	                                           "\"hidden_size\": 8, \"eos_token_id\": 3}}"),
	                                &c),
	              "%s", tess_error());
	ck_assert(c.text_part && json_equal(c.root, want));
	json_decref(want);
	tess_config_free(&c);
}
END_TEST

START_TEST(refuses_configs)
{
	static const struct {
		const char *text, *where, *why;
	} bad[] = {
		{ "", "config.json:1:", "not valid JSON" },
		{ "[]", "config.json", "an object is needed" },
		{ "{}", "config.json", "neither model_type nor architectures" },
		{ "{\"architectures\": []}", "config.json",
		  "neither model_type nor architectures" },
		{ "{\"architectures\": [7]}", "config.json",
		  "neither model_type nor architectures" },
		{ "{\"model_type\": 7}", "model_type", "text of 1 to 63 bytes" },
		{ "{\"model_type\": \"a\", \"text_config\": {}}", "config.json",
		  "neither model_type nor architectures" },
		{ "{\"model_type\": \"a\", \"quantization_config\": {\"quant_method\": \"q\"}, "
		  "\"text_config\": {\"model_type\": \"a\"}}",
		  "quantization_config", "quantised by q" },
		{ "{\"model_type\": \"\"}", "model_type", "text of 1 to 63 bytes" },
		{ "{\"model_type\": "
		  "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}",
		  "model_type", "text of 1" },
		{ "{\"model_type\": \"a\", \"vocab_size\": 0}", "vocab_size",
		  "from 1 to 2147483647 is needed, not 0" },
		{ "{\"model_type\": \"a\", \"vocab_size\": -3}", "vocab_size", "not -3" },
		{ "{\"model_type\": \"a\", \"hidden_size\": 64.0}", "hidden_size", "not 64" },
		{ "{\"model_type\": \"a\", \"hidden_size\": \"64\"}", "hidden_size", "not text" },
		{ "{\"model_type\": \"a\", \"hidden_size\": [64]}", "hidden_size", "not a list" },
		{ "{\"model_type\": \"a\", \"hidden_size\": true}", "hidden_size", "not true" },
		{ "{\"model_type\": \"a\", \"intermediate_size\": 2147483648}", "intermediate_size",
		  "not 2147483648" },
		{ "{\"model_type\": \"a\", \"num_hidden_layers\": 1000000}", "num_hidden_layers",
		  "from 1 to 16384" },
		{ "{\"model_type\": \"a\", \"num_attention_heads\": 0}", "num_attention_heads",
		  "not 0" },
		{ "{\"model_type\": \"a\", \"num_local_experts\": -1}", "num_local_experts",
		  "from 0" },
		{ "{\"model_type\": \"a\", \"vocab_size\": 2147483647, \"hidden_size\": "
		  "2147483647}",
		  "vocab_size 2147483647 times", "more than a tensor" },
		{ "{\"model_type\": \"a\", \"vocab_size\": 99999999999999999999}",
		  "config.json:1:", "too big integer" },
		{ "{\"model_type\": \"a\", \"rms_norm_eps\": 1e999}",
		  "config.json:1:", "overflow" },
		{ "{\"model_type\": \"a\", \"rms_norm_eps\": -1}", "rms_norm_eps", "not -1" },
		{ "{\"model_type\": \"a\", \"layer_norm_epsilon\": \"small\"}",
		  "layer_norm_epsilon", "not text" },
		{ "{\"model_type\": \"a\", \"quantization_config\": {\"quant_method\": \"gptq\"}}",
		  "quantization_config", "quantised by gptq, a format that is not read" },
		{ "{\"model_type\": \"a\", \"quantization\": {\"quant_method\": \"mxfp4\"}}",
		  "quantization", "quantised by mxfp4, a format that is not read" },
		{ "{\"model_type\": \"a\", \"quantization\": {\"bits\": 4}}", "quantization",
		  "are quantised, a format that is not read; use a checkpoint whose" },
		{ "{\"model_type\": \"a\", \"compression_config\": {\"quant_method\": \"x\"}}",
		  "compression_config", "quantised by x, " },
		{ "{\"model_type\": \"a\", \"quantization_config\": true}", "quantization_config",
		  "not read" },
		{ "{\"model_type\": \"a\", \"model_type\": \"b\"}", "config.json:1:", "duplicate" },
		{ "{\"model_type\": \"\xc3\x28\"}", "config.json:1:", "decode byte" },
		{ "{\"model_type\": \"a\"", "config.json:1:", "not valid JSON" },
	};

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		const char *path = scratch_write_text("config.json", bad[i].text);
		struct tess_config c = { .root = NULL };

		ck_assert_msg(tess_config_load(path, &c) < 0 && !c.root, "%s", bad[i].text);
		ck_assert_msg(!strncmp(tess_error(), path, strlen(path)), "%s", tess_error());
		expect_part(tess_error(), bad[i].where);
		expect_part(tess_error(), bad[i].why);
	}
}
END_TEST

static tess_status make_generation(const char *text, const char *config,
                                   struct tess_generation_config *g)
{
	json_t *own = text ? parse_text(text) : NULL, *root = parse_text(config);
	tess_status st =
		tess_generation_make("generation_config.json", own, "config.json", root, g);

	json_decref(own);
	json_decref(root);
	return st;
}

static struct tess_generation_config read_generation(const char *text, const char *config)
{
	struct tess_generation_config g;

	ck_assert_msg(!make_generation(text, config, &g), "%s", tess_error());
	return g;
}

START_TEST(reads_generation)
{
	struct tess_generation_config g = read_generation(NULL, "{}");

	ck_assert(g.bos == -1 && g.pad == -1 && g.neos == 0 && !g.sample && g.temperature == 1 &&
	          g.top_k == 50);
	ck_assert(g.top_p == 1 && g.min_p == 0 && g.repetition_penalty == 1 &&
	          g.max_new_tokens == 0 && g.max_length == 0);
	g = read_generation(
		NULL, "{\"bos_token_id\": 1, \"eos_token_id\": [2, 76], \"pad_token_id\": null}");
	ck_assert(g.bos == 1 && g.pad == -1 && g.neos == 2 && g.eos[0] == 2 && g.eos[1] == 76);
	g = read_generation("{\"eos_token_id\": 9, \"pad_token_id\": 0, \"do_sample\": true, "
	                    "\"temperature\": 0.6, \"top_p\": 0.9, \"top_k\": 0, \"min_p\": 0.05, "
	                    "\"repetition_penalty\": 1.1, \"max_new_tokens\": 256, "
	                    "\"transformers_version\": \"5.23.0\", \"num_beams\": 1}",
	                    "{\"bos_token_id\": 1, \"eos_token_id\": 2}");
	ck_assert(g.bos == 1 && g.pad == 0 && g.neos == 1 && g.eos[0] == 9 && g.sample &&
	          g.temperature == 0.6);
	ck_assert(g.top_p == 0.9 && g.top_k == 0 && g.min_p == 0.05 &&
	          g.repetition_penalty == 1.1 && g.max_new_tokens == 256);
	ck_assert_int_eq(read_generation("{\"eos_token_id\": null}", "{\"eos_token_id\": 2}").neos,
	                 0);
	/* ids outside the vocabulary, in both files */
	g = read_generation("{\"eos_token_id\": [-1, 9, 512, 4294967296]}",
	                    "{\"vocab_size\": 512, \"pad_token_id\": -1}");
	ck_assert(g.neos == 1 && g.eos[0] == 9 && g.pad == -1);
	/* config.json is checked even if its ids are not used */
	ck_assert_int_eq(make_generation("{\"eos_token_id\": 2}", "{\"eos_token_id\": \"x\"}", &g),
	                 TESS_EINVAL);
	ck_assert_str_eq(tess_error(),
	                 "config.json: eos_token_id: an id is a whole number from 0 on");
}
END_TEST

START_TEST(refuses_generation)
{
	static const struct {
		const char *text, *where, *why;
	} bad[] = {
		{ "[]", "generation_config.json", "an object" },
		{ "{\"eos_token_id\": \"</s>\"}", "eos_token_id", "an id is a whole number" },
		{ "{\"eos_token_id\": [2, \"a\"]}", "eos_token_id", "an id is a whole number" },
		{ "{\"bos_token_id\": [1, 2]}", "bos_token_id", "2 ids; at most 1" },
		{ "{\"pad_token_id\": 1.5}", "pad_token_id", "an id is a whole number" },
		{ "{\"do_sample\": 1}", "do_sample", "true or false" },
		{ "{\"temperature\": -1}", "temperature", "not -1" },
		{ "{\"temperature\": \"hot\"}", "temperature", "not text" },
		{ "{\"top_p\": 1.5}", "top_p", "from 0 to 1" },
		{ "{\"min_p\": -0.1}", "min_p", "from 0 to 1" },
		{ "{\"top_k\": 2.5}", "top_k", "whole number" },
		{ "{\"repetition_penalty\": 0}", "repetition_penalty", "not 0" },
		{ "{\"max_new_tokens\": 0}", "max_new_tokens", "from 1" },
	};

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct tess_generation_config g = { .bos = 99 };

		ck_assert_msg(make_generation(bad[i].text, "{}", &g) < 0 && g.bos == 99, "%s",
		              bad[i].text);
		ck_assert_msg(!strncmp(tess_error(), "generation_config.json: ", 24), "%s",
		              tess_error());
		expect_part(tess_error(), bad[i].where);
		expect_part(tess_error(), bad[i].why);
	}
}
END_TEST

SCRATCH_MAIN("config", names_the_type, reads_the_text_part, refuses_configs, reads_generation,
             refuses_generation)
