/* lines.c - parses untrusted lines for commands that include public headers only. */
#include "core/base/json.h"
#include "tool.h"

tess_status tess_tool_parse_line(const char *text, size_t len, struct json_t **out)
{
	return tess_json_parse_line(NULL, text, len, out);
}
