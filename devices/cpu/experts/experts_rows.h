/* experts_rows.h - rows grouped by expert, in waves, for EXPERTS and its backward. */
#ifndef TESS_DEVICES_CPU_EXPERTS_ROWS_H
#define TESS_DEVICES_CPU_EXPERTS_ROWS_H

#include "combine.h"
#include "product.h"

enum { EXPERTS_ROWS = 192 }; /* maximum rows of a wave and of a group */
enum { EXPERTS_SHARE = 1 << 14 }; /* elements of the smallest share of a copy or an activation */

struct group { /* rows [first, first + rows) of the list */
	int64_t expert, first, rows;
	bool packed;
};

struct expert_rows { /* the rows requested by the weights, in[1] of an op */
	const struct cpu *cpu;
	const struct tess_op *op;
	const struct pair_tiles *pairs; /* not NULL for products of bf16: all groups are packed */
	int64_t tokens, experts, total;
	int32_t *token; /* by row of the list, which is in the order of experts, then of tokens */
	int32_t *expert, *slot; /* by row: its expert, and its index among those of its token */
	int32_t *begin, *row; /* by token: its first entry in `row`, a list of rows */
	struct group *group, *wave;
	int64_t ngroups, count, rows, tiles; /* all groups; groups, rows and tiles of the wave */
};

struct expert_product { /* multiplies the rows of a wave by the matrix of their expert */
	const struct expert_rows *e;
	const struct sum *sum;
	const struct tess_view *w; /* [e, N, K] */
	const float *x; /* [rows][pitch], groups that are not packed */
	const float *packed; /* [rows][width], packed groups, by product_pack */
	int64_t pitch, width;
	float *y; /* [rows][y_pitch], or nodes of that, node_pitch apart */
	int64_t y_pitch, node_pitch;
};

static inline void *experts_take_bytes(char *base, size_t *at, int64_t count, size_t each)
{
	void *p = base ? base + *at : NULL;

	*at += ((size_t)count * each + 63) / 64 * 64;
	return p;
}

/* Sets tokens, experts and total; fails if a row requests more than `slots`; 0: no limit. */
#define experts_count_rows CPU_NAME(experts_count_rows)
tess_status experts_count_rows(struct expert_rows *e, int64_t slots);
/* Sets e's pointers into `base` from *at on, unless it is NULL; advances *at. */
#define experts_lay_out_rows CPU_NAME(experts_lay_out_rows)
void experts_lay_out_rows(struct expert_rows *e, char *base, size_t *at);
/* Lists the rows of all experts, and their groups. */
#define experts_list_rows CPU_NAME(experts_list_rows)
void experts_list_rows(struct expert_rows *e);
/* Chooses the groups of a wave from `at` on; returns the next group. */
#define experts_choose_wave CPU_NAME(experts_choose_wave)
int64_t experts_choose_wave(struct expert_rows *e, int64_t at);
/* Returns the offset of a group's rows among those of the wave. */
static inline int64_t experts_get_offset(const struct expert_rows *e, const struct group *g)
{
	return g->first - e->wave[0].first;
}

/* Adds operand `bias` of the op, if there is one, to a row of gate and up of an expert. */
#define experts_add_bias CPU_NAME(experts_add_bias)
void experts_add_bias(const struct tess_op *op, int32_t bias, int64_t expert, float *gate_up);

/* Gathers the wave's rows of `from` to [rows][width], packed if the group is. */
#define experts_gather CPU_NAME(experts_gather)
void experts_gather(const struct expert_rows *e, const struct sum *sum,
                    const struct tess_view *from, float *to);
/* Packs a tile, rows [row, row + n) of a packed group, into `to`, [rows of the wave][width]. */
#define experts_pack_tile CPU_NAME(experts_pack_tile)
void experts_pack_tile(const struct expert_rows *e, const struct group *g, const struct sum *sum,
                       const float *from, int64_t pitch, int64_t row, int64_t n, float *to,
                       int64_t width);
/* Runs fn over the tiles of the wave. */
typedef void expert_tile(void *arg, const struct group *g, int64_t row, int64_t n);
#define experts_run_tiles CPU_NAME(experts_run_tiles)
void experts_run_tiles(const struct expert_rows *e, expert_tile *fn, void *arg, int64_t columns);
#define experts_multiply CPU_NAME(experts_multiply)
void experts_multiply(const struct expert_product *p);
/* Copies the wave's z, [nodes][EXPERTS_ROWS][columns], to the slots of out[0]. */
#define experts_store_slots CPU_NAME(experts_store_slots)
void experts_store_slots(const struct expert_rows *e, const float *z, int64_t columns);
/* Clears the slots of out[0] that no expert fills. */
#define experts_clear_slots CPU_NAME(experts_clear_slots)
void experts_clear_slots(const struct expert_rows *e, int64_t slots, int64_t columns);

#endif
