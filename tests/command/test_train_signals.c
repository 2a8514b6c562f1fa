/*
 * test_train_signals.c - signals to tessera train, however its ranks are started: a request to end
 * keeps the completed steps, SIGUSR1 saves, and only a second request loses work.
 */
#include "train_command.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>

#define ARGS "--data '" STORIES "' --batch 4 --sequence 40 --steps 100000 --save saves --log lines"

/* The ways to start ranks. */
static const struct {
	const char *before, *args;
} starts[] = {
	{ "", "--threads 1" },
	{ "", "-n 2 --backend loopback" },
	{ "", "-n 2 --backend shm" },
	{ "'" TESSERA "' launch -n 2 --", "--backend shm" },
	/* torchrun: the agent forwards the signal to its workers */
	{ "sh -c 'p=; for r in 0 1; do RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 TESSERA_JOB=$$ \"$@\" & "
	  "p=\"$p $!\"; done; for s in HUP INT TERM USR1; do trap \"kill -$s $p\" $s; done; s=0; "
	  "for q in $p; do wait $q; r=$?; while kill -0 $q 2>/dev/null; do wait $q; r=$?; done; "
	  "[ $r = 0 ] || s=$r; done; exit $s' sh",
	  "--backend shm" },
};
enum { STARTS = sizeof starts / sizeof *starts, AGENT = STARTS - 1 };

/* Starts a run in a session of its own, with its number in $pid; waits for its first step. */
static const char *format_start(int which, const char *args)
{
	static char text[4096];

	snprintf(text, sizeof text,
	         "cd '%s'; rm -rf saves lines err; setsid %s '%s' train '%s' " ARGS
	         " %s %s >out 2>err & pid=$!; "
	         "while kill -0 $pid && [ ! -s lines ]; do sleep 0.02; done",
	         scratch, starts[which].before, TESSERA, format_data_path(""), starts[which].args,
	         args);
	return text;
}

/* Expects that the only save has the steps of the log. */
static void expect_all_saved(const char *text, long want)
{
	long status, saved, lines;
	const char *at = strstr(text, "status ");

	ck_assert_msg(
		at && sscanf(at, "status %ld\nstep-%ld\nlines %ld", &status, &saved, &lines) == 3,
		"%s", text);
	ck_assert_msg(status == want && saved == lines && saved > 0, "%s", text);
}

#define REPORT "wait $pid; echo status $?; ls saves; echo lines $(wc -l <lines); cat err"

/* ---- requests to end ------------------------------------------------------------------------- */

static const struct {
	const char *name;
	int number;
} requests[] = { { "INT", SIGINT }, { "TERM", SIGTERM }, { "HUP", SIGHUP } };
enum { REQUESTS = sizeof requests / sizeof *requests };

/* Checks that the current step is completed and saved; the signal may go to the process group. */
START_TEST(a_request_saves)
{
	int start = _i % STARTS, request = _i / STARTS;
	/*
	 * an agent alone gets no SIGINT: sh cannot trap signals that it ignores in the background
	 */
	bool group = start == AGENT ? request != 1 : (start + request) % 2;
	char text[TEXT];

	command_run(text, TEXT, "%s; kill -%s %s$pid; " REPORT, format_start(start, ""),
	            requests[request].name, group ? "-" : "");
	expect_all_saved(text, 128 + requests[request].number);
	ck_assert_int_eq(count_occurrences(text,
	                                   "tessera train: ends after this step, with a save; a "
	                                   "second Ctrl-C or SIGTERM ends it now, without one\n"),
	                 1);
}
END_TEST

/*
 * Runs to the second step, which takes a second, for signals in it. A second SIGTERM or SIGINT ends
 * the run before the step does, unlike SIGHUP.
 */
#define TRAIN_TO_STEP_2 \
	"cd '%s'; rm -rf saves err; setsid '%s' train '%s' --data '" STORIES \
	"' --batch %d --sequence 256 --steps 2 --save saves %s 2>err & pid=$!; " \
	"while kill -0 $pid && ! grep -qs 'step 1/2' err; do sleep 0.02; done; "
