/*
 * test_hosts.c - ranks of several hosts: they meet over TCP and prove a secret. The hosts are this
 * one, and two network namespaces where possible. This program also runs as the ranks.
 */
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/rendezvous/net.h"
#include "tests/support/job_fixture.h"
#include "tests/support/netns.h"
#include "tests/support/suite.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 4 };

/* ---- the tests ------------------------------------------------------------------------------- */

START_TEST(ranks_meet)
{
	struct process p[N];

	process_start_all(p, "work", N);
	for (int i = 0; i < N; i++)
		job_fixture_expect_exit(&p[i], 0, "ready");
}
END_TEST

/* Kills a rank; returns the time until every other rank had failed. */
static int64_t measure_kill_of_host_rank(int rank)
{
	struct process p[3];
	int64_t began, longest = 0;

	job_fixture_hold_ranks();
	process_start_all(p, "work", 3);
	process_await_all(p, 3);
	began = tess_now();
	kill(p[rank].pid, SIGKILL);
	unlink(hold_path);
	for (int i = 0; i < 3; i++) {
		process_finish(&p[i], TEST_TIMEOUT_MS);
		if (i == rank)
			continue;
		expect_part(p[i].text, rank == 0   ? "rank 0"
		                       : rank == 1 ? "rank 1 (process"
		                                   : "rank 2 (process");
		expect_part(p[i].text, rank == 0 ? "has ended" : "of 127.0.0.1) has ended");
		longest = p[i].ended_at - began > longest ? p[i].ended_at - began : longest;
	}
	return longest;
}

START_TEST(a_rank_is_killed)
{
	process_expect_within_second(measure_kill_of_host_rank, _i);
}
END_TEST

/* Stops a process on another host, which the server sees only as silence. */
START_TEST(a_rank_is_stopped)
{
	struct process p[3];

	job_fixture_hold_ranks();
	setenv("TESSERA_TIMEOUT", "2", 1);
	process_start_all(p, "work", 3);
	process_await_all(p, 3);
	kill(p[1].pid, SIGSTOP);
	unlink(hold_path);
	job_fixture_expect_exit(&p[0], 3, "rank 1 has sent nothing for ");
	job_fixture_expect_exit(&p[2], 3, "rank 1 has sent nothing for ");
	kill(p[1].pid, SIGCONT); /* it receives the job's result, and ends */
	job_fixture_expect_exit(&p[1], 3, "rank 1 has sent nothing for ");
}
END_TEST

/* Starts rank 1 of another job: it fails at once, and rank 0 names it at the deadline. */
START_TEST(one_does_not_belong)
{
	struct process p[2];

	process_start(&p[0], "hurry", 0, 2);
	process_start(&p[1], _i ? "elsewhere" : "other", 1, 2);
	job_fixture_expect_exit(&p[1], 2, "rejects this rank's proof");
	job_fixture_expect_exit(&p[0], 2,
	                        "rank 1 has not joined the job by the deadline of rank 0");
}
END_TEST

START_TEST(ranks_that_do_not_fit)
{
	struct process p[2];

	process_start(&p[0], "work", 0, 3);
	process_start(&p[1], "work", 1, 4);
	job_fixture_expect_exit(&p[0], 2, "rank 1 was started for 4 ranks, the job has 3");
	job_fixture_expect_exit(&p[1], 2, "rank 1 was started for 4 ranks, the job has 3");
}
END_TEST

START_TEST(the_port_is_taken)
{
	struct tess_hosts at = { .addr = "127.0.0.1" };
	struct process p;
	int fd;

	snprintf(at.port, sizeof at.port, "%s", job_port);
	ck_assert_msg(!tess_net_listen(&at, &fd), "%s", tess_error());
	process_start(&p, "work", 0, 2);
	job_fixture_expect_exit(&p, 2, "is in use, maybe by another job");
	close(fd);
}
END_TEST

START_TEST(a_rank_joins_twice)
{
	struct process p[3];

	for (int i = 0; i < 3; i++)
		process_start(&p[i], "work", i ? 1 : 0, 3);
	for (int i = 0; i < 3; i++) {
		job_fixture_expect_exit(&p[i], 2, "rank 1 joined twice: as process ");
		expect_part(p[i].text, " of 127.0.0.1 and as process ");
	}
}
END_TEST

