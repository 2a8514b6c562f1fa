/*
 * foreign.h - finds NVIDIA's libraries at run time, so that plugins that call them link none.
 *
 * A library is searched in the folders of TESSERA_CUDA_LIBS, then by the loader, then in the
 * folders of Python packages: site-packages/nvidia/.../lib below VIRTUAL_ENV, CONDA_PREFIX,
 * ~/.local and the parents of the folders in PATH. It stays open.
 */
#ifndef TESS_DEVICES_CUDA_FOREIGN_H
#define TESS_DEVICES_CUDA_FOREIGN_H

#include <tessera/plugin.h>

/* The option of plugins that open a library; listed among their options. */
extern const struct tess_option foreign_option;

/* Opens the first file of `names`, which ends with NULL, that is found. TESS_ENOTSUP: none. */
tess_status foreign_open_library(const struct tess_host *host, const char *const *names,
                                 void **out);

struct foreign_symbol { /* a function to find */
	const char *name; /* NULL: the end of a list */
	void *to; /* address of the function pointer */
	int32_t optional; /* 1: NULL if the library lacks it */
};
/* Finds all functions. TESS_ENOTSUP: one is missing from `library` (for the message). */
tess_status foreign_find_symbols(const struct tess_host *host, const char *library, void *handle,
                                 const struct foreign_symbol *list);

#endif
