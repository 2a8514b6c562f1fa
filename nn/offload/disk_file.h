/* disk_file.h - makes a file without a name, with its space reserved, for direct I/O. */
#ifndef TESS_NN_DISK_FILE_H
#define TESS_NN_DISK_FILE_H

#include <stdint.h>
#include <tessera/plugin.h>

struct tess_disk_file {
	int fd; /* close it */
	uint64_t bytes; /* at least as many as requested */
	uint64_t align, memory_align; /* of offsets and sizes; of addresses. 1: by the page cache */
};

/* Makes a file in a folder; messages and failures as tess_disk_open. */
tess_status tess_disk_file_make(const char *dir, int32_t rank, uint64_t bytes,
                                struct tess_disk_file *out);

#endif
