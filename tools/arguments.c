/* arguments.c - reads the options of commands, and compares those of ranks. */
#include "tool.h"

#include "core/base/status.h"
#include "nn/program/agree.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

enum { OPTIONS_MAX = 62, VALUE_SHOWN = 200 };

#define COMMAND "command" /* the name of a compared pair; no option has it */

/* The command line that ranks compare, as tess_group_compare_pairs takes it. */
static char *compared;
static size_t ncompared;

struct readable_option {
	const struct tess_tool_option *option;
	void *to;
};

struct given_option {
	const struct readable_option *option;
	const char *text; /* NULL: it takes no value */
	const char *word; /* the argument that contains the text */
};

struct reader {
	const struct tess_tool_command *command;
	struct readable_option options[OPTIONS_MAX];
	int n;
	struct given_option *given;
	int ngiven;
};

/* ---- values ---------------------------------------------------------------------------------- */

size_t tess_tool_measure_mark(const char *text)
{
	static const char mark[] = "\xef\xbb\xbf";

	return strncmp(text, mark, sizeof mark - 1) ? 0 : sizeof mark - 1;
}

/* plain: the base of a unit without B or iB. */
static tess_status parse_bytes(const char *name, const char *text, int plain, uint64_t *out)
{
	static const char units[] = "KMGT";
	char *end;
	double v = strtod(text, &end);
	const char *unit = *end ? strchr(units, *end) : NULL;
	bool decimal = unit && !strcmp(end + 1, "B");
	int base = !unit || end[1] ? decimal ? 1000 : 1024 : plain;

	for (long power = unit ? unit - units : -1; power >= 0; power--)
		v *= base;
	if (end == text || !(v > 0) || v > 1e18 ||
	    (*end && (!unit || (end[1] && !decimal && strcmp(end + 1, "iB") != 0))))
		return tess_fail(TESS_EINVAL, "%s %s: must be a size, as in 512M, 4G or 5GB", name,
		                 text);
	*out = (uint64_t)v;
	return TESS_OK;
}

tess_status tess_tool_parse_size(const char *name, const char *text, uint64_t *out)
{
	return parse_bytes(name, text, 1024, out);
}

tess_status tess_tool_parse_memory(const char *name, const char *text, void *to)
{
	return parse_bytes(name, text, 1000, to);
}

tess_status tess_tool_parse_integer(const char *name, const char *text, int64_t lo, int64_t hi,
                                    int64_t *out)
{
	char *end;
	long long v;

	errno = 0;
	v = strtoll(text, &end, 10);
	if (end == text || *end || errno || v < lo || v > hi)
		return tess_fail(TESS_EINVAL, "%s %s: must be a whole number from %lld to %lld",
		                 name, text, (long long)lo, (long long)hi);
	*out = v;
	return TESS_OK;
}

tess_status tess_tool_parse_real(const char *name, const char *text, double lo, double hi,
                                 double *out)
{
	char *end;
	double v = strtod(text, &end);

	if (end == text || *end || !(v >= lo && v <= hi)) /* false for NaN */
		return tess_fail(TESS_EINVAL, "%s %s: must be a number from %g to %g", name, text,
		                 lo, hi);
	*out = v;
	return TESS_OK;
}

static tess_status parse_seed(const char *name, const char *text, int64_t *out)
{
	tess_status st = tess_tool_parse_integer(name, text, 0, INT64_MAX, out);

	return st ? tess_fail(st,
	                      "%s; no value means a random seed: use %s $RANDOM for another "
	                      "result each time",
	                      tess_error(), name)
	          : TESS_OK;
}

tess_status tess_tool_set_option(const char *name, const char *text, void *to)
{
	(void)to;
	return tess_option_set(name + 2, text ? text : "1");
}

static tess_status add_to_list(const char *name, const char *text, struct tess_tool_list *l)
{
	if (l->n == TESS_TOOL_LIST_MAX)
		return tess_fail(TESS_EINVAL, "%s: at most %d%s", name, TESS_TOOL_LIST_MAX,
		                 strcmp(name, "--plan-override") ? ""
		                                                 : "; put them into a plan file");
	l->text[l->n++] = text;
	return TESS_OK;
}

tess_status tess_tool_parse_name(const struct tess_tool_option *o, const char *name,
                                 const char *text, int32_t *out)
{
	char all[256];

	for (int32_t i = (int32_t)o->lo; i <= (int32_t)o->hi; i++) {
		const char *one = o->get_name(i);

		if (one && !strcmp(text, one)) {
			*out = i;
			return TESS_OK;
		}
	}
	return tess_fail(TESS_EINVAL, "%s %s: must be %s", name, text,
	                 tess_tool_join_names(o, ", ", " or ", all));
}

static tess_status set_integer_option(const struct tess_tool_option *o, const char *name,
                                      const char *text, int32_t *to)
{
	int64_t v = 0;
	tess_status st;

	if (o->get_name)
		return tess_tool_parse_name(o, name, text, to);
	st = tess_tool_parse_integer(name, text, (int64_t)o->lo, (int64_t)o->hi, &v);
	if (!st)
		*to = (int32_t)v;
	return st;
}

