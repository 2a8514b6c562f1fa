/* dataset_texts.c - files of texts: reads their rows, and cuts the ids into sequences. */
#include "api/dataset.h"
#include "core/base/file.h"
#include "core/base/line.h"
#include "core/base/status.h"
#include "hf/tokenizer/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct text_reader {
	const struct tess_dataset_options *options;
	struct tess_data_encoder *encoder;
	struct tess_data_file *file;
	FILE *in;
	int64_t number; /* of the line */
};

/* ---- ids of a file --------------------------------------------------------------------------- */

/* Makes room for n more ids. */
static tess_status grow_ids(struct tess_data_file *f, int64_t n)
{
	int64_t more = f->capacity ? f->capacity : 1 << 16;
	unsigned char *counts;
	int32_t *ids;

	if (f->nids + n <= f->capacity)
		return TESS_OK;
	while (more < f->nids + n)
		more *= 2;
	ids = realloc(f->ids, (size_t)more * sizeof *ids);
	if (ids)
		f->ids = ids;
	counts = ids && f->counts ? realloc(f->counts, (size_t)more) : f->counts;
	if (!ids || (f->counts && !counts))
		return tess_fail(TESS_ENOMEM, "out of memory for %lld ids", (long long)more);
	f->counts = counts;
	f->capacity = more;
	return TESS_OK;
}

/* Appends the ids of a row. All rows of a file have marks, or none has. */
static tess_status append_row(struct tess_data_file *f, const struct tess_data_row *r)
{
	tess_status st = grow_ids(f, (int64_t)r->n);

	if (!st && r->counts && !f->counts) {
		f->counts = malloc((size_t)f->capacity);
		if (!f->counts)
			st = tess_fail(TESS_ENOMEM, "out of memory for %lld ids",
			               (long long)f->capacity);
	}
	if (st)
		return st;
	memcpy(f->ids + f->nids, r->ids, r->n * sizeof *r->ids);
	for (size_t i = 0; i < r->n; i++)
		f->ncounted += !r->counts || r->counts[i];
	if (r->counts)
		memcpy(f->counts + f->nids, r->counts, r->n);
	f->nids += (int64_t)r->n;
	return TESS_OK;
}

/* ---- sequences ------------------------------------------------------------------------------- */

/* Adds the sequence of ids [from, to), unless it predicts no id that counts. */
static tess_status add_sequence(struct tess_data_file *f, int64_t from, int64_t to)
{
	int64_t(*more)[2];
	int64_t i = from + 1;

	while (i < to && f->counts && !f->counts[i])
		i++;
	if (i >= to)
		return TESS_OK;
	more = realloc(f->run, (size_t)(f->nsequences + 1) * sizeof *more);
	if (!more)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", f->path);
	f->run = more;
	more[f->nsequences][0] = from;
	more[f->nsequences++][1] = to;
	return TESS_OK;
}

