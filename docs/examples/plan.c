/*
 * plan.c - lists what each rank of a plan would hold and send; starts no rank and reads no weight.
 *
 *   cc plan.c -o plan $(pkg-config --cflags --libs tessera) \
 *      -Wl,-rpath,"$(pkg-config --variable=libdir tessera)"
 *   ./plan data tp=4 tp+sp
 */
#include <stdio.h>
#include <tessera/tessera.h>

enum { POSITIONS = 512 }; /* of the KV cache */

int main(int argc, char **argv)
{
	struct tess_session_options options = { .size = sizeof options };
	struct tess_explanation *e;
	unsigned long long sent = 0;

	options.plan = argc > 3 ? argv[3] : "auto";
	if (argc < 3 || tess_explain(argv[1], argv[2], 0, 1, &options, &e)) {
		fprintf(stderr, "plan: %s\n",
		        argc < 3 ? "usage: plan CHECKPOINT MESH [PLAN]" : tess_error());
		return 1;
	}
	for (int32_t i = 0; i < e->ncollectives; i++)
		sent += e->collectives[i]->sent;
	printf("model %s, plan %s: %d collectives per token, in which a rank sends at most %llu "
	       "bytes\n",
	       e->model, e->plan, (int)e->ncollectives, sent);
	for (int32_t r = 0; r < e->nranks; r++)
		printf("rank %d: %llu bytes of weights, %llu of KV cache, %llu of a step\n", (int)r,
		       (unsigned long long)e->ranks[r]->weights,
		       (unsigned long long)e->ranks[r]->cache * POSITIONS,
		       (unsigned long long)e->ranks[r]->step);
	tess_explanation_free(e);
	return 0;
}
