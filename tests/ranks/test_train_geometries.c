/*
 * Models of random sizes in training: whatever the mesh and the plan, in lockstep, the loss and all
 * gradients have the bits of one rank; with dropout too.
 *
 * Environment: GEOMETRY_SEED (default 1), GEOMETRY_FIRST (0), GEOMETRIES (1) of each family.
 */
#include "../unit/draw.h"
#include "../unit/suite.h"
#include "geometry.h"
#include "lockstep.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

enum { SEQUENCES = 4, LENGTH_MAX = 40, WAYS = THIN > 1 ? 1 : 2, RANKS = 8, REPLICAS = 3 };

struct step {
	int64_t lengths[SEQUENCES];
	int32_t ids[SEQUENCES * LENGTH_MAX], labels[SEQUENCES * LENGTH_MAX];
};

/* Returns how many ids the step has. */
static int64_t draw_sequences(uint64_t *seed, int64_t vocabulary, struct step *s)
{
	int64_t n = 0;

	for (int i = 0; i < SEQUENCES; i++) {
		s->lengths[i] = 1 + (int64_t)draw_below(seed, i ? 12 : LENGTH_MAX);
		n += s->lengths[i];
	}
	for (int64_t i = 0; i < n; i++) {
		s->ids[i] = (int32_t)draw_below(seed, (uint64_t)vocabulary);
		s->labels[i] = draw_below(seed, 8) ? (int32_t)draw_below(seed, (uint64_t)vocabulary)
		                                   : -100;
	}
	return n;
}

/* Ranks along tp, as many as the model allows, and replicas; a plan of the model. */
static const char *draw_mesh_and_plan(uint64_t *seed, const struct geometry *g, char *mesh,
                                      size_t size)
{
	int32_t most = g->most_ranks < RANKS ? g->most_ranks : RANKS, n = 0;

	snprintf(mesh, size, "dp=%d,tp=%d", 1 + (int)draw_below(seed, REPLICAS),
	         1 + (int)draw_below(seed, (uint64_t)most));
	while (g->model->presets[n].name)
		n++;
	return g->model->presets[draw_below(seed, (uint64_t)n)].name;
}

static void compare_gradients_of_ways(const char *family, uint64_t seed)
{
	struct lockstep_gradients want, have;
	struct geometry g;
	struct step s;
	char mesh[32], what[128];
	int64_t n;

	ck_assert_msg(!geometry_open(family, seed, &g), "%s", tess_error());
	n = draw_sequences(&seed, g.vocabulary, &s);

	struct lockstep how = { g.model, &g.source, "none", 1, s.ids, n, true, NULL };
	const struct lockstep_step step = { .how = &how,
		                            .lengths = s.lengths,
		                            .nsequences = SEQUENCES,
		                            .labels = s.labels,
		                            .dropout = draw_below(&seed, 2) ? 0.2 : -1 };

	ck_assert_msg(!lockstep_train(&step, &want), "%s", tess_error());
	for (int i = 0; i < WAYS; i++) {
		how.plan = draw_mesh_and_plan(&seed, &g, mesh, sizeof mesh);
		how.mesh = mesh;
		snprintf(what, sizeof what, "%s, plan %s on %s", family, how.plan, mesh);
		if (lockstep_train(&step, &have)) {
			expect_part(tess_error(), "cannot be cut for");
			continue;
		}
		lockstep_compare_gradients(what, &want, &have);
		lockstep_free_gradients(&have);
	}
	lockstep_free_gradients(&want);
	geometry_close(&g);
}

static uint64_t read_environment(const char *name, uint64_t preset)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 10) : preset;
}

START_TEST(ways_give_the_bits_of_one_rank)
{
	uint64_t seed = read_environment("GEOMETRY_SEED", 1),
		 first = read_environment("GEOMETRY_FIRST", 0);
	uint64_t count = read_environment("GEOMETRIES", 1);

	for (uint64_t i = first; i < first + count; i++)
		compare_gradients_of_ways(geometry_families[_i],
		                          seed * 1000003 + i * 101 + (uint64_t)_i);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("train_geometries", 120, &r);
	int n = 0;

	while (geometry_families[n])
		n++;
	tcase_add_loop_test(t, ways_give_the_bits_of_one_rank, 0, n);
	return suite_end(r);
}
