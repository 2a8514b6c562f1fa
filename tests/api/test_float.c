/*
 * test_float.c - the floating-point state of the host program. In any state, logits and sums have
 * the bits of the default state, with denormals and rounding; the state is restored afterwards; all
 * NaNs are one NaN.
 */
#include "api/session.h"
#include "core/base/status.h"
#include "tests/support/spawn.h"
#include "tests/support/suite.h"

#include <fenv.h>
#include <string.h>
#include <tessera/tessera.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

enum { STATES = 5, TOKENS = 3, COUNT_MAX = 40000 };

struct seen_logits {
	uint64_t digest;
	bool denormal;
};

/* Sets state 0, the default; then a rounding mode each; the last is FTZ and DAZ. */
static void set_float_state(int state)
{
	static const int round[] = { FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO,
		                     FE_TONEAREST };

	ck_assert(!fesetround(round[state]));
#if defined(__SSE2__)
	if (state == STATES - 1)
		_mm_setcsr(_mm_getcsr() | 0x8040);
#endif
}

/* Returns whether 1 + 2^-30, 1 - 2^-30 and half of the smallest normal number show the state. */
static bool has_float_state(int state)
{
	static const float high[] = { 1, 1 + 0x1p-23f, 1, 1, 1 },
			   low[] = { 1, 1, 1 - 0x1p-24f, 1 - 0x1p-24f, 1 };
	volatile float one = 1, tiny = 0x1p-30f, min_normal = 0x1p-126f;
	float up = one + tiny, down = one - tiny, half = min_normal * 0.5f;
#if defined(__SSE2__)
	bool flushed = state == STATES - 1;
#else
	bool flushed = false;
#endif

	return up == high[state] && down == low[state] && (half == 0) == flushed;
}

static int hash_logits(void *self, int64_t request, int32_t id, const float *logits)
{
	struct seen_logits *seen = self;

	(void)request, (void)id;
	for (int i = 0; i < 512; i++) {
		uint32_t bits;

		memcpy(&bits, &logits[i], sizeof bits);
		seen->digest = (seen->digest ^ bits) * 0x100000001b3u;
		seen->denormal |= bits & 0x7fffffff && !(bits & 0x7f800000);
	}
	return 0;
}

struct float_case {
	int state;
	struct seen_logits seen;
	int32_t drawn;
};

/* Runs a step, and draws from its logits. */
static tess_status step_and_draw(struct tess_session *s, const int32_t *ids, struct float_case *ask)
{
	static const struct tess_sampling sampling = { .temperature = 1, .top_p = 0.9, .seed = 3 };
	struct tess_input in = { .ids = ids, .n = 5, .nselected = 1 };
	struct tess_sampler *sampler = NULL;
	const float *logits = NULL;
	tess_status st = tess_sequence_open(s, &in.sequence);

	if (!st)
		st = tess_session_step(s, &in, 1, 0, &logits);
	if (!st)
		st = tess_sampler_new(512, &sampler);
	if (!st && logits) { /* on rank 0 */
		hash_logits(&ask->seen, 0, 0, logits);
		ask->drawn = tess_sampler_draw(sampler, &sampling, logits, ids, 5, 0);
	}
	tess_sampler_free(sampler);
	return st;
}

/* Generates with denormal logits, added over the ranks: the style makes the head's input tiny. */
static tess_status generate_in_state(struct tess_world *w, void *arg)
{
	static const char *const overrides[] = { "model.norm=defective:tiny",
		                                 "model.embed_tokens=embedding_colwise",
		                                 "lm_head=rowwise", NULL };
	static const int32_t prompt[] = { 1, 403, 407, 261, 378 };
	struct float_case *ask = arg;
	struct tess_session_options how = { .size = sizeof how,
		                            .threads = 2,
		                            .overrides = overrides };
	struct tess_generate_request generate = {
		.prompt = prompt,
		.nprompt = 5,
		.max_tokens = TOKENS,
		.logits = true,
		.sampling = { .temperature = 1, .top_p = 0.9, .seed = 3 },
	};
	struct tess_generate_options options = { .callbacks = { .self = &ask->seen,
		                                                .on_token = hash_logits } };
	struct tess_generate_result done;
	struct tess_session *s = NULL;
	struct tess_mesh *mesh = NULL;
	tess_status st = tess_mesh_open(w, "tp", &mesh);

	if (!st)
		st = tess_session_open(mesh, SOURCE_ROOT "/data", &how, &s);
	if (!st)
		st = tess_generate_run(tess_session_runner(s), &generate, 1, &options, &done);
	MUST(has_float_state(ask->state));
	if (!st)
		st = step_and_draw(s, prompt, ask);
	MUST(has_float_state(ask->state));
	tess_session_close(s);
	tess_mesh_close(mesh);
	return st;
}

