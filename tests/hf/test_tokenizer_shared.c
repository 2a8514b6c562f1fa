/*
 * test_tokenizer_shared.c - tokenizers that are too large for this project, or excluded by their
 * licences. If they are missing, the test is skipped with a message.
 */
#include "core/base/clock.h"
#include "core/base/status.h"
#include "tests/support/suite.h"
#include "tokens.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct {
	const char *name, *llamacpp;
	bool vectors;
} all[] = {
	{ "mistral-npm", NULL, true },
	{ "qwen3-npm", "qwen2", true },
	{ "llama3-npm", "llama-bpe", true },
	{ "llama2-spm", "llama-spm", false },
};

static void check_tokenizer(const char *name, const char *llamacpp, bool vectors)
{
	struct tess_tokenizer *t = NULL;
	int64_t begin = tess_now();
	char dir[2048], path[4096];

	snprintf(dir, sizeof dir, "%s/%s", getenv("SHARED_TOKENIZERS"), name);
	ck_assert_msg(!tess_tokenizer_open(dir, &t), "%s", tess_error());
	printf("%s: %d tokens, opened in %.3f s\n", name, tess_tokenizer_vocab_size(t),
	       (double)(tess_now() - begin) / 1e9);
	if (vectors) {
		snprintf(path, sizeof path, "%s/vectors.json", dir);
		tokens_check_vectors(t, path);
	}
	if (llamacpp) {
		snprintf(path, sizeof path, "%s/../llamacpp-vectors/%s", dir, llamacpp);
		tokens_check_llamacpp(t, path);
	}
	tess_tokenizer_close(t);
}

START_TEST(large_tokenizers)
{
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		check_tokenizer(all[i].name, all[i].llamacpp, all[i].vectors);
}
END_TEST

int main(int argc, char **argv)
{
	const char *dir;

	setenv("SHARED_TOKENIZERS", argc > 1 ? argv[1] : "", 0);
	dir = getenv("SHARED_TOKENIZERS");
	if (access(dir, R_OK) != 0) {
		printf("skipped: %s is not there; SHARED_TOKENIZERS names another directory\n",
		       dir);
		return 77;
	}
	return suite_main("tokenizer_shared", (const TTest *const[]){ large_tokenizers, NULL });
}
