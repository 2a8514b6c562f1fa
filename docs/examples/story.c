/*
 * story.c - generates text from a checkpoint that is sharded by a plan over the ranks of a mesh.
 *
 *   cc story.c -o story $(pkg-config --cflags --libs tessera) \
 *      -Wl,-rpath,"$(pkg-config --variable=libdir tessera)"
 *   tessera launch -n 2 -- ./story data 'Once upon a time'
 */
#include <stdio.h>
#include <tessera/tessera.h>

static int print_bytes(void *to, const char *bytes, size_t n)
{
	return fwrite(bytes, 1, n, to) != n || fflush(to); /* not 0: ends the text */
}

int main(int argc, char **argv)
{
	struct tess_session_options options = { .size = sizeof options, .plan = "auto" };
	struct tess_session *session = NULL;
	struct tess_world *world;
	struct tess_mesh *mesh = NULL;
	int failed;

	if (argc != 3 || tess_world_open(&world)) {
		fprintf(stderr, "story: %s\n",
		        argc != 3 ? "usage: story CHECKPOINT PROMPT" : tess_error());
		return 1;
	}
	failed = tess_mesh_open(world, "tp", &mesh) ||
	         tess_session_open(mesh, argv[1], &options, &session) ||
	         tess_session_generate(session, argv[2], 100, print_bytes, stdout);
	if (failed)
		fprintf(stderr, "story: %s\n", tess_error());
	else if (tess_world_rank(world) == 0)
		printf("\n");
	tess_session_close(session);
	tess_mesh_close(mesh);
	tess_world_close(world);
	return failed;
}
