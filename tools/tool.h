/* tool.h - the subcommands of `tessera`, one file each. */
#ifndef TESS_TOOL_H
#define TESS_TOOL_H

#include <tessera/plugin.h>

/* Each gets its own arguments, argv[0] included, and returns the exit status: 0, 1 failure, 2 usage. */
int tess_tool_generate(int argc, char **argv);
int tess_tool_explain(int argc, char **argv);
int tess_tool_launch(int argc, char **argv);
int tess_tool_conform(int argc, char **argv);
int tess_tool_info(int argc, char **argv);

/* Runs this very command, argv as main got it, as `n` rank processes and waits; rank 0 speaks for all. */
tess_status tess_tool_ranks(int32_t n, char **argv, int *exit_status);

/* Declares every option of the library, for lists and for warnings of misspelt ones. */
tess_status tess_tool_options(void);

#endif
