#include "rule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/names.h>

/* Refuses a word, with a message about the accepted ones. */
static tess_status refuse_word(const struct tess_host *host, const struct rule *r, const char *word,
                               const char *may)
{
	return host->fail(TESS_EINVAL, "TESSERA_FAULTY: rule \"%s\": \"%s\" is not understood: %s",
	                  r->text, word, may);
}

static bool read_number(const char *text, int64_t least, int64_t *out)
{
	char *end;
	long long n = strtoll(text, &end, 10);

	if (end == text || *end || n < least)
		return false;
	*out = n;
	return true;
}

static bool read_time(const char *text, int64_t *ns)
{
	char *end;
	double t = strtod(text, &end);
	double unit = !strcmp(end, "s")    ? 1e9
	              : !strcmp(end, "ms") ? 1e6
	              : !strcmp(end, "us") ? 1e3
	                                   : 0;

	if (end == text || !(t >= 0 && t * unit < 1e15) || unit == 0)
		return false;
	*ns = (int64_t)(t * unit);
	return true;
}

static bool read_action(const char *text, struct rule *r)
{
	static const struct {
		const char *name;
		int32_t action;
		char part;
	} plain[] = {
		{ "drop", DROP, 0 },
		{ "kill", KILL, 0 },
		{ "stop", STOP, 0 },
		{ "fail", FAIL, 0 },
		{ "exit", EXIT, 0 },
		{ "mismatch:count", MISMATCH, 'c' },
		{ "mismatch:op", MISMATCH, 'o' },
		{ "mismatch:kind", MISMATCH, 'k' },
		{ "mismatch:dtype", MISMATCH, 'd' },
	};
	int64_t code;

	for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
		if (!strcmp(text, plain[i].name)) {
			r->action = plain[i].action;
			r->part = plain[i].part;
			r->code = 1;
			return true;
		}
	if (!strncmp(text, "exit:", 5) && read_number(text + 5, 0, &code) && code < 256) {
		r->action = EXIT;
		r->code = (int32_t)code;
		return true;
	}
	r->action = DELAY;
	return !strncmp(text, "delay:", 6) && read_time(text + 6, &r->delay);
}

static bool read_kind(const char *text, int32_t *kind)
{
	for (int32_t i = TESS_BARRIER; i <= TESS_RECV; i++)
		if (!strcmp(text, tess_kind_name(i))) {
			*kind = i;
			return true;
		}
	return false;
}

static bool read_at(const char *text, int32_t *at)
{
	*at = !strcmp(text, "before") ? BEFORE : !strcmp(text, "inside") ? INSIDE : AFTER;
	return *at != AFTER || !strcmp(text, "after");
}

static bool read_chance(const char *text, double *chance)
{
	char *end;

	*chance = strtod(text, &end);
	return end != text && !*end && *chance >= 0 && *chance <= 1;
}

/* Reads one key=value. */
static tess_status read_word(const struct tess_host *host, char *word, struct rule *r)
{
	char *value = strchr(word, '=');
	int64_t number = 0;
	const char *may = NULL;

	if (!value)
		return refuse_word(host, r, word, "a rule is key=value, separated by commas");
	*value++ = '\0';
	if (!strcmp(word, "rank")) {
		may = read_number(value, 0, &number) && number <= INT32_MAX
		              ? NULL
		              : "rank is a number from 0";
		r->rank = (int32_t)number;
	} else if (!strcmp(word, "call")) {
		may = read_number(value, 0, &r->call) ? NULL
		                                      : "call is a number from 1, or 0 for opening";
	} else if (!strcmp(word, "every")) {
		may = read_number(value, 1, &r->every) ? NULL : "every is a number from 1";
	} else if (!strcmp(word, "chance")) {
		may = read_chance(value, &r->chance) ? NULL : "chance is a number from 0 to 1";
	} else if (!strcmp(word, "kind")) {
		may = read_kind(value, &r->kind) ? NULL : "kind is a collective like all_reduce";
	} else if (!strcmp(word, "where")) {
		may = strlen(value) < sizeof r->where ? NULL : "where has at most 63 bytes";
		snprintf(r->where, sizeof r->where, "%.63s", value);
	} else if (!strcmp(word, "at")) {
		may = read_at(value, &r->at) ? NULL : "at is before, inside or after";
	} else if (!strcmp(word, "do")) {
		may = read_action(value, r)
		              ? NULL
		              : "do is delay:TIME (5ms, 2s, 100us), drop, kill, exit:CODE, stop, "
		                "fail, or mismatch:count, :op, :kind or :dtype";
	} else {
		may = "the keys are rank, call, every, chance, kind, where, at and do";
		value = word;
	}
	return may ? refuse_word(host, r, value, may) : TESS_OK;
}

