/* tool.h - the subcommands of `tessera`, one file each. */
#ifndef TESS_TOOL_H
#define TESS_TOOL_H

#include <tessera/tessera.h>

struct tess_seat;

/* Each gets its own arguments, argv[0] included, and returns the exit status: 0, 1 failure, 2 usage. */
int tess_tool_generate(int argc, char **argv);
int tess_tool_explain(int argc, char **argv);
int tess_tool_launch(int argc, char **argv);
int tess_tool_bench(int argc, char **argv);
int tess_tool_conform(int argc, char **argv);
int tess_tool_info(int argc, char **argv);

/* The value `text` of the argument `name`: a whole number, lo to hi. */
tess_status tess_tool_whole(const char *name, const char *text, int64_t lo, int64_t hi,
                            int64_t *out);

/* Runs run(world, arg) as the rank of a job that somebody else started. n: what -n has said, or 0. */
tess_status tess_tool_join(int32_t n, const struct tess_seat *seat,
                           tess_status (*run)(struct tess_world *w, void *arg), void *arg);
/*
 * Runs it on n ranks: threads where there is one or the backend is loopback, else processes that run this
 * very command, argv as main got it, and join; rank 0 speaks for all. exit_status: theirs; threads leave it.
 */
tess_status tess_tool_ranks(int32_t n, char **argv,
                            tess_status (*run)(struct tess_world *w, void *arg), void *arg,
                            int *exit_status);

/* Declares every option of the library, for lists and for warnings of misspelt ones. */
tess_status tess_tool_options(void);

#endif
