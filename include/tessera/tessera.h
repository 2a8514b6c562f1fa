/*
 * tessera/tessera.h - the C API for programs: worlds, groups and meshes. It includes the other
 * headers of programs: tessera/session.h runs a checkpoint, tessera/train.h trains one, and
 * tessera/explain.h explains a plan.
 *
 * Every function that can fail returns a tess_status. After a failure tess_error() is the message,
 * which names the cause, the place, the rule and a way out. The caller owns results of **out;
 * returned pointers are borrowed. No call blocks past its deadline: its argument, or
 * TESSERA_TIMEOUT seconds (300). One thread at a time uses a world and its groups.
 *
 * NULL, 0 and negative numbers are refused with TESS_EINVAL and a message, unless a comment gives
 * them a meaning. Also refused are a count without its list, NaN, an index out of range, and a
 * struct whose `size` is not set. A function without a status leaves a message, too. It returns
 * NULL, "" for a name, -1 for a rank, an id or an index, 0 for a count or a size, or NaN. Functions
 * that close, free or release accept NULL.
 *
 * Example:
 *     static tess_status add_ranks(struct tess_world *world, void *arg)
 *     {
 *             int32_t rank = tess_world_rank(world), sum;
 *             tess_status st = tess_all_reduce(tess_world_group(world), &rank, &sum, 1, TESS_I32,
 *                                              TESS_SUM, "sum of ranks");
 *
 *             if (!st && rank == 0)
 *                     printf("%d\n", *(int *)arg = sum);
 *             return st;
 *     }
 *     static int sum;
 *     static int run(void) { return tess_world_spawn(4, add_ranks, &sum); }
 */
#ifndef TESSERA_TESSERA_H
#define TESSERA_TESSERA_H

#include <tessera/chat.h>
#include <tessera/dataset.h>
#include <tessera/dtensor.h>
#include <tessera/explain.h>
#include <tessera/group.h>
#include <tessera/pipeline.h>
#include <tessera/session.h>
#include <tessera/planner.h>
#include <tessera/strategy.h>
#include <tessera/style.h>
#include <tessera/tokenizer.h>
#include <tessera/train.h>
#include <tessera/values.h>

TESS_BEGIN

/*
 * Returns the last error message of this thread. Valid only after a failure. Borrowed until the
 * next failure.
 */
const char *tess_error(void);

/*
 * Sets the error message of this thread and returns `why`. Reports an application error to all
 * ranks as `return tess_fail(TESS_EINVAL, "...", ...)` in a function that tess_world_spawn runs.
 */
tess_status tess_fail(tess_status why, const char *fmt, ...) TESS_PRINTF(2, 3);

/*
 * Reports faults of plugins from now on, in this process and in those that it forks: SIGSEGV,
 * SIGBUS, SIGILL, SIGFPE and SIGABRT print a line on stderr with the rank, the function, the
 * plugin, its file and the module, the address, and the file and offset of the code. A fault
 * outside of plugins is reported as such. Then the handler that was installed before gets the
 * signal, or the default action ends the process; so exit status, core dumps and the reports of
 * sanitizers are as without it.
 *
 * For a program that has the process to itself, at its start: the handlers belong to the process.
 * The command, its ranks, and processes that tess_world_spawn forks call it. An ignored signal
 * stays ignored. Threads that call a plugin for the first time after this call, and this thread,
 * get a stack for signals, so that an overflow of their own stack is reported; a stack for signals
 * that they have is kept. A second call does nothing. TESS_EIO: a handler cannot be installed.
 */
tess_status tess_crash_reports_enable(void);

/*
 * Writes the reports of faults to the descriptor `fd`, in this process and in those that it forks.
 * By default it is 2, stderr. For programs that run tests and capture stderr, which is lost if a
 * fault ends them. The caller keeps fd open. TESS_EINVAL: fd is no open descriptor.
 */
tess_status tess_crash_reports_redirect(int32_t fd);

/* Returns the version of the library: "2.0.0". Static. */
const char *tess_version(void);

