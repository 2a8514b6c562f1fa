/* familiar.c - hints for options and commands of other projects. */
#include "tool.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

struct familiar {
	const char *name; /* without leading dashes; "-" also matches "_" */
	const char *ours; /* the option that the command must have for the hint; NULL: none */
	const char *hint;
};

static const struct familiar options[] = {
	{ "max-new-tokens", "max-tokens", "use --max-tokens N" },
	{ "n-predict", "max-tokens", "use --max-tokens N" },
	{ "num-predict", "max-tokens", "use --max-tokens N" },
	{ "repeat-penalty", "repetition-penalty", "use --repetition-penalty X" },
	{ "tp", "n", "use -n N, or --mesh tp=N" },
	{ "tp-size", "n", "use -n N, or --mesh tp=N" },
	{ "tensor-parallel-size", "n", "use -n N, or --mesh tp=N" },
	{ "nproc-per-node", "n", "use -n N" },
	{ "pipeline-parallel-size", "mesh", "use --mesh pp=N" },
	{ "ngl", "device", "use --device cuda, which computes all layers on the GPU" },
	{ "gpu-layers", "device", "use --device cuda, which computes all layers on the GPU" },
	{ "n-gpu-layers", "device", "use --device cuda, which computes all layers on the GPU" },
	{ "ctx-size", "kv-memory",
	  "use --kv-memory SIZE; --positions N limits the length of a sequence" },
	{ "n-ctx", "kv-memory",
	  "use --kv-memory SIZE; --positions N limits the length of a sequence" },
	{ "max-model-len", "kv-memory",
	  "use --kv-memory SIZE; --positions N limits the length of a sequence" },
	{ "learning-rate", "lr", "use --lr X" },
	{ "epochs", "steps", "use --steps N; by default each sequence is used once" },
	{ "num-train-epochs", "steps", "use --steps N; by default each sequence is used once" },
	{ "per-device-train-batch-size", "batch", "use --batch N, the global batch" },
	{ "gradient-accumulation-steps", "micro-batches", "use --micro-batches N" },
	{ "max-steps", "steps", "use --steps N" },
	{ "output-dir", "save", "use --save DIR" },
	{ "stream", NULL, "text is printed as it is generated" },
	{ NULL, NULL, NULL },
};

static const struct familiar commands[] = {
	{ "chat", NULL,
	  "generate --messages FILE answers chats; docs/examples/chat.c is a chat in C" },
	{ "run", NULL, "use generate" },
	{ "serve", NULL, "generate --prompts - reads prompts from stdin" },
	{ "server", NULL, "generate --prompts - reads prompts from stdin" },
	{ "finetune", NULL, "use train" },
	{ "quantize", NULL, "--weights q8 of generate quantizes while it loads" },
	{ NULL, NULL, NULL },
};

/* Compares `word` up to its end or a "="; "_" equals "-". */
static bool is_same_name(const char *word, const char *name)
{
	for (; *word && *word != '=' && *name; word++, name++)
		if ((*word == '_' ? '-' : tolower((unsigned char)*word)) != *name)
			return false;
	return (!*word || *word == '=') && !*name;
}

const char *tess_tool_find_familiar_option(const char *word, const char **ours)
{
	word += strspn(word, "-");
	for (const struct familiar *f = options; f->name; f++) {
		*ours = f->ours;
		if (is_same_name(word, f->name))
			return f->hint;
	}
	return NULL;
}

const char *tess_tool_find_familiar_command(const char *word)
{
	for (const struct familiar *f = commands; f->name; f++)
		if (is_same_name(word, f->name))
			return f->hint;
	return NULL;
}
