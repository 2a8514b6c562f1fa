/*
 * compute_spans.h - reports to a tracing backend when a rank computes, between its calls: a span
 * for consecutive steps of one module. Without such a backend nothing is measured.
 */
#ifndef TESS_NN_COMPUTE_SPANS_H
#define TESS_NN_COMPUTE_SPANS_H

#include "nn/run/run.h"

enum { TESS_SPAN_OPS = 96 };

struct tess_compute_spans {
	struct tess_group *group; /* of the tracing backend; NULL: nothing is measured */
	const char *module; /* of the open span; NULL: none is open */
	int64_t begin, end; /* ns */
	char ops[TESS_SPAN_OPS]; /* names of its kinds of ops: "linear_d linear_dw" */
};

/* Finds a group of the program whose backend notes computation. */
struct tess_compute_spans tess_compute_spans_begin(const struct tess_run_groups *groups);
/*
 * Adds a step that has run since `began`: an op, or a function of a style, to the span of its
 * module. Any other step closes the span, because ranks call one another in it.
 */
void tess_compute_spans_add(struct tess_compute_spans *s, const struct tess_step *step,
                            int64_t began);
/* Closes the span. */
void tess_compute_spans_end(struct tess_compute_spans *s);
/* Reports an action of a schedule, which has run since `began`, around the spans of its modules. */
void tess_compute_spans_note_action(const struct tess_run_groups *groups, const char *action,
                                    const char *kind, int64_t began);

#endif