/*
 * Returns the value of the option `key` ("backend", "threads"): that of tess_option_set, or else of
 * TESSERA_<KEY> in the environment, or its default. Borrowed; "" for an unknown key.
 * `tessera info --options` lists all options.
 */
const char *tess_option_get(const char *key);

/*
 * Sets an option, at any time. Values that a world or a session has read do not change.
 * TESS_EINVAL: the key is unknown, or belongs to a plugin that is not open; key or value is NULL.
 */
tess_status tess_option_set(const char *key, const char *value);

/*
 * Registers a plugin of the program itself: styles, backends, devices or models in its own source,
 * without a file. The names are then found as if a file offered them, by all ranks of this process
 * and of the processes that it forks; other processes of a job register it, too. May be called
 * before and after plugins are looked up, from any thread, but not from a plugin.
 *
 * Checks what is checked of a file: ABI, sizes, required operations, names. Then declares the
 * options and calls init(). p, with all that it points to, stays valid and unchanged until the end
 * of the process. If p is registered already, this does nothing.
 *
 * TESS_EINVAL: an invalid name, nothing offered, or a name that a file or another registered plugin
 * has. The file is used, whatever comes first: a name in a plan means the same in every program.
 * So set TESSERA_PLUGIN_PATH before, since this searches for files. TESS_EABI: see docs/abi.md.
 * TESS_ENOTSUP: init() failed. Nothing is registered then. Messages about the plugin contain
 * "registered by the program" in place of a file.
 */
tess_status tess_registry_add(const struct tess_plugin *p);

/* ---- worlds: all ranks of a job -------------------------------------------------------------- */

/* All ranks of a job, as one rank uses them. */
struct tess_world;

/*
 * Enters the job of the environment: tessera launch, torchrun, mpirun or srun (docs/options.md has
 * the variables). Without a job, opens a world of one rank. Called once per process. Collective:
 * blocks until all ranks have entered or the deadline has passed.
 */
tess_status tess_world_open(struct tess_world **out);

/*
 * Runs fn(world, arg) on `n` ranks of the option "backend" (TESSERA_BACKEND), and waits for their
 * end. Returns the first failure, with its message. For tests, and for programs whose ranks are one
 * function. Blocks.
 *
 * | backend | ranks |
 * |---|---|
 * | auto, loopback, wrappers of it, others of TESS_REACH_PROCESS | threads of this process |
 * | shm, gloo, wrappers of them, others with another `reach` | processes, forked for this call |
 * | mpi | refused: mpirun starts its ranks, which call tess_world_open |
 *
 * fn returns without closing `world`: tess_world_close fails the job.
 *
 * Threads: after a failure each rank has TESSERA_TIMEOUT to return. A rank that blocks in its own
 * code is logged after one second. If it does not return, the message names it, and its thread
 * continues to run. It may still use what `arg` points to, so end the process.
 *
 * Processes: this forks. So call it before threads are started, and with no world open: that is
 * refused with TESS_EINVAL. A rank has a copy of the memory, and what it writes is lost, except for
 * results (tess_world_spawn_results). It has RANK and the other variables of a job, writes to the
 * same stdout and stderr, ends without atexit handlers and destructors, and is killed if this
 * process ends. The message of a rank that was killed has the signal and the last call
 * (TESS_EPEER), and stderr has the plugin that crashed (tess_crash_reports_enable). After a failure
 * a rank has a second to return, then gets SIGTERM, and SIGKILL 5 s later; no process remains.
 * SIGINT, SIGTERM and SIGHUP end the ranks, and are raised again at the end; SIGCHLD is the default
 * meanwhile.
 *
 * A deadline applies to calls, to functions of plugins, and to a rank that others wait for. If all
 * ranks block in their own code, this does too.
 */
tess_status tess_world_spawn(int32_t n, tess_status (*fn)(struct tess_world *world, void *arg),
                             void *arg);

