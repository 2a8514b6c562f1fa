/*
 * test_stop.c - stop texts: the scan against a search over the complete text, and generation with
 * texts that cross tokens, on several meshes.
 */
#include "api/stop.h"
#include "tests/support/draw.h"
#include "tests/support/spawn.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/tessera.h>

/* ---- the scan -------------------------------------------------------------------------------- */

enum { STOPS = 4, TEXT = 512 };

static const char *const characters[] = { "a", "b", "\xc3\xa9", "\xc3\xa8", "\xe4\xbd\xa0" };

static void draw_characters(uint64_t *seed, uint64_t n, uint64_t kinds, char *out)
{
	*out = 0;
	while (n--)
		strcat(out, characters[draw_below(seed, kinds)]);
}

/* Returns where the text is cut: the first stop text that ends, and of these the longest. */
static size_t find_cut(const char *text, const char *const *stop, int64_t n, bool *found)
{
	size_t len = strlen(text);

	for (size_t end = 1; end <= len; end++) {
		size_t longest = 0;

		for (int64_t i = 0; i < n; i++) {
			size_t k = strlen(stop[i]);

			if (k <= end && k > longest && !memcmp(text + end - k, stop[i], k))
				longest = k;
		}
		*found = longest != 0;
		if (longest)
			return end - longest;
	}
	return len;
}

/* Returns the length of the longest end of the text that begins a stop text. */
static size_t measure_held_end(const char *text, size_t len, const char *const *stop, int64_t n)
{
	size_t held = 0;

	for (int64_t i = 0; i < n; i++)
		for (size_t k = strlen(stop[i]) - 1; k > held; k--)
			if (k <= len && !memcmp(text + len - k, stop[i], k))
				held = k;
	return held;
}

/* Scans a text in random parts of complete characters, and checks what each gives. */
static void check_scan(uint64_t *seed, const char *text, const char *const *stop, int64_t n)
{
	char list[STOPS * TEXT], *to = list, given[TEXT];
	struct tess_stop_scan *s;
	bool want = false, found = false;
	size_t cut = find_cut(text, stop, n, &want), ngiven = 0, len = strlen(text), nout;
	const char *out;

	for (int64_t i = 0; i < n; i++)
		to = stpcpy(to, stop[i]) + 1;
	MUST(!tess_stop_scan_open(list, n, &s));
	for (size_t at = 0, end; at < len && !found; at = end) {
		end = at + draw_below(seed, 6);
		end = end < len ? end : len;
		while ((text[end] & 0xc0) == 0x80)
			end++;
		MUST(!tess_stop_scan_push(s, text + at, end - at, &out, &nout, &found));
		memcpy(given + ngiven, out, nout);
		ngiven += nout;
		/* no more is held back than needed */
		MUST(found || ngiven == end - measure_held_end(text, end, stop, n));
	}
	MUST(!tess_stop_scan_finish(s, "", 0, &out, &nout, &found));
	memcpy(given + ngiven, out, nout);
	ngiven += nout;
	MUST(found == want);
	MUST(ngiven == cut && !memcmp(given, text, cut));
	tess_stop_scan_close(s);
}

START_TEST(scan_equals_search)
{
	uint64_t seed = 1;
	int64_t nfound = 0;

	for (int i = 0; i < 20000 / THIN; i++) {
		char text[TEXT], stops[STOPS][TEXT];
		const char *stop[STOPS];
		int64_t n = 1 + (int64_t)draw_below(&seed, STOPS);
		uint64_t kinds = 2 + draw_below(&seed, 4);
		bool found = false;

		draw_characters(&seed, draw_below(&seed, 40), kinds, text);
		for (int64_t k = 0; k < n; k++) {
			draw_characters(&seed, 1 + draw_below(&seed, 8), kinds, stops[k]);
			stop[k] = stops[k];
		}
		check_scan(&seed, text, stop, n);
		find_cut(text, stop, n, &found);
		nfound += found;
	}
	ck_assert_int_gt(nfound, 2000 / THIN);
	ck_assert_int_lt(nfound, 18000 / THIN);
}
END_TEST

/* The last bytes of a text may complete a stop text. */
START_TEST(stop_at_the_end)
{
	struct tess_stop_scan *s;
	const char *out;
	size_t n;
	bool found;

	MUST(!tess_stop_scan_open("bcd\0abx", 2, &s));
	MUST(!tess_stop_scan_push(s, "zab", 3, &out, &n, &found));
	MUST(!found && n == 1 && *out == 'z');
	MUST(!tess_stop_scan_finish(s, "cde", 3, &out, &n, &found));
	MUST(found && n == 1 && *out == 'a');
	tess_stop_scan_close(s);
}
END_TEST

/* ---- generation ------------------------------------------------------------------------------ */

enum { PROMPTS = 6, TOKENS = 60, BYTES = 1024 };

struct answer {
	char text[BYTES];
	size_t len, first; /* first: bytes before those of on_end */
	int32_t ids[TOKENS], finish;
	int64_t n;
};

struct job {
	const char *mesh;
	char stop[PROMPTS][BYTES]; /* "": none */
	struct answer answer[PROMPTS];
};

