/*
 * machine.h - machine files: how fast a host computes and communicates (docs/planning.md).
 *
 * A rate is work per second: FLOPs of products and attention, bytes of other ops. It depends on the
 * rows of an op and on its work per row, between the listed points.
 */
#ifndef TESS_NN_COST_MACHINE_H
#define TESS_NN_COST_MACHINE_H

#include "core/base/arena.h"

#include <stdbool.h>

/* What a step of training or generation spends time on. */
enum {
	TESS_TERM_PRODUCT, /* linear layers, experts, heads, and their gradients */
	TESS_TERM_ATTENTION,
	TESS_TERM_MEMORY, /* ops that only move bytes */
	TESS_TERM_LATENCY, /* the start of ops */
	TESS_TERM_TENSOR, /* collectives within a replica and a stage, as far as steps wait */
	TESS_TERM_DATA, /* gradients and weights along dp, as far as steps wait */
	TESS_TERM_PIPELINE, /* values sent to other stages, as far as they are waited for */
	TESS_TERM_BUBBLE, /* stages without work */
	TESS_TERM_OPTIMIZER,
	TESS_TERM_FIXED, /* what a step takes on any machine of this kind */
	TESS_TERM_DISK, /* reads and writes of files, as far as they are waited for */
	TESS_TERMS
};
/* Returns "product", ..., as in machine files. */
const char *tess_term_get_name(int32_t term);

/* What a rank's memory contains. */
enum {
	TESS_HOLDS_WEIGHTS,
	TESS_HOLDS_GRADIENTS,
	TESS_HOLDS_STATE, /* of the optimizer */
	TESS_HOLDS_STEP, /* activations, without those below */
	TESS_HOLDS_GATHERED, /* those gathered in a replica; 0: the backward gathers them again */
	TESS_HOLDS_LOSS, /* logits in f32, which the step includes; factor: of further copies */
	TESS_HOLDS_CACHE, /* keys and values */
	TESS_HOLDS_FIXED, /* what every rank takes */
	TESS_HOLDS
};

struct tess_machine_point { /* a measured rate: logarithms to base 2 */
	double rows, work, rate; /* work: of one row; 0 if it is below 1 */
};
#define TESS_MACHINE_BF16 ":bf16" /* the end of keys of steps with products of bf16 */
struct tess_machine_rates {
	/* "linear", "linear+glu"; or a class: "product", "attention", "memory"; "linear:bf16" */
	const char *op;
	int32_t npoints;
	struct tess_machine_point *point;
};
struct tess_machine_call { /* a collective among `ranks` ranks, or along ranks of `ranks` hosts */
	double ranks, seconds, rate; /* seconds + bytes that a rank sends / rate */
	double cached, beyond; /* bytes after the first `cached` have the rate `beyond`; 0: none */
};
struct tess_machine_link {
	const char *call; /* "all_reduce"; "default": any other */
	int32_t npoints;
	struct tess_machine_call *point; /* in order of ranks */
};
enum { TESS_LINK_WITHIN, TESS_LINK_BETWEEN, TESS_LINKS }; /* one host; several */

struct tess_machine_device { /* of a rank; or its part, where ranks share a host's CPUs */
	int32_t ranks; /* on a host; 0: each has a device of its own */
	double memory; /* bytes */
	double latency; /* seconds that an op takes besides its work */
	int32_t nrates[2]; /* of generation, of training; if it has none, those of generation */
	struct tess_machine_rates *rates[2];
};

struct tess_machine {
	struct tess_arena arena;
	const char *name, *about;
	struct tess_machine_device *device; /* in order of ranks */
	int32_t ndevices;
	/* of tess_machine_choose; before it those of device[0] in generation: */
	double memory; /* bytes of a rank's device */
	double latency; /* seconds that an op takes besides its work */
	double share; /* factor of the rates */
	int32_t nrates;
	struct tess_machine_rates *rates;
	bool exact; /* sums over ranks move the nodes of split.h */
	bool at_once; /* sequences and experts of a step run at once: rates are of all their rows */
	bool once; /* gradients are reduced once a step, not in each micro-batch */
	double width; /* bytes of an element of a value; 4: f32 */
	int32_t prompt_rows; /* rows of a prompt that a step computes; 512 */
	double launch; /* seconds of the host to start an op of the model; 0: devices never wait */
	int32_t nlinks[TESS_LINKS];
	struct tess_machine_link *link[TESS_LINKS];
	int32_t ranks_per_host;
	/* of a host's disk, which its ranks share: bytes a second, and bytes; 0: not known */
	double disk_read, disk_write, disk_size;
	int32_t disk_ranks; /* of tess_machine_choose: ranks that share it, or memory of the host */
	/* of a host with devices that have memory of their own: bytes a second that a device copies
	 * from memory of the host, and to it; bytes a second of values that its CPUs change there,
	 * and bytes, which its ranks share; 0: not known */
	double host_read, host_write, host_memory, host_size;
	double time[TESS_TERMS]; /* factors; of FIXED: seconds */
	double holds[TESS_HOLDS]; /* factors, of LOSS usually 0; of FIXED: bytes */
	double error; /* measured mean error of predicted times, as a share; 0: not measured */
	const char *measured; /* what it was measured on; "": not given */
};

/*
 * Opens a machine file, or one of the box by its name: "h100". Free *out by tess_machine_close.
 * TESS_EINVAL: a value is missing, of another type, negative or not finite; the message has file
 * and key. TESS_ENOENT: there is no such file; the message lists the names.
 */
tess_status tess_machine_open(const char *name, struct tess_machine **out);
void tess_machine_close(struct tess_machine *m);

/*
 * Sets memory, latency, rates and disk_ranks to those of a rank of `nranks` on each host, in
 * generation or in training: as measured for the next larger number of ranks. If there is none, the
 * ranks share what the largest one has. nranks only changes disk_ranks if each rank has a device of
 * its own.
 */
void tess_machine_choose(struct tess_machine *m, int32_t nranks, bool training);

/*
 * Returns the seconds of `work` in `rows` rows, without latency, by the rates of `op`; those of
 * `class` ("product") if it has none. An op with products of bf16 that has none, nor its class with
 * them, has those of f32.
 */
double tess_machine_compute(const struct tess_machine *m, const char *op, const char *class,
                            double rows, double work);
/* Returns whether the file has rates of this op by itself. */
bool tess_machine_has_op(const struct tess_machine *m, const char *op);
/* Returns whether the rates of tess_machine_choose include products of bf16. */
bool tess_machine_has_bf16(const struct tess_machine *m);

/*
 * Returns the seconds of a call in which each rank sends `bytes`, among `nranks` ranks `stride`
 * apart.
 */
double tess_machine_communicate(const struct tess_machine *m, const char *call, int32_t nranks,
                                int32_t stride, double bytes);
/*
 * Returns whether started calls hide behind ops: ranks that share a host's CPUs move bytes with
 * them.
 */
bool tess_machine_hides_calls(const struct tess_machine *m);
/*
 * Returns the seconds in which a rank reads and writes bytes of files, while the other ranks of its
 * host do the same; or in which its device, if that has memory of its own, copies them from memory
 * of the host, and to it. The rates must be known.
 */
double tess_machine_move(const struct tess_machine *m, double read, double written);
/* Returns whether such ranks are on one host. */
bool tess_machine_is_within(const struct tess_machine *m, int32_t nranks, int32_t stride);

#endif
