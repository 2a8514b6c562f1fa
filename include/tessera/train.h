/*
 * tessera/train.h - a checkpoint that is trained: steps over batches of sequences, loss, gradients
 * and weights by name.
 *
 * Calls that take a trainer are collective unless they say otherwise: every rank makes the same
 * ones in the same order, with the same arguments. The bits of losses, gradients and weights depend
 * on the checkpoint, the options and the batches; not on ranks, threads, backend, mesh or plan.
 */
#ifndef TESSERA_TRAIN_H
#define TESSERA_TRAIN_H

#include <tessera/plugin.h>

TESS_BEGIN

struct tess_mesh;
struct tess_trainer;

enum { TESS_ADAMW = 1, TESS_SGD };

struct tess_trainer_options { /* zeroed but for size: AdamW, the plan of the model */
	uint32_t size;
	int32_t threads; /* per rank; 0: TESSERA_THREADS, else a share of the CPUs */
	const char *plan; /* "auto" or NULL, "none", a plan's name, a file, or JSON */
	/* "PATTERN=STYLE" or "DIMENSION:PATTERN=STYLE" over the plan; NULL, or ends with NULL */
	const char *const *overrides;
	int32_t ignore_unexpected; /* 1: tensors that no module asks for are a warning only */
	int32_t optimizer; /* 0: TESS_ADAMW */
	double beta1, beta2, eps; /* of AdamW; 0: 0.9, 0.999, 1e-8; negative: 0 */
	double momentum; /* of SGD */
	double weight_decay; /* of weights of two axes and more */
	double clip; /* the most norm of the gradient; 0: any */
	double balance; /* factor of the load balancing loss of experts; 0: none */
	double dropout; /* 0: as config.json says; negative: none; else the rate */
	uint64_t seed; /* of dropout */
	uint64_t bucket; /* bytes of gradients that dp adds, and of weights that
	                                   it gathers, at once; 0: 25 MiB */
	/* patterns of modules whose values are computed again; NULL, or ends with NULL */
	const char *const *recompute;
	int64_t positions; /* of a sequence, at most; 0: as the checkpoint says */
};
TESS_TIGHT(tess_trainer_options, positions);

/*
 * Opens a Hugging Face directory on a mesh, to train it: checks the plan, whose rules may name any
 * dimension of the mesh, then reads this rank's part of each weight. The ranks along dimension `dp`
 * take different sequences of a batch. options: NULL, or read during the call. A failure on one
 * rank is returned by all. Close *out before the mesh.
 */
tess_status tess_trainer_open(struct tess_mesh *m, const char *dir,
                              const struct tess_trainer_options *options,
                              struct tess_trainer **out);
void tess_trainer_close(struct tess_trainer *t); /* NULL: nothing; not collective */
/*
 * What of options and environment can be refused without ranks: device, threads, numbers of the
 * optimizer. All fields are read. Not collective. tess_explain_training checks the plan.
 */
tess_status tess_trainer_check(const struct tess_trainer_options *options);

struct tess_batch { /* a value, final: sequences, one after another */
	int64_t nsequences;
	const int64_t *lengths; /* [nsequences]: ids of each, at least 1 */
	const int32_t *ids; /* [sum of lengths] */
	/* beside each id the same id, or -100 where it is not to be predicted, as Transformers has
	 * them: the row before predicts it. NULL: the ids */
	const int32_t *labels;
};

struct tess_training_result { /* the same on all ranks; the caller sets size */
	uint32_t size;
	int32_t updated; /* 1: the optimizer has changed weights */
	double loss; /* mean over the labels that count, balance included */
	double balance; /* the load balancing loss by itself, without its factor */
	double norm; /* of the whole gradient, before clipping */
	int64_t ntokens, nlabels; /* of the step; labels that count */
	double seconds, communication; /* of this rank: the step, and what it waited for others */
};
TESS_TIGHT(tess_training_result, communication);

/*
 * One step: loss and gradients of n micro-batches, clipping, optimizer. Each micro-batch is a whole
 * one, alike on all ranks: replicas take their sequences of it. Losses are divided by the number of
 * labels that count in all micro-batches. The gradients of micro-batches are added in their order;
 * their load balancing losses are averaged. lr: the learning rate of this step. out: may be NULL;
 * untouched by a failure. Blocking.
 *
 * TESS_EINVAL, before anything is computed: an id or label outside the vocabulary, a sequence that
 * is empty or too long, no label that counts, fewer sequences than ranks along `dp`. TESS_EINVAL,
 * after it: loss or gradients are not finite; the sentence names the step and the sequences. Then
 * no weight has changed, and a step may follow.
 */
