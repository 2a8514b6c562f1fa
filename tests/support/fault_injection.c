/*
 * fault_injection.c - one job of script/fault-injection: a random sequence of collectives with
 * known results, in which one rank fails in a random way at a random moment.
 *
 *	fault_injection SEED FAULT N SECONDS DIR   as a rank of N, or on N threads over loopback
 *
 * FAULT: kill, exit, stop, late, later, mismatch, or none (the backend faulty may inject one).
 * SECONDS: the deadline of a call. In DIR each rank R writes status-R: its status, the return time
 * of the call (CLOCK_MONOTONIC, ns), the number of additional open descriptors, and the message.
 * The victim writes fault: its rank, process id and the time.
 */
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "core/rendezvous/call_desc.h"
#include "core/rendezvous/rank_env.h"
#include "core/world/world.h"
#include "data.h"
#include "draw.h"
#include "entries.h"
#include "mismatch.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fault_plan {
	const char *fault, *dir;
	uint64_t seed;
	int32_t n, victim, fault_call, calls; /* fault_call: index of the call with the fault */
	uint64_t delay_us; /* after the start of that call */
	double seconds;
	int fds; /* descriptors open before */
};

/* ---- reports ------------------------------------------------------------------------ */

static void write_report(const struct fault_plan *s, const char *name, const char *text)
{
	char path[512], made[512];
	FILE *f;

	snprintf(path, sizeof path, "%s/%s", s->dir, name);
	snprintf(made, sizeof made, "%s/.%s", s->dir, name);
	f = fopen(made, "w");
	if (!f || fputs(text, f) < 0 || fclose(f) || rename(made, path))
		perror(path);
}

static void write_status_file(const struct fault_plan *s, int32_t rank, tess_status st,
                              int64_t when, const char *fds, const char *sentence)
{
	char text[2048], name[32];

	snprintf(text, sizeof text, "%s %" PRId64 " %s %s\n", st ? tess_status_name(st) : "fine",
	         when, fds, st ? sentence : "");
	snprintf(name, sizeof name, "status-%d", rank);
	write_report(s, name, text);
}

static void report_fault(const struct fault_plan *s)
{
	char text[48];

	snprintf(text, sizeof text, "%d %d %" PRId64 "\n", s->victim, (int)getpid(), tess_now());
	write_report(s, "fault", text);
}

/* ---- the victim ------------------------------------------------------------------------------ */

static void *inject_signal(void *arg)
{
	const struct fault_plan *s = arg;
	struct timespec pause = tess_timespec((int64_t)s->delay_us * 1000);

	nanosleep(&pause, NULL);
	report_fault(s);
	if (!strcmp(s->fault, "exit"))
		_exit(3);
	kill(getpid(), !strcmp(s->fault, "kill") ? SIGKILL : SIGSTOP);
	return NULL;
}

static bool is_signal_fault(const struct fault_plan *s)
{
	return !strcmp(s->fault, "kill") || !strcmp(s->fault, "stop") || !strcmp(s->fault, "exit");
}

/* Fails a thread, which cannot be killed: it ends, or returns an error. */
static tess_status fail_thread(const struct fault_plan *s)
{
	report_fault(s);
	return tess_fail(TESS_EIO, "the disk is full");
}

static void delay_victim(const struct fault_plan *s)
{
	/* before the deadline, or after it but before the launcher ends silent ranks */
	double share = !strcmp(s->fault, "late") ? 0.4 : 1.3;
	struct timespec pause = tess_timespec((int64_t)(s->seconds * share * 1e9));

	report_fault(s);
	nanosleep(&pause, NULL);
}

/* ---- the sequence ---------------------------------------------------------------------------- */

static struct conform_case draw_data_case(uint64_t *state, int32_t n)
{
	struct conform_case c = {
		.kind = TESS_BROADCAST + (int32_t)draw_below(state, TESS_ALL_TO_ALL - TESS_BARRIER),
		.dtype = TESS_F32 + (int32_t)draw_below(state, 8),
		.op = TESS_SUM + (int32_t)draw_below(state, 4),
		.count = draw_below(state, 8) ? draw_below(state, 3000) : draw_below(state, 200000)
	};

	c.uneven = draw_below(state, 2) && c.kind > TESS_ALL_REDUCE;
	c.in_place = draw_below(state, 2);
	c.root = tess_kind_rooted(c.kind) ? (int32_t)draw_below(state, (uint64_t)n) : 0;
	return c;
}

/* Runs several cases at once; odd ranks complete them in another order. */
static tess_status run_overlapping_cases(struct tess_group *g, uint64_t *state)
{
	struct data_pending p[4];
	int n = 2 + (int)draw_below(state, 3), begun = 0;
	tess_status st = TESS_OK;

	while (begun < n && !st) {
		struct conform_case c = draw_data_case(state, tess_group_size(g));

		st = data_start(g, &c, &p[begun]);
		begun += !st;
	}
	for (int i = 0; i < begun && !st; i++)
		st = data_finish(&p[tess_group_rank(g) % 2 ? i : begun - 1 - i]);
	return st;
}

