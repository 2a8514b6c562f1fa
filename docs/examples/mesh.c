/*
 * mesh.c - a mesh of two dimensions: sums the ranks' numbers along each of them, and over both.
 *
 *   cc mesh.c -o mesh $(pkg-config --cflags --libs tessera) \
 *      -Wl,-rpath,"$(pkg-config --variable=libdir tessera)"
 *   tessera launch -n 4 -- ./mesh dp=2,tp
 */
#include <stdio.h>
#include <tessera/tessera.h>

int main(int argc, char **argv)
{
	static const char *const dims[] = { "dp", "tp", "dp,tp" };
	struct tess_world *world;
	struct tess_mesh *mesh = NULL;
	int32_t me, sum[3];
	int failed;

	if (argc != 2 || tess_world_open(&world)) {
		fprintf(stderr, "mesh: %s\n", argc != 2 ? "usage: mesh dp=N,tp=N" : tess_error());
		return 1;
	}
	me = tess_world_rank(world);
	failed = tess_mesh_open(world, argv[1], &mesh) || tess_mesh_slice(mesh, dims[2]);
	for (int i = 0; i < 3 && !failed; i++)
		failed = tess_all_reduce(tess_mesh_group(mesh, dims[i]), &me, &sum[i], 1, TESS_I32,
		                         TESS_SUM, "mesh:sum");
	if (failed)
		fprintf(stderr, "mesh: %s\n", tess_error());
	else
		printf("rank %d is dp %d, tp %d: along dp %d, along tp %d, in all %d\n", (int)me,
		       (int)tess_mesh_rank(mesh, "dp"), (int)tess_mesh_rank(mesh, "tp"),
		       (int)sum[0], (int)sum[1], (int)sum[2]);
	tess_mesh_close(mesh);
	tess_world_close(world);
	return failed;
}
