/*
 * blocking_call.c - MPI's blocking calls: MPI_Init_thread, new communicators, MPI_Finalize.
 *
 * These calls wait for other ranks and cannot be cancelled, so a thread of their own makes them.
 * The caller waits until its deadline or a failure of the job. A thread that does not return is
 * abandoned, and MPI is not used again.
 *
 * MPI exists once per process, and so does the state here.
 */
#include "blocking_call.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CHECK_MS = 100 }; /* interval of a caller's checks for a failure of the job */

struct blocking_call {
	int (*run)(struct blocking_call *e);
	MPI_Comm comm;
	const int32_t *members; /* members of the new group; a copy, since the caller may return */
	int32_t nmembers;
	int key, err;
	bool done;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool running; /* the thread runs */
	bool up, ours; /* MPI is initialised; by this file */
	bool lost;
	struct blocking_call *call; /* the current call; abandoned with `lost` */
	void (*finish)(void); /* called before MPI_Finalize */
	int64_t patience; /* maximum ns of a call in this job */
	pid_t pid;
	int rank, size, level, tags;
	MPI_Comm all; /* a communicator of all ranks for this file */
	MPI_Datatype mebi;
} mpi = { .lock = PTHREAD_MUTEX_INITIALIZER, .all = MPI_COMM_NULL, .mebi = MPI_DATATYPE_NULL };

/* ---- the thread ------------------------------------------------------------------------------ */

static void *make_blocking_calls(void *arg)
{
	pthread_mutex_lock(&mpi.lock);
	for (;;) {
		struct blocking_call *e = mpi.call;

		if (!e) {
			pthread_cond_wait(&mpi.changed, &mpi.lock);
			continue;
		}
		pthread_mutex_unlock(&mpi.lock);
		e->err = e->run(e);
		pthread_mutex_lock(&mpi.lock);
		e->done = true;
		mpi.call = NULL;
		pthread_cond_broadcast(&mpi.changed);
	}
	return arg;
}

bool start_quiet_thread(void *(*run)(void *arg), void *arg, pthread_t *out)
{
	sigset_t all, before;
	int err;

	sigfillset(&all); /* signals belong to the program */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(out, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return !err;
}

static bool start_call_thread(void)
{
	pthread_condattr_t attr;
	pthread_t thread;

	if (mpi.running)
		return true;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&mpi.changed, &attr);
	pthread_condattr_destroy(&attr);
	mpi.running = start_quiet_thread(make_blocking_calls, NULL, &thread);
	if (mpi.running)
		pthread_detach(thread);
	return mpi.running;
}

/* Checks for a failure of the job by getting a key that is never set. */
tess_status check_job(const struct tess_store *store)
{
	uint64_t len = 1;
	char none;
	tess_status st = store->get(store->self, "mpi never says", tess_now(), &none, &len);

	return st == TESS_ETIMEOUT ? TESS_OK : st;
}

/* Waits for a change, for a limited time; the lock is held. */
static void await_change(int64_t deadline)
{
	int64_t check = tess_now() + CHECK_MS * (int64_t)TESS_MS;
	int64_t until = check < deadline ? check : deadline;
	struct timespec t = tess_timespec(until);

	pthread_cond_timedwait(&mpi.changed, &mpi.lock, &t);
}

/*
 * Lets the thread make call *e and waits for it; store NULL: even if the job fails. TESS_OK: e->err
 * is MPI's answer. Otherwise MPI and *e are lost; the call may still be running.
 */
static tess_status run_blocking_call(struct blocking_call *e, const struct tess_store *store,
                                     int64_t deadline, const char *what)
{
	tess_status st = TESS_OK;
	bool sent = false;

	pthread_mutex_lock(&mpi.lock);
	if (!start_call_thread())
		st = mpi_host->fail(TESS_EIO, "no thread for %s", what);
	while (st == TESS_OK && !e->done) {
		if (mpi.lost) {
			st = mpi_host->fail(TESS_EABORTED, "%s: MPI is not called after a failure",
			                    what);
			break;
		}
		if (!sent && !mpi.call) {
			sent = true;
			mpi.call = e;
			pthread_cond_broadcast(&mpi.changed);
		}
		await_change(deadline);
		if (e->done)
			break;
		pthread_mutex_unlock(&mpi.lock);
		st = store ? check_job(store) : TESS_OK;
		if (st == TESS_OK && tess_now() >= deadline)
			st = mpi_host->fail(TESS_ETIMEOUT, "%s did not return by the deadline",
			                    what);
		pthread_mutex_lock(&mpi.lock);
		mpi.lost = mpi.lost || (st != TESS_OK && !e->done);
	}
	if (e->done)
		st = TESS_OK;
	pthread_mutex_unlock(&mpi.lock);
	return st;
}

