/*
 * train.c - 20 steps of training on 2 threads, each of which takes half of the sequences of a step
 * and keeps half of the weights; then a save that `tessera generate` reads, and train goes on from.
 *
 *   cc train.c -o train $(pkg-config --cflags --libs tessera) \
 *      -Wl,-rpath,"$(pkg-config --variable=libdir tessera)"
 *   ./train data data/texts/stories.jsonl out
 */
#include <stdio.h>
#include <tessera/tessera.h>

enum { STEPS = 20, BATCH = 4, LENGTH = 64 };

static tess_status read_sequences_of_step(const struct tess_dataset *data, int64_t step,
                                          int32_t *ids, struct tess_batch *batch,
                                          int64_t lengths[BATCH])
{
	tess_status st = TESS_OK;

	for (int64_t i = 0; i < BATCH && !st; i++)
		st = tess_dataset_read(data, tess_dataset_shuffle(data, 1, step * BATCH + i),
		                       ids + i * LENGTH, &lengths[i]);
	*batch = (struct tess_batch){ .nsequences = BATCH, .lengths = lengths, .ids = ids };
	return st;
}

static tess_status train_on_thread(struct tess_world *world, void *arg)
{
	static const char *const shards[] = { "dp:**=zero3", NULL };
	const struct tess_trainer_options how = { .size = sizeof how,
		                                  .overrides = shards,
		                                  .clip = 1 };
	struct tess_dataset_options texts = { .size = sizeof texts, .sequence = LENGTH };
	struct tess_training_result result = { .size = sizeof result };
	struct tess_trainer_info info = { .size = sizeof info };
	struct tess_trainer *trainer = NULL;
	struct tess_dataset *data = NULL;
	struct tess_mesh *mesh = NULL;
	int32_t ids[BATCH * LENGTH];
	int64_t lengths[BATCH];
	struct tess_batch batch;
	char **argv = arg;
	tess_status st = tess_mesh_open(world, "dp=2", &mesh);

	if (!st)
		st = tess_trainer_open(mesh, argv[1], &how, &trainer);
	if (!st) {
		tess_trainer_get_info(trainer, &info);
		texts.vocabulary = info.vocabulary;
		texts.tokenizer = argv[1];
		st = tess_dataset_open((const char *const *)&argv[2], 1, &texts, &data);
	}
	for (int64_t step = 0; step < STEPS && !st; step++) {
		st = read_sequences_of_step(data, step, ids, &batch, lengths);
		if (!st) /* all ranks pass the whole batch */
			st = tess_trainer_step(trainer, &batch, 1, 2e-4, &result);
		if (!st && tess_world_rank(world) == 0)
			printf("step %2d  loss %.4f\n", (int)step + 1, result.loss);
	}
	if (!st)
		st = tess_trainer_save(trainer, argv[3], 0, "{}");
	tess_dataset_close(data);
	tess_trainer_close(trainer);
	tess_mesh_close(mesh);
	return st;
}

int main(int argc, char **argv)
{
	if (argc == 4 && !tess_world_spawn(2, train_on_thread, argv))
		return 0;
	fprintf(stderr, "train: %s\n", argc == 4 ? tess_error() : "usage: train DIR FILE OUT");
	return 1;
}
