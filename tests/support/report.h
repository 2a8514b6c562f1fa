/* report.h - records the result of each rank of a job of N threads, and checks it. */
#ifndef TESS_TESTS_SUPPORT_REPORT_H
#define TESS_TESTS_SUPPORT_REPORT_H

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/rendezvous/coordinator.h"
#include "spawn.h"

#include <check.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <tessera/tessera.h>
#include <unistd.h>

enum { N = 4, SOON_MS = 5000 };

struct rank_reports {
	tess_status st[N];
	char sentence[N][TESS_SENTENCE];
	int variant;
	atomic_int nreported; /* ranks that have stored a report */
	atomic_int nmet;
};

/*
 * Waits until all N ranks have arrived: a deadline set afterwards cannot pass before a rank starts.
 */
static inline void meet_ranks(struct rank_reports *r)
{
	atomic_fetch_add(&r->nmet, 1);
	for (int ms = 0; atomic_load(&r->nmet) < N && ms < SOON_MS; ms++)
		usleep(1000);
}

static inline int64_t get_near_deadline(void)
{
	return tess_now() + 500 * (int64_t)TESS_MS;
}

/* Stores `st` and tess_error() for this rank; returns `st`. */
static inline tess_status store_report(struct rank_reports *r, struct tess_world *w, tess_status st)
{
	int32_t me = tess_world_rank(w);

	r->st[me] = st;
	snprintf(r->sentence[me], TESS_SENTENCE, "%s", st ? tess_error() : "");
	atomic_fetch_add(&r->nreported, 1);
	return st;
}

/* Delays a rank until `n` ranks have failed, however slow the machine is. */
static inline void wait_for_reports(struct rank_reports *r, int n)
{
	for (int ms = 0; atomic_load(&r->nreported) < n && ms < 4 * SOON_MS; ms++)
		usleep(1000);
}

static inline void expect_soon(int64_t began)
{
	ck_assert_msg(tess_now() - began < SOON_MS * (int64_t)TESS_MS, "it took %ld ms",
	              (long)((tess_now() - began) / TESS_MS));
}

/*
 * Checks that every rank but `but` has failed with `st`, and that its message has all these words,
 * which end with NULL.
 */
static inline void expect_report_words(const struct rank_reports *r, int but, tess_status st,
                                       const char *const *words)
{
	for (int i = 0; i < N; i++) {
		if (i == but)
			continue;
		ck_assert_msg(r->st[i] == st, "rank %d: %s: %s", i, tess_status_name(r->st[i]),
		              r->sentence[i]);
		for (const char *const *word = words; *word; word++)
			ck_assert_msg(strstr(r->sentence[i], *word) != NULL,
			              "rank %d: %s: lacks %s", i, r->sentence[i], *word);
	}
}
#define expect_reports(r, but, st, ...) \
	expect_report_words(r, but, st, (const char *const[]){ __VA_ARGS__, NULL })

/* Runs fn on N ranks and checks, by expect_reports(), that they soon fail with `status`. */
#define EXPECT_REPORTS(fn, r, but, status, ...) \
	do { \
		int64_t began = tess_now(); \
\
		ck_assert_int_eq(tess_world_spawn_threads(N, fn, r), status); \
		expect_soon(began); \
		expect_reports(r, but, status, __VA_ARGS__); \
	} while (0)

#endif
