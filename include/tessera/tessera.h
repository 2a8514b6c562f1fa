/*
 * tessera/tessera.h - for programs: worlds, meshes, groups, what a plan would do; with
 * tessera/session.h, a checkpoint that runs with a plan, and tessera/train.h, one that is trained.
 *
 * Every function that can fail returns a tess_status; after a failure tess_error() is the sentence
 * that says what, where, the rule and a way out. What comes through **out is owned by the caller,
 * what is returned is borrowed. No call blocks past its deadline: TESSERA_TIMEOUT seconds (300), or
 * what the call is given. A world and its groups are used by one thread at a time.
 *
 * Where a comment gives NULL, 0 or a negative number no meaning, it is refused: a status that says
 * TESS_EINVAL and a message. So are a negative count, a count without its list, NaN, an index out
 * of range, and a struct whose `size` is not set. A function that returns no status leaves a
 * message, too, and returns NULL, "" for a name, -1 for a rank, an id or an index, 0 for a count or
 * a size, or NaN; one that returns nothing does nothing. Functions that close, free or release
 * accept NULL.
 */
#ifndef TESSERA_TESSERA_H
#define TESSERA_TESSERA_H

#include <tessera/dataset.h>
#include <tessera/group.h>
#include <tessera/session.h>
#include <tessera/style.h>
#include <tessera/tokenizer.h>
#include <tessera/train.h>

TESS_BEGIN

/* This thread's last sentence; read it only after a failure. Borrowed, until the next failure. */
const char *tess_error(void);
/*
 * Sets it and returns `why`, for a failure of the program's own that all ranks shall hear of:
 * `return tess_fail(TESS_EINVAL, "...", ...)` in a function that tess_world_spawn runs.
 */
tess_status tess_fail(tess_status why, const char *fmt, ...) TESS_PRINTF(2, 3);
/* "1.0.0" */
const char *tess_version(void);

/*
 * Options: TESSERA_<KEY> of the environment, unless the program has set the key ("backend",
 * "threads"), at any time; what a world or a session has read keeps its value. `tessera info
 * --options` lists them. The value is borrowed, "" for an unknown key. TESS_EINVAL: the key is
 * unknown, or that of a plugin that is not open; key or value is NULL.
 */
const char *tess_option_get(const char *key);
tess_status tess_option_set(const char *key, const char *value);

/* ---- worlds: all ranks of a job -------------------------------------------------------------- */
struct tess_world;

/*
 * Enters the job that the environment names: tessera launch, torchrun, mpirun or srun
 * (docs/options.md has the variables); without one, a world of one rank. Collective, once per
 * process: blocks until all ranks are there or the deadline has passed.
 */
tess_status tess_world_open(struct tess_world **out);

/*
 * Runs fn(world, arg) on `n` threads, each a rank of a loopback world, and joins them. Returns the
 * first failure, with its sentence. For tests, and for programs whose ranks are threads.
 * TESS_EINVAL: n > 1, and the option "backend" (TESSERA_BACKEND) is not auto, loopback, a wrapper
 * as in faulty:loopback, or another backend of TESS_REACH_PROCESS. The ranks of gloo or shm are
 * processes: start the program with tessera launch, and call tess_world_open.
 * After a failure each rank has TESSERA_TIMEOUT to return. A rank that hangs in its own code is
 * logged after a second; if it does not return, the sentence names it and it is left behind: its
 * thread may still use what `arg` points to, so end the process. fn returns and does not close
 * `world`: tess_world_close fails the job.
 */
tess_status tess_world_spawn(int32_t n, tess_status (*fn)(struct tess_world *world, void *arg),
                             void *arg);

int32_t tess_world_rank(const struct tess_world *w);
int32_t tess_world_size(const struct tess_world *w);
/* The name of the backend that its groups use: "loopback", "gloo", ... Borrowed. */
const char *tess_world_backend(const struct tess_world *w);

