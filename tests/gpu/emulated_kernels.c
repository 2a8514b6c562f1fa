/* emulated_kernels.c - the kernels of devices/cuda, compiled as C, by name. */
#define EMULATED_KERNELS
#include "kernels.cu"

#include "emulated_kernels.h"

#define CALL(name, args) \
	static void call_##name(const void *a) \
	{ \
		name(*(const struct args *)a); \
	}
CUDA_KERNELS(CALL)

#define ENTRY(name, args) { #name, call_##name, sizeof(struct args), 0 },
const struct emulated_entry emulated_entries[] = { CUDA_KERNELS(ENTRY){ 0 } };
