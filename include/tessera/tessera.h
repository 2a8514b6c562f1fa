/*
 * tessera/tessera.h - for programs: worlds, meshes, groups, and a checkpoint run with a plan.
 *
 * Every call that can fail returns a tess_status; after a failure tess_error() is the sentence that says
 * what, where, the rule and a way out. What comes through **out is yours, what is returned is borrowed.
 * No call blocks past its deadline: TESSERA_TIMEOUT seconds (default 300), or what the call is given.
 */
#ifndef TESSERA_TESSERA_H
#define TESSERA_TESSERA_H

#include <tessera/group.h>

TESS_BEGIN

/* This thread's last sentence; read it only after a failure. Borrowed, until the next failure. */
const char *tess_error(void);
/* "1.0.0" */
const char *tess_version(void);

/* ---- worlds: all ranks of a job ------------------------------------------------------------------ */
struct tess_world;

/*
 * Enters the job that the environment names: tessera launch, torchrun, mpirun or srun (docs/options.md
 * has the variables); alone: a world of one rank. Blocks until all ranks are there, or the deadline has
 * passed. Collective. One call a process.
 */
tess_status tess_world_open(struct tess_world **out);

/*
 * Runs fn(world, arg) on `n` threads, each a rank of a loopback world, and joins them. Returns the first
 * failure; its sentence is this thread's then. For tests, and for programs that want ranks as threads.
 * After a failure each rank has TESSERA_TIMEOUT to return. One that does not, as it hangs in code of its own, is
 * said on stderr after a second, named in the sentence at the end, and left behind: its thread may still use
 * what `arg` points to, so end the process.
 */
tess_status tess_world_spawn(int32_t n, tess_status (*fn)(struct tess_world *world, void *arg), void *arg);

int32_t tess_world_rank(const struct tess_world *w);
int32_t tess_world_size(const struct tess_world *w);
/* The name of the backend that its groups use: "loopback", "gloo", ... Borrowed. */
const char *tess_world_backend(const struct tess_world *w);

/* Tells every rank that this one gives up, and why: their pending and later calls fail with it. */
void tess_world_fail(struct tess_world *w, tess_status why, const char *sentence);

/*
 * Leaves in order: waits, in bounded time, for works that are not finished and until all ranks are here. Closes
 * its groups. NULL: nothing.
 */
void tess_world_close(struct tess_world *w);

/* ---- groups: ranks that talk ---------------------------------------------------------------------- */
struct tess_group;
struct tess_work;

/* The group of all ranks. Borrowed; opened with the world. */
struct tess_group *tess_world_group(struct tess_world *w);
int32_t tess_group_rank(const struct tess_group *g);
int32_t tess_group_size(const struct tess_group *g);
/* The world rank of the group's rank `rank`; -1: it has none such. */
int32_t tess_group_member(const struct tess_group *g, int32_t rank);
/* "world", "dp/1". Borrowed. */
const char *tess_group_name(const struct tess_group *g);

/*
 * Makes groups of the ranks of `parent`: those of one colour become a group, ordered by key, then by rank
 * in the parent. A negative colour: this rank is in none, and *out is NULL. `name`: 1 to 15 letters of
 * a-z 0-9 _, for messages, where "dp" with colour 1 is "dp/1"; NULL: "split". Collective over the parent;
 * *out is yours: close it, at the latest with the world. A rank that waits in one group need not get on in
 * another: works of several groups are waited for in the same order on all ranks.
 */
tess_status tess_group_split(struct tess_group *parent, int32_t colour, int32_t key, const char *name,
                             struct tess_group **out);
/*
 * This rank leaves a group that it has split off: each does by itself, and the parent may go first. Works
 * that are not finished are waited for, all are released. A member that calls it afterwards gets an error.
 * NULL: nothing.
 */
void tess_group_close(struct tess_group *g);

/*
 * Runs one collective of host memory and blocks until it is done here. Fields that are 0 are filled in:
 * mem, op (sum), print, and the deadline (now + TESSERA_TIMEOUT). All ranks make the same calls in the
 * same order; one that does not is named in the error of every rank. Buffers stay yours but may not be
 * touched until the group is closed if the call failed.
 */
