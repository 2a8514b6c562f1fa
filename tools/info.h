/* info.h - the parts of `tessera info`. */
#ifndef TESS_TOOLS_INFO_H
#define TESS_TOOLS_INFO_H

#include "tool.h"

#include <jansson.h>

/*
 * Describes a checkpoint, a save, or all saves of a folder, newest first, as
 * {"checkpoints": [...]}. Reads everything that has a checksum. NULL: out of memory.
 */
json_t *tess_info_describe(const char *dir);
/* Prints a description, and problems on stderr; returns the exit status: 1 after a problem. */
int tess_info_show(json_t *described, bool json);

#endif
