/*
 * tessera/train.h - trains a checkpoint: steps over batches of sequences, with loss, gradients and
 * weights by name.
 *
 * Calls that take a trainer are collective unless their comment states otherwise: every rank makes
 * the same calls in the same order, with the same arguments. The bits of losses, gradients and
 * weights depend on the checkpoint, the options and the batches. They do not depend on ranks,
 * threads, backend, mesh or plan.
 *
 * Example:
 *     static tess_status train_once(struct tess_trainer *t, const int32_t *ids, int64_t n)
 *     {
 *             const struct tess_batch batch = { 1, &n, ids, NULL };
 *             struct tess_training_result result = { .size = sizeof result };
 *             tess_status st = tess_trainer_step(t, &batch, 1, 1e-4, &result);
 *
 *             if (!st)
 *                     printf("loss %g, norm %g\n", result.loss, result.norm);
 *             return st;
 *     }
 */
#ifndef TESSERA_TRAIN_H
#define TESSERA_TRAIN_H

#include <tessera/plugin.h>

TESS_BEGIN

struct tess_mesh;

/* A checkpoint that is trained on a mesh. */
struct tess_trainer;

/* Optimizers. */
enum { TESS_ADAMW = 1, TESS_SGD };

/* Options of a trainer. Zeroed except for size: AdamW, the plan of the model. */
struct tess_trainer_options {
	/* sizeof(struct tess_trainer_options). */
	uint32_t size;
	/* Threads per rank; 0: TESSERA_THREADS, or else a share of the CPUs. */
	int32_t threads;
	/* "auto" or NULL, "none", the name of a plan, a file, or JSON: rules, or a strategy
	 * (tessera/strategy.h). */
	const char *plan;
	/* Rules that replace those of the plan: "PATTERN=STYLE" or "DIMENSION:PATTERN=STYLE". Ends
	 * with NULL; NULL: none. */
	const char *const *overrides;
	/* 1: tensors of the files that no module reads cause a warning, not an error. */
	int32_t ignore_unexpected;
	/* Optimizer; 0: TESS_ADAMW. */
	int32_t optimizer;
	/* Decay of the first moment of AdamW; 0: 0.9; negative: 0. */
	double beta1;
	/* Decay of the second moment of AdamW; 0: 0.999; negative: 0. */
	double beta2;
	/* Term that AdamW adds to the divisor; 0: 1e-8; negative: 0. */
	double eps;
	/* Momentum of SGD; 0: none. */
	double momentum;
	/* Decay of weights of two or more axes; 0: none. */
	double weight_decay;
	/* Limit to which the global gradient norm is clipped; 0: no limit. */
	double clip;
	/* Factor of the load balancing loss of experts; 0: none. */
	double balance;
	/* Rate of dropout; 0: that of config.json; negative: none. */
	double dropout;
	/* Key of the random numbers of dropout. */
	uint64_t seed;
	/* Bytes of gradients that dp adds at once, and of weights that it gathers at once; 0: 25
	 * MiB. */
	uint64_t bucket;
	/* Patterns of modules whose values the backward computes again; ends with NULL. NULL:
	 * none. */
	const char *const *recompute;
	/* Maximum length of a sequence; 0: that of the checkpoint. */
	int64_t positions;
	/* Pattern of the modules whose outputs steps keep for tess_trainer_take_values, as in
	 * plans: "model.layers.*.mlp"; "*" alone: all modules. NULL: none. */
	const char *values;
	/* Schedule of the stages along `pp`, as tess_pipeline_open takes it; NULL: "1f1b". */
	const char *pipeline_schedule;
	/* Micro-batches of the steps that tess_explain_training explains; 0: 1, or those of the
	 * schedule's file. A trainer takes any number. */
	int64_t micro_batches;
	/* Where the optimizer's state is between its uses, masters and moments: a folder on a local
	 * disk, in which each rank has a file without a name, or "host": memory of the host. NULL:
	 * memory of the device. "disk", of a strategy, is a folder that is not named: only
	 * tess_explain_training takes it. */
	const char *offload_optimizer;
	/* Where weights are between their uses: a folder, "host" or NULL, as for offload_optimizer.
	 * A folder also has their gradients. */
	const char *offload_weights;
	/* Maximum bytes of a weight that is gathered or fetched at once; 0: no limit. */
	uint64_t tile;
	/* Element type of products of linear layers, forward and backward: 0 or TESS_F32;
	 * TESS_BF16 rounds their operands, and adds in f32 ("Products of bf16" in
	 * docs/training.md). */
	int32_t math;
	int32_t reserved;
};
TESS_TIGHT(tess_trainer_options, reserved);

