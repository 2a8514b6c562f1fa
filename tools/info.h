/* info.h - the parts of `tessera info`. */
#ifndef TESS_TOOLS_INFO_H
#define TESS_TOOLS_INFO_H

#include "tool.h"

#include <jansson.h>

/*
 * Describes a checkpoint, a save, or all saves of a folder, the newest first, as
 * {"checkpoints": [...]}. All that a save has a checksum of is read. NULL: out of memory.
 */
json_t *tess_info_describe(const char *dir);
/* Prints that, and on stderr what is wrong; returns the exit status: 1 if something is. */
int tess_info_show(json_t *described, bool json);

#endif