static tess_status fail_with_mpi_error(const char *what, int err)
{
	char text[MPI_MAX_ERROR_STRING] = "";
	int len;

	MPI_Error_string(err, text, &len);
	return mpi_host->fail(TESS_EIO, "%s: %s", what, text);
}

/* ---- up -------------------------------------------------------------------------------------- */

/* Returns whether mpirun started this process; otherwise MPI_COMM_WORLD has only this rank. */
static bool was_started_by_mpirun(void)
{
	static const char *const signs[] = { "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK",
		                             "PMI_FD" };
	int up = 0;

	for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
		if (getenv(signs[i]))
			return true;
	return MPI_Initialized(&up) == MPI_SUCCESS && up;
}

static int find_largest_tag(void)
{
	int *most = NULL, there = 0;

	MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, (void *)&most, &there);
	return there ? *most : 32767; /* the minimum in any MPI */
}

static int call_mpi_init(struct blocking_call *e)
{
	int up = 0, err;

	(void)e;
	MPI_Initialized(&up);
	mpi.ours = !up;
	if (up)
		err = MPI_Query_thread(&mpi.level);
	else
		err = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &mpi.level);
	if (!err && mpi.ours)
		MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	if (!err)
		err = MPI_Comm_rank(MPI_COMM_WORLD, &mpi.rank);
	if (!err)
		err = MPI_Comm_size(MPI_COMM_WORLD, &mpi.size);
	if (!err && mpi.level == MPI_THREAD_MULTIPLE)
		err = MPI_Comm_dup(MPI_COMM_WORLD, &mpi.all);
	if (!err && mpi.all != MPI_COMM_NULL)
		err = MPI_Comm_set_errhandler(mpi.all, MPI_ERRORS_RETURN);
	if (!err)
		err = MPI_Type_contiguous(1 << 20, MPI_BYTE, &mpi.mebi);
	if (!err)
		err = MPI_Type_commit(&mpi.mebi);
	mpi.tags = err ? 0 : find_largest_tag();
	return err;
}

static struct blocking_call *make_blocking_call(int (*run)(struct blocking_call *e),
                                                const int32_t *member, int32_t n)
{
	struct blocking_call *e = calloc(1, sizeof *e + (size_t)n * sizeof *member);

	if (!e)
		return NULL;
	e->run = run;
	e->comm = MPI_COMM_NULL;
	e->nmembers = n;
	if (n)
		e->members = memcpy(e + 1, member, (size_t)n * sizeof *member);
	return e;
}

tess_status blocking_init_mpi(int32_t rank, int32_t nranks, const struct tess_store *store,
                              int64_t deadline)
{
	struct blocking_call *e;
	tess_status st;

	if (mpi.up)
		return TESS_OK;
	if (!was_started_by_mpirun())
		return mpi_host->fail(
			TESS_EINVAL,
			"the ranks of backend mpi are started by mpirun: mpirun -n %d PROGRAM",
			(int)nranks);
	e = make_blocking_call(call_mpi_init, NULL, 0);
	if (!e)
		return mpi_host->fail(TESS_ENOMEM, "no memory for MPI_Init_thread");
	mpi.patience = deadline - tess_now();
	mpi.pid = getpid();
	st = run_blocking_call(e, store, deadline, "MPI_Init_thread");
	if (st == TESS_ETIMEOUT && !store)
		return mpi_host->fail(
			st,
			"MPI_Init_thread did not return by the deadline: it waits for "
			"all %d ranks, and does not say which has not come",
			(int)nranks);
	if (st < 0)
		return st;
	mpi.up = true; /* the job's first group is opened alone */
	if (mpi.ours)
		atexit(blocking_finalize_mpi); /* for programs that do not finalize MPI */
	st = e->err ? fail_with_mpi_error("MPI_Init_thread", e->err) : TESS_OK;
	free(e);
	if (st == TESS_OK && mpi.level < MPI_THREAD_MULTIPLE)
		st = mpi_host->fail(
			TESS_ENOTSUP,
			"MPI is at thread level %d of 0 to 3, and MPI_THREAD_MULTIPLE (3) is "
			"needed; let the program call MPI_Init_thread with it, or not at all",
			mpi.level);
	if (st == TESS_OK && mpi.rank != rank)
		st = mpi_host->fail(
			TESS_EINVAL,
			"this process is rank %d of the job, but rank %d of %d for MPI; start "
			"the ranks by mpirun alone",
			(int)rank, mpi.rank, mpi.size);
	if (st < 0)
		abandon_mpi();
	return st;
}

MPI_Datatype get_mebibyte_type(void)
{
	return mpi.mebi;
}

/* ---- communicators --------------------------------------------------------------------------- */

