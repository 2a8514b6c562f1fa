/*
 * The backend mpi, under the mpirun that is here: what it moves, how it fails, and that it ends. This
 * program is the ranks as well.
 */
#include "../unit/suite.h"
#include "scene.h"

#include <core/comm/clock.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char text[1 << 16];
static double seconds;
static int patience = 60; /* s; mpirun waits for a stopped rank as long as it is let */

/* `mpirun ARGS COMMAND`, with what it and its ranks say in `text`. The exit status. */
static int mpirun(const char *env, const char *args, const char *command)
{
	int64_t begin = tess_now();
	char line[2048];
	size_t n;
	FILE *f;

	snprintf(line, sizeof line,
	         "%s OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TESSERA_BACKEND=mpi "
	         "timeout -k 5 %d mpirun --oversubscribe %s %s 2>&1 </dev/null",
	         env, patience, args, command);
	f = popen(line, "r");
	MUST(f);
	n = fread(text, 1, sizeof text - 1, f);
	text[n] = '\0';
	n = (size_t)pclose(f);
	seconds = (double)(tess_now() - begin) / 1e9;
	return WIFEXITED((int)n) ? WEXITSTATUS((int)n) : -1;
}

static int play(const char *env, const char *args, const char *scene)
{
	char self[PATH_MAX], command[PATH_MAX + 64];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

	ck_assert_int_gt(n, 0);
	self[n] = '\0';
	snprintf(command, sizeof command, "'%s' %s", self, scene);
	return mpirun(env, args, command);
}

static void good(const char *args, const char *scene)
{
	int status = play("TESSERA_TIMEOUT=30", args, scene);

	ck_assert_msg(status == 0, "%s %s: status %d: %s", args, scene, status, text);
	ck_assert_msg(!strstr(text, "finalize"), "%s", text);
}

START_TEST(moves_all)
{
	static const char *const ranks[] = { "-n 1", "-n 2", "-n 3", "-n 4" };

	for (int i = 0; i < 4; i++)
		good(ranks[i], "moves");
}
END_TEST

START_TEST(has_several_under_way)
{
	good("-n 2", "several");
	good("-n 3", "several");
	good("-n 3", "batches");
}
END_TEST

START_TEST(opens_and_closes_groups)
{
	good("-n 3", "churn");
	good("-n 3", "splits");
	good("-n 4", "groups");
}
END_TEST

/* `rank` says that it has failed, in `most` seconds or less, by a sentence that has `what`. */
static void has_failed(int rank, double most, const char *what)
{
	char begin[48], line[2048];
	const char *at;
	double after;

	snprintf(begin, sizeof begin, "[%d] failed after ", rank);
	at = strstr(text, begin);
	ck_assert_msg(at && sscanf(at + strlen(begin), "%lf", &after) == 1, "rank %d: %s", rank,
	              text);
	snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
	ck_assert_msg(strstr(line, what) && after <= most, "rank %d: %s", rank, line);
}

/* mpirun would end the rest itself: --enable-recovery lets them say what they know. */
START_TEST(names_a_dead_rank)
{
	static const char *const scenes[] = { "killed 4000", "killed 2000000" };

	for (int i = 0; i < 2; i++) {
		play("TESSERA_TIMEOUT=10", "--enable-recovery -n 4", scenes[i]);
		for (int r = 0; r < 4; r++)
			if (r != 1)
				has_failed(r, 10, "rank 1");
		ck_assert_msg(seconds < 10, "%f s", seconds);
	}
}
END_TEST

START_TEST(ends_with_a_dead_rank)
{
	int status = play("TESSERA_TIMEOUT=10", "-n 4", "killed 4000");

	ck_assert_msg(status > 0, "status %d: %s", status, text);
	ck_assert_msg(seconds < 12, "%f s", seconds);
}
END_TEST

START_TEST(names_a_stopped_rank)
{
	patience = 8;
	play("TESSERA_TIMEOUT=2", "--enable-recovery -n 3", "stopped 4000");
	has_failed(0, 2.5, "rank 1");
	has_failed(2, 2.5, "rank 1");
}
END_TEST

START_TEST(names_both_where_calls_differ)
{
	static const char *const scenes[] = { "odd kind", "odd count", "odd dtype" };

	for (int i = 0; i < 3; i++) {
		ck_assert_int_ne(play("TESSERA_TIMEOUT=10", "--enable-recovery -n 3", scenes[i]),
		                 -1);
		for (int r = 0; r < 3; r++) {
			char begin[16], line[2048];
			const char *at;

			snprintf(begin, sizeof begin, "[%d] ", r);
			at = strstr(text, begin);
			ck_assert_msg(at != NULL, "%s: rank %d: %s", scenes[i], r, text);
			snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
			ck_assert_msg(strstr(line, "odd.one") && strstr(line, "the.others"),
			              "%s: %s", scenes[i], text);
		}
	}
}
END_TEST

/* The last line that begins with "digest". */
static void digest_of(const char *where, char out[static 96])
{
	const char *at = strstr(where, "digest ");

	ck_assert_msg(at != NULL, "%s", where);
	snprintf(out, 96, "%.*s", (int)strcspn(at, "\n"), at);
}

START_TEST(generates_the_same_bits)
{
	static const char *const command =
		TESSERA " generate " SOURCE_ROOT "/data --digest --prompt 'Once upon a time' "
			"--max-tokens 12";
	char alone[96], ranks[96], line[2048];
	FILE *f;
	size_t n;

	snprintf(line, sizeof line, "%s --backend loopback -n 3 2>&1", command);
	f = popen(line, "r");
	ck_assert_ptr_nonnull(f);
	n = fread(text, 1, sizeof text - 1, f);
	text[n] = '\0';
	ck_assert_int_eq(pclose(f), 0);
	digest_of(text, alone);
	ck_assert_msg(mpirun("", "-n 3", command) == 0, "%s", text);
	digest_of(text, ranks);
	ck_assert_str_eq(alone, ranks);
}
END_TEST

START_TEST(says_how_it_is_started)
{
	char line[PATH_MAX];
	size_t n;
	FILE *f;

	snprintf(line, sizeof line,
	         TESSERA " generate " SOURCE_ROOT "/data -n 2 --backend mpi --prompt x 2>&1");
	f = popen(line, "r");
	ck_assert_ptr_nonnull(f);
	n = fread(text, 1, sizeof text - 1, f);
	text[n] = '\0';
	ck_assert_int_ne(pclose(f), 0);
	ck_assert_msg(strstr(text, "mpirun -n 2"), "%s", text);
}
END_TEST

int main(int argc, char **argv)
{
	if (argc > 1)
		return scene_main(argc, argv);
	if (mpirun("", "-n 1", "true")) {
		printf("skipped: no mpirun of Open MPI that runs: %s\n", text);
		return 77;
	}
	return suite_main("mpi", (const TTest *const[]){
					 moves_all, has_several_under_way, opens_and_closes_groups,
					 names_a_dead_rank, ends_with_a_dead_rank,
					 names_a_stopped_rank, names_both_where_calls_differ,
					 generates_the_same_bits, says_how_it_is_started, NULL });
}