static int take_token(void *self, int64_t i, int32_t id, const float *logits, const char *text,
                      uint64_t n)
{
	struct answer *a = &((struct job *)self)->answer[i];

	(void)logits;
	memcpy(a->text + a->len, text, n);
	a->len += n;
	a->ids[a->n++] = id;
	return TESS_GO_ON;
}

static int take_end(void *self, int64_t i, const struct tess_result *r, const char *text,
                    uint64_t n)
{
	struct answer *a = &((struct job *)self)->answer[i];

	if (r->status)
		return tess_fail(r->status, "%s", r->sentence);
	a->first = a->len;
	memcpy(a->text + a->len, text, n);
	a->len += n;
	a->finish = r->finish;
	return a->n == r->ntokens ? TESS_GO_ON : tess_fail(TESS_EBUG, "ids are missing");
}

static tess_status generate_with_stops(struct tess_world *w, void *arg)
{
	struct job *j = arg;
	const struct tess_generation how = {
		.size = sizeof how, .self = j, .on_token = take_token, .on_end = take_end
	};
	const int32_t none = 0;
	struct tess_sampling sampling[PROMPTS];
	struct tess_request request[PROMPTS];
	const struct tess_request *list[PROMPTS];
	const char *stop[PROMPTS];
	struct tess_mesh *mesh = NULL;
	struct tess_session *s = NULL;
	tess_status st = tess_mesh_open(w, j->mesh, &mesh);

	for (int i = 0; i < PROMPTS; i++) {
		stop[i] = j->stop[i];
		sampling[i] = (struct tess_sampling){
			.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = (uint64_t)i
		};
		request[i] = (struct tess_request){ .size = sizeof *request,
			                            .text = "Once upon",
			                            .ntext = 9,
			                            .sampling = &sampling[i],
			                            .stop = &none,
			                            .max_tokens = TOKENS,
			                            .stop_texts = &stop[i],
			                            .nstop_texts = *j->stop[i] != 0 };
		list[i] = &request[i];
	}
	if (!st)
		st = tess_session_open(mesh, SOURCE_ROOT "/data", NULL, &s);
	if (!st)
		st = tess_session_generate(s, list, PROMPTS, &how);
	tess_session_close(s);
	tess_mesh_close(mesh);
	return st;
}

static void run_stop_job(struct job *j)
{
	int32_t n;

	memset(j->answer, 0, sizeof j->answer);
	ck_assert(!tess_mesh_count_ranks(j->mesh, &n));
	ck_assert_msg(!tess_world_spawn_threads(n, generate_with_stops, j), "%s: %s", j->mesh,
	              tess_error());
}

/* Compares a text with the complete one, cut before its stop text. */
static void check_answer(const struct answer *all, const struct answer *have, const char *stop)
{
	const char *at = strstr(all->text, stop);

	ck_assert_ptr_nonnull(at);
	ck_assert_msg(have->len == (size_t)(at - all->text) &&
	                      !memcmp(have->text, all->text, have->len),
	              "\"%s\" at \"%s\": \"%.*s\"", all->text, stop, (int)have->len, have->text);
	ck_assert_int_eq(have->finish, TESS_FINISH_TEXT);
	ck_assert_int_le(have->n, all->n);
	ck_assert_mem_eq(have->ids, all->ids, (size_t)have->n * sizeof *have->ids);
}

START_TEST(texts_end_before_stop_texts)
{
	static const char *const meshes[] = { "tp=1", "tp=2", "dp=2", "pp=2", "dp=2,tp=2" };
	static struct job all = { .mesh = "tp=1" }, cut;
	uint64_t seed = 5;

	run_stop_job(&all);
	cut = all;
	for (int i = 0; i < PROMPTS; i++) {
		struct answer *a = &all.answer[i];
		size_t from = draw_below(&seed, a->len - 9), n = 1 + draw_below(&seed, 8);

		ck_assert_int_eq(a->finish, TESS_FINISH_LENGTH);
		ck_assert_int_eq(a->n, TOKENS);
		memcpy(cut.stop[i], a->text + from, n); /* the texts are ASCII */
	}
	cut.mesh = meshes[_i];
	run_stop_job(&cut);
	for (int i = 0; i < PROMPTS; i++)
		check_answer(&all.answer[i], &cut.answer[i], cut.stop[i]);
}
END_TEST

/* A text that ends for another reason contains the bytes that were held back. */
START_TEST(held_text_is_not_lost)
{
	static struct job all = { .mesh = "tp=1" }, held;

	run_stop_job(&all);
	held = all;
	for (int i = 0; i < PROMPTS; i++) {
		struct answer *a = &all.answer[i];

		memcpy(held.stop[i], a->text + a->len - 5, 5);
		strcat(held.stop[i], "\n#");
	}
	run_stop_job(&held);
	for (int i = 0; i < PROMPTS; i++) {
		ck_assert_int_eq(held.answer[i].finish, TESS_FINISH_LENGTH);
		ck_assert_uint_eq(held.answer[i].first, all.answer[i].len - 5);
		ck_assert_str_eq(held.answer[i].text, all.answer[i].text);
	}
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("stop", 300, &r);

	tcase_add_test(t, scan_equals_search);
	tcase_add_test(t, stop_at_the_end);
	tcase_add_loop_test(t, texts_end_before_stop_texts, 0, 5);
	tcase_add_test(t, held_text_is_not_lost);
	return suite_end(r);
}