static tess_status set_option(const struct readable_option *r, const char *text)
{
	const struct tess_tool_option *o = r->option;
	void *to = (char *)r->to + o->at;
	char name[64];

	snprintf(name, sizeof name, "%s%s", o->name[1] ? "--" : "-", o->name);
	if (o->parse)
		return o->parse(name, text, to);
	switch (o->field) {
	case TESS_TOOL_FLAG:
		*(bool *)to = true;
		return TESS_OK;
	case TESS_TOOL_INTEGER:
		return set_integer_option(o, name, text, to);
	case TESS_TOOL_REAL:
		return tess_tool_parse_real(name, text, o->lo, o->hi, to);
	case TESS_TOOL_SIZE:
		return tess_tool_parse_size(name, text, to);
	case TESS_TOOL_SEED:
		return parse_seed(name, text, to);
	case TESS_TOOL_LIST:
		return add_to_list(name, text, to);
	default:
		*(const char **)to = text;
		return TESS_OK;
	}
}

/* ---- wrong options --------------------------------------------------------------------------- */

static bool has_option(const struct reader *r, const char *name)
{
	for (int i = 0; i < r->n; i++)
		if (!strcmp(r->options[i].option->name, name))
			return true;
	return false;
}

/* Returns what the command has in place of another project's option; NULL: nothing. */
static const char *find_hint(const struct reader *r, const char *word)
{
	const char *ours, *hint = tess_tool_find_familiar_option(word, &ours);

	return hint && (!ours || has_option(r, ours)) ? hint : NULL;
}

static tess_status fail_familiar_option(const struct reader *r, const char *word, const char *hint)
{
	return tess_fail(TESS_EINVAL, "no such option: %s; %s; see tessera %s --help", word, hint,
	                 r->command->name);
}

/* Fails for `word`, of which getopt has returned ':' or '?'. */
static tess_status fail_option(const struct reader *r, int opt, const char *word)
{
	const char *hint = opt == '?' ? find_hint(r, word) : NULL;

	if (hint)
		return fail_familiar_option(r, word, hint);
	return tess_fail(TESS_EINVAL, "%s %s; see tessera %s --help",
	                 opt == ':' ? "this option needs a value:" : "no such option:", word,
	                 r->command->name);
}

/* Refuses an abbreviation, which getopt accepts: a new option would change its meaning. */
static tess_status refuse_abbreviation(const struct reader *r, const char *word, const char *name)
{
	size_t len = strcspn(word + 2, "=");

	if (len == strlen(name))
		return TESS_OK;
	return tess_fail(TESS_EINVAL,
	                 "no such option: %.*s; did you mean --%s? See tessera %s --help",
	                 (int)len + 2, word, name, r->command->name);
}

int tess_tool_fail_usage(const char *command, const char *what, const char *arg)
{
	fprintf(stderr, "tessera %s: %s%s; see tessera %s --help\n", command, what, arg, command);
	return 2;
}

tess_status tess_tool_explain_ranks(tess_status st)
{
	char text[1024];

	snprintf(text, sizeof text, "%s", tess_error());
	return tess_fail(st, "%s; -n is the number of ranks, --max-tokens that of tokens", text);
}

/* Explains a wrong value of -n: `word` may be another project's option, or a number of tokens. */
static tess_status explain_count(const struct reader *r, const char *word)
{
	const char *hint = word[0] == '-' ? find_hint(r, word) : NULL;

	if (hint)
		return fail_familiar_option(r, word, hint);
	return has_option(r, "max-tokens") ? tess_tool_explain_ranks(TESS_EINVAL) : TESS_EINVAL;
}

/* ---- comparison between ranks ---------------------------------------------------------------- */

/* Lists the options in the order of the sections; repeated ones in their own order. */
static tess_status list_compared_options(const struct reader *r)
{
	bool complete;
	FILE *f;

	free(compared);
	compared = NULL;
	f = tess_tool_open_memory(&compared, &ncompared);
	if (f)
		fprintf(f, COMMAND "%c%s%c", 0, r->command->name, 0);
	for (int i = 0; f && i < r->n; i++) {
		const struct tess_tool_option *o = r->options[i].option;

		for (int k = 0; k < r->ngiven && !o->local; k++)
			if (r->given[k].option->option == o)
				fprintf(f, "%s%s%c%s%c", o->name[1] ? "--" : "-", o->name, 0,
				        r->given[k].text ? r->given[k].text : "", 0);
	}
	complete = f && !ferror(f);
	if (f)
		fclose(f);
	return complete ? TESS_OK : tess_fail(TESS_ENOMEM, "%s: out of memory", r->command->name);
}

tess_status tess_tool_add_compared(const char *name, const char *value)
{
	size_t nname = strlen(name) + 1, nvalue = strlen(value) + 1;
	char *more = realloc(compared, ncompared + nname + nvalue);

	if (!more)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", name);
	compared = more;
	memcpy(compared + ncompared, name, nname);
	memcpy(compared + ncompared + nname, value, nvalue);
	ncompared += nname + nvalue;
	return TESS_OK;
}

