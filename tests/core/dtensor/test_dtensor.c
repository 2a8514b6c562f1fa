/*
 * test_dtensor.c - distributed tensors: random redistributions against a reference that knows
 * global indices only; bytes as explain reports them, and as they are sent; an axis that several
 * mesh dimensions cut; differing calls; messages.
 */
#include "counting.h"
#include "reference.h"
#include "tests/support/draw.h"
#include "tests/support/report.h"
#include "tests/support/suite.h"

#include <tessera/names.h>

/* ---- random cases ---------------------------------------------------------------------------- */

static uint64_t get_setting(const char *name, uint64_t preset)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 10) : preset;
}

static tess_status expect_elements(const struct dtensor_case *c, const struct tess_place *places,
                                   int32_t rank, const char *what, const void *have)
{
	char text[1024];
	size_t bytes;
	void *want = dtensor_case_compute_local(c, places, rank, &bytes);
	bool same = want && !memcmp(have, want, bytes);

	free(want);
	return same ? TESS_OK
	            : tess_fail(TESS_EBUG, "rank %d: %s differs: %s", (int)rank, what,
	                        dtensor_case_format(c, text));
}

/* Checks local shape and ranges of any rank against the indices that it holds. */
static tess_status expect_parts(const struct dtensor_case *c, const struct tess_dtensor *t,
                                const struct tess_place *places, int32_t rank)
{
	int64_t shape[CASE_AXES], range[CASE_PARTS][2];

	HOLDS(!tess_dtensor_get_local_shape(t, rank, shape));
	for (int32_t a = 0; a < c->spec.ndim; a++) {
		int64_t n = tess_dtensor_list_ranges(t, rank, a, range, CASE_PARTS), held = 0;

		for (int64_t at = 0; at < c->shape[a]; at++) {
			bool in = false;

			for (int64_t i = 0; i < n; i++)
				in = in || (range[i][0] <= at && at < range[i][1]);
			HOLDS(in == dtensor_case_holds(c, places, rank, a, at));
			held += in;
		}
		HOLDS(n >= 1 && held == shape[a]);
	}
	return TESS_OK;
}

static tess_status make_case_tensor(struct tess_mesh *m, const struct dtensor_case *c, int32_t rank,
                                    struct tess_dtensor **out)
{
	bool needs = c->made == MADE_FROM_FULL || c->root == rank;
	void *data = NULL;
	tess_status st;
	size_t bytes;

	if (c->made == MADE_FROM_LOCAL)
		data = dtensor_case_compute_local(c, c->from, rank, &bytes);
	else if (needs)
		data = dtensor_case_compute_full(c);
	st = c->made == MADE_FROM_LOCAL ? tess_dtensor_from_local(m, &c->spec, data, out)
	                                : tess_dtensor_distribute(m, &c->spec, c->root, data, out);
	free(data); /* it is copied */
	return st;
}

static tess_status expect_full(const struct dtensor_case *c, const struct tess_dtensor *t,
                               int32_t rank)
{
	struct tess_place whole[CASE_DIMS];
	char *full = malloc(CASE_AXES * 13 * 13 * 13 * 13 * 8);
	tess_status st = full ? tess_dtensor_full(t, full) : TESS_ENOMEM;

	for (int32_t i = 0; i < CASE_DIMS; i++)
		whole[i] = (struct tess_place){ .kind = TESS_REPLICATE };
	if (!st)
		st = expect_elements(c, whole, rank, "full", full);
	free(full);
	return st;
}

/* Checks that the listed moves lead from one placement to the other. */
static tess_status expect_moves(const struct dtensor_case *c, const struct tess_dtensor *t,
                                const struct tess_dtensor *moved)
{
	const struct tess_place *to = tess_dtensor_get_spec(moved)->places;
	struct tess_dtensor_move moves[2 * CASE_DIMS];
	struct tess_place at[CASE_DIMS];
	int32_t n;

	memcpy(at, tess_dtensor_get_spec(t)->places, sizeof *at * (size_t)c->ndims);
	HOLDS(!tess_dtensor_list_moves(t, c->to, moves, 2 * CASE_DIMS, &n));
	HOLDS(n <= 2 * c->ndims);
	for (int32_t i = 0; i < n; i++) {
		HOLDS(!memcmp(&at[moves[i].dim], &moves[i].from, sizeof *at));
		HOLDS(memcmp(&moves[i].from, &moves[i].to, sizeof *at));
		HOLDS(c->size[moves[i].dim] > 1 || !moves[i].sent);
		at[moves[i].dim] = moves[i].to;
	}
	HOLDS(!memcmp(at, to, sizeof *at * (size_t)c->ndims));
	return TESS_OK;
}

