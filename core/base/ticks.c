#include "ticks.h"

#include "clock.h"

#include <stdbool.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum {
	LEAST = TESS_MS, /* ns over which a rate is measured */
	SPAN = 10 * TESS_MS, /* ns between two looks: passed * rate stays below 2^64 */
	APART = 2000, /* ns between two counts that are taken as one moment with the clock */
	TRIES = 4,
	DRIFT = 100 /* a rate that changes by more than one part of so many was no rate */
};

/* Whether the counter runs at one speed, whatever the CPU does. */
static bool counts(void)
{
#if defined(__x86_64__)
	unsigned a, b, c, d;

	return __get_cpuid(0x80000007, &a, &b, &c, &d) && d & 1 << 8;
#elif defined(__aarch64__)
	return true;
#else
	return false;
#endif
}

/* Both clocks at one moment; false: this thread was held up in between. */
static bool look_at_both(uint64_t *at, int64_t *ns)
{
	for (int i = 0; i < TRIES; i++) {
		int64_t before = tess_now();

		*at = tess_ticks_count();
		*ns = tess_now();
		if (*ns - before < APART)
			return true;
	}
	return false;
}

/* How fast the counter runs, since it was measured last; from now on it is measured anew. */
static void measure(struct tess_ticks *t, uint64_t at, int64_t ns)
{
	double ticks = (double)(at - t->from), took = (double)(ns - t->since);
	uint64_t rate = ticks > 0 ? (uint64_t)(took / ticks * 4294967296.0) : 0;
	uint64_t apart = rate > t->rate ? rate - t->rate : t->rate - rate;
	bool good = rate && (!t->rate || apart < t->rate / DRIFT);

	t->rate = good ? rate : 0;
	t->span = good ? (uint64_t)(ticks / took * SPAN) : 0;
	t->from = at;
	t->since = ns;
}

int64_t tess_ticks_look(struct tess_ticks *t)
{
	uint64_t at;
	int64_t ns;

	if (!t->counts)
		t->counts = counts() ? 1 : -1;
	if (t->counts < 0 || !look_at_both(&at, &ns)) {
		ns = tess_now();
	} else {
		if (!t->since) {
			t->from = at;
			t->since = ns;
		} else if (ns - t->since >= LEAST) {
			measure(t, at, ns);
		}
		t->at = at;
		t->ns = ns > t->said ? ns : t->said;
	}
	return t->said = ns > t->said ? ns : t->said;
}
