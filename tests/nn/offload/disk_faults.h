/*
 * disk_faults.h - functions of libc that a file on disk uses, wrapped by the linker (--wrap), so
 * that a test can observe them, and let them fail.
 */
#ifndef TESS_TESTS_NN_DISK_FAULTS_H
#define TESS_TESTS_NN_DISK_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

enum { EVERY_CALL = -1 };

/* What the next calls do. A test changes it while no call is under way. */
struct disk_faults {
	int64_t at; /* the call of pread or pwrite that fails, from 0; EVERY_CALL */
	int64_t calls; /* so many fail, from `at` on */
	int error; /* errno of these calls; 0: they move `moves` bytes */
	uint64_t moves;
	int delay_ms; /* of the other calls */
	int late_error; /* errno of the other calls, after their delay; 0: none */
	bool no_direct; /* fcntl refuses O_DIRECT */
	bool no_tmpfile; /* open refuses O_TMPFILE */
	int fallocate_error; /* of posix_fallocate */
};

/* What the calls of pread and pwrite have done. */
struct disk_calls {
	int64_t n; /* calls */
	int32_t under_way, max_under_way;
	uint64_t max_bytes; /* of a call */
	/* the range of memory that callers are expected to use; NULL: any */
	const char *begin, *end;
	int64_t outside; /* calls with other memory */
};

/* Sets the faults, and resets the counts of calls. */
void disk_faults_set(const struct disk_faults *faults);
/* Counts calls from now on; memory outside of [begin, end) is counted. */
void disk_calls_watch(const void *begin, const void *end);
struct disk_calls disk_calls_get(void);

#endif