/* Redistributes; a placement that stays is left out in half of the cases. */
static tess_status redistribute_case(const struct dtensor_case *c, const struct tess_dtensor *t,
                                     struct tess_dtensor **out)
{
	struct tess_place to[CASE_DIMS];

	memcpy(to, c->to, sizeof to);
	for (int32_t i = 0; i < c->ndims; i++)
		if (c->seed % 2 && !memcmp(&c->from[i], &to[i], sizeof *to))
			to[i] = (struct tess_place){ .kind = TESS_ASIS };
	return tess_dtensor_redistribute(t, to, out);
}

static tess_status run_dtensor_case(struct tess_world *w, const struct dtensor_case *c)
{
	int32_t rank = tess_world_rank(w);
	struct tess_dtensor *t = NULL, *moved = NULL;
	struct tess_mesh *m = NULL;
	tess_status st = tess_mesh_open(w, c->mesh, &m);

	if (!st)
		st = make_case_tensor(m, c, rank, &t);
	if (!st)
		st = expect_elements(c, c->from, rank, "the made tensor", tess_dtensor_local(t));
	for (int32_t r = 0; r < c->nranks && !st; r++)
		st = expect_parts(c, t, c->from, r);
	if (!st)
		st = redistribute_case(c, t, &moved);
	if (!st)
		st = expect_elements(c, c->to, rank, "the moved tensor", tess_dtensor_local(moved));
	if (!st)
		st = expect_parts(c, moved, c->to, rank);
	if (!st)
		st = expect_moves(c, t, moved);
	if (!st)
		st = expect_full(c, t, rank);
	tess_dtensor_free(t);
	tess_dtensor_free(moved);
	tess_mesh_close(m);
	return st;
}

static tess_status run_cases(struct tess_world *w, void *arg)
{
	uint64_t n = get_setting("DTENSOR_CASES", 300 / THIN), *seed = arg;
	int32_t nranks = tess_world_size(w);
	struct dtensor_case c;
	tess_status st = TESS_OK;

	for (uint64_t i = (uint64_t)nranks - 1; i < n && !st; i += CASE_RANKS) {
		dtensor_case_make(*seed + i, nranks, &c);
		st = run_dtensor_case(w, &c);
	}
	return st;
}

START_TEST(random_redistributions)
{
	uint64_t seed = get_setting("DTENSOR_SEED", 1000);

	for (int32_t n = 1; n <= CASE_RANKS; n++)
		spawn_ranks(n, run_cases, &seed);
}
END_TEST

/* ---- bytes ----------------------------------------------------------------------------------- */

struct explained {
	const char *mesh, *plan;
	int32_t nranks, kinds[TESS_RECV + 1], ncompared;
};

/* Checks that the move of an explained collective sends the same bytes as a tensor. */
static tess_status compare_move_bytes(struct tess_mesh *m, const struct tess_explanation *e,
                                      const struct tess_explained_collective *c)
{
	const struct tess_explained_record *r = e->records[c->record];
	int64_t shape[] = { e->tokens, (int64_t)c->bytes / 4 / e->tokens };
	/* the units of models: of the hidden dimension, and of 512 words */
	const struct tess_dtensor_part columns = { 1, 0, shape[1], shape[1] == 64 ? 8 : 32 };
	const struct tess_dtensor_spec spec = { .size = sizeof spec,
		                                .dtype = TESS_F32,
		                                .ndim = 2,
		                                .shape = shape,
		                                .places = r->in[0]->places,
		                                .nparts = 1,
		                                .parts = &columns,
		                                .name = c->module };
	struct tess_dtensor_move move;
	struct tess_dtensor *t;
	int32_t n;

	HOLDS(!tess_dtensor_from_local(m, &spec, NULL, &t));
	HOLDS(!tess_dtensor_list_moves(t, r->out[0]->places, &move, 1, &n));
	tess_dtensor_free(t);
	if (n != 1 || move.kind != c->kind || move.dim != c->dim || move.bytes != c->bytes ||
	    move.sent != c->sent)
		return tess_fail(TESS_EBUG, "%s: %s of %llu bytes sends %llu here, %llu there",
		                 c->module, tess_kind_name(c->kind), (unsigned long long)c->bytes,
		                 (unsigned long long)move.sent, (unsigned long long)c->sent);
	return TESS_OK;
}

