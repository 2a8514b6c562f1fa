/* file_dtype.h - the element types of safetensors, and the dtypes that they map to. */
#ifndef TESS_HF_FILE_DTYPE_H
#define TESS_HF_FILE_DTYPE_H

#include <tessera/plugin.h>

/* An element type of the format. */
struct tess_file_dtype {
	const char *name;
	int32_t bits;
	int32_t dtype; /* 0: not supported in computations */
};

/* Returns an element type by its name in the format; NULL: unknown. */
const struct tess_file_dtype *tess_file_dtype_by_name(const char *name);
/* Returns the element type of a dtype; NULL: none. */
const struct tess_file_dtype *tess_file_dtype_of(int32_t dtype);

#endif