START_TEST(bad_secrets)
{
	static const struct {
		const char *text;
		int mode;
		const char *says;
	} cases[] = {
		{ "0123456789abcdef0123456789abcde \n\n", 0600, "has 31 bytes, fewer than 32" },
		{ "0123456789abcdef0123456789abcdef", 0640, "has mode 0640 and is open to others" },
		{ "0123456789abcdef0123456789abcdef", 0604, "chmod 600" },
		{ "", 0600, "head -c 32 /dev/urandom | base64 >" },
	};
	struct tess_secret s;

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		job_fixture_write_file(secret_path, cases[i].text, cases[i].mode);
		ck_assert_int_ne(tess_secret_load(secret_path, "job", &s), TESS_OK);
		expect_part(tess_error(), cases[i].says);
	}
	ck_assert_int_eq(tess_secret_load("", "job", &s), TESS_EINVAL);
	expect_part(tess_error(), "umask 077");
	expect_part(tess_error(), "scp -p");
	ck_assert_int_eq(tess_secret_load("/nowhere", "job", &s), TESS_ENOENT);
	ck_assert_int_eq(tess_secret_load(job_dir, "job", &s), TESS_EPERM);
	ck_assert_int_eq(unlink(secret_path), 0);
	ck_assert_int_eq(symlink(other_secret_path, secret_path), 0);
	ck_assert_int_eq(tess_secret_load(secret_path, "job", &s), TESS_EPERM);
	expect_part(tess_error(), "is a symbolic link");
}
END_TEST

/* Checks known answers: HMAC-SHA-256 computed by Python's hmac. */
START_TEST(proofs)
{
	static const char known[] =
		"\xd9\xbc\xad\x4c\xa4\x7c\x68\x60\x82\x2e\x76\xc1\x69\x52\x06\x48"
		"\x35\xd4\x72\xdf\x76\xe0\x64\x64\xf4\xa1\xab\xc0\x95\x94\xcc\x82";
	unsigned char client[TESS_NONCE], server[TESS_NONCE], proof[TESS_PROOF];
	struct tess_secret s, t;

	ck_assert_msg(!tess_secret_load(secret_path, "tests", &s), "%s", tess_error());
	ck_assert_msg(!tess_secret_load(secret_path, "other", &t), "%s", tess_error());
	memset(client, 1, sizeof client);
	memset(server, 2, sizeof server);
	tess_secret_prove(&s, TESS_CLIENT, client, server, proof);
	ck_assert_mem_eq(proof, known, TESS_PROOF);
	ck_assert(tess_secret_check(&s, TESS_CLIENT, client, server, proof));
	ck_assert(!tess_secret_check(&s, TESS_SERVER, client, server, proof));
	ck_assert(!tess_secret_check(&s, TESS_CLIENT, server, client, proof));
	ck_assert(!tess_secret_check(&t, TESS_CLIENT, client, server, proof));
	proof[31] ^= 1;
	ck_assert(!tess_secret_check(&s, TESS_CLIENT, client, server, proof));
	tess_nonce_make(client);
	tess_nonce_make(server);
	ck_assert_mem_ne(client, server, TESS_NONCE);
}
END_TEST

START_TEST(bad_addresses_and_secrets)
{
	static const struct {
		const char *addr, *port, *file, *says;
	} cases[] = {
		{ "127.0.0.1", "0", NULL, "TESSERA_PORT" },
		{ "127.0.0.1", NULL, "", "scp -p" },
		{ "0.0.0.0", NULL, NULL, "stands for every address" },
		{ "192.0.2.1", NULL, NULL, "is an address of the host of rank 0" },
		{ "no.such.host.invalid", NULL, NULL, "is not a known host" },
		{ "", NULL, NULL, "set MASTER_ADDR" },
	};
	struct process p;

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		setenv("MASTER_ADDR", cases[i].addr, 1);
		setenv("TESSERA_PORT", cases[i].port ? cases[i].port : job_port, 1);
		setenv("TESSERA_SECRET_FILE", cases[i].file ? cases[i].file : secret_path, 1);
		process_start(&p, "hurry", 0, 2);
		job_fixture_expect_exit(&p, 2, cases[i].says);
	}
	setenv("MASTER_ADDR", "127.0.0.1", 1);
	process_start(&p, "hurry", 1, 2);
	job_fixture_expect_exit(&p, 2,
	                        "rank 0, which hosts the rendezvous, has not opened 127.0.0.1");
}
END_TEST

START_TEST(memory_is_not_shared_between_hosts)
{
	struct process p[2];

	setenv("TESSERA_BACKEND", "shm", 1);
	process_start_all(p, "work", 2);
	for (int i = 0; i < 2; i++)
		job_fixture_expect_exit(&p[i], 2,
		                        "those of shm share one; use TESSERA_BACKEND=auto");
}
END_TEST

/* ---- listening sockets ----------------------------------------------------------------------- */

static bool holds_inode(int pid, unsigned long inode)
{
	char path[300], want[64], link[64];
	bool found = false;
	struct dirent *e;
	DIR *d;

	snprintf(want, sizeof want, "socket:[%lu]", inode);
	snprintf(path, sizeof path, "/proc/%d/fd", pid);
	d = opendir(path);
	while (d && !found && (e = readdir(d))) {
		ssize_t n;

		snprintf(path, sizeof path, "/proc/%d/fd/%s", pid, e->d_name);
		n = readlink(path, link, sizeof link - 1);
		link[n > 0 ? n : 0] = '\0';
		found = !strcmp(link, want);
	}
	if (d)
		closedir(d);
	return found;
}

