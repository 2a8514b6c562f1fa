/* values.h - the internal interface of values, in addition to tessera/values.h. */
#ifndef TESS_API_VALUES_H
#define TESS_API_VALUES_H

#include <tessera/values.h>

struct tess_value_entry { /* all that it points to is malloc'ed */
	char *name, *holders, *styles; /* holders, styles: NULL: none */
	void *data;
	int32_t dtype, ndim;
	int64_t shape[TESS_DIMS];
	int64_t size; /* elements */
};

struct tess_values {
	int64_t n, capacity;
	struct tess_value_entry *entry;
	int32_t *by_name; /* a hash table of indices; -1: free. A power of two of at least 2 n */
	int64_t nslots;
	char *numerics;
};

/* Frees the memory of a tensor, which is in no list. */
void tess_value_entry_free(struct tess_value_entry *e);
/* Appends a tensor and takes over its memory, which a failure frees. */
tess_status tess_values_append(struct tess_values *v, struct tess_value_entry *e);
/* Sets the description of the arithmetic, a copy of `text`. */
tess_status tess_values_set_numerics(struct tess_values *v, const char *text);

#endif