/*
 * Runs step i: one case or several, in the world's group or in a subgroup, equal on all its ranks.
 */
static tess_status run_random_step(struct tess_group *all, struct tess_group *some,
                                   const struct fault_plan *s, int32_t i)
{
	uint64_t state = s->seed + (uint64_t)i * 1000003;
	struct tess_group *g = some && !draw_below(&state, 4) ? some : all;
	struct conform_case c;

	if (!draw_below(&state, 4))
		return run_overlapping_cases(g, &state);
	c = draw_data_case(&state, tess_group_size(g));
	return data_run(g, &c);
}

static tess_status run_random_steps(struct tess_world *w, const struct fault_plan *s, bool threads)
{
	struct tess_group *g = tess_world_group(w), *some = NULL; /* closed with the world */
	bool victim = tess_world_rank(w) == s->victim, injected = false;
	struct mismatch_buffers *kept; /* kept until the process ends */
	pthread_t injector;
	tess_status st = tess_barrier(
		g, "the.begin"); /* a rank that fails at once fails the opening on all ranks */

	if (!st && s->seed % 2)
		st = tess_group_split(g, tess_world_rank(w) % 2, 0, "some", &some);
	for (int32_t i = 0; i < s->calls && !st; i++) {
		if (victim && i == s->fault_call && is_signal_fault(s)) {
			if (threads)
				return fail_thread(s);
			injected = !pthread_create(&injector, NULL, inject_signal,
			                           (void *)(uintptr_t)s);
		} else if (victim && i == s->fault_call && !strncmp(s->fault, "late", 4)) {
			delay_victim(s);
		}
		if (i == s->fault_call && !strcmp(s->fault, "mismatch")) {
			struct mismatch m;

			mismatch_make(s->seed, s->n, &m);
			return mismatch_run(w, &m, &kept);
		}
		st = run_random_step(g, some, s, i);
	}
	if (injected)
		pthread_join(injector, NULL);
	return st ? st : tess_barrier(g, "the.end");
}

static tess_status run_thread_rank(struct tess_world *w, void *arg)
{
	const struct fault_plan *s = arg;
	int32_t me = tess_world_rank(w);
	tess_status st;

	w->timeout = (int64_t)(s->seconds * 1e9);
	st = run_random_steps(w, s, true);
	write_status_file(s, me, st, tess_now(), "0", tess_error());
	return st;
}

static int run_process_rank(const struct fault_plan *s, int32_t me)
{
	char sentence[TESS_SENTENCE] = "", fds[16];
	struct tess_world *w;
	tess_status st = tess_world_open(&w);
	int64_t when;

	if (st) {
		write_status_file(s, me, st, tess_now(), "0", tess_error());
		return 4;
	}
	w->timeout = (int64_t)(s->seconds * 1e9);
	st = run_random_steps(w, s, false);
	when = tess_now();
	if (st)
		snprintf(sentence, sizeof sentence, "%s", tess_error());
	write_status_file(s, me, st, when, "?", sentence); /* the process may not be able to exit */
	if (st)
		tess_world_fail(w, st, sentence);
	tess_world_close(w);
	tess_registry_quit();
	snprintf(fds, sizeof fds, "%d", count_dir_entries("/proc/self/fd") - s->fds);
	write_status_file(s, me, st, when, fds, sentence);
	return st ? 1 : 0;
}

int main(int argc, char **argv)
{
	struct fault_plan s = { .fds = count_dir_entries("/proc/self/fd") };
	struct tess_rank_env env;
	uint64_t state;
	tess_status st;

	if (argc != 6) {
		fprintf(stderr, "usage: fault_injection SEED FAULT N SECONDS DIR\n");
		return 2;
	}
	s.seed = state = strtoull(argv[1], NULL, 10);
	s.fault = argv[2];
	s.n = (int32_t)atoi(argv[3]);
	s.seconds = atof(argv[4]);
	s.dir = argv[5];
	s.calls = 5 + (int32_t)draw_below(&state, 40);
	s.fault_call = (int32_t)draw_below(&state, (uint64_t)s.calls);
	s.delay_us = draw_below(&state, 2) ? draw_below(&state, 3000) : 0;
	s.victim = (int32_t)draw_below(&state, (uint64_t)s.n);
	st = tess_rank_env_read(&env);
	if (st) {
		fprintf(stderr, "fault_injection: %s\n", tess_error());
		return 2;
	}
	if (!env.alone)
		return run_process_rank(&s, env.rank);
	st = tess_world_spawn_threads(s.n, run_thread_rank, &s);
	tess_registry_quit();
	return st ? 1 : 0;
}
