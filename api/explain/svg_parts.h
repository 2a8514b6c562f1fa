/* svg_parts.h - what all pictures in SVG share: the head with its styles, and text. */
#ifndef TESS_API_EXPLAIN_SVG_PARTS_H
#define TESS_API_EXPLAIN_SVG_PARTS_H

#include <stdio.h>
#include <tessera/plugin.h>

enum { MARGIN = 24 }; /* around a picture */

/*
 * Begins a picture: classes title, head, mid, soft and back for light and dark pages, and the page
 * itself. styles, dark: more rules, and those on dark pages. The caller ends it with "</svg>".
 */
void svg_begin(FILE *f, double width, double height, const char *styles, const char *dark);
/* Draws text at x, y; longer text than `most` characters loses its middle. */
void svg_draw_label(FILE *f, double x, double y, const char *class, size_t most, const char *fmt,
                    ...) TESS_PRINTF(6, 7);
/* Prints escaped text; longer text than `most` characters loses its middle. */
void svg_print_text(const char *text, size_t most, FILE *f);

#endif