/*
 * Opens a Hugging Face directory on a mesh for training: checks the plan, then reads the shards of
 * this rank. Rules of the plan may name any dimension of the mesh. The ranks along dimension `dp`
 * take different sequences of a batch. options: NULL, or read during the call. All ranks return the
 * failure of one rank. Close *out before the mesh. Blocks.
 */
tess_status tess_trainer_open(struct tess_mesh *m, const char *dir,
                              const struct tess_trainer_options *options,
                              struct tess_trainer **out);

/* Closes a trainer. NULL is accepted. Not collective. */
void tess_trainer_close(struct tess_trainer *t);

/*
 * Checks options and environment without ranks: device, threads, numbers of the optimizer. Reads
 * all fields. Not collective; tess_explain_training checks the plan. Fails as tess_trainer_open
 * would.
 */
tess_status tess_trainer_check(const struct tess_trainer_options *options);

/* Sequences, one after another. A value, final; borrowed for the call. */
struct tess_batch {
	/* Number of sequences. */
	int64_t nsequences;
	/* Length of each sequence, 1 or more: [nsequences]. */
	const int64_t *lengths;
	/* Ids of all sequences: [sum of lengths]. */
	const int32_t *ids;
	/* Labels of Transformers: [sum of lengths]. The label of a position is its id, or -100 if
	 * the position before must not predict it. NULL: the ids. */
	const int32_t *labels;
};

/* Result of a training step, equal on all ranks except for times. The caller sets size. */
struct tess_training_result {
	/* sizeof(struct tess_training_result). */
	uint32_t size;
	/* 1: the optimizer has changed weights. */
	int32_t updated;
	/* Mean loss over the labels that count, including the load balancing loss. */
	double loss;
	/* Load balancing loss, without its factor. */
	double balance;
	/* Global gradient norm, before clipping. */
	double norm;
	/* Number of ids of the step. */
	int64_t ntokens;
	/* Number of labels that count: those that are predicted and not -100. */
	int64_t nlabels;
	/* Seconds of the step on this rank. */
	double seconds;
	/* Seconds that this rank waited for other ranks. */
	double communication;
	/* Bytes that this rank has read from its files, and written to them, for the options
	 * offload_...; next to a device with memory of its own, those that it has copied to the
	 * device from memory of the host, and back. An update that continues after its step
	 * counts in the next one. */
	uint64_t offload_read;
	uint64_t offload_written;
};
TESS_TIGHT(tess_training_result, offload_written);

/*
 * Runs one step over n micro-batches: loss, gradients, clipping, optimizer. All ranks pass the same
 * complete micro-batches, and replicas take their sequences of each. Losses are divided by the
 * number of labels that count in all micro-batches. Gradients of micro-batches are added in their
 * order; their load balancing losses are averaged. A schedule from a file
 * decides n. lr: the learning rate. out: may be NULL; unchanged by a failure. Blocks.
 *
 * TESS_EINVAL, before the step computes: an id or label is outside the vocabulary, a sequence is
 * empty or too long, no label counts, or there are fewer sequences than ranks along `dp`.
 * TESS_EINVAL, after the gradients: loss or gradients are not finite. The message names the step
 * and the sequences. No weight has changed then, and a step may follow.
 */
tess_status tess_trainer_step(struct tess_trainer *t, const struct tess_batch *micro, int64_t n,
                              double lr, struct tess_training_result *out);

/*
 * Computes loss and gradients of n micro-batches like tess_trainer_step, without dropout, clipping
 * and optimizer. Loss and norm may be NaN or infinite. Blocks.
 */
tess_status tess_trainer_compute_gradients(struct tess_trainer *t, const struct tess_batch *micro,
                                           int64_t n, struct tess_training_result *out);

/* ---- tensors, as in the files of the checkpoint: each expert by itself, a tied table once ---- */

/* A tensor of the checkpoint. A value, final; borrowed from the trainer. */
struct tess_trained {
	/* Name: "model.norm.weight". */
	const char *name;
	/* Element type of the weight. */
	int32_t dtype;
	/* Number of axes. */
	int32_t ndim;
	/* Global shape: the first ndim are used. */
	int64_t shape[3];
	/* Number of elements. */
	int64_t size;
	/* 0: it has no gradient and no state. */
	int32_t trained;
	int32_t reserved;
};

/* Data of a tensor: the weight has its own dtype, all others are f32. */
enum { TESS_WEIGHT, TESS_GRADIENT, TESS_MASTER, TESS_MOMENT1, TESS_MOMENT2 };

/* Returns the number of tensors. Not collective. */
int64_t tess_trainer_count_tensors(const struct tess_trainer *t);

/* Returns tensor i; NULL: it does not exist. Not collective. */
const struct tess_trained *tess_trainer_get_tensor(const struct tess_trainer *t, int64_t i);

