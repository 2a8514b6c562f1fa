/* arguments.c - numbers in arguments, and options that are wrong. */
#include "tool.h"

#include "core/base/status.h"

#include <errno.h>
#include <stdlib.h>

tess_status tess_tool_parse_integer(const char *name, const char *text, int64_t lo, int64_t hi,
                                    int64_t *out)
{
	char *end;
	long long v;

	errno = 0;
	v = strtoll(text, &end, 10);
	if (end == text || *end || errno || v < lo || v > hi)
		return tess_fail(TESS_EINVAL, "%s %s: must be a whole number from %lld to %lld",
		                 name, text, (long long)lo, (long long)hi);
	*out = v;
	return TESS_OK;
}

tess_status tess_tool_fail_option(const char *command, int opt, const char *word)
{
	return tess_fail(TESS_EINVAL, "%s %s; see tessera %s --help",
	                 opt == ':' ? "this option needs a value:" : "no such option:", word,
	                 command);
}
