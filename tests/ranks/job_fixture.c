#include "job_fixture.h"

#include <check.h>
#include "core/base/status.h"
#include "core/group/world.h"
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

static tess_status add(struct tess_world *w)
{
	int32_t n = tess_world_size(w), val[2] = { tess_world_rank(w) + 1, 1 };
	struct tess_coll c = { .size = sizeof c,
		               .kind = TESS_ALL_REDUCE,
		               .dtype = TESS_I32,
		               .op = TESS_SUM,
		               .count = 2,
		               .src = val,
		               .dst = val,
		               .where = "add" };
	tess_status st = tess_group_run(tess_world_group(w), &c);

	if (!st && (val[0] != n * (n + 1) / 2 || val[1] != n))
		st = tess_fail(TESS_EBUG, "the sum is %d, %d", val[0], val[1]);
	return st;
}

/*
 * Adds, says so, and adds twice more when the file TEST_HOLD is gone: who was stopped meanwhile may find all
 * that the first of them needs, and hears in the second what became of the job.
 */
static tess_status work(struct tess_world *w)
{
	const char *held = getenv("TEST_HOLD");
	tess_status st = add(w);

	if (!st) {
		printf("ready\n");
		fflush(stdout);
	}
	while (!st && held && !access(held, F_OK))
		usleep(2000);
	if (!st)
		st = add(w);
	return st ? st : add(w);
}

int rank(const char *role, const char *number, const char *n)
{
	const char *space = getenv("TEST_SPACE");
	struct tess_world *w;
	char path[64];
	tess_status st;
	int fd;

	setenv(getenv("SLURM_JOB_ID") ? "SLURM_PROCID" : "RANK", number, 1);
	setenv(getenv("SLURM_JOB_ID") ? "SLURM_STEP_NUM_TASKS" : "WORLD_SIZE", n, 1);
	if (!strcmp(role, "other"))
		setenv("TESSERA_SECRET_FILE", getenv("TEST_OTHER_SECRET"), 1);
	if (!strcmp(role, "elsewhere"))
		setenv("TESSERA_JOB", "another", 1);
	if (!strcmp(role, "hurry"))
		setenv("TESSERA_TIMEOUT", "1", 1);
	if (space) { /* the first half on one host, the second on the other */
		snprintf(path, sizeof path, "/run/netns/%s%d", space, 2 * atoi(number) / atoi(n));
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0 || setns(fd, CLONE_NEWNET))
			return 9;
		close(fd);
	}
	st = tess_world_open(&w);
	if (!st) {
		st = work(w);
		if (st)
			printf("%s\n", tess_error());
		tess_world_close(w);
		return st ? 3 : 0;
	}
	printf("%s\n", tess_error());
	return 2;
}

/* ---- the stage ------------------------------------------------------------------------------- */

char dir[] = "/tmp/tessera-test-XXXXXX", secret[64], other[64], hold[64], port[8];

void put_file(const char *path, const char *text, int mode)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	ck_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	ck_assert(!fchmod(fd, (mode_t)mode));
	close(fd);
}

/* A port of 127.0.0.1 that nobody has, and that the kernel gives to nobody who asks for any. */
static void find_port(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET };
	int taken = 1;

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	for (int i = 0; i < 100 && taken; i++) {
		int number = 10000 + (int)(((unsigned int)getpid() * 7 + (unsigned int)i) % 20000);
		int fd = socket(AF_INET, SOCK_STREAM, 0);

		to.sin_port = htons((uint16_t)number);
		snprintf(port, sizeof port, "%d", number);
		taken = bind(fd, (void *)&to, sizeof to);
		close(fd);
	}
	ck_assert(!taken);
}

void begin(void)
{
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(secret, sizeof secret, "%s/secret", dir);
	snprintf(other, sizeof other, "%s/other", dir);
	snprintf(hold, sizeof hold, "%s/hold", dir);
	put_file(secret, "0123456789abcdef0123456789abcdef\n", 0600);
	put_file(other, "0123456789abcdef0123456789abcdeF\n", 0600);
	find_port();
	setenv("XDG_RUNTIME_DIR", dir, 1);
	setenv("LOCAL_WORLD_SIZE", "1", 1);
	setenv("MASTER_ADDR", "127.0.0.1", 1);
	setenv("TESSERA_PORT", port, 1);
	setenv("TESSERA_SECRET_FILE", secret, 1);
	setenv("TEST_OTHER_SECRET", other, 1);
	setenv("TESSERA_JOB", "tests", 1);
	setenv("TESSERA_BACKEND", "gloo", 1);
	setenv("TESSERA_TIMEOUT", "20", 1);
}

/* Nothing is left but the files of the test. */
void end(void)
{
	unlink(secret);
	unlink(other);
	unlink(hold);
	ck_assert_msg(!rmdir(dir), "%s: %s", dir, strerror(errno));
}

void said(const struct process *p, const char *text)
{
	ck_assert_msg(strstr(p->text, text) != NULL, "it said: %s; lacks: %s", p->text, text);
}

void finish(struct process *p, int status, const char *text)
{
	process_finish(p, PATIENCE_MS);
	said(p, text);
	ck_assert_int_eq(WEXITSTATUS(p->status), status);
}
