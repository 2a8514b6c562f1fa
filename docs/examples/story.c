/*
 * story.c - generates text from a checkpoint that is sharded by a plan over the ranks of a mesh.
 *
 *   cc story.c -o story $(pkg-config --cflags --libs tessera) \
 *      -Wl,-rpath,"$(pkg-config --variable=libdir tessera)"
 *   tessera launch -n 2 -- ./story data 'Once upon a time'
 */
#include <stdio.h>
#include <string.h>
#include <tessera/tessera.h>

static int print_story(void *to, int64_t i, int32_t id, const float *logits, const char *text,
                       uint64_t n)
{
	(void)i, (void)id, (void)logits;
	return fwrite(text, 1, n, to) != n || fflush(to) ? TESS_END_ALL : TESS_GO_ON;
}

int main(int argc, char **argv)
{
	struct tess_session_options options = { .size = sizeof options, .plan = "auto" };
	struct tess_request request = { .size = sizeof request, .max_tokens = 100 };
	const struct tess_request *const requests[] = { &request };
	struct tess_generation how = { .size = sizeof how,
		                       .self = stdout,
		                       .on_token = print_story };
	struct tess_session *session = NULL;
	struct tess_world *world;
	struct tess_mesh *mesh = NULL;
	int failed;

	if (argc != 3 || tess_world_open(&world)) {
		fprintf(stderr, "story: %s\n",
		        argc != 3 ? "usage: story CHECKPOINT PROMPT" : tess_error());
		return 1;
	}
	request.text = argv[2];
	request.ntext = strlen(argv[2]);
	failed = tess_mesh_open(world, "tp", &mesh) ||
	         tess_session_open(mesh, argv[1], &options, &session) ||
	         tess_session_generate(session, requests, 1, &how);
	if (failed)
		fprintf(stderr, "story: %s\n", tess_error());
	else if (tess_world_rank(world) == 0)
		printf("\n");
	tess_session_close(session);
	tess_mesh_close(mesh);
	tess_world_close(world);
	return failed;
}