/*
 * This rank gives up: pending and later calls of all ranks fail with `why` and "rank R: SENTENCE".
 * A sentence that all ranks share, as that of tess_session_open, stays as it is. May be
 * tess_error(). `why` is a failure, else TESS_EBUG is taken.
 */
void tess_world_fail(struct tess_world *w, tess_status why, const char *sentence);

/*
 * Leaves in order: waits, to the deadline, for works that are not finished and for all ranks to
 * leave. Closes its groups. NULL: nothing.
 */
void tess_world_close(struct tess_world *w);

/* ---- groups: ranks that communicate ---------------------------------------------------------- */
struct tess_group;
struct tess_work;

/* The group of all ranks. Borrowed; opened with the world. */
struct tess_group *tess_world_group(struct tess_world *w);
int32_t tess_group_rank(const struct tess_group *g);
int32_t tess_group_size(const struct tess_group *g);
/* The world rank of the group's rank `rank`; -1: there is no such rank. */
int32_t tess_group_member(const struct tess_group *g, int32_t rank);
/* "world", "dp/1". Borrowed. */
const char *tess_group_name(const struct tess_group *g);

/*
 * Splits `parent`: its ranks of one colour become a group, ordered by key, then by rank in the
 * parent. A negative colour: this rank is in no group, and *out is NULL. `name`: 1 to 15 letters of
 * a-z 0-9 _, for messages, where "dp" with colour 1 is "dp/1"; NULL: "split". Collective over the
 * parent. Close *out before the world, or the world closes it. While a rank waits in one group, its
 * works in another need not progress: wait for the works of several groups in the same order on all
 * ranks.
 */
tess_status tess_group_split(struct tess_group *parent, int32_t colour, int32_t key,
                             const char *name, struct tess_group **out);
/*
 * Leaves a group that was split off; not collective, and the parent may be closed first. Waits for
 * works that are not finished, and releases all. A member that calls the group afterwards gets an
 * error. The group of a world or of a mesh is not closed by itself: the job fails. NULL: nothing.
 */
void tess_group_close(struct tess_group *g);

/*
 * Runs one collective on host memory and blocks until it is done on this rank. Fields that are 0
 * are filled in: mem, op (sum), fingerprint, and the deadline (now + TESSERA_TIMEOUT). All ranks
 * make the same calls in the same order; if one does not, the error of every rank names it. Buffers
 * remain the caller's; if the call failed, do not touch them until the group is closed.
 */
tess_status tess_group_run(struct tess_group *g, const struct tess_coll *c);
/*
 * The same without waiting; several works may be outstanding. Release *out. Buffers, lists and
 * `where` belong to the group until then. A call that passes its own deadline, or that of a wait,
 * fails the job. Releasing a work that is not finished waits for it.
 */
tess_status tess_group_start(struct tess_group *g, const struct tess_coll *c,
                             struct tess_work **out);
/*
 * Starts n calls, in this order, as one work, which is done when all are; if one is refused, none
 * starts. Messages of a batch may be in any order on each rank; what is a batch on one rank may be
 * single calls on another.
 */
tess_status tess_group_batch(struct tess_group *g, const struct tess_coll *const *c, uint32_t n,
                             struct tess_work **out);
/* Does not block: TESS_OK, TESS_PENDING or the failure. */
tess_status tess_work_test(struct tess_work *w);
/* deadline: CLOCK_MONOTONIC, ns; 0: that of the call. */
tess_status tess_work_wait(struct tess_work *w, int64_t deadline);
void tess_work_release(struct tess_work *w);

/*
 * Common collectives by name, as tess_group_run. count: elements (all_gather: of src; dst has count
 * times the ranks). `where` goes into every message. In place where src == dst.
 */
tess_status tess_barrier(struct tess_group *g, const char *where);
tess_status tess_broadcast(struct tess_group *g, void *buf, uint64_t count, int32_t dtype,
                           int32_t root, const char *where);
tess_status tess_all_reduce(struct tess_group *g, const void *src, void *dst, uint64_t count,
                            int32_t dtype, int32_t op, const char *where);
