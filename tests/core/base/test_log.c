#include "core/base/log.h"
#include "tests/support/suite.h"

static void set_log_level(const char *spec)
{
	if (spec)
		setenv("TESSERA_LOG", spec, 1);
	else
		unsetenv("TESSERA_LOG");
}

START_TEST(filters)
{
	static const struct {
		const char *spec, *module;
		int32_t limit;
	} cases[] = {
		{ NULL, "gloo", TESS_WARN },
		{ "", "gloo", TESS_WARN },
		{ "error", "gloo", TESS_ERROR },
		{ "info", "gloo", TESS_INFO },
		{ "debug", "gloo", TESS_DEBUG },
		{ "debug,gloo=error", "gloo", TESS_ERROR },
		{ "debug,gloo=error", "glo", TESS_DEBUG },
		{ "debug,gloo=error", "gloo2", TESS_DEBUG },
		{ "gloo=debug", "gloo", TESS_DEBUG },
		{ "gloo=debug", "plan", TESS_WARN },
		{ "error,plan=info,gloo=debug", "gloo", TESS_DEBUG },
		{ "error,plan=info,gloo=debug", "plan", TESS_INFO },
		{ "error,plan=info,gloo=debug", "load", TESS_ERROR },
		{ "plan=info,error", "load", TESS_ERROR },
		{ "nonsense", "gloo", TESS_WARN },
		{ ",,=,gloo=,debug,", "plan", TESS_DEBUG },
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		set_log_level(cases[i].spec);
		for (int32_t l = TESS_ERROR; l <= TESS_DEBUG; l++)
			ck_assert_msg(tess_log_enabled(l, cases[i].module) == (l <= cases[i].limit),
			              "TESSERA_LOG=%s: %s at %d",
			              cases[i].spec ? cases[i].spec : "", cases[i].module, l);
	}
}
END_TEST

static void log_plain_lines(void)
{
	tess_log(TESS_INFO, "plan", "%d modules", 3);
	tess_log(TESS_WARN, "plan", "slow");
	tess_log(TESS_DEBUG, "plan", "not said");
	tess_log(0, "plan", "no level");
	tess_log(99, "plan", "no level");
}

static void log_as_rank(void)
{
	tess_log_set_rank(2, 4);
	tess_log(TESS_ERROR, "gloo", "gone");
	tess_log_set_rank(0, 1);
	tess_log(TESS_ERROR, "gloo", "gone");
}

static void log_long_line(void)
{
	tess_log(TESS_ERROR, "gloo", "%05000d", 7);
}

START_TEST(writes_lines)
{
	char captured[8192];

	set_log_level("info");
	capture_stderr(log_plain_lines, captured, sizeof captured);
	ck_assert_str_eq(captured, "plan: 3 modules\nplan: warning: slow\n");
	capture_stderr(log_as_rank, captured, sizeof captured);
	ck_assert_str_eq(captured, "[2/4] gloo: error: gone\ngloo: error: gone\n");
	capture_stderr(log_long_line, captured, sizeof captured);
	ck_assert_uint_gt(strlen(captured), 2000);
	ck_assert_uint_lt(strlen(captured), 2400);
	ck_assert_ptr_eq(strchr(captured, '\n'), captured + strlen(captured) - 1);
}
END_TEST

SUITE_MAIN("log", filters, writes_lines)
