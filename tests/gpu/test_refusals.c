/*
 * test_refusals - the messages for a GPU that cannot be used: one message and status 1. Unless a
 * case sets another one, the device uses the driver of fake_cuda.c.
 */
#include "tests/support/command.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#define STORIES "--data " DATA "/texts/stories.jsonl"

static const struct refusal {
	/* arguments NULL: --device cuda_emulated; of train with STORIES, else of generate */
	const char *environment, *arguments;
	const char *sentence;
} refusals[] = {
	{ "", "--device cuda",
	  "this machine has no NVIDIA GPU, or no driver for it: there is no /dev/nvidiactl; use "
	  "--device cpu" },
	{ "FAKE_CUDA_FAILS=cuInit", NULL,
	  "NVIDIA's driver finds no GPU; see nvidia-smi, and CUDA_VISIBLE_DEVICES" },
	{ "FAKE_CUDA_VERSION=11080", NULL,
	  "NVIDIA's driver supports CUDA 11.8, this build needs " },
	{ "FAKE_CUDA_COMPUTE=75", NULL,
	  "GPU 0, Fake 0, has compute capability 7.5; 8.0 or newer is needed" },
	{ "", "--device cuda_emulated:2",
	  "device cuda_emulated:2: this machine has 2, numbered from 0" },
	{ "", "--device cuda_emulated --weights q8",
	  "8-bit weights: device cuda_emulated has none; use device cpu, or weights as in the "
	  "files" },
	{ "FAKE_CUDA_MEMORY=700000", NULL,
	  "the weights of a rank need 1 MiB, and 0 MiB of device cuda_emulated:0 are free for it; "
	  "use -n 2 or more, each on a device of its own" },
	{ "FAKE_CUDA_MEMORY=700000", "--device cuda_emulated:0 -n 2",
	  "rank 0: the weights of a rank need 1 MiB, and 0 MiB of device cuda_emulated:0 are free "
	  "for it; use -n 3 or more" },
	{ "", "--device cuda_emulated --kv-memory 2G",
	  "2048 MiB of KV cache and 1 MiB of weights: 1024 MiB of device cuda_emulated:0 are "
	  "free for the rank; use --kv-memory 895M or less" },
	{ "FAKE_CUDA_MEMORY=4000000", "--device cuda_emulated --max-tokens 500 --kv-memory 300K",
	  "a prompt of 1 ids and 500 tokens needs 0.62 MiB of KV cache, and 0.29 of 0.29 MiB are "
	  "free; use fewer, or a larger --kv-memory" },
	{ "FAKE_CUDA_MEMORY=3000000", "--device cuda_emulated " STORIES,
	  "the weights of a rank need 1 MiB, their gradients and the optimizer's state 3, and 2 "
	  "MiB of device cuda_emulated:0 are free for it; use more ranks, each on a device of its "
	  "own: along tp, or along dp with --plan-override 'dp:**=zero3'" },
	{ "FAKE_CUDA_FAILS=cuLaunchKernelEx", "--device cuda_emulated " STORIES,
	  "model.embed_tokens: cuda: cuLaunchKernelEx: simulated failure (CUDA_ERROR_FAKE)" },
	{ "FAKE_CUDA_FAILS=cuLaunchKernelEx", NULL,
	  "model.embed_tokens: cuda: cuLaunchKernelEx: simulated failure (CUDA_ERROR_FAKE)" },
};

START_TEST(one_sentence)
{
	const struct refusal *f = &refusals[_i];
	bool real = f->arguments && !strcmp(f->arguments, "--device cuda");
	bool trains = f->arguments && strstr(f->arguments, STORIES);
	char text[4096], name[32];
	int status;

	if (real && (!strcmp(getenv("CUDA_BUILT"), "0") || !access("/dev/nvidiactl", F_OK)))
		return;
	status = command_run(text, sizeof text, "env %s %s %s %s %s %s %s 2>&1 >/dev/null",
	                     f->environment, TESSERA, trains ? "train" : "generate", DATA,
	                     f->arguments ? f->arguments : "--device cuda_emulated",
	                     trains ? "--save" : "--ids 1 --temperature 0", trains ? scratch : "");
	ck_assert_msg(status == 1, "status %d: %s", status, text);
	expect_part(text, f->sentence);
	if (f->arguments && strstr(f->arguments, "-n 2"))
		return; /* the launcher reports more */
	snprintf(name, sizeof name, "tessera %s: ", trains ? "train" : "generate");
	ck_assert_int_eq(strncmp(text, name, strlen(name)), 0);
	ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("refusals", 60, &r);
	int failed;

	scratch_make();
	tcase_add_loop_test(t, one_sentence, 0, sizeof refusals / sizeof *refusals);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}
