/* help.c - prints the help text of a command from its options. */
#include "tool.h"

#include <string.h>

enum { WIDTH = 90, COLUMN = 26 }; /* COLUMN: where the texts of options begin */

const char *tess_tool_join_names(const struct tess_tool_option *o, const char *separator,
                                 const char *last, char out[static 256])
{
	const char *next = NULL;
	size_t n = 0;

	*out = 0;
	for (int32_t i = (int32_t)o->lo; i <= (int32_t)o->hi && n < 256; i++) {
		if (!o->get_name(i))
			continue;
		if (next)
			n += (size_t)snprintf(out + n, 256 - n, "%s%s", n ? separator : "", next);
		next = o->get_name(i);
	}
	if (next && n < 256)
		snprintf(out + n, 256 - n, "%s%s", n ? last : "", next);
	return out;
}

/* Prints words from COLUMN on, in lines of at most WIDTH. */
static void print_wrapped(const char *text)
{
	int at = COLUMN, len;

	for (; *text; text += len + (text[len] == ' ')) {
		len = (int)strcspn(text, " ");
		if (at > COLUMN && at + 1 + len > WIDTH) {
			printf("\n%*s", COLUMN, "");
			at = COLUMN;
		} else if (at > COLUMN) {
			putchar(' ');
			at++;
		}
		printf("%.*s", len, text);
		at += len;
	}
	putchar('\n');
}

/* Writes the value of the option in `to`, if it is from lo to hi. */
static void format_default(const struct tess_tool_option *o, const void *to, char out[static 64])
{
	const void *at = (const char *)to + o->at;

	*out = 0;
	if (o->field == TESS_TOOL_INTEGER && !o->parse) {
		int32_t v = *(const int32_t *)at;

		if (v >= o->lo && v <= o->hi && o->get_name)
			snprintf(out, 64, " (default: %s)", o->get_name(v));
		else if (v >= o->lo && v <= o->hi)
			snprintf(out, 64, " (default: %d)", (int)v);
	} else if (o->field == TESS_TOOL_REAL && !o->parse) {
		double v = *(const double *)at;

		if (v >= o->lo && v <= o->hi)
			snprintf(out, 64, " (default: %g)", v);
	} else if (o->field == TESS_TOOL_SEED) {
		snprintf(out, 64, " (default: %lld)", (long long)*(const int64_t *)at);
	}
}

static void print_option(const struct tess_tool_option *o, const void *to)
{
	char names[256], given[64] = "", text[1024];
	const char *value = o->value      ? o->value
	                    : o->get_name ? tess_tool_join_names(o, "|", "|", names)
	                                  : "";
	int at = printf("  %s%s%s%s", o->name[1] ? "--" : "-", o->name, *value ? " " : "", value);

	if (to)
		format_default(o, to, given);
	snprintf(text, sizeof text, "%s%s", o->help, given);
	printf(at + 2 > COLUMN ? "\n%*s" : "%*s", at + 2 > COLUMN ? COLUMN : COLUMN - at, "");
	print_wrapped(text);
}

void tess_tool_print_help(const struct tess_tool_command *c,
                          const struct tess_tool_section *sections)
{
	static const struct tess_tool_option help = { "help", .help = "print this text" };

	printf("usage: tessera %s %s\n\n%s", c->name, c->usage, c->about);
	for (; sections->title; sections++) {
		if (*sections->title)
			printf("\n%s:\n", sections->title);
		for (const struct tess_tool_option *o = sections->options; o->name; o++)
			if (o->help)
				print_option(o, sections->to);
	}
	print_option(&help, NULL);
	printf("\nExamples:\n%s", c->examples);
}
