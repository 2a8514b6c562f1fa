/* records.h - the directory of a launcher in which its ranks leave their records (flight.h). */
#ifndef TESS_COMM_RECORDS_H
#define TESS_COMM_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A new one beside the sockets of jobs (wire.h), for this user alone. "": none can be made, which is said.
 * Returns a descriptor, its lock, to be closed at the end; or -1.
 */
int tess_records_make(char *path, size_t room);
/*
 * Removes the directories of launchers that are gone. Who makes one holds its lock until it, and all processes that
 * it has forked, have ended.
 */
void tess_records_sweep(void);
/* Empties it; "": nothing. */
void tess_records_clear(const char *path);
/* Removes it with what is in it; "": nothing. */
void tess_records_end(const char *path);
/* Whether the record of this rank is there. */
bool tess_records_has(const char *path, int32_t rank);

#endif