tess_status tess_all_gather(struct tess_group *g, const void *src, void *dst, uint64_t count,
                            int32_t dtype, const char *where);

/* ---- meshes: ranks laid out in named dimensions ---------------------------------------------- */
struct tess_mesh;

/*
 * "dp=2,tp=4": the ranks of the world in rows of 4, the last dimension varying fastest; at most 16
 * dimensions, whose sizes multiply to the size of the world. One size may be left out: "dp,tp=4",
 * "tp". Opens a group along each dimension. Collective. Close *out before the world.
 */
tess_status tess_mesh_open(struct tess_world *w, const char *text, struct tess_mesh **out);
/* The ranks that the sizes of such a text make, one size left out being 1. NULL: 1. No ranks. */
tess_status tess_mesh_count_ranks(const char *text, int32_t *out);
/*
 * Opens the groups over several dimensions taken as one, "dp,tp", the last one varying fastest.
 * Collective over the world. Nothing if they are open.
 */
tess_status tess_mesh_slice(struct tess_mesh *m, const char *dims);
/*
 * This rank's group along a dimension, or over those of an opened slice; NULL: there is none. May
 * be the world's own group. Borrowed, until the mesh is closed.
 */
struct tess_group *tess_mesh_group(const struct tess_mesh *m, const char *dims);
/*
 * The number of ranks along dimensions, and this rank's place among them, whether or not their
 * slice is open; 0 and -1 if there are no such dimensions.
 */
int32_t tess_mesh_size(const struct tess_mesh *m, const char *dims);
int32_t tess_mesh_rank(const struct tess_mesh *m, const char *dims);
/* While a session or a trainer is open on it, the mesh stays open and the job fails. */
void tess_mesh_close(struct tess_mesh *m);

/* ---- explain: what each rank of a plan would hold, compute and send, as data ----------------- */

struct tess_explained_parameter { /* as one op uses it; lists are by mesh dimension */
	const char *name; /* "model.norm.weight" */
	const char *const *styles; /* as in the plan */
	const struct tess_place *places; /* while the op computes */
	const int64_t *shape; /* of all ranks together, as stored */
	int32_t dtype, ndim;
	int32_t tied; /* 1: a head that reads the table `name` again */
	int32_t from_config; /* 1: its file is absent; the shape is the model's, and the
	                                   dtype that of config.json (none there: f32) */
};

struct tess_explained_collective { /* a move of a value along one mesh dimension */
	const char *module;
	int32_t kind; /* TESS_ALL_GATHER, ... */
	int32_t dim; /* index of the mesh dimension */
	int32_t record, reserved; /* index of the record that makes the move */
	struct tess_place from, to;
	uint64_t bytes; /* of the value, over all ranks */
	uint64_t sent; /* by a rank in one step, at most */
};

struct tess_explained_value {
	int32_t id, reserved; /* the same value has the same id in all records */
	const struct tess_place *places; /* by mesh dimension */
};

struct tess_explained_record { /* one computation or move of a step; lists end with NULL */
	const char *module;
	const char *kind; /* "linear", "move" */
	const char *move; /* "all_reduce", "slice"; NULL: a computation */
	const struct tess_explained_value *const *in, *const *out;
	const struct tess_explained_parameter *const *parameters;
};

struct tess_explained_rank { /* bytes that a rank holds */
	uint64_t weights;
	uint64_t cache; /* keys and values of one position of one sequence */
	uint64_t step; /* values of a step */
	uint64_t gradients, state; /* of training; state: moments, and masters of weights */
	uint64_t total; /* of all these, without the cache */
};

struct tess_explained_plan { /* bytes, of the rank that has most */
	uint64_t sent; /* in a step */
	uint64_t weights; /* 0: there is no such plan, or it cannot run here */
	uint64_t step, total;
};

