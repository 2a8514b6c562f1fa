#include "core/base/log.h"

#include "core/base/option.h"
#include "core/base/status.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { WAIT_MS = 1000 }; /* maximum wait for a non-blocking stderr that is full */

const struct tess_option tess_log_option = {
	"log",
	"warn",
	"levels logged to stderr: error, warn, info or debug; then part=level, separated "
	"by commas",
};

static _Thread_local int32_t thread_rank, thread_size;

/* Returns the level of a name; 0: unknown. */
static int32_t find_level(const char *name, size_t len)
{
	static const char *const names[] = { "", "error", "warn", "info", "debug" };

	for (int32_t i = TESS_ERROR; i <= TESS_DEBUG; i++)
		if (strlen(names[i]) == len && !strncmp(names[i], name, len))
			return i;
	return 0;
}

static int32_t parse_level(const char *name, size_t len)
{
	int32_t level = find_level(name, len);

	return level ? level : TESS_WARN;
}

tess_status tess_log_check(void)
{
	const char *item = tess_option_get("log");

	while (*item) {
		size_t len = strcspn(item, ","), name = strcspn(item, "=,"),
		       at = name < len ? name + 1 : 0;

		if (len && !find_level(item + at, len - at))
			return tess_fail(
				TESS_EINVAL,
				"TESSERA_LOG=%s: \"%.*s\" is not a level; use error, warn, info "
				"or debug, then part=level, separated by commas",
				tess_option_get("log"), (int)(len - at), item + at);
		item += len + (item[len] == ',');
	}
	return TESS_OK;
}

bool tess_log_enabled(int32_t level, const char *part)
{
	const char *spec = tess_option_get("log"), *item = spec;
	int32_t limit = TESS_WARN;

	while (*item) {
		size_t len = strcspn(item, ","), name = strcspn(item, "=,");

		if (name == len)
			limit = parse_level(item, len);
		else if (name == strlen(part) && !strncmp(item, part, name))
			return level <= parse_level(item + name + 1, len - name - 1);
		item += len + (item[len] == ',');
	}
	return level <= limit;
}

void tess_log(int32_t level, const char *part, const char *fmt, ...)
{
	static const char *const labels[] = { "", "error: ", "warning: ", "", "debug: " };
	char line[2304];
	int n = 0, more;
	va_list ap;

	if (level < TESS_ERROR || level > TESS_DEBUG || !tess_log_enabled(level, part))
		return;
	if (thread_size > 1)
		n = snprintf(line, sizeof line, "[%d/%d] ", thread_rank, thread_size);
	n += snprintf(line + n, sizeof line - (size_t)n, "%s: %s", part, labels[level]);
	va_start(ap, fmt);
	more = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
	va_end(ap);
	n += more < 0 ? 0 : more;
	if ((size_t)n > sizeof line - 2)
		n = sizeof line - 2;
	line[n++] = '\n';
	while (write(STDERR_FILENO, line, (size_t)n) < 0) {
		struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };

		if (errno != EINTR && (errno != EAGAIN || poll(&p, 1, WAIT_MS) != 1))
			return; /* there is no other place to report it */
	}
}

void tess_log_set_rank(int32_t rank, int32_t size)
{
	thread_rank = rank;
	thread_size = size;
}