static tess_status read_rule(const struct tess_host *host, const char *text, size_t len,
                             struct rule *r)
{
	char copy[RULE_TEXT], *rest = NULL;
	tess_status st = TESS_OK;

	*r = (struct rule){ .rank = -1, .call = -1, .chance = 1, .at = BEFORE };
	if (len >= sizeof copy)
		return host->fail(TESS_EINVAL, "TESSERA_FAULTY: a rule of %zu bytes; at most %d",
		                  len, RULE_TEXT - 1);
	snprintf(r->text, sizeof r->text, "%.*s", (int)len, text);
	snprintf(copy, sizeof copy, "%s", r->text);
	for (char *word = strtok_r(copy, ", ", &rest); word && !st;
	     word = strtok_r(NULL, ", ", &rest))
		st = read_word(host, word, r);
	if (!st && !r->action)
		st = refuse_word(host, r, "", "it does nothing; add do=");
	if (!st && r->call == 0 && (r->action == DROP || r->action == MISMATCH))
		st = refuse_word(host, r, "call=0",
		                 "opening a group can be delayed or fail, no more");
	if (!st && r->at != BEFORE &&
	    (r->action == DROP || r->action == MISMATCH || r->action == FAIL))
		st = refuse_word(host, r, "at",
		                 "what is dropped, changed or failed is so before it starts");
	return st;
}

tess_status rules_read(const struct tess_host *host, const char *text, const char *seed,
                       struct rules *out)
{
	int64_t number = 0;
	tess_status st = TESS_OK;

	*out = (struct rules){ 0 };
	if (!read_number(seed, 0, &number))
		return host->fail(TESS_EINVAL, "TESSERA_FAULTY_SEED=%s: a number from 0 is needed",
		                  seed);
	out->seed = (uint64_t)number;
	for (const char *at = text; !st && *at; at += strspn(at, "; \n")) {
		size_t len = strcspn(at, ";\n");

		if (out->n == RULES)
			return host->fail(TESS_EINVAL, "TESSERA_FAULTY: more than %d rules", RULES);
		st = read_rule(host, at, len, &out->rule[out->n++]);
		at += len;
	}
	return st;
}

static uint64_t mix_bits(uint64_t h)
{
	h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
	h = (h ^ h >> 27) * 0x94d049bb133111ebu;
	return h ^ h >> 31;
}

/* Draws a number in [0, 1), determined by seed, rule, rank and call. */
static double draw_chance(const struct rules *rules, int32_t i, int32_t rank, int64_t call)
{
	uint64_t h = mix_bits(rules->seed + 0x9e3779b97f4a7c15u);

	h = mix_bits(h + (uint64_t)call * 0x9e3779b97f4a7c15u);
	h = mix_bits(h ^ ((uint64_t)rank << 32 | (uint64_t)i));
	return (double)(h >> 11) * 0x1p-53;
}

bool rule_applies(const struct rules *rules, int32_t i, int32_t rank, int64_t call,
                  const struct tess_coll *c, int32_t at)
{
	const struct rule *r = &rules->rule[i];

	if (at != r->at || (r->rank >= 0 && r->rank != rank) || !c != (r->call == 0))
		return false;
	if (!c)
		return draw_chance(rules, i, rank, 0) < r->chance;
	if ((r->call > 0 && r->call != call) || (r->every && call % r->every != 0) ||
	    (r->kind && r->kind != c->kind))
		return false;
	if (*r->where && (!c->where || !strstr(c->where, r->where)))
		return false;
	return draw_chance(rules, i, rank, call) < r->chance;
}
