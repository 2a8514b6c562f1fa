/* format.c - an explanation as `tessera explain` prints it. */
#include "api/explain/format.h"

#include "core/base/json.h"
#include "core/base/memory_file.h"
#include "core/base/sized.h"
#include "core/base/status.h"

#include <stdlib.h>

static tess_status print_json(const struct tess_explanation *e, int64_t positions, bool program,
                              FILE *f)
{
	json_t *o;
	bool lacked;

	tess_json_watch_memory();
	o = explain_make_json(e, positions, program);
	lacked = !o || tess_json_lacked_memory() || json_dumpf(o, f, JSON_INDENT(1));
	json_decref(o);
	fputc('\n', f);
	return lacked ? tess_fail(TESS_ENOMEM, "out of memory for a JSON object") : TESS_OK;
}

static tess_status print_form(const struct tess_explanation *e, int32_t form, const char *dir,
                              int64_t positions, FILE *f)
{
	switch (form) {
	case TESS_EXPLAIN_TEXT:
		return explain_print_text(e, dir, positions, f);
	case TESS_EXPLAIN_PROGRAM:
		explain_print_program(e, f);
		return TESS_OK;
	case TESS_EXPLAIN_STORAGE:
		return explain_print_storage(e, f);
	case TESS_EXPLAIN_SVG:
		return explain_draw(e, dir, f);
	case TESS_EXPLAIN_JSON:
	case TESS_EXPLAIN_JSON_PROGRAM:
		return print_json(e, positions, form == TESS_EXPLAIN_JSON_PROGRAM, f);
	default:
		return tess_fail(TESS_EINVAL,
		                 "form %d of an explanation; use TESS_EXPLAIN_TEXT to "
		                 "TESS_EXPLAIN_SVG",
		                 (int)form);
	}
}

tess_status tess_explanation_format(const struct tess_explanation *e, int32_t form, const char *dir,
                                    int64_t positions, char **text)
{
	tess_status st = TESS_REQUIRE(e, dir, text);
	char *made = NULL;
	size_t len;
	bool failed;
	FILE *f;

	if (!st && positions < 0)
		st = tess_fail(TESS_EINVAL,
		               "positions %lld of an explanation: must not be negative",
		               (long long)positions);
	if (st)
		return st;
	if (!positions)
		positions = e->shown_positions;
	f = tess_memory_file_open(&made, &len);
	if (!f)
		return TESS_ENOMEM;
	st = print_form(e, form, dir, positions, f);
	failed = ferror(f);
	failed = fclose(f) || failed;
	if (!st && failed)
		st = tess_fail(TESS_ENOMEM, "out of memory for the text of an explanation");
	if (st)
		free(made);
	else
		*text = made;
	return st;
}
