/* arguments.c - the options of commands: read by a table, or one by one. */
#include "tool.h"

#include "core/base/status.h"
#include "nn/program/agree.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTIONS_MAX = 62, VALUE_SHOWN = 200 };

#define COMMAND "command" /* the name of a pair, which is that of no option */

/* What ranks compare of the command line, as tess_group_compare_pairs takes it. */
static char *compared;
static size_t ncompared;

struct given_option {
	const struct tess_tool_option *option;
	const char *text; /* NULL: it takes no value */
};

size_t tess_tool_measure_mark(const char *text)
{
	static const char mark[] = "\xef\xbb\xbf";

	return strncmp(text, mark, sizeof mark - 1) ? 0 : sizeof mark - 1;
}

tess_status tess_tool_parse_size(const char *name, const char *text, void *to)
{
	static const char units[] = "KMGT";
	char *end;
	double v = strtod(text, &end);
	const char *unit = *end ? strchr(units, *end) : NULL;
	bool decimal = unit && !strcmp(end + 1, "B");

	for (long power = unit ? unit - units : -1; power >= 0; power--)
		v *= decimal ? 1000 : 1024;
	if (end == text || !(v > 0) || v > 1e18 ||
	    (*end && (!unit || (end[1] && !decimal && strcmp(end + 1, "iB") != 0))))
		return tess_fail(TESS_EINVAL, "%s %s: must be a size, as in 512M, 4G or 5GB", name,
		                 text);
	*(uint64_t *)to = (uint64_t)v;
	return TESS_OK;
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

tess_status tess_tool_parse_seed(const char *name, const char *text, void *to)
{
	tess_status st = tess_tool_parse_integer(name, text, 0, INT64_MAX, to);

	return st ? tess_fail(st,
	                      "%s; no value means a random seed: use %s $RANDOM for another "
	                      "result each time",
	                      tess_error(), name)
	          : TESS_OK;
}

tess_status tess_tool_set_option(const char *name, const char *text, void *to)
{
	(void)to;
	return tess_option_set(name + 2, text);
}

static tess_status fail_familiar_option(const char *command, const char *word, const char *hint)
{
	return tess_fail(TESS_EINVAL, "no such option: %s; %s; see tessera %s --help", word, hint,
	                 command);
}

/* getopt has returned ':' or '?' for `word`. */
static tess_status fail_option(const char *command, const struct tess_tool_option *table, int opt,
                               const char *word)
{
	const char *hint = opt == '?' ? tess_tool_find_familiar_option(table, word) : NULL;

	if (hint)
		return fail_familiar_option(command, word, hint);
	return tess_fail(TESS_EINVAL, "%s %s; see tessera %s --help",
	                 opt == ':' ? "this option needs a value:" : "no such option:", word,
	                 command);
}

/* getopt takes abbreviations too: a new option, or a slip, would change what a command does. */
static tess_status refuse_abbreviation(const char *command, const char *word, const char *name)
{
	size_t len = strcspn(word + 2, "=");

	if (len == strlen(name))
		return TESS_OK;
	return tess_fail(TESS_EINVAL,
	                 "no such option: %.*s; did you mean --%s? See tessera %s --help",
	                 (int)len + 2, word, name, command);
}

tess_status tess_tool_parse_override(const char *name, const char *text, void *to)
{
	struct tess_tool_overrides *o = to;

	if (o->n == TESS_TOOL_OVERRIDES)
		return tess_fail(TESS_EINVAL, "%s: at most %d%s", name, TESS_TOOL_OVERRIDES,
		                 strcmp(name, "--plan-override") ? ""
		                                                 : "; put them into a plan file");
	o->text[o->n++] = text;
	return TESS_OK;
}

int tess_tool_fail_usage(const char *command, const char *what, const char *arg)
{
	fprintf(stderr, "tessera %s: %s%s; see tessera %s --help\n", command, what, arg, command);
	return 2;
}

/* Finds the number of the option whose name is `text`. */
static tess_status parse_name_option(const struct tess_tool_option *o, const char *name,
                                     const char *text)
{
	char all[160] = "";
	size_t len = 0;

	for (int32_t i = o->lo; i <= o->hi; i++) {
		if (!strcmp(text, o->get_name(i))) {
			*o->number = i;
			return TESS_OK;
		}
		len += (size_t)snprintf(all + len, sizeof all - len, "%s%s",
		                        i == o->lo   ? ""
		                        : i == o->hi ? " or "
		                                     : ", ",
		                        o->get_name(i));
	}
	return tess_fail(TESS_EINVAL, "%s %s: must be %s", name, text, all);
}

static tess_status set_tool_option(const struct tess_tool_option *o, const char *text)
{
	char name[64];
	int64_t v = 0;
	tess_status st;

	snprintf(name, sizeof name, "%s%s", o->name[1] ? "--" : "-", o->name);
	if (o->parse)
		return o->parse(name, text, o->to);
	if (o->get_name)
		return parse_name_option(o, name, text);
	if (o->number) {
		st = tess_tool_parse_integer(name, text, o->lo, o->hi, &v);
		if (!st)
			*o->number = (int32_t)v;
		return st;
	}
	if (o->flag)
		*o->flag = true;
	else
		*o->text = text;
	return TESS_OK;
}

tess_status tess_tool_explain_ranks(tess_status st)
{
	char text[1024];

	snprintf(text, sizeof text, "%s", tess_error());
	return tess_fail(st, "%s; -n is the number of ranks, --max-tokens that of tokens", text);
}

/* The value of -n is wrong: `word` may be an option of another project, or may mean tokens. */
static tess_status explain_count(const char *command, const struct tess_tool_option *table,
                                 const char *word)
{
	const char *hint = word[0] == '-' ? tess_tool_find_familiar_option(table, word) : NULL;

	if (hint)
		return fail_familiar_option(command, word, hint);
	for (; table->name; table++)
		if (!strcmp(table->name, "max-tokens"))
			return tess_tool_explain_ranks(TESS_EINVAL);
	return TESS_EINVAL;
}

/* ---- comparison between ranks ---------------------------------------------------------------- */

/* Lists the options in the order of the table; those that may be repeated in their own order. */
static tess_status list_compared_options(const char *command, const struct tess_tool_option *table,
                                         const struct given_option *given, int n)
{
	bool complete;
	FILE *f;

	free(compared);
	compared = NULL;
	f = tess_tool_open_memory(&compared, &ncompared);
	if (f)
		fprintf(f, COMMAND "%c%s%c", 0, command, 0);
	for (int i = 0; f && table[i].name; i++)
		for (int k = 0; k < n && !table[i].local; k++)
			if (given[k].option == &table[i])
				fprintf(f, "%s%s%c%s%c", table[i].name[1] ? "--" : "-",
				        table[i].name, 0, given[k].text ? given[k].text : "", 0);
	complete = f && !ferror(f);
	if (f)
		fclose(f);
	return complete ? TESS_OK : tess_fail(TESS_ENOMEM, "%s: out of memory", command);
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

tess_status tess_tool_parse_options(int argc, char **argv, const char *help, bool program,
                                    const struct tess_tool_option *table)
{
	struct option names[OPTIONS_MAX] = { { "help", no_argument, NULL, 'h' } };
	/* by what getopt_long() returns: the letter, or the place in the table from 1 on */
	const struct tess_tool_option *options[128] = { NULL };
	char letters[2 * OPTIONS_MAX];
	int nletters = sprintf(letters, "%s:h", program ? "+" : ""), nnames = 1, opt, at = -1;
	struct given_option *given = calloc((size_t)argc + 1, sizeof *given);
	int ngiven = 0;
	tess_status st = given ? TESS_OK : tess_fail(TESS_ENOMEM, "%s: out of memory", argv[0]);

	for (int i = 0; table[i].name; i++) {
		const struct tess_tool_option *o = &table[i];
		bool letter = !o->name[1];

		options[letter ? o->name[0] : i + 1] = o;
		if (letter)
			nletters += sprintf(letters + nletters, "%c:", o->name[0]);
		else
			names[nnames++] =
				(struct option){ o->name, o->flag ? no_argument : required_argument,
				                 NULL, i + 1 };
	}
	optind = 1;
	while (!st && (opt = getopt_long(argc, argv, letters, names, &at)) != -1) {
		if (at >= 0) /* in the last word, or before it */
			st = refuse_abbreviation(
				argv[0], argv[optind - (optarg == argv[optind - 1] ? 2 : 1)],
				names[at].name);
		at = -1;
		if (st)
			break;
		given[ngiven++] = (struct given_option){ options[opt], optarg };
		if (opt == 'h')
			st = fputs(help, stdout) < 0 ? TESS_EIO : TESS_PENDING;
		else
			st = opt == ':' || opt == '?'
			             ? fail_option(argv[0], table, opt, argv[optind - 1])
			             : set_tool_option(options[opt], optarg);
		if (st && opt == 'n')
			st = explain_count(argv[0], table, argv[optind - 1]);
	}
	if (!st)
		st = list_compared_options(argv[0], table, given, ngiven);
	free(given);
	return st;
}
