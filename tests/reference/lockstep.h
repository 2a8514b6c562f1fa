/*
 * lockstep.h - runs a program on P ranks at once in one thread: ops by scalar.c, collectives by
 * reading all ranks' memory. No group, backend or device is involved.
 */
#ifndef TESS_TESTS_REFERENCE_LOCKSTEP_H
#define TESS_TESTS_REFERENCE_LOCKSTEP_H

#include "nn/compile/compile.h"

struct lockstep {
	const struct tess_model *model;
	const struct tess_source *source;
	const char *plan; /* JSON, a preset, or NULL: the preset of the model */
	int32_t nranks;
	const int32_t *ids;
	int64_t nids;
	bool all_rows; /* logits of all rows, or of the last */
	const char *mesh; /* "tp=2,xp=2"; NULL: nranks along tp */
};

/* Records the program; the caller frees *out. */
tess_status lockstep_record(const struct lockstep *how, struct tess_program **out);

/*
 * Runs the program. *logits: f32 [rows][vocabulary], freed by the caller. Fails the test unless all
 * ranks have equal logits. Returns the status of a refusal, with its message in tess_error().
 */
tess_status lockstep_run(const struct lockstep *how, float **logits, int64_t *count);

struct lockstep_step { /* a step of training; `how->ids` has all sequences, one after another */
	const struct lockstep *how; /* a mesh may have dp */
	const int64_t *lengths;
	int64_t nsequences;
	const int32_t *labels; /* by id; shifted */
	int32_t times; /* steps whose gradients are added; 0: one */
	double balance; /* factor of the load balancing loss */
	double dropout; /* the rate of all sites; 0: the model's */
	/* ranks along dp keep shares of weights, and gather tiles of so many bytes; 0: they keep
	 * all */
	uint64_t tile;
};
struct lockstep_gradients { /* gradients of weights, complete and as stored; NULL: none */
	struct tess_program *program; /* of the first replica */
	float **data; /* by weight */
	int64_t nloss;
	float *loss; /* by id */
	double balance; /* the load balancing loss, times its factor */
};
/*
 * Runs a step of training: a program for each replica along dp. Fails the test unless all ranks
 * agree on what they must. The caller frees *out by lockstep_free_gradients. Returns the status of
 * a refusal.
 */
tess_status lockstep_train(const struct lockstep_step *step, struct lockstep_gradients *out);
/* Runs a step of training that recomputes modules in the backward: patterns, then NULL. */
tess_status lockstep_train_again(const struct lockstep_step *step, const char *const *recompute,
                                 struct lockstep_gradients *out);
void lockstep_free_gradients(struct lockstep_gradients *g);
/* Fails the test unless the loss and all gradients have equal bits. */
void lockstep_compare_gradients(const char *what, const struct lockstep_gradients *want,
                                const struct lockstep_gradients *have);

/* Ignores the `drop` of a source whose tensors stay in memory. */
void lockstep_ignore_drop(void *self, const void *data, uint64_t bytes);

#endif
