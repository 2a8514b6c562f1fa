/*
 * chat.c - goes on with one text, line by line: a turn computes only what is new.
 *
 *   cc chat.c -o chat $(pkg-config --cflags --libs tessera) \
 *      -Wl,-rpath,"$(pkg-config --variable=libdir tessera)"
 *   printf 'Once upon a time\nThen the dog\n' | ./chat data
 */
#include <stdio.h>
#include <string.h>
#include <tessera/tessera.h>

static int print_reply(void *to, int64_t i, int32_t id, const float *logits, const char *text,
                       uint64_t n)
{
	(void)i, (void)id, (void)logits;
	return fwrite(text, 1, n, to) != n || fflush(to) ? TESS_END_ALL : TESS_GO_ON;
}

static int end_turn(void *to, int64_t i, const struct tess_result *r, const char *text, uint64_t n)
{
	(void)i;
	fwrite(text ? text : "", 1, n, to);
	if (r->sentence)
		fprintf(stderr, "chat: %s\n", r->sentence);
	fprintf(to, "\n[%lld ids computed, %lld new]\n", (long long)r->nprompt,
	        (long long)r->ntokens);
	return TESS_GO_ON;
}

int main(int argc, char **argv)
{
	struct tess_request turn = { .size = sizeof turn, .max_tokens = 40 };
	const struct tess_request *const turns[] = { &turn };
	struct tess_generation how = {
		.size = sizeof how, .self = stdout, .on_token = print_reply, .on_end = end_turn
	};
	struct tess_session *session = NULL;
	struct tess_world *world = NULL;
	struct tess_mesh *mesh = NULL;
	char line[4096];
	int failed;

	failed = argc != 2 || tess_world_open(&world) || tess_mesh_open(world, "tp", &mesh) ||
	         tess_session_open(mesh, argv[1], NULL, &session) ||
	         tess_sequence_open(session, &turn.sequence);
	while (!failed && fgets(line, sizeof line, stdin)) {
		turn.text = line;
		turn.ntext = strcspn(line, "\n");
		failed = tess_session_generate(session, turns, 1, &how);
	}
	if (failed)
		fprintf(stderr, "chat: %s\n", argc == 2 ? tess_error() : "usage: chat CHECKPOINT");
	tess_sequence_close(turn.sequence);
	tess_session_close(session);
	tess_mesh_close(mesh);
	tess_world_close(world);
	return failed;
}