enum { SLOW_BATCH = THIN > 1 ? 16 : 64 };

START_TEST(a_second_request_ends_at_once)
{
	static const char *const second[] = { "TERM", "INT", "HUP" };
	int start = _i;
	char text[TEXT];

	command_run(text, TEXT,
	            TRAIN_TO_STEP_2 "kill -%s $pid; sleep 0.2; kill -%s $pid; wait $pid; "
	                            "echo status $?; ls saves",
	            scratch, TESSERA, format_data_path(""), SLOW_BATCH, starts[start].args,
	            _i < 2 ? "TERM" : "HUP", second[_i]);
	if (_i < 2)
		ck_assert_msg(!strcmp(text, "status 143\n") || !strcmp(text, "status 130\n"), "%s",
		              text);
	else
		ck_assert_str_eq(text, "status 129\nstep-2\n");
}
END_TEST

/* Checks that a save in progress leaves nothing, and that files of others stay. */
START_TEST(a_second_request_leaves_no_part)
{
	char text[TEXT];

	command_run(text, TEXT,
	            TRAIN_TO_STEP_2
	            "for p in $pid 1; do mkdir saves/step-1.$p-0.part; echo 1 "
	            ">saves/step-1.$p-0.part/training.json; done; kill -TERM $pid; sleep 0.2; "
	            "kill -TERM $pid; wait $pid; echo status $?; ls saves saves/*",
	            scratch, TESSERA, format_data_path(""), SLOW_BATCH, starts[_i].args);
	ck_assert_str_eq(text, "status 143\nsaves:\nstep-1.1-0.part\n\nsaves/step-1.1-0.part:\n"
	                       "training.json\n");
}
END_TEST

/* ---- terminals ------------------------------------------------------------------------------- */

/* Runs a shell command on a terminal of its own; returns the other end of the terminal. */
static int start_on_terminal(const char *command, pid_t *pid)
{
	int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);

	ck_assert(terminal >= 0 && !grantpt(terminal) && !unlockpt(terminal));
	*pid = fork();
	ck_assert(*pid >= 0);
	if (!*pid) {
		int fd = open(ptsname(terminal), O_RDWR | O_NOCTTY);

		setsid();
		ioctl(fd, TIOCSCTTY, 0);
		for (int i = 0; i < 3; i++)
			dup2(fd, i);
		close(fd);
		execl("/bin/sh", "sh", "-c", command, (char *)NULL);
		_exit(127);
	}
	return terminal;
}

static void wait_for(const char *what)
{
	char text[64];

	for (int i = 0; i < 3000; i++) {
		if (!command_run(text, sizeof text, "cd '%s' && %s", scratch, what))
			return;
		usleep(20000);
	}
	ck_abort_msg("not within a minute: %s", what);
}

/*
 * Closes a terminal. _i % 2: the session leader is the command, or a shell, which the terminal
 * ends.
 */
START_TEST(a_closed_terminal_saves)
{
	char command[4096], text[TEXT];
	int status, terminal;
	pid_t pid;

	snprintf(command, sizeof command, "cd '%s'; %s '%s' train '%s' " ARGS " %s%s", scratch,
	         _i % 2 ? "" : "exec", TESSERA, format_data_path(""), starts[_i / 2].args,
	         _i % 2 ? "; true" : "");
	command_run(text, TEXT, "rm -rf '%s'/*", scratch);
	terminal = start_on_terminal(command, &pid);
	wait_for("[ -s lines ]");
	close(terminal);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	if (_i % 2)
		ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGHUP);
	else
		ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 129, "%x", status);
	wait_for("ls saves | grep -qx 'step-[0-9]*'");
	command_run(text, TEXT,
	            "cd '%s'; echo status 129; ls saves; echo lines $(wc -l <lines); rm -r saves",
	            scratch);
	expect_all_saved(text, 129);
}
END_TEST

