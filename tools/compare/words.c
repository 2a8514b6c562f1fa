/* words.c - lists of words, and the words of --against. */
#include "compare.h"

#include <stdlib.h>
#include <string.h>

tess_status compare_add_word(struct compare_words *w, const char *word)
{
	char **more = realloc(w->word, ((size_t)w->n + 2) * sizeof *more);
	char *copy = strdup(word);

	if (more)
		w->word = more;
	if (!more || !copy) {
		free(copy);
		return tess_fail(TESS_ENOMEM, "out of memory");
	}
	more[w->n++] = copy;
	more[w->n] = NULL;
	return TESS_OK;
}

void compare_free_words(struct compare_words *w)
{
	for (int32_t i = 0; i < w->n; i++)
		free(w->word[i]);
	free(w->word);
	*w = (struct compare_words){ 0 };
}

static void print_words(FILE *f, const struct compare_words *w)
{
	for (int32_t i = 0; i < w->n; i++)
		fprintf(f, "%s%s", i ? " " : "", w->word[i]);
}

static char *format_run(const struct compare_run *run)
{
	char *text = NULL;
	size_t len;
	FILE *f = tess_tool_open_memory(&text, &len);

	if (!f)
		return NULL;
	print_words(f, &run->variables);
	if (run->variables.n && run->options.n)
		putc(' ', f);
	print_words(f, &run->options);
	if (!run->variables.n && !run->options.n)
		fputs("default options", f);
	if (ferror(f)) {
		fclose(f);
		free(text);
		return NULL;
	}
	fclose(f);
	return text;
}

char *compare_format_side(const struct compare_options *o, int side)
{
	return o->model ? format_run(side ? &o->b : &o->a) : strdup(o->file[side]);
}

/* Copies one word from `at` to `out`; returns its end, or NULL if a quote is not closed. */
static const char *copy_quoted_word(const char *at, char *out)
{
	char quote = 0;

	for (; *at && (quote || !strchr(" \t\n", *at)); at++) {
		if (quote ? *at == quote : *at == '\'' || *at == '"')
			quote = quote ? 0 : *at;
		else if (*at == '\\' && quote != '\'' && at[1])
			*out++ = *++at;
		else
			*out++ = *at;
	}
	*out = '\0';
	return quote ? NULL : at;
}

tess_status compare_split_words(const char *text, struct compare_words *out)
{
	char *word = malloc(strlen(text) + 1);
	tess_status st = word ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
	const char *at = text;

	while (!st && *(at += strspn(at, " \t\n"))) {
		at = copy_quoted_word(at, word);
		st = at ? compare_add_word(out, word)
		        : tess_fail(TESS_EINVAL, "--against %s: a quote is not closed", text);
	}
	free(word);
	return st;
}
