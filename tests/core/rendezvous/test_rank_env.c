/*
 * test_rank_env.c - the rank of a process, by the variables of torchrun, mpirun, mpiexec and srun.
 */
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/rendezvous/rank_env.h"
#include "core/world/world.h"
#include "tests/support/suite.h"

#include <string.h>

static void set_launcher_env(const char *const *env)
{
	static const char *const known[] = {
		"RANK",
		"WORLD_SIZE",
		"LOCAL_RANK",
		"LOCAL_WORLD_SIZE",
		"MASTER_ADDR",
		"MASTER_PORT",
		"TESSERA_PORT",
		"SLURM_JOB_ID",
		"SLURM_STEP_ID",
		"SLURM_RESTART_COUNT",
		"TORCHELASTIC_RUN_ID",
		"TORCHELASTIC_RESTART_COUNT",
		"OMPI_COMM_WORLD_RANK",
		"OMPI_COMM_WORLD_SIZE",
		"PMI_RANK",
		"PMI_SIZE",
		"SLURM_PROCID",
		"SLURM_STEP_NUM_TASKS",
		"SLURM_LOCALID",
		"SLURM_STEP_NUM_NODES",
		"SLURM_STEP_NODELIST",
		"OMPI_COMM_WORLD_LOCAL_RANK",
		"OMPI_COMM_WORLD_LOCAL_SIZE",
		"MPI_LOCALRANKID",
		"MPI_LOCALNRANKS",
		"TESSERA_JOB",
		"TESSERA_RENDEZVOUS",
	};

	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		unsetenv(known[i]);
	for (; *env; env += 2)
		ck_assert_int_eq(setenv(env[0], env[1], 1), 0);
	ck_assert_int_eq(tess_option_add("world", tess_world_options), TESS_OK);
}

#define ENV(...) set_launcher_env((const char *const[]){ __VA_ARGS__, NULL })

static struct tess_rank_env read_rank_env(void)
{
	struct tess_rank_env s;

	ck_assert_msg(!tess_rank_env_read(&s), "%s", tess_error());
	return s;
}

static struct tess_meeting read_meeting(void)
{
	struct tess_rank_env s = read_rank_env();
	struct tess_meeting m;

	ck_assert_msg(!tess_rank_env_meeting(&s, &m), "%s", tess_error());
	return m;
}

static void expect_rank_env_refused(const char *word)
{
	struct tess_rank_env s;

	ck_assert_int_eq(tess_rank_env_read(&s), TESS_EINVAL);
	expect_part(tess_error(), word);
}

static void expect_meeting_refused(const char *word)
{
	struct tess_rank_env s = read_rank_env();
	struct tess_meeting m;

	ck_assert_int_eq(tess_rank_env_meeting(&s, &m), TESS_EINVAL);
	expect_part(tess_error(), word);
}

START_TEST(alone)
{
	struct tess_rank_env s;

	ENV("SLURM_PROCID", "3"); /* a batch script, not a step */
	s = read_rank_env();
	ck_assert(s.alone && s.rank == 0 && s.size == 1);
}
END_TEST

START_TEST(torchrun)
{
	struct tess_rank_env s;
	struct tess_meeting m;

	ENV("RANK", "2", "WORLD_SIZE", "4", "LOCAL_RANK", "2", "LOCAL_WORLD_SIZE", "4",
	    "MASTER_ADDR", "node7", "MASTER_PORT", "29500", "TORCHELASTIC_RUN_ID", "a/b c",
	    "TORCHELASTIC_RESTART_COUNT", "1");
	s = read_rank_env();
	ck_assert(!s.alone && s.rank == 2 && s.size == 4 && s.local == 2);
	ck_assert_str_eq(read_meeting().job, "run-a_b_c-29500-1");
	ck_assert(!s.hosts);
	ENV("RANK", "2", "WORLD_SIZE", "4", "LOCAL_RANK", "0", "LOCAL_WORLD_SIZE", "2",
	    "MASTER_ADDR", "node7", "MASTER_PORT", "29500", "TORCHELASTIC_RUN_ID", "a",
	    "TORCHELASTIC_RESTART_COUNT", "2");
	s = read_rank_env();
	ck_assert(s.hosts);
	m = read_meeting();
	ck_assert_str_eq(m.at.addr, "node7");
	ck_assert_str_eq(m.at.port, "29501"); /* one above torchrun's own port */
	ck_assert_str_eq(m.job, "run-a-29500-2");
}
END_TEST

