/*
 * test_ptx - runs the kernels of wrong.ptx as C from ptx_to_c: each breaks one rule, which ends the
 * process with a message, or none.
 */
#include "emulated_kernels.h"
#include "tests/support/suite.h"
#include "traffic.h"

#include <signal.h>
#include <sys/wait.h>

enum { THREADS = 64, BLOCKS = 2 };
static _Alignas(16) uint32_t words[BLOCKS * THREADS];

static enum emulated_memory judge_words(const char *p, size_t bytes)
{
	return p >= (char *)words && p + bytes <= (char *)(words + BLOCKS * THREADS)
	               ? EMULATED_DEVICE
	               : EMULATED_NO_MEMORY;
}

static void run_kernel(const char *name, unsigned blocks)
{
	const struct emulated_entry *e = emulated_entries;
	void *args[] = { words };
	bool cluster = strstr(name, "cluster") != NULL;

	while (e->name && strcmp(e->name, name))
		e++;
	ck_assert_msg(e->name, "%s", name);
	ck_assert_int_eq(e->bytes, sizeof args);
	emulated_judge_memory = judge_words;
	emulator_run(e->kernel, args,
	             (struct emulated_index){ cluster ? 1 : blocks, cluster ? blocks : 1, 1 },
	             (struct emulated_index){ THREADS, 1, 1 }, cluster ? blocks : 1,
	             sizeof(uint32_t[THREADS]));
}

START_TEST(kernels_that_are_right)
{
	run_kernel("right_barriers", 1);
	for (uint32_t i = 0; i < THREADS; i++)
		ck_assert_int_eq(words[i], (i ^ 32) << 8 | (i ^ 1));
	run_kernel("right_copies", 1);
	for (uint32_t i = 0; i < THREADS; i++)
		ck_assert_int_eq(words[i], ((i ^ 32) << 8 | (i ^ 1)) + 1);
	run_kernel("right_atomics", 1);
	for (uint32_t i = 0; i < THREADS; i++)
		ck_assert_int_eq(words[i], THREADS);
	run_kernel("same_word_of_blocks", 1);
	run_kernel("same_word_of_blocks", 1); /* in consecutive launches */
	words[0] = 0;
	run_kernel("right_counts", BLOCKS);
	ck_assert_int_eq(words[3], 7 + 8);
	run_kernel("right_cluster", BLOCKS);
	for (uint32_t i = 0; i < BLOCKS * THREADS; i++)
		ck_assert_int_eq(words[i], 1 - i / THREADS);
}
END_TEST

START_TEST(traffic_of_strides)
{
	const struct traffic *t;

	traffic_counted = true;
	run_kernel("right_strides", 1);
	t = traffic_get();
	ck_assert_str_eq(t->kernel, "right_strides");
	ck_assert_int_eq(t->used, 4 * THREADS);
	ck_assert_int_eq(t->moved, 2 * t->used);
	ck_assert_int_eq(t->least, THREADS / 32);
	ck_assert_int_eq(t->steps, 2 * t->least);
}
END_TEST

static const struct wrong {
	const char *kernel, *sentence;
} wrong[] = {
	/* the order of the two threads is open */
	{ "no_barrier", "what another thread " },
	{ "barrier_of_a_warp", "what another thread " },
	{ "same_word_of_blocks", "block 1,0,0, thread 0 writes what another thread writes" },
	{ "no_wait_for_kernels", "does not wait for the previous kernel" },
	{ "reads_early", "block 1,0,0, thread 0 reads early what a kernel has written" },
	{ "not_aligned", "is misaligned" },
	{ "beyond_an_allocation", "is beyond an allocation" },
	{ "beyond_shared_memory", "is beyond the shared memory of the block" },
	{ "no_wait_for_copies", "reads what a copy has not written" },
	{ "copy_over_what_is_read", "what another thread " },
	{ "count_before_writes", "reads what another thread writes" },
	{ "reads_before_last", "what another thread " },
	{ "no_barrier_of_a_cluster", "what another thread " },
	{ "cluster_ends_early", "is to a block that has ended" },
};
enum { WRONG = sizeof wrong / sizeof *wrong };

static const struct wrong *running;

static void run_wrong_kernel(void)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		run_kernel(running->kernel, BLOCKS);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "%s", running->kernel);
}

START_TEST(kernels_that_are_wrong)
{
	char said[512];

	running = &wrong[_i];
	capture_stderr(run_wrong_kernel, said, sizeof said);
	ck_assert_msg(strstr(said, running->kernel) && strstr(said, running->sentence), "%s: %s",
	              running->kernel, said);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("ptx", 60, &r);

	tcase_add_test(t, kernels_that_are_right);
	tcase_add_test(t, traffic_of_strides);
	tcase_add_loop_test(t, kernels_that_are_wrong, 0, WRONG);
	return suite_end(r);
}