tess_status tess_group_run(struct tess_group *g, const struct tess_coll *c);
/*
 * The same without waiting; several may be outstanding. *out is yours: release it. Buffers, lists and
 * `where` belong to the group until then. A wait whose deadline passes is a failure of the job, as its own
 * is; releasing a work that is not finished waits for it.
 */
tess_status tess_group_start(struct tess_group *g, const struct tess_coll *c, struct tess_work **out);
/*
 * Starts n calls, in this order, as one work, which is done when all are. None begins if one is refused.
 * Messages of a batch may come in any order on each rank; what one rank batches another may call singly.
 */
tess_status tess_group_batch(struct tess_group *g, const struct tess_coll *const *c, uint32_t n,
                             struct tess_work **out);
tess_status tess_work_test(struct tess_work *w);                        /* OK, PENDING or failed */
tess_status tess_work_wait(struct tess_work *w, int64_t deadline);      /* CLOCK_MONOTONIC ns; 0: its own */
void tess_work_release(struct tess_work *w);

/* The common ones by name. `where` goes into every message. In place where src == dst. */
tess_status tess_barrier(struct tess_group *g, const char *where);
tess_status tess_broadcast(struct tess_group *g, void *buf, uint64_t count, int32_t dtype, int32_t root,
                           const char *where);
tess_status tess_all_reduce(struct tess_group *g, const void *src, void *dst, uint64_t count, int32_t dtype,
                            int32_t op, const char *where);
tess_status tess_all_gather(struct tess_group *g, const void *src, void *dst, uint64_t count, int32_t dtype,
                            const char *where);

/* ---- meshes: ranks laid out in named dimensions ------------------------------------------------------- */
struct tess_mesh;

/*
 * "dp=2,tp=4": the ranks of the world in rows of 4, the last dimension varying fastest; at most 8
 * dimensions, whose sizes multiply to the ranks that there are. One may be left out and is computed:
 * "dp,tp=4", "tp". Opens a group along each dimension. Collective; *out is yours: close it before the world.
 */
tess_status tess_mesh_open(struct tess_world *w, const char *text, struct tess_mesh **out);
/*
 * Opens the groups over several dimensions taken as one, "dp,tp", the last one varying fastest.
 * Collective over the world; again for the same ones: nothing.
 */
tess_status tess_mesh_slice(struct tess_mesh *m, const char *dims);
/*
 * This rank's group along a dimension, or over those of a slice that was opened; NULL: there is none. It may
 * be the world's own group. Borrowed, until the mesh is closed.
 */
struct tess_group *tess_mesh_group(const struct tess_mesh *m, const char *dims);
/*
 * How many ranks there are along dimensions, and this one's place among them, whether or not a slice of
 * them was opened; 0, -1: there are no such.
 */
int32_t tess_mesh_size(const struct tess_mesh *m, const char *dims);
int32_t tess_mesh_rank(const struct tess_mesh *m, const char *dims);
void tess_mesh_close(struct tess_mesh *m);

/* ---- sessions: a checkpoint, cut by a plan, that runs ---------------------------------------------- */
struct tess_session;

struct tess_session_options {               /* zeroed but for size: the plan that the model ships with */
	uint32_t size;
	int32_t threads;                /* per rank; 0: TESSERA_THREADS, else this rank's share of the CPUs */
	const char *plan;               /* "auto" or NULL, "none", a plan of the model's, a file, or JSON text */
	const char *const *overrides;   /* "PATTERN=STYLE", laid over the plan; ends with NULL, or NULL */
	int32_t ignore_unexpected, zero; /* tensors that no module asks for: not an error but a warning */
};

/*
 * Opens a Hugging Face directory on the ranks of a group: checks the plan, then reads this rank's part of
 * each weight. Collective. *out is yours: tess_session_close, before the world is closed.
 */
tess_status tess_session_open(struct tess_group *g, const char *dir, const struct tess_session_options *options,
                              struct tess_session **out);

/*
 * Continues `prompt` (UTF-8; rank 0's counts) greedily by at most max_tokens ids, to the end that the model
 * chooses. On rank 0 text(self, ..) gets the bytes as they come, always whole characters; not 0: stop. Collective.
 */
tess_status tess_session_generate(struct tess_session *s, const char *prompt, int64_t max_tokens,
                              int (*text)(void *self, const char *bytes, size_t n), void *self);

void tess_session_close(struct tess_session *s);

TESS_END
#endif
