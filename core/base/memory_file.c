#include "core/base/memory_file.h"

#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

struct memory_file {
	char **text;
	size_t *len, capacity;
};

static ssize_t append_to_memory(void *self, const char *bytes, size_t n)
{
	struct memory_file *m = self;
	size_t needed = *m->len + n + 1, capacity = 2 * needed;

	if (needed > m->capacity) {
		char *more = realloc(*m->text, capacity);

		if (!more)
			return 0; /* an error of the stream */
		*m->text = more;
		m->capacity = capacity;
	}
	memcpy(*m->text + *m->len, bytes, n);
	*m->len += n;
	(*m->text)[*m->len] = '\0';
	return (ssize_t)n;
}

static int close_memory_file(void *self)
{
	free(self);
	return 0;
}

FILE *tess_memory_file_open(char **text, size_t *len)
{
	struct memory_file *m = calloc(1, sizeof *m);
	FILE *f = m ? fopencookie(m, "w",
	                          (cookie_io_functions_t){ .write = append_to_memory,
	                                                   .close = close_memory_file })
	            : NULL;

	if (!f) {
		free(m);
		tess_fail(TESS_ENOMEM, "out of memory");
		return NULL;
	}
	setvbuf(f, NULL, _IONBF, 0); /* a failed write sets the error at once */
	*m = (struct memory_file){ .text = text, .len = len };
	*text = NULL;
	*len = 0;
	return f;
}
