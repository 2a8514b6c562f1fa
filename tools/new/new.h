/* new.h - the texts that `tessera new` writes: those of plugins/, embedded by the build. */
#ifndef TESS_TOOLS_NEW_NEW_H
#define TESS_TOOLS_NEW_NEW_H

struct new_text {
	const char *plugin, *file; /* its folder in plugins/, and its name there */
	const char *const *line; /* ends with NULL */
};
extern const struct new_text new_texts[]; /* ends with a NULL plugin */

#endif