/*
 * Runs fn(world, arg, result) like tess_world_spawn. Each rank writes `bytes_each` bytes to
 * `result`, which are zero before and aligned to 64. results: [n * bytes_each], filled in the order
 * of ranks, only on success.
 */
tess_status tess_world_spawn_results(int32_t n,
                                     tess_status (*fn)(struct tess_world *world, void *arg,
                                                       void *result),
                                     void *arg, void *results, uint64_t bytes_each);

/* Returns this rank, 0 to the size of the world - 1. */
int32_t tess_world_rank(const struct tess_world *w);

/* Returns the number of ranks. */
int32_t tess_world_size(const struct tess_world *w);

/* Returns the name of the backend of the groups: "loopback", "gloo", ... Borrowed. */
const char *tess_world_backend(const struct tess_world *w);

/*
 * Fails the job: pending and later calls of all ranks fail with `why` and "rank R: SENTENCE". A
 * message that all ranks share, such as that of tess_session_open, stays unchanged. sentence: the
 * message; may be tess_error(). why: a failure; any other value becomes TESS_EBUG.
 */
void tess_world_fail(struct tess_world *w, tess_status why, const char *sentence);

/*
 * Leaves the job and closes the groups of the world. Blocks until pending works are done and all
 * ranks leave, or the deadline has passed. NULL is accepted.
 */
void tess_world_close(struct tess_world *w);

/* ---- groups: ranks that communicate ---------------------------------------------------------- */

/* Ranks that communicate, as one rank uses them. */
struct tess_group;

/* A started call, or batch of calls. */
struct tess_work;

/* Returns the group of all ranks. Borrowed; opened with the world. */
struct tess_group *tess_world_group(struct tess_world *w);

/* Returns this rank in the group. */
int32_t tess_group_rank(const struct tess_group *g);

/* Returns the number of ranks of the group. */
int32_t tess_group_size(const struct tess_group *g);

/* Returns the world rank of rank `rank` of the group; -1: the rank does not exist. */
int32_t tess_group_member(const struct tess_group *g, int32_t rank);

/* Returns the name of the group: "world", "dp/1". Borrowed. */
const char *tess_group_name(const struct tess_group *g);

/*
 * Splits `parent`: its ranks of one colour become a group, ordered by key, then by rank in the
 * parent. A rank with a negative colour is in no group, and gets NULL in *out. name: 1 to 15
 * characters of a-z 0-9 _, for messages, where "dp" with colour 1 is "dp/1"; NULL: "split".
 * Collective over the parent. Close *out before the world; otherwise the world closes it.
 *
 * Works of other groups need not progress while a rank waits in one group. Wait for the works of
 * several groups in the same order on all ranks.
 */
tess_status tess_group_split(struct tess_group *parent, int32_t colour, int32_t key,
                             const char *name, struct tess_group **out);

/*
 * Leaves a group of tess_group_split, blocks until its works are done, and releases them. Not
 * collective; the parent may be closed first. Later calls of other members on the group fail. The
 * group of a world or of a mesh cannot be closed: the job fails. NULL is accepted.
 */
void tess_group_close(struct tess_group *g);

/*
 * Runs one collective on host memory and blocks until it is done on this rank. Fields that are 0
 * get defaults: mem, op (sum), fingerprint, and the deadline (now + TESSERA_TIMEOUT). A fingerprint
 * that is not 0 must be the same on all ranks: a hash of what the elements mean. All ranks make the
 * same calls in the same order; if a call differs, the error of every rank names it. The caller
 * owns the buffers. After a failure, do not access them until the group is closed.
 */
tess_status tess_group_run(struct tess_group *g, const struct tess_coll *c);

/*
 * Starts one collective like tess_group_run, without waiting; several works may be pending. Release
 * *out. Buffers, lists and `where` belong to the group until then. A call that passes its deadline,
 * or the deadline of a wait, fails the job.
 */
tess_status tess_group_start(struct tess_group *g, const struct tess_coll *c,
                             struct tess_work **out);

