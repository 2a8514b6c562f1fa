/*
 * sum.c - collectives without a model: every rank gets the sum of all numbers, and a list of ranks.
 *
 *   cc sum.c -o sum $(pkg-config --cflags --libs tessera) \
 *      -Wl,-rpath,"$(pkg-config --variable=libdir tessera)"
 *   tessera launch -n 4 -- ./sum
 */
#include <stdio.h>
#include <tessera/tessera.h>

int main(void)
{
	struct tess_world *world;
	struct tess_group *all;
	float mine, sum;
	int32_t me, ranks[64];
	int failed;

	if (tess_world_open(&world)) {
		fprintf(stderr, "sum: %s\n", tess_error());
		return 1;
	}
	all = tess_world_group(world);
	me = tess_group_rank(all);
	mine = (float)(me + 1);
	failed = tess_all_reduce(all, &mine, &sum, 1, TESS_F32, TESS_SUM, "sum:numbers") ||
	         tess_all_gather(all, &me, ranks, 1, TESS_I32, "sum:ranks");
	if (failed)
		fprintf(stderr, "sum: %s\n", tess_error());
	else
		printf("rank %d of %d: the sum is %g, the last rank is %d\n", (int)me,
		       (int)tess_group_size(all), (double)sum,
		       (int)ranks[tess_group_size(all) - 1]);
	tess_world_close(world);
	return failed;
}
