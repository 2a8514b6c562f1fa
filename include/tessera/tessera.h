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
#include <tessera/explain.h>
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

TESS_END
#endif
