/* log.h - logs to stderr by TESSERA_LOG; one write per line, with the prefix "[rank/size]". */
#ifndef TESS_BASE_LOG_H
#define TESS_BASE_LOG_H

#include <stdbool.h>
#include <tessera/plugin.h>

/* The option TESSERA_LOG, which is always declared. */
extern const struct tess_option tess_log_option;

/* Fails with TESS_EINVAL if TESSERA_LOG has an unknown level, which acts as warn. */
tess_status tess_log_check(void);

/* Logs a line of a part of the program ("gloo", "plan"); fmt has no newline. */
void tess_log(int32_t level, const char *part, const char *fmt, ...) TESS_PRINTF(3, 4);

/* Returns whether a line would be printed, for messages that are expensive to format. */
bool tess_log_enabled(int32_t level, const char *part);

/* Sets the prefix of this thread's lines; size <= 1: none. */
void tess_log_set_rank(int32_t rank, int32_t size);

#endif
