/* types.h - the element types of safetensors, and those of ours that they are. */
#ifndef TESS_HF_TYPES_H
#define TESS_HF_TYPES_H

#include <tessera/plugin.h>

/* A value; dtype 0: nothing here computes with it. */
struct tess_file_dtype {
	const char *name;
	int32_t bits, dtype;
};

/* NULL: none of the format. */
const struct tess_file_dtype *tess_file_dtype_by_name(const char *name);
/* NULL: no dtype. */
const struct tess_file_dtype *tess_file_dtype_of(int32_t dtype);

#endif