static tess_status compare_explained_bytes(struct tess_world *w, void *arg)
{
	struct explained *x = arg;
	const struct tess_session_options options = { .size = sizeof options, .plan = x->plan };
	struct tess_explanation *e = NULL;
	struct tess_mesh *m = NULL;
	tess_status st = tess_mesh_open(w, x->mesh, &m);

	if (!st)
		st = tess_explain(getenv("DATA_DIR"), x->mesh, 0, 12, &options, &e);
	for (int32_t i = 0; !st && i < e->ncollectives; i++) {
		const struct tess_explained_collective *c = e->collectives[i];

		if (c->kind == TESS_GATHER) /* of logits, to one rank */
			continue;
		st = compare_move_bytes(m, e, c);
		if (tess_world_rank(w) == 0) {
			x->kinds[c->kind]++;
			x->ncompared++;
		}
	}
	tess_explanation_free(e);
	tess_mesh_close(m);
	return st;
}

#define QKV(style) \
	"\"**.q_proj\":\"" style "\",\"**.k_proj\":\"" style "\",\"**.v_proj\":\"" style "\""

START_TEST(bytes_are_those_of_explain)
{
	static const char rows_and_columns[] =
		"{\"model.layers.0.input_layernorm\":"
		" \"prepare_input_output:in=shard(0),out=shard(1)\","
		" \"model.layers.0.self_attn\": \"prepare_input:in=replicate\"}";
	static const char exchanged[] =
		"{\"tp\": {\"**.self_attn\": \"prepare_input:in=shard(0)\"," QKV(
			"rowwise") "},"
				   " \"xp\": {\"**.self_attn\": \"prepare_input:in=shard(1)\"," QKV(
					   "prepare_input_output:in=shard(0),out=replicate") "}}";
	struct explained all[] = {
		{ "tp=2", "tp", 2, { 0 }, 0 },
		{ "tp=4", "tp+sp", 4, { 0 }, 0 },
		{ "tp=3", rows_and_columns, 3, { 0 }, 0 },
		{ "tp=5", rows_and_columns, 5, { 0 }, 0 },
		{ "tp=4,xp=2", exchanged, 8, { 0 }, 0 },
	};
	int32_t kinds[TESS_RECV + 1] = { 0 };

	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		spawn_ranks(all[i].nranks, compare_explained_bytes, &all[i]);
		for (int32_t k = 0; k <= TESS_RECV; k++)
			kinds[k] += all[i].kinds[k];
	}
	ck_assert_int_gt(kinds[TESS_ALL_REDUCE], 0);
	ck_assert_int_gt(kinds[TESS_REDUCE_SCATTER], 0);
	ck_assert_int_gt(kinds[TESS_ALL_GATHER], 0);
	ck_assert_int_gt(kinds[TESS_ALL_TO_ALL], 0);
}
END_TEST

/* ---- bytes that are sent --------------------------------------------------------------------- */

struct sent_moves { /* number of compared moves, by kind of their calls */
	uint64_t seed;
	int32_t nkinds[TESS_RECV + 1];
};