/* Checks that SIGHUP changes nothing under nohup. */
START_TEST(an_ignored_hangup_stays_ignored)
{
	char text[TEXT];

	command_run(text, TEXT,
	            "trap '' HUP; %s; kill -HUP $pid; n=$(wc -l <lines); "
	            "while kill -0 $pid && [ $(wc -l <lines) -lt $((n + 3)) ]; do sleep 0.02; "
	            "done; kill -TERM $pid; " REPORT,
	            format_start(_i, ""));
	expect_all_saved(text, 143);
}
END_TEST

/* ---- SIGUSR1 --------------------------------------------------------------------------------- */

/* Saves while the run continues, with a line that names the save. */
START_TEST(sigusr1_saves)
{
	char text[TEXT], line[128];
	long first, last;
	const char *at;

	command_run(text, TEXT,
	            "%s; kill -USR1 %s$pid; while kill -0 $pid && ! grep -q SIGUSR1 err; do "
	            "sleep 0.02; done; n=$(wc -l <lines); while kill -0 $pid && "
	            "[ $(wc -l <lines) -lt $((n + 3)) ]; do sleep 0.02; done; kill -TERM $pid; "
	            "wait $pid; echo status $?; sed -n 's/.*: saved /saved /p' err; ls -v saves; "
	            "echo lines $(wc -l <lines)",
	            format_start(_i, "--keep 0"), _i % 2 ? "-" : "");
	at = strstr(text, "status 143\nsaved saves/step-");
	ck_assert_msg(at && sscanf(at, "status 143\nsaved saves/step-%ld", &first) == 1, "%s",
	              text);
	snprintf(line, sizeof line, "\nstep-%ld\n", first);
	expect_part(text, line);
	at = strstr(text, "\nlines ");
	ck_assert_msg(at && sscanf(at, "\nlines %ld", &last) == 1 && last > first, "%s", text);
	snprintf(line, sizeof line, "\nstep-%ld\nlines", last);
	expect_part(text, line);
}
END_TEST

/* Checks that SIGUSR1 ends no command, even before its ranks run; a run without saves continues. */
START_TEST(sigusr1_ends_nothing)
{
	static const char *const commands[] = {
		"train . --data texts/stories.jsonl --batch 4 --sequence 40 --steps 60",
		"train . --data texts/stories.jsonl --batch 4 --sequence 40 --steps 60 -n 2 "
		"--backend shm",
		"generate . --max-tokens 400 --ignore-eos --prompt Once",
		"generate . --max-tokens 400 --ignore-eos --prompt Once -n 2 --backend shm",
		"perplexity . --text texts/stories.jsonl",
		"launch -n 2 -- sleep 1",
	};
	char text[TEXT];

	for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
		command_run(text, TEXT,
		            "cd '%s'; setsid '%s' %s >/dev/null 2>&1 & pid=$!; sleep 0.05; "
		            "while kill -USR1 %s$pid 2>/dev/null; do sleep 0.1; done; wait $pid; "
		            "echo status $?",
		            format_data_path(""), TESSERA, commands[i], i % 2 ? "" : "-");
		ck_assert_msg(!strcmp(text, "status 0\n"), "%s: %s", commands[i], text);
	}
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("train_signals", 120, &r);
	int failed;

	/* a runner in the background, or under nohup, leaves them ignored */
	signal(SIGHUP, SIG_DFL);
	signal(SIGINT, SIG_DFL);
	scratch_make();
	tcase_add_loop_test(t, a_request_saves, 0, STARTS * REQUESTS);
	tcase_add_loop_test(t, a_second_request_ends_at_once, 0, 3);
	tcase_add_loop_test(t, a_second_request_leaves_no_part, 0, 2);
	tcase_add_loop_test(t, a_closed_terminal_saves, 0, 6);
	tcase_add_loop_test(t, an_ignored_hangup_stays_ignored, 0, 3);
	tcase_add_loop_test(t, sigusr1_saves, 0, STARTS);
	tcase_add_test(t, sigusr1_ends_nothing);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}
