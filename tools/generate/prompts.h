/* prompts.h - the prompts of `tessera generate`, from arguments, files and stdin. */
#ifndef TESS_TOOLS_PROMPTS_H
#define TESS_TOOLS_PROMPTS_H

#include <stdbool.h>
#include <tessera/tessera.h>

struct prompt {
	char *text; /* `len` bytes, or NULL */
	size_t len;
	int32_t *ids; /* instead */
	int64_t nids, index; /* index: its place, or line of the file, from 0 */
	char *error; /* a line that cannot be run: why */
	const char *file; /* whose bytes the text is; NULL: another prompt. Borrowed */
	/* of this prompt alone; NAN or -1: as for all */
	double temperature, top_p, min_p, penalty;
	int64_t top_k, seed, max_tokens;
};

struct prompts {
	struct prompt *list;
	int64_t n;
	bool lines; /* of --prompts: results are lines of JSON */
	const char *file; /* of these lines; "-": stdin. Borrowed */
};

/* Each adds to `p`; free it with prompts_free, also after a failure. */
tess_status prompts_add_text(struct prompts *p, const char *text, size_t len);
/* The bytes of a file; "-": stdin, which processes started later can read again. */
tess_status prompts_add_file(struct prompts *p, const char *path);
/* Returns whether stdin is a pipe or a file, the prompt of a command that names none. */
bool prompts_are_on_stdin(void);
/* Adds stdin as prompts_add_file("-") does; after 5 s of waiting stderr says so. */
tess_status prompts_add_stdin(struct prompts *p);
/* "1,2,3" */
tess_status prompts_add_ids(struct prompts *p, const char *text);
/*
 * A JSON object a line: "prompt" or "ids", and sampling and "max_tokens" of its own. A bad line
 * becomes a prompt with an error; empty lines are skipped.
 */
tess_status prompts_add_lines(struct prompts *p, const char *path);
void prompts_free(struct prompts *p);

#endif