/* Replaces a tensor by one after this move, and counts the bytes that this rank sends for it. */
static tess_status make_counted_move(struct tess_mesh *m, const struct dtensor_case *c,
                                     const struct tess_dtensor_move *move, struct tess_dtensor **t,
                                     int64_t *sent)
{
	struct tess_group *groups[CASE_DIMS];
	struct tess_place to[CASE_DIMS];
	struct tess_dtensor *moved = NULL;
	tess_status st;

	for (int32_t i = 0; i < c->ndims; i++) {
		groups[i] = tess_mesh_group(m, (const char[]){ (char)('a' + i), '\0' });
		to[i] = (struct tess_place){ .kind = TESS_ASIS };
	}
	to[move->dim] = move->to;
	counting_begin(groups, c->ndims);
	st = tess_dtensor_redistribute(*t, to, &moved);
	*sent = (int64_t)counting_end();
	tess_dtensor_free(*t);
	*t = moved;
	return st;
}

/*
 * Compares the maximum over ranks with the list. The list has the formula of explain for
 * reductions, n - 1 of n parts, so they are compared if all ranks send equally.
 */
static tess_status compare_sent_bytes(struct tess_world *w, const struct dtensor_case *c,
                                      const struct tess_dtensor_move *move, int64_t sent,
                                      struct sent_moves *x)
{
	int64_t most[] = { sent, -sent };
	char text[1024];
	tess_status st = tess_all_reduce(tess_world_group(w), most, most, 2, TESS_I64, TESS_MAX,
	                                 "sent bytes");

	if (st || (move->from.kind == TESS_PARTIAL && most[0] != -most[1]))
		return st;
	if (most[0] != (int64_t)move->sent)
		return tess_fail(TESS_EBUG, "%s along %c: %lld bytes are sent, and %llu listed: %s",
		                 tess_kind_name(move->kind), 'a' + move->dim, (long long)most[0],
		                 (unsigned long long)move->sent, dtensor_case_format(c, text));
	if (tess_world_rank(w) == 0)
		x->nkinds[move->kind] += most[0] > 0;
	return TESS_OK;
}

static tess_status count_sent_case(struct tess_world *w, const struct dtensor_case *c,
                                   struct sent_moves *x)
{
	struct tess_dtensor_move moves[2 * CASE_DIMS];
	struct tess_dtensor *t = NULL;
	struct tess_mesh *m = NULL;
	int64_t sent = 0;
	int32_t n = 0;
	tess_status st = tess_mesh_open(w, c->mesh, &m);

	if (!st)
		st = tess_dtensor_from_local(m, &c->spec, NULL, &t);
	if (!st)
		st = tess_dtensor_list_moves(t, c->to, moves, 2 * CASE_DIMS, &n);
	for (int32_t i = 0; i < n && !st; i++) {
		st = make_counted_move(m, c, &moves[i], &t, &sent);
		if (!st)
			st = compare_sent_bytes(w, c, &moves[i], sent, x);
	}
	tess_dtensor_free(t);
	tess_mesh_close(m);
	return st;
}

static tess_status count_sent_cases(struct tess_world *w, void *arg)
{
	struct sent_moves *x = arg;
	int32_t nranks = tess_world_size(w);
	struct dtensor_case c;
	tess_status st = TESS_OK;

	for (uint64_t i = 0; i < 60 && !st; i++) {
		dtensor_case_make(x->seed + i, nranks, &c);
		/* sums of f32 may be added in shared memory, and integers by the backend */
		c.spec.dtype = i % 2 ? TESS_F64 : TESS_BF16;
		st = count_sent_case(w, &c, x);
	}
	return st;
}

START_TEST(bytes_are_those_sent)
{
	struct sent_moves x = { .seed = 5200 };

	spawn_ranks(2, count_sent_cases, &x);
	spawn_ranks(3, count_sent_cases, &x);
	spawn_ranks(6, count_sent_cases, &x);
	ck_assert_int_gt(x.nkinds[TESS_ALL_REDUCE], 0);
	ck_assert_int_gt(x.nkinds[TESS_REDUCE_SCATTER], 0);
	ck_assert_int_gt(x.nkinds[TESS_ALL_GATHER], 0);
	ck_assert_int_gt(x.nkinds[TESS_ALL_TO_ALL], 0);
}
END_TEST

/* ---- an axis that several mesh dimensions cut ------------------------------------------------ */

