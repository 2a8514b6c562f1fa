/* csv.c - reads schedules in the CSV of torch.distributed.pipelining, with or without messages. */
#include "nn/schedule/schedule.h"

#include "core/base/status.h"

#include <ctype.h>
#include <string.h>

enum { CELL = 80, CSV_ROWS_MAX = 1024, NUMBER_MAX = 99999, IGNORED_ACTION = TESS_PIPELINE_KINDS };

struct csv_reader {
	struct tess_schedule_maker *m;
	const char *at, *end;
	int32_t row, cell; /* the current ones, from 0 */
	char text[CELL]; /* of the cell */
	bool messages;
};

/* Actions of FSDP. The plan decides when ranks gather weights and add gradients. */
static const char *const ignored_words[] = { "UNSHARD", "RESHARD", "REDUCE_GRAD" };

static tess_status fail_cell(const struct csv_reader *r)
{
	return tess_fail(TESS_EINVAL,
	                 "%s: row %d, cell %d: \"%s\" is not an action; use a stage, F, B, I, W, "
	                 "SEND_F, RECV_F, SEND_B or RECV_B, and a micro-batch, such as 0F1",
	                 r->m->name, (int)r->row + 1, (int)r->cell + 1, r->text);
}

/* Parses digits. Returns what follows; NULL: no number up to NUMBER_MAX. */
static const char *parse_cell_number(const char *text, int32_t *out)
{
	const char *first = text;

	for (*out = 0; isdigit((unsigned char)*text) && *out <= NUMBER_MAX; text++)
		*out = *out * 10 + (*text - '0');
	return text > first && *out <= NUMBER_MAX ? text : NULL;
}

static bool is_word(const char *word, const char *text, size_t len)
{
	return strlen(word) == len && !strncmp(word, text, len);
}

/* Returns the kind of a word, or IGNORED_ACTION; -1: it has none. */
static int32_t find_action_kind(const char *text, size_t len)
{
	for (int32_t kind = 0; kind < TESS_PIPELINE_KINDS; kind++)
		if (is_word(tess_schedule_name_kind(kind), text, len))
			return kind;
	for (size_t i = 0; i < sizeof ignored_words / sizeof *ignored_words; i++)
		if (is_word(ignored_words[i], text, len))
			return IGNORED_ACTION;
	return -1;
}

/* Parses "0F1". Returns what follows; NULL: it is not an action. */
static const char *parse_action(const char *text, struct tess_pipeline_action *a)
{
	const char *micro, *end;
	size_t len;

	text = parse_cell_number(text, &a->stage);
	if (!text)
		return NULL;
	len = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
	a->kind = find_action_kind(text, len);
	if (a->kind < 0)
		return NULL;
	micro = text + len;
	end = parse_cell_number(micro, &a->micro);
	return end || a->kind != IGNORED_ACTION ? end : micro;
}

static void add_parsed(struct csv_reader *r, struct tess_pipeline_action a)
{
	struct tess_schedule_maker *m = r->m;

	if (a.kind == IGNORED_ACTION)
		return;
	a.cell = r->cell + 1;
	tess_schedule_add(m, r->row, a);
	m->nstages = a.stage >= m->nstages ? a.stage + 1 : m->nstages;
	m->nmicro = a.micro >= m->nmicro ? a.micro + 1 : m->nmicro;
	r->messages = r->messages || tess_schedule_is_message(a.kind);
}

/* Parses "(0F1;3B0)OVERLAP_F_B": one after the other. */
static tess_status parse_overlap(struct csv_reader *r)
{
	struct tess_pipeline_action a, b;
	const char *at = parse_action(r->text + 1, &a);

	at = at && *at == ';' ? parse_action(at + 1, &b) : NULL;
	if (!at || strcmp(at, ")OVERLAP_F_B") != 0)
		return fail_cell(r);
	add_parsed(r, a);
	add_parsed(r, b);
	return TESS_OK;
}

static tess_status parse_cell(struct csv_reader *r)
{
	struct tess_pipeline_action a;
	const char *end;

	if (!*r->text)
		return TESS_OK;
	if (*r->text == '(')
		return parse_overlap(r);
	end = parse_action(r->text, &a);
	if (!end || *end)
		return fail_cell(r);
	add_parsed(r, a);
	return TESS_OK;
}

/* Takes the cell up to a comma or the end of the row, without spaces and quotes around it. */
static void take_cell(struct csv_reader *r)
{
	size_t n = 0;

	for (; r->at < r->end && *r->at != ',' && *r->at != '\n'; r->at++) {
		unsigned char c = (unsigned char)*r->at;

		if (c == '"' || (isspace(c) && !n) || n == CELL - 1)
			continue;
		r->text[n++] = isspace(c) ? ' ' : isprint(c) ? (char)c : '?';
	}
	while (n && r->text[n - 1] == ' ')
		n--;
	r->text[n] = 0;
}

static tess_status read_csv_row(struct csv_reader *r)
{
	tess_status st = TESS_OK;
	bool more = true;

	for (r->cell = 0; more && !st; r->cell++) {
		take_cell(r);
		st = parse_cell(r);
		more = r->at < r->end && *r->at == ',';
		r->at += r->at < r->end;
	}
	if (!st && !r->m->row[r->row].n)
		st = tess_fail(TESS_EINVAL, "%s: row %d has no action; each row is a rank",
		               r->m->name, (int)r->row + 1);
	return st;
}

/* Counts rows, without empty ones at the end, and skips the byte order mark. */
static int32_t begin_rows(struct csv_reader *r)
{
	int32_t n = 1;

	if (r->end - r->at >= 3 && !memcmp(r->at, "\xef\xbb\xbf", 3))
		r->at += 3;
	while (r->end > r->at && isspace((unsigned char)r->end[-1]))
		r->end--;
	for (const char *c = r->at; c < r->end && n <= CSV_ROWS_MAX; c++)
		n += *c == '\n';
	return n;
}

/* A stage is on the rank of the first row that has it. */
static tess_status map_stages(struct tess_schedule_maker *m)
{
	m->rank_of = TESS_NEW(m->arena, int32_t, m->nstages);
	if (!m->rank_of)
		return TESS_ENOMEM;
	for (int32_t s = 0; s < m->nstages; s++)
		m->rank_of[s] = -1;
	for (int32_t r = 0; r < m->nranks; r++)
		for (int32_t i = 0; i < m->row[r].n; i++) {
			int32_t *rank = &m->rank_of[m->row[r].action[i].stage];

			*rank = *rank < 0 ? r : *rank;
		}
	return TESS_OK;
}

tess_status tess_schedule_read_csv(struct tess_schedule_maker *m, const char *text, size_t len,
                                   bool *messages)
{
	struct csv_reader r = { .m = m, .at = text, .end = text + len };
	tess_status st;

	m->nranks = begin_rows(&r);
	m->nstages = m->nmicro = 0;
	if (m->nranks > CSV_ROWS_MAX)
		return tess_fail(TESS_EINVAL,
		                 "%s: has more than %d rows; a schedule has a row for each rank",
		                 m->name, CSV_ROWS_MAX);
	st = tess_schedule_start(m);
	for (; r.row < m->nranks && !st; r.row++)
		st = read_csv_row(&r);
	*messages = r.messages;
	if (!st && m->failed)
		st = TESS_ENOMEM;
	return st ? st : map_stages(m);
}
