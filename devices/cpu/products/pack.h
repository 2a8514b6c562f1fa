/* pack.h - packs rows of weights into panels. */
#ifndef TESS_DEVICES_CPU_PACK_H
#define TESS_DEVICES_CPU_PACK_H

#include "cpu.h"

/* Elements [at, at + len) of the 16 rows from `column` on, widened: to[len][16]. */
#define pack_widened CPU_NAME(pack_widened)
void pack_widened(const struct tess_view *w, int64_t column, int64_t at, int64_t len, float *to);

/* The same of bf16, as it is. */
#define pack_as_stored CPU_NAME(pack_as_stored)
void pack_as_stored(const struct tess_view *w, int64_t column, int64_t at, int64_t len, void *to);

/* As pack_widened for `columns` columns of rows that are contiguous there: to[len][columns]. */
#define pack_columns CPU_NAME(pack_columns)
void pack_columns(const struct tess_view *w, int64_t column, int64_t at, int64_t len,
                  int64_t columns, float *to);

/* A pool_fn over panels; arg: struct pack. */
#define pack_panels CPU_NAME(pack_panels)
pool_fn pack_panels;

#endif