/* Counts the TCP sockets at which `pid` listens, and those of them at 127.0.0.1. */
static void count_listeners(int pid, int *all, int *loopback)
{
	static const char *const files[] = { "/proc/net/tcp", "/proc/net/tcp6" };

	*all = *loopback = 0;
	for (int i = 0; i < 2; i++) {
		char line[512], addr[64];
		unsigned int state;
		unsigned long inode;
		FILE *f = fopen(files[i], "r");

		while (f && fgets(line, sizeof line, f)) {
			if (sscanf(line, " %*d: %63s %*s %x %*s %*s %*s %*s %*s %lu", addr, &state,
			           &inode) != 3 ||
			    state != 0x0a || !holds_inode(pid, inode))
				continue;
			++*all;
			*loopback += !strncmp(addr, "0100007F:", 9);
		}
		if (f)
			fclose(f);
	}
}

/*
 * Checks that no rank of one host listens on TCP, and rank 0 of several hosts at one address, not
 * counting Gloo's own.
 */
START_TEST(listens_at_one_address)
{
	struct process p[2];
	int all[2], loopback[2];

	job_fixture_hold_ranks();
	setenv("LOCAL_WORLD_SIZE", _i ? "1" : "2", 1);
	setenv("TESSERA_BACKEND", _i ? "gloo" : "shm", 1);
	process_start_all(p, "work", 2);
	process_await_all(p, 2);
	for (int i = 0; i < 2; i++)
		count_listeners(p[i].pid, &all[i], &loopback[i]);
	unlink(hold_path);
	for (int i = 0; i < 2; i++)
		job_fixture_expect_exit(&p[i], 0, "ready");
	if (_i)
		ck_assert_int_eq(all[0], all[1] + 1);
	else
		ck_assert(all[0] == 0 && all[1] == 0);
	ck_assert(all[0] == loopback[0] && all[1] == loopback[1]);
	if (!_i) {
		char path[96];

		snprintf(path, sizeof path, "%s/tessera-%u", job_dir, (unsigned)geteuid());
		rmdir(path);
	}
}
END_TEST

/* ---- two hosts ------------------------------------------------------------------------------- */

/* Sets the variables of a Slurm step, which name the first node. */
static void set_slurm_env(void)
{
	static const char *const others[] = { "MASTER_ADDR", "TESSERA_PORT", "LOCAL_WORLD_SIZE",
		                              "TESSERA_JOB" };

	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		unsetenv(others[i]);
	setenv("SLURM_JOB_ID", "123", 1);
	setenv("SLURM_STEP_ID", "0", 1);
	setenv("SLURM_STEP_NUM_NODES", "2", 1);
	setenv("SLURM_STEP_NODELIST", "10.231.7.[1-2]", 1);
}

START_TEST(two_hosts)
{
	char name[16];
	struct process p[N];

	snprintf(name, sizeof name, "tt%d", (int)getpid());
	if (!netns_create(name))
		return;
	setenv("TEST_NETNS", name, 1);
	setenv("MASTER_ADDR", "10.231.7.1", 1);
	setenv("LOCAL_WORLD_SIZE", "2", 1);
	setenv("TESSERA_BACKEND", "auto", 1);
	if (_i)
		set_slurm_env();
	process_start_all(p, "work", N);
	for (int i = 0; i < N; i++)
		process_finish(&p[i], TEST_TIMEOUT_MS);
	netns_delete(name);
	for (int i = 0; i < N; i++) {
		expect_part(p[i].text, "ready");
		ck_assert_int_eq(p[i].status, 0);
	}
}
END_TEST

int main(int argc, char **argv)
{
	TCase *tcase;
	SRunner *runner;

	if (argc == 4)
		return job_fixture_run_rank(argv[1], argv[2], argv[3]);
	tcase = suite_begin("hosts", 120, &runner);
	tcase_add_checked_fixture(tcase, job_fixture_begin, job_fixture_end);
	tcase_add_test(tcase, ranks_meet);
	tcase_add_loop_test(tcase, a_rank_is_killed, 0, 3);
	tcase_add_test(tcase, a_rank_is_stopped);
	tcase_add_loop_test(tcase, one_does_not_belong, 0, 2);
	tcase_add_test(tcase, ranks_that_do_not_fit);
	tcase_add_test(tcase, the_port_is_taken);
	tcase_add_test(tcase, a_rank_joins_twice);
	tcase_add_test(tcase, bad_secrets);
	tcase_add_test(tcase, proofs);
	tcase_add_test(tcase, bad_addresses_and_secrets);
	tcase_add_test(tcase, memory_is_not_shared_between_hosts);
	tcase_add_loop_test(tcase, listens_at_one_address, 0, 2);
	tcase_add_loop_test(tcase, two_hosts, 0, 2);
	return suite_end(runner);
}
