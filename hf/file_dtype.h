/* file_dtype.h - the element types of safetensors, and the dtypes that they map to. */
#ifndef TESS_HF_FILE_DTYPE_H
#define TESS_HF_FILE_DTYPE_H

#include <tessera/plugin.h>

/* dtype 0: not supported in computations. */
struct tess_file_dtype {
	const char *name;
	int32_t bits, dtype;
};

/* NULL: unknown name. */
const struct tess_file_dtype *tess_file_dtype_by_name(const char *name);
/* NULL: unknown dtype. */
const struct tess_file_dtype *tess_file_dtype_of(int32_t dtype);

#endif