START_TEST(logits_have_the_same_bits)
{
	uint64_t want = 0;
	int32_t drawn = -1;

	for (int n = 1; n <= 3; n++)
		for (int state = 0; state < STATES; state++) {
			struct float_case ask = { .state = state };

			set_float_state(state);
			ck_assert(has_float_state(state));
			spawn_ranks(n, generate_in_state, &ask);
			fesetenv(FE_DFL_ENV);
			want = want ? want : ask.seen.digest;
			drawn = drawn >= 0 ? drawn : ask.drawn;
			ck_assert(drawn >= 0 && ask.drawn == drawn);
			ck_assert(ask.seen.denormal);
			ck_assert_msg(ask.seen.digest == want, "%d ranks, state %d", n, state);
		}
}
END_TEST

static float make_float(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, sizeof x);
	return x;
}

/* Computes in turn: denormal parts, a sum that is rounded, two NaNs. */
static float compute_part(int32_t rank, int i)
{
	return make_float(i % 3 == 0   ? 0x100 + (uint32_t)i
	                  : i % 3 == 1 ? (rank ? 0x33000001 : 0x3f800000)
	                               : (rank ? 0xffc00002 : 0x7fc00001));
}

static uint32_t compute_sum_bits(int32_t nranks, int i)
{
	return i % 3 == 0   ? (uint32_t)nranks * (0x100 + (uint32_t)i)
	       : i % 3 == 2 ? 0x7fc00000
	                    : 0x3f800000; /* 1 and some 2^-25: 1 */
}

static tess_status check_sum_bits(struct tess_world *w, void *arg)
{
	static const uint64_t counts[] = { 7, 300, 5000, COUNT_MAX };
	int32_t me = tess_world_rank(w), n = tess_world_size(w);
	float *x = malloc(COUNT_MAX * sizeof *x), *y = malloc(COUNT_MAX * sizeof *y);
	tess_status st = TESS_OK;
	uint32_t bits;

	MUST(x && y);
	for (int i = 0; i < COUNT_MAX; i++)
		x[i] = compute_part(me, i);
	for (int k = 0; k < 12 && !st; k++) { /* repeats the call, which then equals the last one */
		uint64_t count = counts[k / 3];

		st = tess_all_reduce(tess_world_group(w), x, y, count, TESS_F32, TESS_SUM, "add");
		for (uint64_t i = 0; i < count && !st; i++) {
			memcpy(&bits, &y[i], sizeof bits);
			if (bits != compute_sum_bits(n, (int)i))
				st = tess_fail(TESS_EBUG, "%d of %d is %x", (int)i, (int)count,
				               bits);
		}
	}
	MUST(has_float_state(*(int *)arg));
	free(x);
	free(y);
	return st;
}

START_TEST(sums_have_the_same_bits)
{
	for (int n = 2; n <= 3; n++)
		for (int state = 0; state < STATES; state++) {
			set_float_state(state);
			ck_assert_msg(!tess_world_spawn_threads(n, check_sum_bits, &state),
			              "%d ranks, state %d: %s", n, state, tess_error());
			fesetenv(FE_DFL_ENV);
		}
}
END_TEST

SUITE_MAIN("float", logits_have_the_same_bits, sums_have_the_same_bits)