static tess_status explain_option(void *arg, struct tess_difference *d)
{
	static const char rule[] = "all ranks need the same options";
	const char *value = d->mine ? d->mine : d->theirs, *space = *value ? " " : "", *dots;
	int rank = (int)d->rank;

	(void)arg;
	if (!strcmp(d->name, COMMAND))
		return tess_fail(TESS_EMISMATCH, "runs tessera %s, but rank %d tessera %s", d->mine,
		                 rank, d->theirs);
	if (!d->theirs)
		return tess_fail(TESS_EMISMATCH, "%s%s%.*s is given, but not on rank %d; %s",
		                 d->name, space, VALUE_SHOWN, value, rank, rule);
	if (!d->mine)
		return tess_fail(TESS_EMISMATCH, "%s is not given, but %s%s%.*s on rank %d; %s",
		                 d->name, d->name, space, VALUE_SHOWN, value, rank, rule);
	dots = tess_difference_skip_common(d);
	return tess_fail(TESS_EMISMATCH, "%s is \"%s%.*s\", but \"%s%.*s\" on rank %d; %s", d->name,
	                 dots, VALUE_SHOWN, d->mine, dots, VALUE_SHOWN, d->theirs, rank, rule);
}

tess_status tess_tool_compare_options(struct tess_world *w)
{
	return tess_group_compare_pairs(tess_world_group(w), compared, ncompared, "options",
	                                explain_option, NULL);
}

/* ---- reading --------------------------------------------------------------------------------- */

static void list_options(struct reader *r, const struct tess_tool_section *sections)
{
	for (; sections->title; sections++)
		for (const struct tess_tool_option *o = sections->options;
		     !sections->shown_only && o->name; o++)
			r->options[r->n++] = (struct readable_option){ o, sections->to };
}

/* Notes the options that are given. TESS_PENDING: --help is one of them. */
static tess_status find_given_options(struct reader *r, int argc, char **argv, bool program)
{
	struct option names[OPTIONS_MAX + 2] = { { "help", no_argument, NULL, 'h' } };
	/* by what getopt_long() returns: the letter, or the index from 1 on */
	const struct readable_option *options[128] = { NULL };
	char letters[2 * OPTIONS_MAX];
	int nletters = sprintf(letters, "%s:h", program ? "+" : ""), nnames = 1, opt, at = -1;

	for (int i = 0; i < r->n; i++) {
		const struct tess_tool_option *o = r->options[i].option;
		bool letter = !o->name[1];

		options[letter ? o->name[0] : i + 1] = &r->options[i];
		if (letter)
			nletters += sprintf(letters + nletters, "%c:", o->name[0]);
		else
			names[nnames++] = (struct option){
				o->name, o->value || o->get_name ? required_argument : no_argument,
				NULL, i + 1
			};
	}
	optind = 1;
	for (; (opt = getopt_long(argc, argv, letters, names, &at)) != -1; at = -1) {
		tess_status st = TESS_OK;

		if (at >= 0) /* in the last word, or before it */
			st = refuse_abbreviation(
				r, argv[optind - (optarg == argv[optind - 1] ? 2 : 1)],
				names[at].name);
		if (!st && (opt == ':' || opt == '?'))
			st = fail_option(r, opt, argv[optind - 1]);
		if (st || opt == 'h')
			return st ? st : TESS_PENDING;
		r->given[r->ngiven++] =
			(struct given_option){ options[opt], optarg, argv[optind - 1] };
	}
	return TESS_OK;
}

tess_status tess_tool_parse_options(int argc, char **argv, const struct tess_tool_command *c,
                                    bool program, const struct tess_tool_section *sections)
{
	struct reader r = { .command = c, .given = calloc((size_t)argc + 1, sizeof *r.given) };
	tess_status st;

	list_options(&r, sections);
	st = r.given ? find_given_options(&r, argc, argv, program)
	             : tess_fail(TESS_ENOMEM, "%s: out of memory", c->name);
	if (st == TESS_PENDING)
		tess_tool_print_help(c, sections);
	for (int i = 0; i < r.ngiven && !st; i++) {
		st = set_option(r.given[i].option, r.given[i].text);
		if (st && !strcmp(r.given[i].option->option->name, "n"))
			st = explain_count(&r, r.given[i].word);
	}
	if (!st)
		st = list_compared_options(&r);
	free(r.given);
	return st;
}

tess_status tess_tool_parse_model(int argc, char **argv, const struct tess_tool_command *c,
                                  const struct tess_tool_section *sections, const char **model)
{
	tess_status st = tess_tool_parse_options(argc, argv, c, false, sections);

	if (!st && optind + 1 != argc)
		st = tess_fail(TESS_EINVAL, "%s; see tessera %s --help",
		               optind < argc ? "give one MODEL: a checkpoint directory"
		                             : "no MODEL is given, a checkpoint directory",
		               c->name);
	if (!st)
		*model = argv[optind];
	return st;
}
