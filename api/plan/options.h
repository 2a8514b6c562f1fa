/* options.h - a strategy in the options of `tessera train`. */
#ifndef TESS_API_PLAN_OPTIONS_H
#define TESS_API_PLAN_OPTIONS_H

#include <stdio.h>
#include <tessera/strategy.h>

/* Writes "--mesh dp=2,tp=4 --plan tp --micro-batches 2", without the end of a line. */
void tess_strategy_write_options(const struct tess_strategy *s, FILE *f);

#endif
