/* values.h - records the moves of module outputs that a step keeps. */
#ifndef TESS_NN_COMPILE_VALUES_H
#define TESS_NN_COMPILE_VALUES_H

#include "nn/record/recorder.h"

/*
 * Lists in r->p->values the outputs of the modules that r->options->values matches, and appends the
 * moves that replicate them. Preceding records are unchanged, so no bit of them depends on it. The
 * pattern is that of a plan; "*" alone: all modules. Fails if no module matches.
 */
void tess_values_record(struct tess_recorder *r);

#endif