static int call_create_group(struct blocking_call *e)
{
	MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
	int err = MPI_Comm_group(mpi.all, &all);

	if (!err)
		err = MPI_Group_incl(all, e->nmembers, e->members, &some);
	if (!err)
		err = MPI_Comm_create_group(mpi.all, some, e->key, &e->comm);
	if (!err)
		err = MPI_Comm_set_errhandler(e->comm, MPI_ERRORS_RETURN);
	if (some != MPI_GROUP_NULL)
		MPI_Group_free(&some);
	if (all != MPI_GROUP_NULL)
		MPI_Group_free(&all);
	return err;
}

/* Hashes the name of a group to a tag, which distinguishes groups that open at once. */
static int hash_group_name(const char *name)
{
	uint32_t h = 2166136261u;

	for (; *name; name++)
		h = (h ^ (unsigned char)*name) * 16777619u;
	return (int)(h % 32000);
}

static int call_comm_dup(struct blocking_call *e)
{
	int err = MPI_Comm_dup(mpi.all, &e->comm);

	return err ? err : MPI_Comm_set_errhandler(e->comm, MPI_ERRORS_RETURN);
}

tess_status blocking_open_world(int32_t nranks, int64_t deadline, MPI_Comm *comm)
{
	struct blocking_call *e;
	tess_status st;

	if (nranks != mpi.size)
		return mpi_host->fail(
			TESS_EINVAL,
			"the job has %d ranks, but MPI has %d; start all of them by one "
			"mpirun",
			(int)nranks, mpi.size);
	e = make_blocking_call(call_comm_dup, NULL, 0);
	if (!e)
		return mpi_host->fail(TESS_ENOMEM, "no memory for a communicator");
	st = run_blocking_call(e, NULL, deadline, "MPI_Comm_dup");
	if (st < 0)
		return st;
	st = e->err ? fail_with_mpi_error("MPI_Comm_dup", e->err) : TESS_OK;
	*comm = e->comm;
	free(e);
	return st;
}

tess_status blocking_open_group(const struct tess_group_entry *how, MPI_Comm *comm, int *tags)
{
	struct blocking_call *e;
	tess_status st;

	for (int32_t r = 0; r < how->nranks; r++)
		if (how->world[r] >= mpi.size)
			return mpi_host->fail(
				TESS_EINVAL,
				"rank %d is in the group, but MPI has %d ranks; start all of "
				"them by one mpirun",
				(int)how->world[r], mpi.size);
	e = make_blocking_call(call_create_group, how->world, how->nranks);
	if (!e)
		return mpi_host->fail(TESS_ENOMEM, "no memory for a communicator");
	e->key = hash_group_name(how->name);
	st = run_blocking_call(e, how->store, how->deadline, "MPI_Comm_create_group");
	if (st < 0)
		return st;
	st = e->err ? fail_with_mpi_error("MPI_Comm_create_group", e->err) : TESS_OK;
	*comm = e->comm;
	*tags = mpi.tags;
	free(e);
	return st;
}

static int call_comm_free(struct blocking_call *e)
{
	return MPI_Comm_free(&e->comm);
}

/* Makes the last call of MPI or of a communicator, with the deadline of the job's calls. */
static void run_last_call(int (*run)(struct blocking_call *e), MPI_Comm comm, const char *what)
{
	struct blocking_call *e = make_blocking_call(run, NULL, 0);

	if (!e)
		return;
	e->comm = comm;
	if (run_blocking_call(e, NULL, tess_now() + mpi.patience, what) == TESS_OK)
		free(e);
}

void blocking_close_comm(MPI_Comm *comm)
{
	if (*comm != MPI_COMM_NULL && !mpi.lost)
		run_last_call(call_comm_free, *comm, "MPI_Comm_free");
	*comm = MPI_COMM_NULL;
}

/* ---- down ------------------------------------------------------------------------------------ */

void abandon_mpi(void)
{
	pthread_mutex_lock(&mpi.lock);
	mpi.lost = true;
	pthread_mutex_unlock(&mpi.lock);
}

void blocking_set_finish(void (*finish)(void))
{
	mpi.finish = finish;
}

static int call_mpi_finalize(struct blocking_call *e)
{
	int down = 0;

	MPI_Finalized(&down);
	if (down)
		return MPI_SUCCESS;
	MPI_Comm_free(&mpi.all);
	MPI_Type_free(&mpi.mebi);
	e->comm = MPI_COMM_NULL;
	return MPI_Finalize();
}

/*
 * Finalizes MPI, except after a failure: MPI_Finalize would wait for dead ranks. The process then
 * ends without it, and mpirun ends the others. A forked child has no MPI.
 */
void blocking_finalize_mpi(void)
{
	bool up;

	if (mpi.up && mpi.pid == getpid() && mpi.finish)
		mpi.finish();
	pthread_mutex_lock(&mpi.lock);
	up = mpi.up && mpi.ours && !mpi.lost && mpi.pid == getpid();
	mpi.ours = false;
	pthread_mutex_unlock(&mpi.lock);
	if (up)
		run_last_call(call_mpi_finalize, MPI_COMM_NULL, "MPI_Finalize");
}
