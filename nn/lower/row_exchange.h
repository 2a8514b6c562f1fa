/*
 * row_exchange.h - an exchange of rows with the ranks that hold their experts, by all_to_all.
 *
 * Each rank along a mesh dimension owns some rows and holds some experts. An owner has the routing
 * weights of its rows for all experts, and each rank those of all rows for its own experts. So both
 * ends of a block count its rows, and no counts are sent. Rows keep their places: the out has all
 * rows. Those that no expert of the rank reads are undefined, and the ops of experts skip them.
 * Memory is that of all rows on each rank, so an exchange never drops or refuses a row.
 *
 * Rows go to experts (`returns` false), or the Partial results of experts return to the owners,
 * which add them in the order of the tree over the experts (tessera/split.h).
 */
#ifndef TESS_NN_ROW_EXCHANGE_H
#define TESS_NN_ROW_EXCHANGE_H

#include "core/shard/dim.h"

#include <tessera/device.h>

struct tess_row_node { /* experts [lo, hi): all of a rank, or a node of the tree over the experts */
	int64_t lo, hi;
	int32_t rank;
	int32_t merges; /* additions of sums after this one is on the stack */
};

struct tess_row_exchange {
	int32_t nranks, rank;
	bool returns;
	int64_t columns;
	int64_t npieces;
	const struct tess_run *owned; /* [nranks][npieces]: the rows that each rank owns */
	int32_t nnodes, first_node; /* first_node: the first one of this rank */
	const struct tess_row_node *node; /* in the order of ranks */
	struct tess_view mine; /* f32 routing weights [own rows, all experts] */
	struct tess_view here; /* f32 routing weights [all rows, experts of this rank] */
	struct tess_view in; /* own rows, or [nodes, all rows, columns] */
	struct tess_view out; /* all rows, or own rows */
	float *sent, *received; /* blocks of the all_to_all between the two steps */
	uint64_t *send_counts, *recv_counts; /* elements, by rank; set by the first step */
	double expected; /* bytes that this rank sends if rows request all experts equally often */
	const float **from; /* [nranks + nnodes]: scratch of the last step */
};

#endif
