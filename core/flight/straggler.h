/* behind.h - which rank the others wait for, from the records of all (flight.h). */
#ifndef TESS_COMM_BEHIND_H
#define TESS_COMM_BEHIND_H

#include <jansson.h>
#include <tessera/plugin.h>

/* What others know of a rank that may have left no record. */
struct tess_lost_rank {
	char how[128]; /* "was killed by signal 9 (Killed)" */
	uint64_t reached; /* the last call of all ranks that it told of, or 0 */
	char told[528]; /* "the last call that it told of is ..."; "": it never came */
};

/*
 * Reads the records of `nranks` ranks in `dir`. The sentence names the rank that is behind, its last
 * call, and the calls in which the others are; "" where there is nothing to tell, as without a record.
 * *merged is yours: {"ranks", "sentence", "behind" (a rank, or null), "records": [of each rank its
 * record, or {"rank", "lost", "told"}]}. TESS_ENOMEM; a record that cannot be read is lost.
 */
tess_status tess_straggler_find(const char *dir, int32_t nranks, const struct tess_lost_rank *lost,
                                json_t **merged, char *sentence, size_t room);

#endif