START_TEST(by_hand)
{
	struct tess_meeting a, b;

	ENV("RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", "127.0.0.1");
	a = read_meeting();
	ENV("RANK", "1", "WORLD_SIZE", "2");
	b = read_meeting();
	ck_assert_str_eq(a.job, b.job); /* one parent */
	ENV("RANK", "1", "WORLD_SIZE", "2", "TESSERA_JOB", "mine");
	ck_assert_str_eq(read_meeting().job, "mine");
	ENV("RANK", "1", "WORLD_SIZE", "2", "MASTER_ADDR", "node7", "TESSERA_PORT", "4000");
	a = read_meeting();
	ck_assert(read_rank_env().hosts);
	ck_assert_str_eq(a.at.port, "4000");
	ck_assert_str_eq(a.job, "port-4000"); /* different parents */
	ENV("RANK", "1", "WORLD_SIZE", "2", "MASTER_ADDR", "node7");
	expect_meeting_refused("set TESSERA_PORT");
	ENV("RANK", "1", "WORLD_SIZE", "2", "LOCAL_WORLD_SIZE", "1");
	expect_meeting_refused("set MASTER_ADDR");
	ENV("RANK", "1", "WORLD_SIZE", "2", "MASTER_ADDR", "node7", "MASTER_PORT", "65535");
	expect_meeting_refused("MASTER_PORT=65535");
}
END_TEST

START_TEST(other_starters)
{
	struct tess_rank_env s;

	ENV("OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "3");
	s = read_rank_env();
	ck_assert(s.rank == 1 && s.size == 3);
	ENV("PMI_RANK", "4", "PMI_SIZE", "5");
	s = read_rank_env();
	ck_assert(s.rank == 4 && s.size == 5);
	ENV("SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "8", "SLURM_LOCALID", "1",
	    "SLURM_STEP_NUM_NODES", "1");
	s = read_rank_env();
	ck_assert(s.rank == 1 && s.size == 8 && s.local == 1 && !s.hosts);
	ENV("SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "8", "SLURM_STEP_NUM_NODES", "1",
	    "MASTER_ADDR", "node7");
	ck_assert(!read_rank_env().hosts);
	ENV("SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "8", "SLURM_STEP_NUM_NODES", "2",
	    "SLURM_JOB_ID", "123", "SLURM_STEP_ID", "4", "MASTER_ADDR", "node7", "MASTER_PORT",
	    "29500");
	s = read_rank_env();
	ck_assert(s.hosts);
	ck_assert_str_eq(read_meeting().job, "slurm-123-4-");
}
END_TEST

/*
 * Variables that srun 22.05 sets for a rank of `srun -N 2 -n 6`, and of a second concurrent step.
 */
#define SRUN(step, nodes, list) \
	"SLURM_JOB_ID", "123", "SLURM_JOBID", "123", "SLURM_JOB_NODELIST", "node[1-3,7]", \
		"SLURM_JOB_NUM_NODES", "4", "SLURM_NNODES", "4", "SLURM_NTASKS", "6", \
		"SLURM_NPROCS", "6", "SLURM_STEP_ID", step, "SLURM_STEPID", step, \
		"SLURM_STEP_NODELIST", list, "SLURM_STEP_NUM_NODES", nodes, \
		"SLURM_STEP_NUM_TASKS", "6", "SLURM_STEP_TASKS_PER_NODE", "3(x2)", "SLURM_PROCID", \
		"4", "SLURM_NODEID", "1", "SLURM_LOCALID", "1", "SLURM_GTIDS", "3,4,5", \
		"SLURM_TASKS_PER_NODE", "3(x2)"

START_TEST(srun)
{
	static const char *const lists[][2] = {
		{ "node[1-3,7]", "node1" }, { "node[007-012]", "node007" },
		{ "node[7,9]", "node7" },   { "alone", "alone" },
		{ "a,b[1-2]", "a" },        { "rack[1-2]node[3-4].site", "rack1node3.site" },
		{ "node[1", "node1" },
	};
	struct tess_meeting m;
	struct tess_rank_env s;

	ENV(SRUN("0", "2", "node[1-2]"));
	s = read_rank_env();
	ck_assert(!s.alone && s.rank == 4 && s.size == 6 && s.local == 1 && s.hosts);
	m = read_meeting();
	ck_assert_str_eq(m.job, "slurm-123-0-");
	ck_assert_str_eq(m.at.addr, "node1");
	ck_assert_str_eq(m.at.port, "15984");
	ENV(SRUN("1", "2", "node[1-2]"));
	ck_assert_str_eq(read_meeting().at.port, "15985"); /* other than the step before */
	ck_assert_str_eq(read_meeting().job, "slurm-123-1-");
	ENV(SRUN("1", "1", "node1"), "SLURM_RESTART_COUNT", "2");
	ck_assert(!read_rank_env().hosts);
	ck_assert_str_eq(read_meeting().job, "slurm-123-1-2");
	ENV(SRUN("0", "2", "node[1-2]"), "MASTER_ADDR", "10.0.0.1", "MASTER_PORT", "29500");
	ck_assert_str_eq(read_meeting().at.addr, "10.0.0.1");
	ck_assert_str_eq(read_meeting().at.port, "29501");
	ENV(SRUN("0", "2", "node[1-2]"), "TESSERA_PORT", "4000");
	ck_assert_str_eq(read_meeting().at.port, "4000");
	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
		ENV(SRUN("0", "2", lists[i][0]));
		ck_assert_str_eq(read_meeting().at.addr, lists[i][1]);
	}
}
END_TEST

