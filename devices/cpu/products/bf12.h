/* bf12.h - packs, reads and multiplies panels of TESS_BF12, bf16 in 12 bits. */
#ifndef TESS_DEVICES_CPU_BF12_H
#define TESS_DEVICES_CPU_BF12_H

#include "tile.h"

/* Packs panels: a pool_fn over panels; arg: struct pack. */
#define bf12_pack_panels CPU_NAME(bf12_pack_panels)
pool_fn bf12_pack_panels;

/* Reads elements [at, at + len) of a panel of k: to[len][LANES], as floats or as bf16. */
#define bf12_widen CPU_NAME(bf12_widen)
void bf12_widen(const char *panel, int64_t k, int64_t at, int64_t len, float *to);
#define bf12_unpack CPU_NAME(bf12_unpack)
void bf12_unpack(const char *panel, int64_t k, int64_t at, int64_t len, void *to);

/* Finds a tile like tile_find, for rows in place. b: first panel, bk: bytes to its blocks. */
#define bf12_find_tile CPU_NAME(bf12_find_tile)
tile_fn *bf12_find_tile(int rows, bool wide);

#endif
