#include "conn_flood.h"
#include "core/base/clock.h"
#include "core/rendezvous/wire.h"
#include "tests/support/draw.h"

#include <arpa/inet.h>
#include <check.h>
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
enum { MAX_OPEN_CONNS = 150, GREETING = TESS_NONCE + TESS_PROOF };

struct flood_conn {
	int fd; /* -1: none */
	enum kind kind;
	int steps; /* steps left */
	size_t nsent, nreceived;
	unsigned char out[GREETING + 4096], in[TESS_NONCE + 64];
};

struct flood_state {
	struct sockaddr_in to;
	struct tess_secret wrong_secret, other_job;
	unsigned char recorded[GREETING];
	uint64_t random;
	unsigned int host;
	struct conn_flood *shared;
};

/* Connects from 127.1.0.1, 127.1.0.2 ... in turn: ports do not run out. */
static int open_connection(struct flood_state *s)
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

static void start_connection(struct flood_state *s, struct flood_conn *x, enum kind kind)
{
	static const uint32_t huge[4] = { 0xfffffff8, TESS_HELLO, 0, 4 };

	*x = (struct flood_conn){ .fd = open_connection(s),
		                  .kind = kind,
		                  .steps = 2 + (int)draw_below(&s->random, 20) };
	if (x->fd < 0)
		return;
	atomic_fetch_add(&s->shared->opened[kind], 1);
	for (size_t i = 0; i < sizeof x->out; i++)
		x->out[i] = (unsigned char)draw_below(&s->random, 256);
	if (kind == REPLAY)
		memcpy(x->out, s->recorded, sizeof s->recorded);
	if (kind == HUGE_LENGTH)
		memcpy(x->out, huge, sizeof huge);
}

/* Returns the number of bytes that the peer may send by now. */
static size_t compute_send_limit(const struct flood_conn *x)
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
		return x->nreceived < TESS_NONCE ? TESS_NONCE : GREETING;
	case REPLAY:
		return GREETING;
	case DRIP:
		return x->nsent + 1;
	case HUGE_LENGTH:
		return sizeof x->out;
	}
	return 0;
}

static void step_connection(struct flood_state *s, struct flood_conn *x)
{
	ssize_t n = recv(x->fd, x->in + x->nreceived, sizeof x->in - x->nreceived, 0);

	if (n > 0) {
		size_t had = x->nreceived;

		x->nreceived += (size_t)n;
		if (had <= TESS_NONCE && x->nreceived > TESS_NONCE)
			atomic_fetch_add(&s->shared->accepted, 1);
		if (had < TESS_NONCE && x->nreceived >= TESS_NONCE &&
		    (x->kind == WRONG_SECRET || x->kind == WRONG_JOB))
			tess_secret_prove(x->kind == WRONG_JOB ? &s->other_job : &s->wrong_secret,
			                  TESS_CLIENT, x->out, x->in, x->out + TESS_NONCE);
	}
	if (compute_send_limit(x) > x->nsent) {
		n = send(x->fd, x->out + x->nsent, compute_send_limit(x) - x->nsent, MSG_NOSIGNAL);
		x->nsent += n > 0 ? (size_t)n : 0;
	}
	if (--x->steps > 0)
		return;
	close(x->fd);
	x->fd = -1;
}

static _Noreturn void run_flood(struct flood_state *s, int n)
{
	static struct flood_conn all[MAX_OPEN_CONNS];
	bool some = true;
	int came = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 0; i < MAX_OPEN_CONNS; i++)
		all[i].fd = -1;
	while (some) {
		some = came < n;
		for (int i = 0; i < MAX_OPEN_CONNS; i++) {
			if (all[i].fd >= 0)
				step_connection(s, &all[i]);
			else if (came < n)
				start_connection(s, &all[i], (enum kind)(came++ % CONN_KINDS));
			some |= all[i].fd >= 0;
		}
		poll(NULL, 0, 1);
	}
	_exit(0);
}

/* Records the messages with which a rank proves the secret. */
static bool record_handshake(struct flood_state *s, const struct tess_secret *secret)
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

pid_t conn_flood_start(const char *port, const struct tess_secret *secret,
                       const struct tess_secret *other_job, int n, struct conn_flood **out)
{
	int64_t until = tess_now() + 20000 * (int64_t)TESS_MS;
	struct flood_state s = { .random = 1, .other_job = *other_job };
	pid_t pid;

	s.to = (struct sockaddr_in){ .sin_family = AF_INET,
		                     .sin_port = htons((uint16_t)atoi(port)) };
	s.to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	s.wrong_secret.key[0] = 1;
	while (!record_handshake(&s, secret)) {
		ck_assert_msg(tess_now() < until, "no socket listens at port %s", port);
		usleep(5000);
	}
	s.shared = mmap(NULL, sizeof *s.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
	                -1, 0);
	ck_assert(s.shared != MAP_FAILED);
	pid = fork();
	ck_assert(pid >= 0);
	if (!pid)
		run_flood(&s, n);
	*out = s.shared;
	return pid;
}

int conn_flood_count(const struct conn_flood *c)
{
	int n = 0;

	for (int i = 0; i < CONN_KINDS; i++)
		n += atomic_load(&c->opened[i]);
	return n;
}

void conn_flood_finish(pid_t pid, const struct conn_flood *c)
{
	int status;

	ck_assert(waitpid(pid, &status, 0) == pid && status == 0);
	ck_assert_int_eq(atomic_load(&c->accepted), 0);
}
