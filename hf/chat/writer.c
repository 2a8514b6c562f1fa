/* writer.c - the text of a rendered conversation: literals, contents and the answers in it. */
#include "core/base/status.h"
#include "hf/chat/form.h"

#include <stdlib.h>
#include <string.h>

static const char *const months[] = { "January",   "February", "March",    "April",
	                              "May",       "June",     "July",     "August",
	                              "September", "October",  "November", "December" };

void tess_chat_put_view(struct tess_chat_writer *w, struct tess_chat_view v)
{
	if (!w->status && v.n)
		w->status = tess_text_add(&w->out, v.s, v.n);
}

static void put_string(struct tess_chat_writer *w, const char *s)
{
	tess_chat_put_view(w, (struct tess_chat_view){ s, strlen(s) });
}

/* Appends the date in English, whatever the locale. */
static void put_date(struct tess_chat_writer *w, char kind)
{
	const struct tm *d = &w->date;
	const char *month = months[d->tm_mon];
	int year = d->tm_year + 1900;
	char text[64];

	if (kind == *TESS_CHAT_DATE_SHORT)
		snprintf(text, sizeof text, "%02d %.3s %d", d->tm_mday, month, year);
	else if (kind == *TESS_CHAT_DATE_ISO)
		snprintf(text, sizeof text, "%d-%02d-%02d", year, d->tm_mon + 1, d->tm_mday);
	else
		snprintf(text, sizeof text, "%s %02d, %d", month, d->tm_mday, year);
	put_string(w, text);
}

void tess_chat_put(struct tess_chat_writer *w, const char *s)
{
	while (s && *s) {
		size_t n = strcspn(s, TESS_CHAT_BOS TESS_CHAT_EOS TESS_CHAT_DATE_SHORT
		                              TESS_CHAT_DATE_ISO TESS_CHAT_DATE_LONG);

		tess_chat_put_view(w, (struct tess_chat_view){ s, n });
		s += n;
		if (!*s)
			return;
		if (*s == *TESS_CHAT_BOS)
			put_string(w, w->bos);
		else if (*s == *TESS_CHAT_EOS)
			put_string(w, w->eos);
		else
			put_date(w, *s);
		s++;
	}
}

void tess_chat_mark(struct tess_chat_writer *w, size_t begin)
{
	struct tess_chat_range *more, *last;

	if (w->status || begin == w->out.len)
		return;
	last = w->nanswers ? &w->answers[w->nanswers - 1] : NULL;
	if (last && last->end == begin) {
		last->end = w->out.len;
		return;
	}
	more = realloc(w->answers, (size_t)(w->nanswers + 1) * sizeof *more);
	if (!more) {
		w->status = tess_fail(TESS_ENOMEM, "out of memory");
		return;
	}
	w->answers = more;
	more[w->nanswers++] = (struct tess_chat_range){ begin, w->out.len };
}

tess_status tess_chat_fail(const struct tess_chat_writer *w, int64_t i, const char *fmt, ...)
{
	char text[512];
	va_list list;

	va_start(list, fmt);
	vsnprintf(text, sizeof text, fmt, list);
	va_end(list);
	if (i < w->added)
		return tess_fail(TESS_EINVAL, "the added system message: %s", text);
	return tess_fail(TESS_EINVAL, "message %lld: %s", (long long)(i + 1 - w->added), text);
}

bool tess_chat_has_role(const struct tess_chat_message *m, const char *role)
{
	return !strcmp(m->role, role);
}

struct tess_chat_view tess_chat_get_content(const struct tess_chat_writer *w, int64_t i)
{
	return (struct tess_chat_view){ w->message[i].content, w->message[i].ncontent };
}

/* ---- Python's string functions --------------------------------------------------------------- */

static bool is_stripped(int32_t c, bool lines)
{
	return lines ? c == '\n' : tess_char_is_space(c) || (c >= 0x1c && c <= 0x1f);
}

static struct tess_chat_view strip_view(struct tess_chat_view v, int sides, bool lines)
{
	int32_t c;

	while (sides & 1 && v.n) {
		size_t n = tess_utf8_decode(v.s, &c);

		if (!is_stripped(c, lines))
			break;
		v.s += n;
		v.n -= n;
	}
	while (sides & 2 && v.n) {
		size_t at = tess_utf8_decode_last(v.s, v.n, &c);

		if (!is_stripped(c, lines))
			break;
		v.n = at;
	}
	return v;
}

struct tess_chat_view tess_chat_strip_lines(struct tess_chat_view v, int sides)
{
	return strip_view(v, sides, true);
}

struct tess_chat_view tess_chat_strip(struct tess_chat_view v, int sides)
{
	return strip_view(v, sides, false);
}

bool tess_chat_split(struct tess_chat_view v, const char *mark, bool last,
                     struct tess_chat_view *before, struct tess_chat_view *after)
{
	size_t n = strlen(mark);
	const char *found = NULL, *at = v.s, *end = v.s + v.n;

	while (v.n && (at = memmem(at, (size_t)(end - at), mark, n))) {
		found = at;
		at += n;
		if (!last)
			break;
	}
	*before = found ? (struct tess_chat_view){ v.s, (size_t)(found - v.s) } : v;
	*after = found ? (struct tess_chat_view){ found + n, (size_t)(end - found) - n }
	               : (struct tess_chat_view){ end, 0 };
	return found != NULL;
}

struct tess_chat_view tess_chat_take_thinking(struct tess_chat_view content,
                                              struct tess_chat_view *thinking)
{
	struct tess_chat_view before, after, unused;

	*thinking = (struct tess_chat_view){ "", 0 };
	if (!tess_chat_split(content, "</think>", true, &unused, &after))
		return content;
	tess_chat_split(content, "</think>", false, &before, &unused);
	before = tess_chat_strip_lines(before, 2);
	if (tess_chat_split(before, "<think>", true, &unused, thinking))
		before = *thinking;
	*thinking = tess_chat_strip_lines(before, 1);
	return tess_chat_strip_lines(after, 1);
}