/*
 * Starts n calls, in this order, as one work, which is done when all calls are. Does not wait. If a
 * call is refused, none starts. Messages of a batch may be in any order on each rank. The calls of
 * a batch may be single calls on another rank. Release *out.
 */
tess_status tess_group_batch(struct tess_group *g, const struct tess_coll *const *c, uint32_t n,
                             struct tess_work **out);

/* Returns TESS_OK, TESS_PENDING or the failure of a work. Does not block. */
tess_status tess_work_test(struct tess_work *w);

/* Blocks until a work is done or the deadline passes: CLOCK_MONOTONIC, ns; 0: that of the call. */
tess_status tess_work_wait(struct tess_work *w, int64_t deadline);

/* Releases a work; blocks until it is done. NULL is accepted. */
void tess_work_release(struct tess_work *w);

/* Blocks until all ranks of the group have called it. where: place, for messages. */
tess_status tess_barrier(struct tess_group *g, const char *where);

/*
 * Copies buf[count] of rank `root` to buf[count] of all ranks. dtype: TESS_F32, ... where: place,
 * for messages. Blocks like tess_group_run.
 */
tess_status tess_broadcast(struct tess_group *g, void *buf, uint64_t count, int32_t dtype,
                           int32_t root, const char *where);

/*
 * Reduces src[count] of all ranks to dst[count] of all ranks; src may be dst. dtype: TESS_F32, ...
 * op: TESS_SUM, ... where: place, for messages. Blocks like tess_group_run.
 */
tess_status tess_all_reduce(struct tess_group *g, const void *src, void *dst, uint64_t count,
                            int32_t dtype, int32_t op, const char *where);

/*
 * Gathers src[count] of each rank to dst[ranks * count] of all ranks, in the order of ranks. In
 * place if src == dst: the own block is at its place in dst. dtype: TESS_F32, ... where: place, for
 * messages. Blocks like tess_group_run.
 */
tess_status tess_all_gather(struct tess_group *g, const void *src, void *dst, uint64_t count,
                            int32_t dtype, const char *where);

/* ---- meshes: ranks laid out in named dimensions ---------------------------------------------- */

/* The ranks of a world, laid out in named dimensions. */
struct tess_mesh;

/*
 * Opens a mesh and a group along each of its dimensions. text: "dp=2,tp=4" lays out the ranks of
 * the world in rows of 4; the last dimension varies fastest. At most 16 dimensions, whose sizes
 * multiply to the size of the world. One size may be absent: "dp,tp=4", "tp". Collective; blocks.
 * Close *out before the world.
 */
tess_status tess_mesh_open(struct tess_world *w, const char *text, struct tess_mesh **out);

/*
 * Counts the ranks of a mesh from its text, without ranks. An absent size counts as 1. text NULL: 1
 * rank. Not collective.
 */
tess_status tess_mesh_count_ranks(const char *text, int32_t *out);

/*
 * Opens the groups over several dimensions taken as one, such as "dp,tp"; the last one varies
 * fastest. Does nothing if they are open. Collective over the world; blocks.
 */
tess_status tess_mesh_slice(struct tess_mesh *m, const char *dims);

/*
 * Returns the group of this rank along a dimension, or over the dimensions of an opened slice. May
 * be the group of the world. Borrowed until the mesh is closed. NULL: there is none.
 */
struct tess_group *tess_mesh_group(const struct tess_mesh *m, const char *dims);

/*
 * Returns the number of ranks along one or more dimensions, even if their slice is not open. 0: a
 * dimension does not exist.
 */
int32_t tess_mesh_size(const struct tess_mesh *m, const char *dims);

/*
 * Returns this rank along one or more dimensions, even if their slice is not open. -1: a dimension
 * does not exist.
 */
int32_t tess_mesh_rank(const struct tess_mesh *m, const char *dims);

/*
 * Closes a mesh and its groups. While a session or a trainer is open on it, the mesh stays open and
 * the job fails. NULL is accepted.
 */
void tess_mesh_close(struct tess_mesh *m);

TESS_END
#endif
