/*
 * foreign.h - finds NVIDIA's libraries at run time, so that plugins which call them link nothing.
 *
 * A library is looked for in the folders of TESSERA_CUDA_LIBS, then by the loader, then where
 * Python packages keep it: site-packages/nvidia/.../lib below VIRTUAL_ENV, CONDA_PREFIX, ~/.local
 * and the parents of the folders in PATH. It stays open.
 */
#ifndef TESS_DEVICES_CUDA_FOREIGN_H
#define TESS_DEVICES_CUDA_FOREIGN_H

#include <tessera/plugin.h>

/* A plugin that opens a library lists it among its options. */
extern const struct tess_option foreign_option;

/* Opens the first file of `names`, which ends with NULL, that is found. TESS_ENOTSUP: none. */
tess_status foreign_open_library(const struct tess_host *host, const char *const *names,
                                 void **out);

struct foreign_symbol { /* a value */
	const char *name; /* NULL: the end of a list */
	void *to; /* address of the function pointer */
	int32_t optional; /* 1: NULL where the library lacks it */
};
/* TESS_ENOTSUP: one is missing, which `library` (for the sentence) should have. */
tess_status foreign_find_symbols(const struct tess_host *host, const char *library, void *handle,
                                 const struct foreign_symbol *list);

#endif
