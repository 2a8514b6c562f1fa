#include "conn_flood.h"

#include <arpa/inet.h>
#include <check.h>
#include "core/base/clock.h"
#include "core/rendezvous/wire.h"
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum kind { NOTHING, GARBAGE, HALF, WRONG_SECRET, REPLAY, DRIP, WRONG_JOB, HUGE_LENGTH };
enum { AT_A_TIME = 150, GREETING = TESS_NONCE + TESS_PROOF };

struct stranger {
	int fd; /* -1: none */
	enum kind kind;
	int steps; /* left */
	size_t said, heard;
	unsigned char says[GREETING + 4096], hears[TESS_NONCE + 64];
};

struct scene {
	struct sockaddr_in to;
	struct tess_secret wrong, other_job;
	unsigned char recorded[GREETING];
	unsigned int dice, host;
	struct crowd *crowd;
};

static unsigned int roll(struct scene *s, unsigned int sides)
{
	s->dice = s->dice * 1664525 + 1013904223;
	return (s->dice >> 16) % sides;
}

/* From 127.1.0.1, 127.1.0.2 ... in turn: ports do not run out. */
static int call(struct scene *s)
{
	struct sockaddr_in from = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	s->host = s->host % 200 + 1;
	from.sin_addr.s_addr = htonl(0x7f010000 + s->host);
	if (fd >= 0 && !bind(fd, (void *)&from, sizeof from) &&
	    (!connect(fd, (void *)&s->to, sizeof s->to) || errno == EINPROGRESS))
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

static void come(struct scene *s, struct stranger *x, enum kind kind)
{
	static const uint32_t huge[4] = { 0xfffffff8, TESS_HELLO, 0, 4 };

	*x = (struct stranger){ .fd = call(s), .kind = kind, .steps = 2 + (int)roll(s, 20) };
	if (x->fd < 0)
		return;
	atomic_fetch_add(&s->crowd->made[kind], 1);
	for (size_t i = 0; i < sizeof x->says; i++)
		x->says[i] = (unsigned char)roll(s, 256);
	if (kind == REPLAY)
		memcpy(x->says, s->recorded, sizeof s->recorded);
	if (kind == HUGE_LENGTH)
		memcpy(x->says, huge, sizeof huge);
}

/* How far it would speak now. */
static size_t eager(const struct stranger *x)
{
	switch (x->kind) {
	case NOTHING:
		return 0;
	case GARBAGE:
		return 200;
	case HALF:
		return TESS_NONCE / 2;
	case WRONG_SECRET:
	case WRONG_JOB:
		return x->heard < TESS_NONCE ? TESS_NONCE : GREETING;
	case REPLAY:
		return GREETING;
	case DRIP:
		return x->said + 1;
	case HUGE_LENGTH:
		return sizeof x->says;
	}
	return 0;
}

static void step(struct scene *s, struct stranger *x)
{
	ssize_t n = recv(x->fd, x->hears + x->heard, sizeof x->hears - x->heard, 0);

	if (n > 0) {
		size_t before = x->heard;

		x->heard += (size_t)n;
		if (before <= TESS_NONCE && x->heard > TESS_NONCE)
			atomic_fetch_add(&s->crowd->accepted, 1);
		if (before < TESS_NONCE && x->heard >= TESS_NONCE &&
		    (x->kind == WRONG_SECRET || x->kind == WRONG_JOB))
			tess_secret_prove(x->kind == WRONG_JOB ? &s->other_job : &s->wrong,
			                  TESS_CLIENT, x->says, x->hears, x->says + TESS_NONCE);
	}
	if (eager(x) > x->said) {
		n = send(x->fd, x->says + x->said, eager(x) - x->said, MSG_NOSIGNAL);
		x->said += n > 0 ? (size_t)n : 0;
	}
	if (--x->steps > 0)
		return;
	close(x->fd);
	x->fd = -1;
}

static _Noreturn void live(struct scene *s, int n)
{
	static struct stranger all[AT_A_TIME];
	bool some = true;
	int came = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 0; i < AT_A_TIME; i++)
		all[i].fd = -1;
	while (some) {
		some = came < n;
		for (int i = 0; i < AT_A_TIME; i++) {
			if (all[i].fd >= 0)
				step(s, &all[i]);
			else if (came < n)
				come(s, &all[i], (enum kind)(came++ % KINDS_OF_STRANGERS));
			some |= all[i].fd >= 0;
		}
		poll(NULL, 0, 1);
	}
	_exit(0);
}

/* What a rank says to prove the secret, once. */
static bool record(struct scene *s, const struct tess_secret *secret)
{
	unsigned char nonce[TESS_NONCE], proof[TESS_PROOF];
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool done = false;

	tess_nonce_make(s->recorded);
	if (!connect(fd, (void *)&s->to, sizeof s->to) &&
	    send(fd, s->recorded, TESS_NONCE, MSG_NOSIGNAL) == TESS_NONCE &&
	    recv(fd, nonce, sizeof nonce, MSG_WAITALL) == TESS_NONCE) {
		tess_secret_prove(secret, TESS_CLIENT, s->recorded, nonce,
		                  s->recorded + TESS_NONCE);
		done = send(fd, s->recorded + TESS_NONCE, TESS_PROOF, MSG_NOSIGNAL) == TESS_PROOF &&
		       recv(fd, proof, sizeof proof, MSG_WAITALL) == TESS_PROOF &&
		       tess_secret_check(secret, TESS_SERVER, s->recorded, nonce, proof);
	}
	close(fd);
	return done;
}

pid_t crowd_start(const char *port, const struct tess_secret *secret,
                  const struct tess_secret *other_job, int n, struct crowd **out)
{
	int64_t until = tess_now() + 20000 * (int64_t)TESS_MS;
	struct scene s = { .dice = 1, .other_job = *other_job };
	pid_t pid;

	s.to = (struct sockaddr_in){ .sin_family = AF_INET,
		                     .sin_port = htons((uint16_t)atoi(port)) };
	s.to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	s.wrong.key[0] = 1;
	while (!record(&s, secret)) {
		ck_assert_msg(tess_now() < until, "nobody listens at port %s", port);
		usleep(5000);
	}
	s.crowd = mmap(NULL, sizeof *s.crowd, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
	               -1, 0);
	ck_assert(s.crowd != MAP_FAILED);
	pid = fork();
	ck_assert(pid >= 0);
	if (!pid)
		live(&s, n);
	*out = s.crowd;
	return pid;
}

int crowd_made(const struct crowd *c)
{
	int n = 0;

	for (int i = 0; i < KINDS_OF_STRANGERS; i++)
		n += atomic_load(&c->made[i]);
	return n;
}

void crowd_finish(pid_t pid, const struct crowd *c)
{
	int status;

	ck_assert(waitpid(pid, &status, 0) == pid && status == 0);
	ck_assert_int_eq(atomic_load(&c->accepted), 0);
}