START_TEST(several_starters)
{
	ENV("RANK", "1");
	expect_rank_env_refused("RANK=1 is set, and WORLD_SIZE is not");
	ENV("WORLD_SIZE", "4");
	expect_rank_env_refused("WORLD_SIZE=4 is set, and RANK is not");
	ENV("RANK", "0", "WORLD_SIZE", "4", "OMPI_COMM_WORLD_RANK", "2", "OMPI_COMM_WORLD_SIZE",
	    "4");
	expect_rank_env_refused(
		"RANK=0 and OMPI_COMM_WORLD_RANK=2 contradict each other in a job of 4 ranks; "
		"unset RANK");
	ENV("RANK", "2", "WORLD_SIZE", "6", SRUN("0", "1", "node1"));
	expect_rank_env_refused("RANK=2 and SLURM_PROCID=4");
	ENV("RANK", "4", "WORLD_SIZE", "6", SRUN("0", "1", "node1"));
	ck_assert_int_eq(read_rank_env().rank, 4);
	ENV("RANK", "3", "WORLD_SIZE", "6", "TORCHELASTIC_RUN_ID", "a", SRUN("0", "1", "node1"));
	ck_assert_int_eq(read_rank_env().rank, 3); /* an agent of torchrun on each node */
	ENV("RANK", "1", "WORLD_SIZE", "2", "TESSERA_RENDEZVOUS", "/tmp/a",
	    SRUN("0", "1", "node1"));
	ck_assert_int_eq(read_rank_env().rank, 1); /* tessera launch within a step */
	ENV("OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2", SRUN("0", "1", "node1"));
	ck_assert_int_eq(read_rank_env().size, 2); /* mpirun within an allocation */
	ENV("RANK", "1", "WORLD_SIZE", "4", "LOCAL_WORLD_SIZE", "8");
	expect_rank_env_refused("LOCAL_WORLD_SIZE=8: must be a number from 1 to 4");
	ENV("RANK", "1", "WORLD_SIZE", "4", "LOCAL_WORLD_SIZE", "2", "LOCAL_RANK", "2");
	expect_rank_env_refused("LOCAL_RANK=2: must be a number from 0 to 1");
	ENV("OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_LOCAL_SIZE",
	    "2");
	expect_meeting_refused("TESSERA_BACKEND=mpi");
}
END_TEST

START_TEST(nonsense)
{
	ENV("RANK", "4", "WORLD_SIZE", "4");
	expect_rank_env_refused("RANK=4: must be a number from 0 to 3");
	ENV("RANK", "-1", "WORLD_SIZE", "4");
	expect_rank_env_refused("RANK=-1");
	ENV("RANK", "0", "WORLD_SIZE", "many");
	expect_rank_env_refused("WORLD_SIZE=many");
	ENV("RANK", "0", "WORLD_SIZE", "99999999999999999999");
	expect_rank_env_refused("WORLD_SIZE=9999");
}
END_TEST

SUITE_MAIN("rank_env", alone, torchrun, by_hand, other_starters, srun, several_starters, nonsense)
