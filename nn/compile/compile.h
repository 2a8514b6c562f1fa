/*
 * compile.h - makes a program: records a model's forward under a plan, and runs the passes over it.
 */
#ifndef TESS_NN_COMPILE_H
#define TESS_NN_COMPILE_H

#include "nn/record/options.h"

/*
 * Records and checks; reads shapes only. *out is yours: tess_program_free. TESS_EINVAL: the plan
 * cannot work; the sentence has the module, the rule, and the numbers of ranks or the style that
 * would work.
 */
tess_status tess_program_compile(const struct tess_record_options *options,
                                 struct tess_program **out);

#endif
