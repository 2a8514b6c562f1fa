/*
 * compile.h - makes a program: records a model's forward under a plan, and runs the passes over it.
 */
#ifndef TESS_NN_COMPILE_H
#define TESS_NN_COMPILE_H

#include "nn/record/options.h"

/*
 * Records and checks a program; reads shapes only. Free *out by tess_program_free. TESS_EINVAL: the
 * plan cannot work; the message has the module, the rule, and the numbers of ranks or the style
 * that would work.
 */
tess_status tess_program_compile(const struct tess_record_options *options,
                                 struct tess_program **out);

#endif