/* Returns the index of the tensor `name`; -1: it does not exist. Not collective. */
int64_t tess_trainer_find_tensor(const struct tess_trainer *t, const char *name);

/*
 * Gathers elements [first, first + n) of tensor i to out[n] on rank `root` of the mesh, or to all
 * ranks (-1). Other ranks do not read `out`. what: TESS_WEIGHT, ... The gradient is that of the
 * last step, before clipping. The master of an f32 weight is the weight. Blocks. TESS_EINVAL: the
 * tensor, the range, the rank or the data does not exist.
 */
tess_status tess_trainer_gather(struct tess_trainer *t, int32_t what, int64_t i, int64_t first,
                                int64_t n, int32_t root, void *out);

/* Data of a trainer on this rank. The caller sets size. */
struct tess_trainer_info {
	/* sizeof(struct tess_trainer_info). */
	uint32_t size;
	int32_t reserved;
	/* Number of steps that have changed weights. */
	int64_t step;
	/* Number of ids. */
	int64_t vocabulary;
	/* Maximum length of a sequence; 0: no limit. */
	int64_t positions;
	/* Bytes allocated for weights. */
	uint64_t weight_bytes;
	/* Bytes allocated for gradients. */
	uint64_t gradient_bytes;
	/* Bytes allocated for the state of the optimizer. */
	uint64_t state_bytes;
	/* Bytes allocated for values of a step. */
	uint64_t step_bytes;
	/* Bytes allocated for state on its way between memory and files. */
	uint64_t transfer_bytes;
	/* Bytes on disk: weights with their gradients, and optimizer state. */
	uint64_t weight_disk_bytes;
	uint64_t state_disk_bytes;
	/* Likewise, in memory of the host next to a device with memory of its own. */
	uint64_t weight_host_bytes;
	uint64_t state_host_bytes;
};
TESS_TIGHT(tess_trainer_info, state_host_bytes);

/* Fills in *out, up to out->size. Not collective; does not block. */
void tess_trainer_get_info(const struct tess_trainer *t, struct tess_trainer_info *out);

/* ---- saving and resuming --------------------------------------------------------------------- */

/*
 * Saves weights and optimizer state as the directory `dir`/step-N, which Transformers also loads.
 * It has a copy of the files of the checkpoint with the current weights, optimizer.safetensors, and
 * training.json with a checksum of each tensor. training.json also has `state`, a JSON object of
 * the program (NULL: {}). Every rank writes its shards into the file system that all share. Blocks.
 *
 * The directory gets its name when all data is on disk. Then all saves in `dir` but the last `keep`
 * are removed (0: none is removed). Nothing is removed if moments are not finite: the new save
 * cannot be loaded, and a warning is logged. A failure leaves earlier saves intact, and no partial
 * save. TESS_EINVAL: the directory exists.
 */
tess_status tess_trainer_save(struct tess_trainer *t, const char *dir, int32_t keep,
                              const char *state);

/*
 * Finds the newest save in `dir`, or returns `dir` if it is a save. The caller frees *path. Not
 * collective. TESS_ENOENT: there is none.
 */
tess_status tess_save_find(const char *dir, char **path);

/*
 * Loads weights and optimizer state from a save, which any mesh may have written. The caller frees
 * *state, the JSON object of the save. Blocks. After a failure, close the trainer. TESS_EINVAL: the
 * save has another model or optimizer, or a key, a moment or a checksum is wrong. TESS_EMISMATCH:
 * ranks read different saves.
 */
tess_status tess_trainer_load(struct tess_trainer *t, const char *path, char **state);

/* ---- learning rates -------------------------------------------------------------------------- */

/* Kinds of schedules. */
enum { TESS_CONSTANT, TESS_COSINE };

/* A schedule of learning rates. A value, final. */
struct tess_schedule {
	/* TESS_CONSTANT or TESS_COSINE. */
	int32_t kind;
	int32_t reserved;
	/* Learning rate after the warm-up. */
	double lr;
	/* Learning rate at the end of TESS_COSINE. */
	double least;
	/* Steps of the warm-up; 0: none. */
	int64_t warmup;
	/* Number of all steps, for TESS_COSINE. */
	int64_t steps;
};

/*
 * Returns the learning rate of step 0, 1, ..., bit-identical on every machine. It is
 * lr * (step + 1) / warmup while step < warmup. Then TESS_CONSTANT gives lr, and TESS_COSINE
 * least + (lr - least) * (1 + cos(pi * p)) / 2. The progress p is the minimum of 1 and
 * (step - warmup) / (steps - warmup). NaN: step < 0, or the kind is unknown.
 */
double tess_schedule_get(const struct tess_schedule *s, int64_t step);

TESS_END
#endif