/* Cuts ids [from, to), of a row or of all rows, into sequences. whole: only complete ones. */
static tess_status cut_sequences(const struct tess_dataset_options *o, struct tess_data_file *f,
                                 int64_t from, int64_t to, bool whole)
{
	tess_status st = TESS_OK;

	for (int64_t each = o->sequence, end; from < to && !st; from = end) {
		end = from + each < to ? from + each : to;
		if (!whole || end - from == each)
			st = add_sequence(f, from, end);
	}
	return st;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static bool row_counts(const struct text_reader *t, const struct tess_data_row *r)
{
	/* the first id of a sequence is not predicted */
	size_t first = t->options->separate ? 1 : 0;

	return first < r->n && (!r->counts || memchr(r->counts + first, 1, r->n - first) != NULL);
}

static const char *get_row_keys(int32_t kind)
{
	return kind == TESS_ROW_TEXT         ? "\"text\""
	       : kind == TESS_ROW_COMPLETION ? "\"prompt\" and \"completion\""
	                                     : "\"messages\"";
}

/* Adds an encoded row, or skips one on which no loss counts. */
static tess_status add_encoded_row(struct text_reader *t, const char *name,
                                   const struct tess_data_row *r)
{
	struct tess_data_file *f = t->file;
	int64_t from = f->nids;
	bool counts = row_counts(t, r);
	tess_status st;

	if (f->kind && f->kind != r->kind)
		return tess_fail(TESS_EINVAL,
		                 "%s: a row with %s, after rows with %s; put rows of each kind "
		                 "into a file of their own",
		                 name, get_row_keys(r->kind), get_row_keys(f->kind));
	f->kind = r->kind;
	f->nrows++;
	f->nskipped += !counts;
	if (!counts && r->counts)
		return TESS_OK;
	st = append_row(f, r);
	return st || !t->options->separate ? st
	                                   : cut_sequences(t->options, f, from, f->nids, false);
}

/* Encodes and adds a row of JSON, or a text. */
static tess_status encode_row(struct text_reader *t, const char *text, size_t len, int64_t number,
                              bool is_json)
{
	struct tess_data_row row;
	char name[4200];
	tess_status st;

	snprintf(name, sizeof name, "%.4096s: line %lld", t->file->path, (long long)number);
	st = is_json ? tess_data_row_encode_json(t->options, t->encoder, name, text, len, &row)
	             : tess_data_row_encode_text(t->options, t->encoder, name, text, len, &row);
	if (!st)
		st = add_encoded_row(t, name, &row);
	tess_data_row_free(&row);
	return st;
}

/* Reads a line without a byte order mark; *len 0: the end. */
static tess_status read_data_line(struct text_reader *t, struct tess_line *line, const char **text,
                                  size_t *len)
{
	tess_status st = tess_line_read(t->in, '\n', TESS_LINE_MAX, line);

	t->number++;
	if (st)
		return tess_fail_in(st, "%s: line %lld", t->file->path, (long long)t->number);
	*text = line->text;
	*len = line->len;
	if (*len && t->number == 1 && !strncmp(*text, "\xef\xbb\xbf", 3)) {
		*text += 3;
		*len -= 3;
	}
	return TESS_OK;
}

static bool is_blank(const char *text, size_t len)
{
	return strspn(text, " \t\r\n") >= len;
}

/* Reads lines, each a row of JSON or blank. */
static tess_status read_json_rows(struct text_reader *t)
{
	struct tess_line line = { 0 };
	const char *text = NULL;
	size_t len = 0;
	tess_status st = TESS_OK;

	while (!st) {
		st = read_data_line(t, &line, &text, &len);
		if (st || !line.len)
			break;
		if (!is_blank(text, len))
			st = encode_row(t, text, len, t->number, true);
	}
	free(line.text);
	return st;
}

/* Reads the text that begins at line `first`, without its last end of line with `separate`. */
static tess_status end_plain_text(struct text_reader *t, struct tess_text *text, int64_t first)
{
	size_t n = text->len;
	tess_status st;

	if (!n)
		return TESS_OK;
	st = encode_row(t, text->data, n - (t->options->separate && text->data[n - 1] == '\n'),
	                first, false);
	text->len = 0;
	return st;
}

/* Reads the text of a file, or with `separate` texts between blank lines. */
static tess_status read_plain_texts(struct text_reader *t)
{
	struct tess_line line = { 0 };
	struct tess_text text = { 0 };
	int64_t first = 1;
	size_t len = 0;
	const char *at = NULL;
	tess_status st = TESS_OK;

	do {
		st = read_data_line(t, &line, &at, &len);
		if (!st && (!line.len || (t->options->separate && is_blank(at, len)))) {
			st = end_plain_text(t, &text, first);
			len = 0;
		}
		first = text.len ? first : t->number;
		if (!st && tess_text_add(&text, at, len))
			st = tess_fail_in(TESS_EINVAL,
			                  "%s: line %lld: use .jsonl, or --separate and blank "
			                  "lines",
			                  t->file->path, (long long)first);
	} while (!st && line.len);
	tess_text_free(&text);
	free(line.text);
	return st;
}

tess_status tess_texts_open(const struct tess_dataset_options *o, struct tess_data_encoder *e,
                            struct tess_data_file *f)
{
	struct text_reader t = { .options = o, .encoder = e, .file = f };
	int64_t bytes;
	int fd;
	tess_status st = tess_data_file_open(f->path, &fd, &bytes);

	if (st)
		return st;
	t.in = fdopen(fd, "r");
	if (!t.in) {
		close(fd);
		return tess_fail(TESS_EIO, "%s: %s", f->path, strerror(errno));
	}
	if (!e->tokenizer && !o->tokenizer)
		st = tess_fail(TESS_EINVAL, "%s: its texts need a tokenizer", f->path);
	if (!st)
		st = grow_ids(f, 1); /* also for 0 ids */
	if (!st)
		st = tess_data_name_ends(f->path, ".jsonl") ? read_json_rows(&t)
		                                            : read_plain_texts(&t);
	fclose(t.in);
	if (!st && !o->separate && f->counts)
		st = cut_sequences(o, f, 0, f->nids, true);
	if (!st && !o->separate && !f->counts)
		f->nsequences = f->nids / o->sequence;
	return st;
}