static const struct tess_place rows_only[] = { { .kind = TESS_SHARD },
	                                       { .kind = TESS_SHARD },
	                                       { .kind = TESS_SHARD } };

struct expected_move {
	int32_t kind, dim, from, to; /* of axes; -1: Replicate */
	uint64_t sent;
};

/* Compares the moves from rows that are cut twice to rows that are cut along the last dimension. */
static tess_status expect_uncut(struct tess_world *w, const char *mesh, int32_t ndim,
                                const struct expected_move *want, int32_t nwant)
{
	static const int64_t shape[] = { 8, 8 };
	const struct tess_place to[] = { { .kind = TESS_REPLICATE }, { .kind = TESS_SHARD } };
	const struct tess_dtensor_spec spec = { .size = sizeof spec,
		                                .dtype = TESS_U8,
		                                .ndim = ndim,
		                                .shape = shape,
		                                .places = rows_only };
	struct tess_dtensor_move move[4];
	struct tess_mesh *m = NULL;
	struct tess_dtensor *t;
	int32_t n;

	HOLDS(!tess_mesh_open(w, mesh, &m) && !tess_dtensor_from_local(m, &spec, NULL, &t));
	HOLDS(!tess_dtensor_list_moves(t, to, move, 4, &n) && n == nwant);
	for (int32_t i = 0; i < n; i++) {
		HOLDS(move[i].kind == want[i].kind && move[i].dim == want[i].dim);
		HOLDS(move[i].sent == want[i].sent);
		HOLDS((move[i].from.kind == TESS_SHARD ? move[i].from.dim : -1) == want[i].from);
		HOLDS((move[i].to.kind == TESS_SHARD ? move[i].to.dim : -1) == want[i].to);
	}
	tess_dtensor_free(t);
	tess_mesh_close(m);
	return TESS_OK;
}

static tess_status list_moves_of_nested_cuts(struct tess_world *w, void *arg)
{
	static const struct expected_move parked[] = { { TESS_ALL_TO_ALL, 1, 0, 1, 8 },
		                                       { TESS_ALL_GATHER, 0, 0, -1, 16 },
		                                       { TESS_ALL_TO_ALL, 1, 1, 0, 16 } };
	static const struct expected_move gathered[] = { { TESS_ALL_GATHER, 1, 0, -1, 2 },
		                                         { TESS_ALL_GATHER, 0, 0, -1, 4 },
		                                         { 0, 1, -1, 0, 0 } };
	static const struct expected_move alone[] = { { 0, 0, 0, -1, 0 } };
	tess_status st = expect_uncut(w, "dp=2,tp=2", 2, parked, 3);

	(void)arg;
	if (!st)
		st = expect_uncut(w, "dp=2,tp=2", 1, gathered, 3);
	return st ? st : expect_uncut(w, "dp=1,tp=4", 2, alone, 1);
}

START_TEST(moves_of_nested_cuts)
{
	spawn_ranks(4, list_moves_of_nested_cuts, NULL);
}
END_TEST

/* Checks a part of 11 elements in 8 units of 1 or 2, and one of 2 elements. */
static tess_status expect_nested_ranges(struct tess_world *w, void *arg)
{
	static const int64_t shape[] = { 13 };
	static const int64_t held[][4] = { { 0, 2, 11, 12 },  { 2, 3, 12, 12 },  { 3, 5, 12, 12 },
		                           { 5, 6, 12, 12 },  { 6, 7, 12, 13 },  { 7, 9, 13, 13 },
		                           { 9, 10, 13, 13 }, { 10, 11, 13, 13 } };
	static const struct tess_dtensor_part parts[] = { { 0, 0, 11, 8 }, { 0, 0, 2, 0 } };
	const struct tess_dtensor_spec spec = { .size = sizeof spec,
		                                .dtype = TESS_U8,
		                                .ndim = 1,
		                                .shape = shape,
		                                .places = rows_only,
		                                .nparts = 2,
		                                .parts = parts };
	struct tess_mesh *m = NULL;
	int64_t range[2][2], size;
	struct tess_dtensor *t;

	(void)arg;
	HOLDS(!tess_mesh_open(w, "dp=2,cp=2,tp=2", &m));
	HOLDS(!tess_dtensor_from_local(m, &spec, NULL, &t));
	for (int32_t r = 0; r < 8; r++) {
		HOLDS(tess_dtensor_list_ranges(t, r, 0, range, 2) == 2);
		HOLDS(!memcmp(range, held[r], sizeof range));
		HOLDS(!tess_dtensor_get_local_shape(t, r, &size));
		HOLDS(size == held[r][1] - held[r][0] + held[r][3] - held[r][2]);
	}
	tess_dtensor_free(t);
	tess_mesh_close(m);
	return TESS_OK;
}

