/*
 * errand.c - MPI's blocking calls: MPI_Init_thread, new communicators, MPI_Finalize.
 *
 * They wait for other ranks and cannot be given up, so one thread does nothing else than make them.
 * Whoever sends it waits no longer than its deadline and than the job is well; a thread that does not
 * come back is left behind, and so is MPI.
 *
 * MPI is one for the process, so what is known of it is, too.
 */
#include "member.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_MS = 100 }; /* how often an errand looks whether the job is well */

struct errand {
	int (*run)(struct errand *e);
	MPI_Comm comm;
	const int32_t *member; /* of the new group; a copy, for whoever waits may be gone */
	int32_t nmembers;
	int key, err;
	bool done;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool running; /* the thread */
	bool up, ours; /* MPI is initialised; by us */
	bool lost;
	struct errand *errand; /* the one that is out; left behind with `lost` */
	int64_t patience; /* ns that a call has in this job */
	pid_t pid;
	int rank, size, level, tags;
	MPI_Comm all; /* all ranks, for ourselves */
	MPI_Datatype mebi;
} mpi = { .lock = PTHREAD_MUTEX_INITIALIZER, .all = MPI_COMM_NULL, .mebi = MPI_DATATYPE_NULL };

int64_t mpi_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- the thread -------------------------------------------------------------------------------- */

static void *run_errands(void *arg)
{
	pthread_mutex_lock(&mpi.lock);
	for (;;) {
		struct errand *e = mpi.errand;

		if (!e) {
			pthread_cond_wait(&mpi.changed, &mpi.lock);
			continue;
		}
		pthread_mutex_unlock(&mpi.lock);
		e->err = e->run(e);
		pthread_mutex_lock(&mpi.lock);
		e->done = true;
		mpi.errand = NULL;
		pthread_cond_broadcast(&mpi.changed);
	}
	return arg;
}

bool errand_thread(void *(*run)(void *arg), void *arg, pthread_t *out)
{
	sigset_t all, before;
	int err;

	sigfillset(&all); /* signals are the program's */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(out, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return !err;
}

static bool start_thread(void)
{
	pthread_condattr_t attr;
	pthread_t thread;

	if (mpi.running)
		return true;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&mpi.changed, &attr);
	pthread_condattr_destroy(&attr);
	mpi.running = errand_thread(run_errands, NULL, &thread);
	if (mpi.running)
		pthread_detach(thread);
	return mpi.running;
}

/* What is asked for is never there. */
tess_status errand_state(const struct tess_store *store)
{
	uint64_t len = 1;
	char none;
	tess_status st = store->get(store->self, "mpi never says", mpi_now(), &none, &len);

	return st == TESS_ETIMEOUT ? TESS_OK : st;
}

/* Lets others run for a while, or until something has changed; the lock is held. */
static void pause_until(int64_t deadline)
{
	int64_t look = mpi_now() + LOOK_MS * INT64_C(1000000);
	int64_t until = look < deadline ? look : deadline;
	struct timespec t = { .tv_sec = until / 1000000000, .tv_nsec = until % 1000000000 };

	pthread_cond_timedwait(&mpi.changed, &mpi.lock, &t);
}

/*
 * Has *e run, one at a time, and waits for it; store NULL: whatever becomes of the job. TESS_OK: it is
 * done, and e->err is MPI's answer. Else MPI is lost and so is *e, which may still be run.
 */
static tess_status send(struct errand *e, const struct tess_store *store, int64_t deadline,
                        const char *what)
{
	tess_status st = TESS_OK;
	bool sent = false;

	pthread_mutex_lock(&mpi.lock);
	if (!start_thread())
		st = mpi_host->fail(TESS_EIO, "no thread for %s", what);
	while (st == TESS_OK && !e->done) {
		if (mpi.lost) {
			st = mpi_host->fail(TESS_EABORTED, "%s: MPI is let alone after a failure",
			                    what);
			break;
		}
		if (!sent && !mpi.errand) {
			sent = true;
			mpi.errand = e;
			pthread_cond_broadcast(&mpi.changed);
		}
		pause_until(deadline);
		if (e->done)
			break;
		pthread_mutex_unlock(&mpi.lock);
		st = store ? errand_state(store) : TESS_OK;
		if (st == TESS_OK && mpi_now() >= deadline)
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

static tess_status complain(const char *what, int err)
{
	char text[MPI_MAX_ERROR_STRING] = "";
	int len;

	MPI_Error_string(err, text, &len);
	return mpi_host->fail(TESS_EIO, "%s: %s", what, text);
}

/* ---- up ------------------------------------------------------------------------------------------ */

/* With this MPI every rank of the job is in one MPI_COMM_WORLD of its own, unless mpirun started it. */
static bool was_started(void)
{
	static const char *const signs[] = { "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK",
		                             "PMI_FD" };
	int up = 0;

	for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
		if (getenv(signs[i]))
			return true;
	return MPI_Initialized(&up) == MPI_SUCCESS && up;
}

static int find_tags(void)
{
	int *most = NULL, there = 0;

	MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, (void *)&most, &there);
	return there ? *most : 32767; /* what every MPI has */
}

static int run_init(struct errand *e)
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
	mpi.tags = err ? 0 : find_tags();
	return err;
}

static struct errand *new_errand(int (*run)(struct errand *e), const int32_t *member, int32_t n)
{
	struct errand *e = calloc(1, sizeof *e + (size_t)n * sizeof *member);

