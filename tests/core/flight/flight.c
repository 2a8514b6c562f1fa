#include "flight.h"
#include "core/base/clock.h"
#include "core/base/status.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/tessera.h>
#include <unistd.h>

static float buffer[64];
static int64_t last_deadline; /* ns, for the last calls; 0: the job's */

static tess_status recv_message(struct tess_group *g, int32_t peer, uint64_t count,
                                const char *where)
{
	const struct tess_coll c = { .size = sizeof c,
		                     .kind = TESS_RECV,
		                     .dtype = TESS_F32,
		                     .peer = peer,
		                     .dst = buffer,
		                     .count = count,
		                     .deadline = last_deadline,
		                     .where = where };

	return tess_group_run(g, &c);
}

static void handle_sigusr1_by_program(int sig)
{
	(void)sig;
	if (write(STDOUT_FILENO, "handled SIGUSR1\n", 16) < 0)
		_exit(9);
}

static void wait_for_file(const char *file)
{
	char path[128];

	snprintf(path, sizeof path, "%s/%s", getenv("GO"), file);
	printf("holds\n");
	fflush(stdout);
	while (access(path, F_OK))
		usleep(1000);
}

/* Creates the file "ready", and spins for longer than any deadline. */
static _Noreturn void spin_forever(void)
{
	char path[128];
	volatile int forever = 1;

	snprintf(path, sizeof path, "%s/ready", getenv("TESSERA_FLIGHT"));
	fclose(fopen(path, "w"));
	while (forever)
		;
	_exit(0);
}

/* Runs the straggler's part, which differs by role. */
static tess_status run_straggler(struct tess_group *g, const char *role)
{
	usleep(200000); /* the other ranks are in their next call after this */
	if (!strcmp(role, "sleep") || !strcmp(role, "message") || !strcmp(role, "chain"))
		usleep(1500000);
	else if (!strcmp(role, "kill"))
		raise(SIGKILL);
	else if (!strcmp(role, "stop"))
		raise(SIGSTOP);
	else if (!strcmp(role, "spin"))
		spin_forever();
	else if (!strcmp(role, "hold"))
		wait_for_file("go");
	else if (!strcmp(role, "fail"))
		return tess_fail(TESS_EIO, "no such file");
	else if (!strcmp(role, "differ"))
		return tess_all_reduce(g, buffer, buffer, 7, TESS_F32, TESS_SUM, "the.odd");
	return TESS_OK;
}

/* Returns whether the last calls have the deadline of the job. */
static bool has_no_deadline(const char *role)
{
	return !strcmp(role, "hold") || !strcmp(role, "fine") || !strcmp(role, "handler");
}

static tess_status run_flight_role(struct tess_group *g, const char *role)
{
	struct tess_coll end = { .size = sizeof end, .kind = TESS_BARRIER, .where = "the.end" };
	int32_t me = tess_group_rank(g), n = tess_group_size(g);
	struct tess_group *odd = NULL; /* closed with the world */
	tess_status st = TESS_OK;

	if (!strcmp(role, "chain"))
		st = tess_group_split(g, me % 2, 0, "odd", &odd);
	for (int i = 0; i < 300 && !st; i++) {
		char where[32];

		snprintf(where, sizeof where, "layers.%d", i);
		st = tess_all_reduce(g, buffer, buffer, 64, TESS_F32, TESS_SUM, where);
	}
	if (!st && me == (n > 2 ? 2 : 0))
		st = run_straggler(g, role);
	else if (!has_no_deadline(role))
		last_deadline = tess_now() + 300 * (int64_t)TESS_MS;
	if (!st && me == 3 && !strcmp(role, "message"))
		st = recv_message(g, 2, 5, "from.2");
	if (!st && me < 2 && !strcmp(role, "circle"))
		st = recv_message(g, 1 - me, 1, me ? "b" : "a");
	if (!st && !strcmp(role, "handler"))
		raise(SIGUSR1);
	if (!st && me != 2 && !strcmp(role, "hold")) {
		printf("waits\n");
		fflush(stdout);
	}
	end.deadline = last_deadline;
	if (!st && me == 3 && odd) {
		end.where = "among.odd";
		st = tess_group_run(odd, &end);
	}
	return st ? st : tess_group_run(g, &end);
}

int flight_run_rank(const char *role)
{
	struct tess_world *w;
	tess_status st;

	if (!strcmp(role, "no.rank"))
		return strcmp(getenv("RANK"), "1") ? (int)sleep(10) : 3;
	if (!strcmp(role, "handler"))
		signal(SIGUSR1, handle_sigusr1_by_program);
	st = tess_world_open(&w);
	if (!st) {
		st = run_flight_role(tess_world_group(w), role);
		if (st && !strcmp(role, "fail"))
			tess_world_fail(w, st, tess_error());
		tess_world_close(w);
	}
	if (st)
		fprintf(stderr, "failure: %s\n", tess_error());
	return st ? 1 : 0;
}
