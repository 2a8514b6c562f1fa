/* emulated_kernels.h - the kernels of devices/cuda for the emulator, found by name. */
#ifndef TESS_TESTS_GPU_EMULATED_KERNELS_H
#define TESS_TESTS_GPU_EMULATED_KERNELS_H

#include "emulator.h"

#include <stddef.h>

struct emulated_entry {
	const char *name; /* NULL: the end */
	emulated_kernel *kernel;
	size_t bytes; /* bytes of its arguments */
	unsigned shared; /* bytes of static shared memory */
};
extern const struct emulated_entry emulated_entries[];
#endif
