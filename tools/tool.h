/* tool.h - the subcommands of `tessera`, one file each. */
#ifndef TESS_TOOL_H
#define TESS_TOOL_H

#include <tessera/plugin.h>

/* Each gets its own arguments, argv[0] included, and returns the exit status: 0, 1 failure, 2 usage. */
int tess_tool_info(int argc, char **argv);

/* Declares every option of the library, for lists and for warnings of misspelt ones. */
tess_status tess_tool_options(void);

#endif
