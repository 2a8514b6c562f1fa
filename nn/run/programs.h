/* programs.h - a cache of this rank's programs by the shape of a step; the oldest are dropped. */
#ifndef TESS_NN_PROGRAMS_H
#define TESS_NN_PROGRAMS_H

#include "nn/compile/compile.h"
#include "nn/lower/lower.h"
#include "nn/run/graphs.h"

#include <tessera/tessera.h>

struct tess_shape { /* a value: the shape of a step */
	int64_t ntokens, nselected;
	int32_t root; /* the rank that gets the logits; -1: all; TESS_LOGITS_CUT */
	const struct tess_training *training; /* NULL: inference */
	uint64_t key; /* training: hash of the shapes of all replicas, equal on all ranks */
	int32_t memory; /* inference: index of the step memory that the program is bound to */
};

struct tess_shaped_program {
	struct tess_shape shape;
	struct tess_program *program;
	struct tess_rank_program *lowered; /* NULL: only recorded */
	struct tess_graphs graphs;
	bool stale; /* views of weights have changed since it was lowered */
	bool bound; /* to its memory */
	int64_t used; /* number of the last step that ran it, set by the caller; 0: none */
	struct tess_shaped_program *next; /* in its bucket */
};

enum { TESS_PROGRAM_BUCKETS = 64 };
struct tess_programs { /* {0}: empty; the caller sets options, group, all and weights */
	struct tess_record_options options; /* with a device; each program sets its shape */
	struct tess_group *group; /* all ranks of the mesh, in its order */
	struct tess_group *all; /* ranks that open together */
	const struct tess_view *weights;
	struct tess_shaped_program *first; /* weights are loaded for it; never dropped */
	struct tess_shaped_program *bucket[TESS_PROGRAM_BUCKETS];
	int32_t n, kept; /* kept: at least this many programs are not dropped */
	bool apart; /* ranks do not wait for each other: see nn/program/agree.h */
};

tess_status tess_programs_record_first(struct tess_programs *s, struct tess_shape shape);
/* Compares the first programs of all ranks. TESS_EMISMATCH: they differ. Collective. */
tess_status tess_programs_compare(const struct tess_programs *s);
/*
 * Finds the lowered program of a shape, valid as long as it is among the last `kept` ones, or until
 * the next call. Lowers a stale one again. Collective if it is new.
 */
tess_status tess_programs_find(struct tess_programs *s, struct tess_shape shape,
                               struct tess_shaped_program **out);
/* Marks all programs as stale. The steps of one that is under way stay until it is found again. */
void tess_programs_mark_stale(struct tess_programs *s);
/* Binds the programs of a memory. */
void tess_programs_bind(struct tess_programs *s, int32_t memory, const struct tess_memory *m);
/* Call it before their groups detach the device. */
void tess_programs_close_graphs(struct tess_programs *s);
void tess_programs_free(struct tess_programs *s);

#endif
