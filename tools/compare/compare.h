/* compare.h - the parts of `tessera compare`. */
#ifndef TESS_TOOLS_COMPARE_H
#define TESS_TOOLS_COMPARE_H

#include "tools/tool.h"

struct compare_words { /* a list of words that it owns; ends with NULL */
	char **word;
	int32_t n;
};

struct compare_run { /* a run: the options of its command, and variables of its environment */
	const char *name; /* "A" */
	struct compare_words options, variables; /* variables: "TESSERA_REDUCE=fast" */
};

struct compare_options {
	struct compare_run a, b;
	const char *against; /* NULL: not given */
	const char *ids, *prompt, *ids_file, *values_of, *svg;
	double tolerance; /* negative: not given */
	bool exact, train, json;
	const char *model; /* NULL: two files */
	const char *file[2];
};

/* Adds a copy of a word. */
tess_status compare_add_word(struct compare_words *w, const char *word);
void compare_free_words(struct compare_words *w);
/*
 * Formats side 0 or 1 of the comparison: the options of its run ("-n 4 --plan tp"; "default
 * options"), or its file. Free it; NULL: no memory.
 */
char *compare_format_side(const struct compare_options *o, int side);

/*
 * Splits `text` into words as a shell does: at spaces, except in quotes and after a backslash.
 * TESS_EINVAL: a quote is not closed.
 */
tess_status compare_split_words(const char *text, struct compare_words *out);

/*
 * Runs the model for run A and run B, one after the other, as commands of their own, and loads
 * their values. They leave no file, even after a signal. TESS_EABORTED: a signal was noted.
 */
tess_status compare_run_both(const struct compare_options *o, struct tess_values *out[2]);

/*
 * Runs the model for run A and run B with --check. Messages of a run that fails go to stderr.
 * TESS_EABORTED: a signal was noted.
 */
tess_status compare_check_both(const struct compare_options *o, bool failed[2]);

/* Print the first difference and the results for all values. failed: of compare_check_both. */
tess_status compare_print_table(const struct compare_options *o, const struct tess_comparison *c,
                                const bool failed[2]);
tess_status compare_print_json(const struct compare_options *o, const struct tess_comparison *c,
                               const bool failed[2]);
/* Writes the picture of all values to the file of --svg. */
tess_status compare_draw(const struct compare_options *o, const struct tess_comparison *c);

/* Returns "equal", "different", ... */
const char *compare_get_state(const struct tess_value_comparison *v);

#endif
