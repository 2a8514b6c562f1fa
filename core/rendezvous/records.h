/* records.h - the temporary directory of a launcher for the flight records of its ranks. */
#ifndef TESS_RENDEZVOUS_RECORDS_H
#define TESS_RENDEZVOUS_RECORDS_H

#include <stddef.h>

/*
 * Makes a directory next to the sockets of jobs (core/rendezvous/wire.h), mode 0700. Returns its
 * lock, a descriptor to close at the end. On failure returns -1 and "" and logs a warning.
 */
int tess_records_make(char *path, size_t size);
/*
 * Removes the directories of launchers that have ended. A lock is held until its launcher, and all
 * processes that it has forked, have ended.
 */
void tess_records_sweep(void);
/* Removes the files in the directory; "": does nothing. */
void tess_records_clear(const char *path);
/* Removes the directory and its files; "": does nothing. */
void tess_records_remove(const char *path);

#endif
