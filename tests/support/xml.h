/* xml.h - checks that a string is XML, for tests of pictures. */
#ifndef TESS_TESTS_SUPPORT_XML_H
#define TESS_TESTS_SUPPORT_XML_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/*
 * Returns whether every tag of an XML text is closed by its name, with only white space outside the
 * root.
 */
static inline bool is_well_formed(const char *at)
{
	char open[32][16];
	int depth = 0, roots = 0;

	while (*at) {
		size_t len;

		if (*at != '<') {
			size_t digits =
				*at == '&' && at[1] == '#' ? strspn(at + 2, "0123456789") : 0;

			if ((*at == '&' && (!digits || at[2 + digits] != ';')) || *at == '>' ||
			    (!depth && !strchr(" \n", *at)))
				return false;
			at++;
			continue;
		}
		len = strcspn(at + 1, " />\n");
		if (at[1] == '/') {
			len = strcspn(at + 2, ">");
			if (!depth-- || strlen(open[depth]) != len ||
			    strncmp(open[depth], at + 2, len) != 0)
				return false;
		} else {
			const char *end = strchr(at, '>');

			if (!len || len > 15 || depth == 32 || !end || (!depth && roots++))
				return false;
			if (end[-1] != '/')
				snprintf(open[depth++], sizeof *open, "%.*s", (int)len, at + 1);
		}
		at = strchr(at, '>') + 1;
	}
	return !depth && roots == 1;
}

#endif