	if (!e)
		return NULL;
	e->run = run;
	e->comm = MPI_COMM_NULL;
	e->nmembers = n;
	if (n)
		e->member = memcpy(e + 1, member, (size_t)n * sizeof *member);
	return e;
}

tess_status errand_init(int32_t rank, int32_t nranks, const struct tess_store *store,
                        int64_t deadline)
{
	struct errand *e;
	tess_status st;

	if (mpi.up)
		return TESS_OK;
	if (!was_started())
		return mpi_host->fail(
			TESS_EINVAL,
			"the ranks of backend mpi are started by mpirun: mpirun -n %d PROGRAM",
			(int)nranks);
	e = new_errand(run_init, NULL, 0);
	if (!e)
		return mpi_host->fail(TESS_ENOMEM, "no memory for MPI_Init_thread");
	mpi.patience = deadline - mpi_now();
	mpi.pid = getpid();
	st = send(e, store, deadline, "MPI_Init_thread");
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
		atexit(errand_finish); /* for programs that do not say when they end */
	st = e->err ? complain("MPI_Init_thread", e->err) : TESS_OK;
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
		errand_lose();
	return st;
}

MPI_Datatype errand_mebi(void)
{
	return mpi.mebi;
}

/* ---- communicators ------------------------------------------------------------------------------- */

static int run_open(struct errand *e)
{
	MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
	int err = MPI_Comm_group(mpi.all, &all);

	if (!err)
		err = MPI_Group_incl(all, e->nmembers, e->member, &some);
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

/* Groups that open at once are told apart by a tag made of their names. */
static int key_of(const char *name)
{
	uint32_t h = 2166136261u;

	for (; *name; name++)
		h = (h ^ (unsigned char)*name) * 16777619u;
	return (int)(h % 32000);
}

static int run_dup(struct errand *e)
{
	int err = MPI_Comm_dup(mpi.all, &e->comm);

	return err ? err : MPI_Comm_set_errhandler(e->comm, MPI_ERRORS_RETURN);
}

tess_status errand_open_all(int32_t nranks, int64_t deadline, MPI_Comm *comm)
{
	struct errand *e;
	tess_status st;

	if (nranks != mpi.size)
		return mpi_host->fail(
			TESS_EINVAL,
			"the job has %d ranks, but MPI has %d; start all of them by one "
			"mpirun",
			(int)nranks, mpi.size);
	e = new_errand(run_dup, NULL, 0);
	if (!e)
		return mpi_host->fail(TESS_ENOMEM, "no memory for a communicator");
	st = send(e, NULL, deadline, "MPI_Comm_dup");
	if (st < 0)
		return st;
	st = e->err ? complain("MPI_Comm_dup", e->err) : TESS_OK;
	*comm = e->comm;
	free(e);
	return st;
}

tess_status errand_open(const struct tess_join *how, MPI_Comm *comm, int *tags)
{
	struct errand *e;
	tess_status st;

	for (int32_t r = 0; r < how->nranks; r++)
		if (how->world[r] >= mpi.size)
			return mpi_host->fail(
				TESS_EINVAL,
				"rank %d is in the group, but MPI has %d ranks; start all of "
				"them by one mpirun",
				(int)how->world[r], mpi.size);
	e = new_errand(run_open, how->world, how->nranks);
	if (!e)
		return mpi_host->fail(TESS_ENOMEM, "no memory for a communicator");
	e->key = key_of(how->name);
	st = send(e, how->store, how->deadline, "MPI_Comm_create_group");
	if (st < 0)
		return st;
	st = e->err ? complain("MPI_Comm_create_group", e->err) : TESS_OK;
	*comm = e->comm;
	*tags = mpi.tags;
	free(e);
	return st;
}

static int run_close(struct errand *e)
{
	return MPI_Comm_free(&e->comm);
}

/* The last that is asked of MPI, or of a communicator; it has the patience of the job's calls. */
static void send_last(int (*run)(struct errand *e), MPI_Comm comm, const char *what)
{
	struct errand *e = new_errand(run, NULL, 0);

	if (!e)
		return;
	e->comm = comm;
	if (send(e, NULL, mpi_now() + mpi.patience, what) == TESS_OK)
		free(e);
}

void errand_close(MPI_Comm *comm)
{
	if (*comm != MPI_COMM_NULL && !mpi.lost)
		send_last(run_close, *comm, "MPI_Comm_free");
	*comm = MPI_COMM_NULL;
}

/* ---- down ---------------------------------------------------------------------------------------- */

void errand_lose(void)
{
	pthread_mutex_lock(&mpi.lock);
	mpi.lost = true;
	pthread_mutex_unlock(&mpi.lock);
}

static int run_finalize(struct errand *e)
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
 * After a failure MPI_Finalize would wait for the dead: it is left out, the process ends without it,
 * and mpirun, which sees that, ends the rest. A forked child has no MPI.
 */
void errand_finish(void)
{
	bool up;

	if (mpi.up && mpi.pid == getpid())
		line_finish();
	pthread_mutex_lock(&mpi.lock);
	up = mpi.up && mpi.ours && !mpi.lost && mpi.pid == getpid();
	mpi.ours = false;
	pthread_mutex_unlock(&mpi.lock);
	if (up)
		send_last(run_finalize, MPI_COMM_NULL, "MPI_Finalize");
}