START_TEST(ranges_of_nested_cuts)
{
	spawn_ranks(8, expect_nested_ranges, NULL);
}
END_TEST

/* ---- differing calls ------------------------------------------------------------------------- */

/* What differs on rank 3. */
enum { OTHER_TARGET, OTHER_SHAPE, OTHER_DTYPE, OTHER_PARTS, OTHER_ROOT, OTHERS };

static tess_status make_calls_differ(struct tess_world *w, void *arg)
{
	static const int64_t shape[] = { 4, 8 }, turned[] = { 8, 4 };
	static const struct tess_dtensor_part parts[] = { { 0, 0, 2, 0 }, { 0, 0, 2, 0 } };
	static float full[32];
	struct rank_reports *r = arg;
	bool odd = tess_world_rank(w) == 3;
	struct tess_place from = { .kind = TESS_SHARD }, to = { .kind = TESS_REPLICATE };
	struct tess_dtensor_spec spec = { .size = sizeof spec,
		                          .dtype = TESS_F32,
		                          .ndim = 2,
		                          .shape = shape,
		                          .places = &from,
		                          .name = odd ? "mine" : "theirs" };
	struct tess_dtensor *t = NULL, *moved = NULL;
	struct tess_mesh *m = NULL;
	tess_status st = tess_mesh_open(w, "tp", &m);

	if (odd && r->variant == OTHER_SHAPE)
		spec.shape = turned;
	if (odd && r->variant == OTHER_DTYPE)
		spec.dtype = TESS_I32;
	if (odd && r->variant == OTHER_PARTS) {
		spec.nparts = 2;
		spec.parts = parts;
	}
	if (odd && r->variant == OTHER_TARGET)
		to = (struct tess_place){ .kind = TESS_SHARD, .dim = 1 };
	meet_ranks(r);
	if (!st && r->variant == OTHER_ROOT)
		st = tess_dtensor_distribute(m, &spec, odd, full, &t);
	else if (!st)
		st = tess_dtensor_from_local(m, &spec, NULL, &t);
	if (!st)
		st = tess_dtensor_redistribute(t, &to, &moved);
	st = store_report(r, w, st);
	tess_dtensor_free(t);
	tess_dtensor_free(moved);
	tess_mesh_close(m);
	return st;
}

START_TEST(differing_calls_fail)
{
	for (int variant = 0; variant < OTHERS; variant++) {
		struct rank_reports r = { .variant = variant };

		if (variant == OTHER_ROOT)
			EXPECT_REPORTS(make_calls_differ, &r, -1, TESS_EMISMATCH, "theirs [4, 8]",
			               "mine [4, 8]", "from rank 0", "from rank 1");
		else
			EXPECT_REPORTS(make_calls_differ, &r, -1, TESS_EMISMATCH,
			               "theirs [4, 8]: Shard(0) -> Replicate along tp", "mine [",
			               "rank 3");
	}
}
END_TEST

/* ---- messages -------------------------------------------------------------------------------- */

#define HAS(part) HOLDS(strstr(tess_error(), part))

