/*
 * op_cost.h - the bytes and FLOPs of an op.
 *
 * The bytes are the sum over its operands and outs, as if no cache held them. A table counts its
 * looked-up rows, experts the ones with routed rows, the KV cache the attended positions. FLOPs are
 * those of products and attention, 2 for each multiplication with its addition.
 */
#ifndef TESS_NN_COST_OP_COST_H
#define TESS_NN_COST_OP_COST_H

#include <stdbool.h>
#include <tessera/device.h>

/* Keys that the rows of a step attend to, and those that are read, each once per sequence. */
struct tess_attended {
	int64_t window; /* that of the op; -1: nothing was counted */
	bool chunked;
	int64_t seen, stored, sequences;
};

/* The values of operands that the cost depends on. Zeroed: all are unknown. */
struct tess_op_known {
	const int32_t *ids; /* of EMBED; NULL: unknown, and each row looks up one */
	const int32_t *position, *slot; /* of ATTENTION; NULL: unknown, and it counts no keys */
	/* false: routing weights cannot be read, and rows request experts at random */
	bool routed;
	struct tess_attended *last; /* what was counted last; NULL: it is counted for each op */
	int64_t experts; /* that rows are spread over if `routed` is false; 0: those of the op */
};

struct tess_op_cost {
	uint64_t bytes, flops;
	uint64_t weight_bytes, kv_bytes; /* included in the bytes */
	/* parts that take turns: the sequences of attention, the experts with rows; 0: no parts */
	double parts, part_rows; /* part_rows: the rows of all parts */
};

/* Adds the cost of an op. */
void tess_op_add_cost(const struct tess_op *op, const struct tess_op_known *known,
                      struct tess_op_cost *sum);

#endif
