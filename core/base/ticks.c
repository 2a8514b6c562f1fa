#include "core/base/ticks.h"

#include "core/base/clock.h"

#include <stdbool.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum {
	RATE_MIN_NS = TESS_MS, /* the shortest measurement of a rate */
	SYNC_NS = 10 * TESS_MS, /* between synchronizations: passed * rate stays below 2^64 */
	READ_MAX_NS = 2000, /* both clocks read within this time count as one moment */
	READ_TRIES = 4,
	DRIFT_PARTS = 100 /* a rate that changes by more than 1 / DRIFT_PARTS is discarded */
};

/* Whether the rate of the counter is constant. */
static bool has_steady_counter(void)
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

/* Both clocks at one moment; false: this thread was interrupted. */
static bool read_both_clocks(uint64_t *count, int64_t *ns)
{
	for (int i = 0; i < READ_TRIES; i++) {
		int64_t before = tess_now();

		*count = tess_ticks_count();
		*ns = tess_now();
		if (*ns - before < READ_MAX_NS)
			return true;
	}
	return false;
}

/* The rate of the counter since the last measurement; begins a new one. */
static void measure_rate(struct tess_ticks *t, uint64_t count, int64_t ns)
{
	double ticks = (double)(count - t->rate_count), elapsed = (double)(ns - t->rate_ns);
	uint64_t rate = ticks > 0 ? (uint64_t)(elapsed / ticks * 4294967296.0) : 0;
	uint64_t difference = rate > t->rate ? rate - t->rate : t->rate - rate;
	bool good = rate && (!t->rate || difference < t->rate / DRIFT_PARTS);

	t->rate = good ? rate : 0;
	t->sync_after = good ? (uint64_t)(ticks / elapsed * SYNC_NS) : 0;
	t->rate_count = count;
	t->rate_ns = ns;
}

int64_t tess_ticks_sync(struct tess_ticks *t)
{
	uint64_t count;
	int64_t ns;

	if (!t->has_counter)
		t->has_counter = has_steady_counter() ? 1 : -1;
	if (t->has_counter < 0 || !read_both_clocks(&count, &ns)) {
		ns = tess_now();
	} else {
		if (!t->rate_ns) {
			t->rate_count = count;
			t->rate_ns = ns;
		} else if (ns - t->rate_ns >= RATE_MIN_NS) {
			measure_rate(t, count, ns);
		}
		t->sync_count = count;
		t->sync_ns = ns > t->last_ns ? ns : t->last_ns;
	}
	return t->last_ns = ns > t->last_ns ? ns : t->last_ns;
}
