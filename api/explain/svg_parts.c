/* svg_parts.c - the head of a picture in SVG, and text of any bytes in it. */
#include "api/explain/svg_parts.h"

#include <stdarg.h>

void svg_begin(FILE *f, double width, double height, const char *styles, const char *dark)
{
	fprintf(f,
	        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
	        "width=\"%.0f\" height=\"%.0f\" role=\"img\">\n<style>\n"
	        "text { font: 12px system-ui, 'DejaVu Sans', sans-serif; fill: #1f2328; }\n"
	        ".title { font-size: 18px; font-weight: 600; }\n.head { font-weight: 600; }\n"
	        ".mid { text-anchor: middle; font-size: 11px; }\n"
	        ".soft { font-size: 11px; fill: #656d76; }\n.back { fill: #ffffff; }\n%s"
	        "@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .soft { fill: "
	        "#9198a1; } .back { fill: #0d1117; } %s }\n</style>\n"
	        "<rect class=\"back\" width=\"%.0f\" height=\"%.0f\"/>\n",
	        width, height, width, height, styles, dark, width, height);
}

/* Returns the bytes of the UTF-8 character at s; 1 if it is invalid. */
static size_t measure_character(const char *s)
{
	unsigned char c = (unsigned char)*s;
	size_t n = c < 0xc2 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 1;

	for (size_t i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 1;
	return n;
}

static void put_character(const char *s, size_t n, FILE *f)
{
	unsigned char c = (unsigned char)*s;

	if (c == '<' || c == '>' || c == '&' || c == '"')
		fprintf(f, "&#%d;", c);
	else if (n > 1 || (c >= ' ' && c < 0x7f))
		fwrite(s, 1, n, f);
	else
		fputc('?', f);
}

void svg_print_text(const char *text, size_t most, FILE *f)
{
	size_t all = 0, i = 0, n;

	for (const char *s = text; *s; s += measure_character(s))
		all++;
	for (const char *s = text; *s; s += n, i++) {
		n = measure_character(s);
		if (all <= most || i < most / 2 || i >= all - (most - most / 2 - 1))
			put_character(s, n, f);
		else if (i == most / 2)
			fputs("…", f);
	}
}

void svg_draw_label(FILE *f, double x, double y, const char *class, size_t most, const char *fmt,
                    ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	fprintf(f, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">", class, x, y);
	svg_print_text(text, most, f);
	fputs("</text>\n", f);
}