tess_status tess_trainer_step(struct tess_trainer *t, const struct tess_batch *micro, int64_t n,
                              double lr, struct tess_training_result *out);
/* The same without the optimizer and without dropout; loss and norm may be NaN or infinite. */
tess_status tess_trainer_compute_gradients(struct tess_trainer *t, const struct tess_batch *micro,
                                           int64_t n, struct tess_training_result *out);

/* ---- tensors, as the files of the checkpoint have them: experts apart, a tied table once ----- */

struct tess_trained { /* a value, final; borrowed for the life of the trainer */
	const char *name; /* "model.norm.weight" */
	int32_t dtype, ndim; /* of the weight */
	int64_t shape[3];
	int64_t size; /* elements */
	int32_t trained, reserved; /* 0: it has no gradient, and no state */
};

/* What a trainer keeps of a tensor: the weight in its own dtype, all else f32. */
enum { TESS_WEIGHT, TESS_GRADIENT, TESS_MASTER, TESS_MOMENT1, TESS_MOMENT2 };

/* Not collective. NULL, and -1 of find: there is no such tensor. */
int64_t tess_trainer_count_tensors(const struct tess_trainer *t);
const struct tess_trained *tess_trainer_get_tensor(const struct tess_trainer *t, int64_t i);
int64_t tess_trainer_find_tensor(const struct tess_trainer *t, const char *name);

/*
 * Gathers elements [first, first + n) of tensor i to rank `root` of the mesh (-1: to all): into
 * out[n], which is not read elsewhere. what: TESS_WEIGHT, ...; the gradient is that of the last
 * step, before clipping; the master of an f32 weight is the weight. TESS_EINVAL: there is no such
 * tensor, range or rank, or it has no such thing. Blocking.
 */
tess_status tess_trainer_gather(struct tess_trainer *t, int32_t what, int64_t i, int64_t first,
                                int64_t n, int32_t root, void *out);

struct tess_trainer_info { /* of this rank; the caller sets size */
	uint32_t size;
	int32_t reserved;
	int64_t step; /* steps that have changed weights */
	int64_t vocabulary, positions; /* of a sequence, at most; 0: any */
	uint64_t weight_bytes, gradient_bytes, state_bytes, step_bytes; /* allocated */
};
TESS_TIGHT(tess_trainer_info, step_bytes);
/* Not collective, never fails. */
void tess_trainer_get_info(const struct tess_trainer *t, struct tess_trainer_info *out);

/* ---- saving and resuming --------------------------------------------------------------------- */

/*
 * Saves weights and the state of the optimizer as the directory `dir`/step-N, which transformers
 * loads, too: a copy of the files of the checkpoint with the weights as they are now, and beside
 * them optimizer.safetensors and training.json, which has a checksum of each tensor, and `state`, a
 * JSON object of the program (NULL: {}). Every rank writes what it owns into the file system that
 * all share. The directory gets its name when all of it is on disk; then all saves in `dir` but the
 * last `keep` are removed (0: none is), unless moments that are not finite, which are warned of,
 * keep the new one from being loaded. After a failure what was saved before is whole, and nothing
 * else is left. TESS_EINVAL: the directory exists.
 */
tess_status tess_trainer_save(struct tess_trainer *t, const char *dir, int32_t keep,
                              const char *state);
/*
 * The newest save in `dir`, or `dir` where it is a save. *path is yours: free. TESS_ENOENT: there
 * is none. Not collective.
 */
tess_status tess_save_find(const char *dir, char **path);
/*
 * Makes weights and state of a trainer those of a save, whatever mesh saved it. *state, as it was
 * saved, is yours: free. TESS_EINVAL: it was saved from another model, or with another optimizer;
 * or a key, a moment or a checksum is not as it was saved. TESS_EMISMATCH: ranks read different
 * saves. After a failure close the trainer.
 */
tess_status tess_trainer_load(struct tess_trainer *t, const char *path, char **state);

/* ---- learning rates -------------------------------------------------------------------------- */

enum { TESS_CONSTANT, TESS_COSINE };
struct tess_schedule { /* a value, final */
	int32_t kind, reserved;
	double lr, least; /* after the warm-up; at the end of TESS_COSINE */
	int64_t warmup, steps; /* steps of the warm-up; of all, for TESS_COSINE */
};
/*
 * The learning rate of step 0, 1, ...: lr * (step + 1) / warmup while step < warmup, then lr, or
 * with progress p = (step - warmup) / (steps - warmup), at most 1: least + (lr - least) * (1 +
 * cos(pi * p)) / 2. The same on every machine. NaN: step < 0, or an unknown kind.
 */
double tess_schedule_get(const struct tess_schedule *s, int64_t step);

TESS_END
#endif