struct tess_explained_traffic { /* bytes that a rank sends in a step, at most */
	uint64_t forward, backward; /* backward: the loss too */
	uint64_t repeated; /* forward once more, before the backward */
	/* sums over replicas; and weights, from the ranks that keep their state to the others */
	uint64_t gradients;
};

struct tess_explanation { /* grows at its end; all that it points to is its own */
	const char *model, *plan;
	int64_t tokens; /* rows of a step */
	int64_t positions; /* of a text, at most; 0: any */
	int32_t nranks, ndims; /* of the mesh, whose last dimension varies fastest */
	const char *const *dim_names;
	const int32_t *dim_sizes;
	int32_t nparameters, ncollectives, nrecords;
	int32_t from_config; /* parameters whose files are absent */
	const struct tess_explained_parameter *const *parameters;
	const struct tess_explained_collective *const *collectives; /* in order */
	const struct tess_explained_record *const *records; /* in order */
	const struct tess_explained_rank *const *ranks;
	/* the mesh dimension along which logits stay cut by vocabulary (-1: rank 0 gets rows);
	 * bytes that a rank sends, at most, for a greedy id, and for a row that is asked for */
	int32_t logits_dim, reserved;
	uint64_t greedy_bytes, row_bytes;
	struct tess_explained_plan total, hf; /* of the plan; of "hf", as Transformers ships it */
	int64_t sequences; /* of a step of training; 0: inference */
	const struct tess_explained_traffic *traffic; /* by mesh dimension */
	struct tess_explained_plan kept; /* if no module were computed again */
	int32_t kv_dtype; /* of the KV cache, on TESSERA_DEVICE; 0: no attention */
};

/*
 * Records the program of a Hugging Face directory under a plan, for steps of `tokens` rows on the
 * ranks of a mesh, "tp=8", "dp=2,tp=4", and checks it; one size may be left out where nranks is not
 * 0. Starts no rank and reads no weight: files of weights may be absent, config.json may not.
 * TESS_EINVAL: a plan that cannot work, as tess_session_open says it. options: NULL, or read during
 * the call; with kv_dtype 0 TESSERA_DEVICE decides that, and has to be usable here. *out is yours:
 * tess_explanation_free.
 */
tess_status tess_explain(const char *dir, const char *mesh, int32_t nranks, int64_t tokens,
                         const struct tess_session_options *options, struct tess_explanation **out);
struct tess_trainer_options; /* tessera/train.h */
/*
 * The same for steps of training: of `sequences` of `length` tokens each (0: 1024, or the positions
 * of the checkpoint if fewer), which dimension `dp` of the mesh deals out to replicas. options:
 * NULL, or read during the call.
 */
tess_status tess_explain_training(const char *dir, const char *mesh, int32_t nranks,
                                  int64_t sequences, int64_t length,
                                  const struct tess_trainer_options *options,
                                  struct tess_explanation **out);
/*
 * The part of parameter i that a rank holds: its shape, into shape[ndim] unless NULL, and its
 * bytes, which are returned; 0 where it is tied, since the table has them. Of a parameter or rank
 * that does not exist: 0, and no shape.
 */
uint64_t tess_explanation_shard(const struct tess_explanation *e, int32_t i, int32_t rank,
                                int64_t *shape);
/*
 * Which elements of an axis of parameter i a rank holds: the begin and end of each run, in order,
 * into at most `most` of run. Returns the number of runs: one for each part of a fused dim; 0:
 * there is no such parameter, rank or axis.
 */
int64_t tess_explanation_list_ranges(const struct tess_explanation *e, int32_t i, int32_t rank,
                                   int32_t axis, int64_t (*run)[2], int64_t most);
/*
 * How a rank would store each parameter, into out[e->nparameters], on TESSERA_DEVICE, which has to
 * be usable here. Files are taken to be there, and aligned.
 */
tess_status tess_explanation_list_weights(const struct tess_explanation *e, int32_t rank,
                                          struct tess_weight_storage *out);
void tess_explanation_free(struct tess_explanation *e);

TESS_END
#endif
