/*
 * machine.h - `tessera bench machine`: measures this host for a machine file (docs/planning.md).
 *
 * Steps of small checkpoints with random weights run on each number of ranks, on one replica and on
 * replicas. The command keeps a time of alike steps, and of collectives by size.
 */
#ifndef TESS_TOOLS_BENCH_MACHINE_H
#define TESS_TOOLS_BENCH_MACHINE_H

#include "nn/cost/step_work.h"
#include "tools/tool.h"

enum { MACHINE_SETS = 8 }; /* numbers of ranks */

struct machine_options {
	const char *out, *disk;
	int32_t ranks[MACHINE_SETS], nsets; /* increasing */
	int32_t threads;
	double seconds; /* of all measurements */
	bool quick; /* tiny checkpoints, and one round */
};

/* Runs `tessera bench machine`. */
int machine_run_command(int argc, char **argv, const struct tess_tool_section *sections,
                        struct machine_options *a);
extern const struct tess_tool_option machine_options[]; /* rows for struct machine_options */

/* ---- checkpoints: machine_model.c ------------------------------------------------------------ */

/* Returns the number of checkpoints, and the name of one: "llama". */
int32_t machine_count_models(void);
const char *machine_get_model_name(int32_t i);
/*
 * Writes checkpoint i with random weights to the directory, and one that has its first layers, for
 * training, to the directory MACHINE_SHORT in it.
 */
tess_status machine_write_model(int32_t i, bool quick, const char *dir);
#define MACHINE_SHORT "short"

/* ---- ranks: machine_steps.c, machine_calls.c ------------------------------------------------- */

enum { MACHINE_POINTS = 4096, MACHINE_CALLS = 512, MACHINE_MODEL_MESH = 32 };

struct machine_point { /* alike steps of a rank */
	char key[TESS_STEP_NAME];
	int32_t class;
	bool training; /* of a training step, whose weights are stored in another way */
	double rows, work; /* work: of all rows */
	double seconds; /* mean of the faster half */
};
struct machine_call {
	char name[24];
	double bytes; /* that a rank sends */
	double seconds; /* median of the slowest rank */
};
struct machine_result { /* what a job has measured, on rank 0 */
	int32_t npoints, ncalls, threads;
	struct machine_point point[MACHINE_POINTS];
	struct machine_call call[MACHINE_CALLS];
};

struct machine_job { /* what ranks measure */
	const struct machine_options *options;
	const char *dir; /* of the checkpoint */
	char mesh[MACHINE_MODEL_MESH];
	double seconds;
};
/* Measure on one rank. job: a struct machine_job; result: a struct machine_result. */
tess_status machine_measure_steps(struct tess_world *w, void *job, void *result);
tess_status machine_measure_calls(struct tess_world *w, void *job, void *result);

/* ---- the file: machine_file.c ---------------------------------------------------------------- */

struct machine_set { /* what was measured on a number of ranks */
	int32_t ranks, threads;
	struct machine_point *point; /* [npoints], owned */
	struct machine_call *call; /* [ncalls], owned */
	int32_t npoints, ncalls;
};
struct machine_host {
	const char *backend;
	double memory; /* bytes of the host */
	double disk_read, disk_write, disk_size; /* bytes a second; free bytes */
	int32_t ncpus, nsets;
	struct machine_set set[MACHINE_SETS];
};
/* Measures the disk of a folder by a file of 512 MiB. quick: 32 MiB. TESS_EIO, TESS_ENOMEM. */
tess_status machine_measure_disk(const char *dir, bool quick, struct machine_host *out);
/* Appends a result to a set. TESS_ENOMEM. */
tess_status machine_set_add(struct machine_set *s, const struct machine_result *r);
/* Writes the machine file. */
tess_status machine_write_file(const char *path, struct machine_host *h);

#endif
