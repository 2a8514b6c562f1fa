/* log.h - TESSERA_LOG=warn|info|debug[,part=level] on stderr; one write a line, "[rank/size]" prefixed. */
#ifndef TESS_BASE_LOG_H
#define TESS_BASE_LOG_H

#include <stdbool.h>
#include <tessera/plugin.h>

/* TESSERA_LOG, which is declared from the start. */
extern const struct tess_option tess_log_option;

/* TESS_EINVAL where it names a level that there is not: such a level counts as warn. */
tess_status tess_log_check(void);

/* `who` is the part that speaks ("gloo", "plan"); fmt has no newline. Errors and warnings by default. */
void tess_log(int32_t level, const char *part, const char *fmt, ...) TESS_PRINTF(3, 4);

/* Whether a line would be printed: for messages that are dear to make. */
bool tess_log_enabled(int32_t level, const char *part);

/* The prefix of this thread's lines from now on; size <= 1: none. */
void tess_log_set_rank(int32_t rank, int32_t size);

#endif
