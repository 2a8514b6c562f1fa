/*
 * programs.h - the programs of a runner, by the shape of a step, on this rank. Those that no step
 * has run for the longest time are dropped.
 */
#ifndef TESS_NN_PROGRAMS_H
#define TESS_NN_PROGRAMS_H

#include "nn/compile/compile.h"
#include "nn/lower/lower.h"
#include "nn/run/graphs.h"

#include <tessera/tessera.h>

struct tess_shape { /* a value: of a step */
	int64_t ntokens, nselected;
	int32_t root; /* that gets the logits; -1: all; TESS_LOGITS_CUT */
	const struct tess_training *training; /* NULL: inference */
	uint64_t key; /* of training: of the shapes of all replicas, so that all decide alike */
	int32_t slot; /* of training: the memory of steps that it is bound to */
};

struct tess_shaped_program {
	struct tess_shape shape;
	struct tess_program *program;
	struct tess_rank_program *lowered; /* NULL: only recorded */
	struct tess_graphs graphs;
	int64_t used; /* the last step that ran it, set by the caller; 0: none */
	struct tess_shaped_program *next; /* in its bucket */
};

enum { TESS_PROGRAM_BUCKETS = 64 };
struct tess_programs { /* {0}: empty; what is borrowed, the caller sets */
	struct tess_record_options options; /* with a device; the shape is set for each */
	struct tess_group *group; /* of the ranks of the mesh, in its order */
	struct tess_group *all; /* those that open together */
	const struct tess_view *weights;
	struct tess_shaped_program *first; /* weights are loaded for it, and it stays */
	struct tess_shaped_program *bucket[TESS_PROGRAM_BUCKETS];
	int32_t n;
};

tess_status tess_programs_record_first(struct tess_programs *s, struct tess_shape shape);
/*
 * Collective. TESS_EMISMATCH: ranks have different first programs, and would wait for each other
 * for ever.
 */
tess_status tess_programs_compare(const struct tess_programs *s);
/*
 * The lowered program of a shape, which stays until the next call; collective where it is a new
 * one, which must be bound.
 */
tess_status tess_programs_find(struct tess_programs *s, struct tess_shape shape,
                               struct tess_shaped_program **out);
/* Lowers all of them again, for other views of weights; they must be bound. */
tess_status tess_programs_lower_again(struct tess_programs *s);
/* Binds all of a slot. */
void tess_programs_bind(struct tess_programs *s, int32_t slot, const struct tess_memory *m);
/* Before their groups lose the device. */
void tess_programs_close_graphs(struct tess_programs *s);
void tess_programs_free(struct tess_programs *s);

#endif
