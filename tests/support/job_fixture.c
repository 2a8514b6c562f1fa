#include "job_fixture.h"
#include "core/base/status.h"
#include "core/world/world.h"
#include "suite.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- what a rank does ------------------------------------------------------------------------ */

static tess_status check_sum(struct tess_world *w)
{
	int32_t n = tess_world_size(w), val[2] = { tess_world_rank(w) + 1, 1 };
	tess_status st =
		tess_all_reduce(tess_world_group(w), val, val, 2, TESS_I32, TESS_SUM, "add");

	if (!st && (val[0] != n * (n + 1) / 2 || val[1] != n))
		st = tess_fail(TESS_EBUG, "the sum is %d, %d", val[0], val[1]);
	return st;
}

/*
 * Adds, prints "ready", and adds twice more when the file TEST_HOLD is gone. A rank that was
 * stopped meanwhile may complete the first of them; the second reports how the job ended.
 */
static tess_status run_work(struct tess_world *w)
{
	const char *hold_file = getenv("TEST_HOLD");
	tess_status st = check_sum(w);

	if (!st) {
		printf("ready\n");
		fflush(stdout);
	}
	while (!st && hold_file && !access(hold_file, F_OK))
		usleep(2000);
	if (!st)
		st = check_sum(w);
	return st ? st : check_sum(w);
}

int job_fixture_run_rank(const char *role, const char *number, const char *n)
{
	const char *netns = getenv("TEST_NETNS");
	struct tess_world *w;
	char path[64];
	tess_status st;
	int fd;

	process_die_with_parent();
	setenv(getenv("SLURM_JOB_ID") ? "SLURM_PROCID" : "RANK", number, 1);
	setenv(getenv("SLURM_JOB_ID") ? "SLURM_STEP_NUM_TASKS" : "WORLD_SIZE", n, 1);
	if (!strcmp(role, "other"))
		setenv("TESSERA_SECRET_FILE", getenv("TEST_OTHER_SECRET"), 1);
	if (!strcmp(role, "elsewhere"))
		setenv("TESSERA_JOB", "another", 1);
	if (!strcmp(role, "hurry"))
		setenv("TESSERA_TIMEOUT", "1", 1);
	if (netns) { /* the first half on one host, the second on the other */
		snprintf(path, sizeof path, "/run/netns/%s%d", netns, 2 * atoi(number) / atoi(n));
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0 || setns(fd, CLONE_NEWNET))
			return 9;
		close(fd);
	}
	st = tess_world_open(&w);
	if (!st) {
		st = run_work(w);
		if (st)
			printf("%s\n", tess_error());
		tess_world_close(w);
		return st ? 3 : 0;
	}
	printf("%s\n", tess_error());
	return 2;
}

/* ---- the fixture ----------------------------------------------------------------------------- */

char job_dir[] = "/tmp/tessera-test-XXXXXX", secret_path[64], other_secret_path[64], hold_path[64],
     job_port[8];

void job_fixture_write_file(const char *path, const char *text, int mode)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	ck_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	ck_assert(!fchmod(fd, (mode_t)mode));
	close(fd);
}

/* Finds a free port of 127.0.0.1, outside the range from which the kernel picks ephemeral ports. */
static void find_unused_port(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET };
	int taken = 1;

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	for (int i = 0; i < 100 && taken; i++) {
		int number = 10000 + (int)(((unsigned int)getpid() * 7 + (unsigned int)i) % 20000);
		int fd = socket(AF_INET, SOCK_STREAM, 0);

		to.sin_port = htons((uint16_t)number);
		snprintf(job_port, sizeof job_port, "%d", number);
		taken = bind(fd, (void *)&to, sizeof to);
		close(fd);
	}
	ck_assert(!taken);
}

void job_fixture_begin(void)
{
	ck_assert_ptr_nonnull(mkdtemp(job_dir));
	snprintf(secret_path, sizeof secret_path, "%s/secret", job_dir);
	snprintf(other_secret_path, sizeof other_secret_path, "%s/other", job_dir);
	snprintf(hold_path, sizeof hold_path, "%s/hold", job_dir);
	job_fixture_write_file(secret_path, "0123456789abcdef0123456789abcdef\n", 0600);
	job_fixture_write_file(other_secret_path, "0123456789abcdef0123456789abcdeF\n", 0600);
	find_unused_port();
	setenv("XDG_RUNTIME_DIR", job_dir, 1);
	setenv("LOCAL_WORLD_SIZE", "1", 1);
	setenv("MASTER_ADDR", "127.0.0.1", 1);
	setenv("TESSERA_PORT", job_port, 1);
	setenv("TESSERA_SECRET_FILE", secret_path, 1);
	setenv("TEST_OTHER_SECRET", other_secret_path, 1);
	setenv("TESSERA_JOB", "tests", 1);
	setenv("TESSERA_BACKEND", "gloo", 1);
	setenv("TESSERA_TIMEOUT", "20", 1);
}

void job_fixture_hold_ranks(void)
{
	job_fixture_write_file(hold_path, "", 0600);
	setenv("TEST_HOLD", hold_path, 1);
}

/* Checks that only the files of the test are left. */
void job_fixture_end(void)
{
	unlink(secret_path);
	unlink(other_secret_path);
	unlink(hold_path);
	ck_assert_msg(!rmdir(job_dir), "%s: %s", job_dir, strerror(errno));
}

void job_fixture_expect_exit(struct process *p, int status, const char *text)
{
	process_finish(p, TEST_TIMEOUT_MS);
	expect_part(p->text, text);
	ck_assert_int_eq(WEXITSTATUS(p->status), status);
}
