/*
 * logits.c - the most likely next token of two prompts, computed in one step on 4 threads.
 *
 *   cc logits.c -o logits $(pkg-config --cflags --libs tessera) \
 *      -Wl,-rpath,"$(pkg-config --variable=libdir tessera)"
 *   ./logits data 'Once upon a' 'The little dog'
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/tessera.h>

static void print_best(const struct tess_tokenizer *t, const char *prompt, const float *logits,
                       int64_t n)
{
	int32_t best = 0;
	char *text;
	size_t len;

	for (int32_t i = 1; i < n; i++)
		best = logits[i] > logits[best] ? i : best;
	if (!tess_tokenizer_decode(t, &best, 1, true, &text, &len)) {
		printf("%s ... %s (%g)\n", prompt, text, logits[best]);
		free(text);
	}
}

static tess_status compute_logits(struct tess_world *world, void *arg)
{
	char **argv = arg;
	struct tess_session_info info = { .size = sizeof info };
	const struct tess_tokenizer *tokenizer;
	struct tess_session *session = NULL;
	struct tess_mesh *mesh = NULL;
	struct tess_input in[2];
	int32_t *ids[2] = { NULL };
	const float *logits;
	size_t n;
	tess_status st = tess_mesh_open(world, "tp", &mesh);

	if (!st)
		st = tess_session_open(mesh, argv[1], NULL, &session);
	if (!st)
		st = tess_session_get_tokenizer(session, &tokenizer);
	for (int i = 0; i < 2 && !st; i++) {
		in[i] = (struct tess_input){ .nselected = 1 };
		st = tess_tokenizer_encode(tokenizer, argv[2 + i], strlen(argv[2 + i]), true,
		                           &ids[i], &n);
		in[i].ids = ids[i];
		in[i].n = (int64_t)n;
		if (!st)
			st = tess_sequence_open(session, &in[i].sequence);
	}
	if (!st)
		st = tess_session_step(session, in, 2, 0, &logits);
	if (!st && tess_world_rank(world) == 0) {
		tess_session_get_info(session, &info);
		for (int i = 0; i < 2; i++)
			print_best(tokenizer, argv[2 + i], logits + i * info.vocabulary,
			           info.vocabulary);
	}
	free(ids[0]);
	free(ids[1]);
	tess_session_close(session);
	tess_mesh_close(mesh);
	return st;
}

int main(int argc, char **argv)
{
	if (argc == 4 && !tess_world_spawn(4, compute_logits, argv))
		return 0;
	fprintf(stderr, "logits: %s\n", argc == 4 ? tess_error() : "usage: logits DIR TEXT TEXT");
	return 1;
}
