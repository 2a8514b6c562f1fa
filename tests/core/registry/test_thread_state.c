/* test_thread_state.c - changes of a plugin to its calling thread, and signals of its threads. */
#include "tests/support/suite.h"

#include "tests/support/probe.h"

#include "core/registry/plugin_call.h"
#include "core/registry/registry.h"

#include <fenv.h>
#include <locale.h>
#include <signal.h>

static locale_t own;

static void expect_own_state(bool all)
{
	sigset_t mask;

	ck_assert_int_eq(fegetround(), FE_DOWNWARD);
	ck_assert(uselocale((locale_t)0) == own);
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	ck_assert(sigismember(&mask, SIGUSR1));
	if (all) {
		ck_assert(!sigismember(&mask, SIGUSR2));
		ck_assert_str_eq(setlocale(LC_ALL, NULL), "C");
	}
}

static void set_own_state(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_SETMASK, &set, NULL);
	fesetround(FE_DOWNWARD);
	own = newlocale(LC_ALL_MASK, "C", (locale_t)0);
	uselocale(own);
}

static const struct tess_style *find_careless_style(void)
{
	const struct tess_style *style = NULL;

	make_folder("careless");
	install_module("careless", "tess-style-careless.so");
	setenv("TESSERA_PLUGIN_PATH", folder, 1);
	set_own_state();
	ck_assert_msg(!tess_plugin_find_style("careless", &style), "%s", tess_error());
	return style;
}

START_TEST(state_is_as_before)
{
	const struct tess_style *style = find_careless_style();
	struct tess_site site = { .size = sizeof site };
	struct tess_io io = { 0 };
	void *state = NULL;

	expect_own_state(true);
	ck_assert(!TESS_PLUGIN_CALL(style, "m", layout, &site, &io));
	expect_own_state(true);
	TESS_PLUGIN_DO(style, NULL, layout, &site, &io);
	expect_own_state(true);
	ck_assert_msg(!TESS_PLUGIN_CALL(style, "m", open, &site, &state), "%s", tess_error());
	expect_own_state(true);
	ck_assert(!TESS_PLUGIN_CALL_QUICK(style, "m", layout, &site, &io));
	expect_own_state(false);
}
END_TEST

static void run_step_command(char out[4096], bool train, int n, const char *more)
{
	const char *data = require_env("DATA_DIR");
	char how[4096] = "generate --prompt hi --temperature 0 --max-tokens 8";

	if (train)
		snprintf(how, sizeof how,
		         "train --data '%s/texts/stories.jsonl' --sequence 32 --batch 2 --steps 2",
		         data);
	command_run(out, 4096,
	            "'%s' %s '%s' -n %d --plan none --digest %s 2>&1 | "
	            "grep -E '^(digest|losses|weights) '",
	            require_env("TOOL"), how, data, n, more);
}

/* Checks that a style that changes the rounding mode within steps leaves their bits unchanged. */
START_TEST(steps_round_as_before)
{
	static char want[4096], got[4096];

	make_folder("steps");
	install_module("careless", "tess-style-careless.so");
	setenv("TESSERA_PLUGIN_PATH", folder, 1);
	for (int train = 0; train < 2; train++)
		for (int n = 1; n <= 2; n++) {
			run_step_command(want, train, n, "");
			run_step_command(got, train, n, "--plan-override '**.down_proj=careless'");
			ck_assert_int_eq(*want, train ? 'l' : 'd');
			ck_assert_str_eq(got, want);
		}
}
END_TEST

/* Checks that the ranks' processes end, and the command with them. */
START_TEST(thread_takes_signals)
{
	static char want[4096], got[4096];
	const char *const generate = "timeout -s KILL 20 '%s' generate '%s' -n 2 --plan none "
				     "--prompt hi --temperature 0 --max-tokens 3 --digest %s 2>&1 "
				     "| grep digest";

	make_folder("signals");
	install_module("careless", "tess-style-careless.so");
	setenv("TESSERA_PLUGIN_PATH", folder, 1);
	setenv("CARELESS_TAKES_SIGNALS", "1", 1);
	command_run(want, sizeof want, generate, require_env("TOOL"), require_env("DATA_DIR"), "");
	for (int i = 0; i < 6; i++) {
		ck_assert_int_eq(command_run(got, sizeof got, generate, require_env("TOOL"),
		                             require_env("DATA_DIR"),
		                             "--plan-override lm_head=careless"),
		                 0);
		ck_assert_str_eq(got, want);
	}
}
END_TEST

SCRATCH_MAIN("thread_state", state_is_as_before, steps_round_as_before, thread_takes_signals)