static tess_status expect_messages(struct tess_world *w, void *arg)
{
	static const int64_t shape[] = { 5, 7 };
	static const struct tess_place replicate = { .kind = TESS_REPLICATE };
	static const struct tess_place sum = { .kind = TESS_PARTIAL, .op = TESS_SUM };
	struct tess_place at[] = { { .kind = TESS_SHARD }, replicate };
	const struct tess_place outside[] = { { .kind = TESS_ASIS },
		                              { .kind = TESS_SHARD, .dim = -3 } };
	const struct tess_place ops[] = { { .kind = TESS_PARTIAL, .op = TESS_MAX }, sum };
	const struct tess_place stage[] = { { .kind = TESS_STAGE }, replicate };
	const struct tess_place bits[] = { { .kind = TESS_PARTIAL, .op = TESS_BXOR }, sum };
	const struct tess_dtensor_spec spec = { .size = sizeof spec,
		                                .dtype = TESS_I8,
		                                .ndim = 2,
		                                .shape = shape,
		                                .places = at,
		                                .name = "gate" };
	struct tess_dtensor *t = NULL, *none = NULL;
	struct tess_mesh *m = NULL;

	(void)arg;
	HOLDS(!tess_mesh_open(w, "dp=2,tp=2", &m));
	HOLDS(!tess_dtensor_from_local(m, &spec, NULL, &t));
	HOLDS(tess_dtensor_redistribute(t, outside, &none) == TESS_EINVAL && !none);
	HAS("gate [5, 7] from Shard(0) along dp, Replicate along tp to Shard(0) along dp, "
	    "Shard(-3) along tp: Shard(-3) of a tensor with 2 axes; use -2 to 1");
	HOLDS(tess_dtensor_redistribute(t, ops, &none) == TESS_EINVAL);
	HAS("to Partial(max) along dp, Partial along tp: Partials along dp and tp have different");
	HOLDS(tess_dtensor_redistribute(t, bits, &none) == TESS_EINVAL);
	HAS("a Partial of op 7 (bxor); use sum, prod, min or max");
	HOLDS(tess_dtensor_redistribute(t, stage, &none) == TESS_EINVAL);
	HAS("to Stage(0) along dp, Replicate along tp: unknown placement kind 4; use Replicate");
	tess_dtensor_free(t);
	at[0] = ops[0];
	at[1] = sum;
	HOLDS(tess_dtensor_from_local(m, &spec, NULL, &t) == TESS_EINVAL);
	HAS("gate [5, 7], Partial(max) along dp, Partial along tp: Partials along dp and tp");
	tess_mesh_close(m);
	return TESS_OK;
}

START_TEST(messages_name_tensor_and_placements)
{
	spawn_ranks(4, expect_messages, NULL);
}
END_TEST

static tess_status leave_tensor_open(struct tess_world *w, void *arg)
{
	static const struct tess_place replicate = { .kind = TESS_REPLICATE };
	const struct tess_dtensor_spec spec = { .size = sizeof spec,
		                                .dtype = TESS_I8,
		                                .places = &replicate };
	struct tess_dtensor *t = NULL;
	struct tess_mesh *m = NULL;
	tess_status st;

	(void)arg;
	HOLDS(!tess_mesh_open(w, "tp", &m) && !tess_dtensor_from_local(m, &spec, NULL, &t));
	HOLDS(!strcmp(tess_dtensor_get_spec(t)->name, "tensor"));
	tess_mesh_close(m);
	st = tess_barrier(tess_world_group(w), "after");
	HOLDS(st == TESS_EINVAL && strstr(tess_error(), "a tensor is open on the mesh"));
	tess_dtensor_free(t);
	tess_mesh_close(m);
	return st;
}

START_TEST(mesh_outlives_tensors)
{
	ck_assert_int_eq(tess_world_spawn_threads(2, leave_tensor_open, NULL), TESS_EINVAL);
}
END_TEST

int main(void)
{
	SRunner *runner;
	TCase *tcase = suite_begin("dtensor", 3600, &runner);

	tcase_add_test(tcase, random_redistributions);
	tcase_add_test(tcase, bytes_are_those_of_explain);
	tcase_add_test(tcase, bytes_are_those_sent);
	tcase_add_test(tcase, moves_of_nested_cuts);
	tcase_add_test(tcase, ranges_of_nested_cuts);
	tcase_add_test(tcase, differing_calls_fail);
	tcase_add_test(tcase, messages_name_tensor_and_placements);
	tcase_add_test(tcase, mesh_outlives_tensors);
	return suite_end(runner);
}
