/*
 * tiles.h - computes records in parts if their gathered weights are larger than a tile.
 *
 * A tile is computed from some rows of the weights, as they are stored: columns of an out, a node
 * of a sum, or the rows of some ids. Tiles of a sum are nodes of its trees and are added in their
 * order, so results are bit-identical to those of one op. The rows of the next tile are gathered
 * while a tile is computed; both take at most p->tile bytes.
 *
 * Linear layers, heads and tables have tiles. Experts and HEAD_LINEAR have none.
 */
#ifndef TESS_NN_TILES_H
#define TESS_NN_TILES_H

#include "nn/lower/build.h"

struct build_piece { /* adjacent rows of a weight as stored, on this rank */
	int32_t weight; /* index among those of the record */
	int32_t term; /* of a sum: index of the term that adds the rows */
	int64_t row, rows; /* of this rank's part */
	int64_t first, n; /* elements of the part; of a tied head, of its table */
	int32_t item; /* private to gather.c */
};

struct build_tile {
	int32_t npieces;
	struct build_piece *piece;
	/* a sum: its trees, one of them, and the units of the tile; NULL: columns [lo, hi) */
	const struct tess_op *sum;
	int32_t tree;
	int64_t lo, hi;
};

struct build_tiling { /* of a record; no tiles: it is computed at once */
	int32_t ntiles;
	struct build_tile *tile;
};

/* Lists the tiles of all records. */
void build_plan_tiles(struct build *b);
/* Returns the tiles of the current record; NULL: it is computed at once. */
const struct build_tiling *build_get_tiling(const struct build *b);
/* Returns tile b->tile of the current record, after its gathers. */
const struct build_tile *build_enter_tile(struct build *b);
/* Adds the op of a tile. y: its out, which is some columns, a node, or a finished sum. */
typedef void build_tile_fn(struct build *b, const struct tess_record *rec,
                           const struct build_tile *tile, const struct value *y);
/* Adds the columns of tile b->tile, or the sum that contains it, to y, and moves to the next. */
void build_add_tile(struct build *b, const struct tess_record *rec, const struct value *y,
                    build_tile_fn *add);
/* Sets the tree of the op of a tile, whose piece i is operand i. y: its out. */
void build_set_tile_tree(struct build *b, struct tess_op *op, const struct build_tile *tile,
                         const struct value *y);
/* Returns the left (0) or right (1) half of a node of a tree over n units; it may be empty. */
struct tess_node build_get_half(int64_t n, const struct tess_node *node, int32_t side);

#endif
