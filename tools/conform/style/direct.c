/* direct.c - calls the functions of a style without a program: proper, odd and repeated calls. */
#include "style.h"

#include "core/base/status.h"
#include "core/registry/plugin_call.h"
#include "core/registry/registry.h"
#include "nn/record/recorder.h"

#include <malloc.h>
#include <string.h>
#include <sys/stat.h>

static const char *const site_kinds[] = {
	"linear", "embedding", "norm", "module", "experts", NULL
};

tess_status conform_style_find(const char *spec, struct conform_style *out)
{
	const char *colon = strchr(spec, ':');

	*out = (struct conform_style){ .spec = spec, .config = colon ? colon + 1 : "" };
	snprintf(out->name, sizeof out->name, "%.*s",
	         colon ? (int)(colon - spec) : (int)strlen(spec), spec);
	return tess_plugin_find_style(out->name, &out->table);
}

/* A module without a program. A style over another opens the sites of inner styles in it. */
struct lone_module {
	struct tess_program opened; /* only what is closed at the end */
	struct tess_recorder r;
	struct tess_module m;
};

static struct tess_site *make_style_site(struct lone_module *l, const struct conform_style *style,
                                         int32_t nranks, const char *kind, bool data)
{
	*l = (struct lone_module){ 0 };
	l->r.p = &l->opened;
	l->m.r = &l->r;
	l->m.style = style->table;
	l->m.spec = style->spec;
	l->m.site = (struct tess_site){ .size = sizeof l->m.site,
		                        .nranks = nranks,
		                        .training = data,
		                        .data = data,
		                        .host = &tess_recording_host,
		                        .module = "model.mod",
		                        .kind = kind,
		                        .config = style->config,
		                        .style = style->name };
	return &l->m.site;
}

static tess_status open_state(const struct conform_style *style, struct tess_site *site)
{
	return style->table->open
	               ? TESS_PLUGIN_CALL(style->table, site->module, open, site, &site->state)
	               : TESS_OK;
}

static void close_states(const struct conform_style *style, struct lone_module *l)
{
	if (style->table->close && style->table->open)
		TESS_PLUGIN_DO(style->table, l->m.site.module, close, l->m.site.state);
	tess_program_free(&l->opened);
}

/* Calls layout, then partition_param for `p` unless it is NULL, of a module of this kind. */
static tess_status call_for_module(const struct conform_style *style, int32_t nranks,
                                   const char *kind, bool data, const struct tess_param *p,
                                   struct tess_param_place *place)
{
	struct lone_module lone;
	struct tess_site *site = make_style_site(&lone, style, nranks, kind, data);
	struct tess_io io = { 0 };
	tess_status st = open_state(style, site);

	if (st) {
		tess_program_free(&lone.opened);
		return st;
	}
	st = TESS_PLUGIN_CALL(style->table, site->module, layout, site, &io);
	if (!st && p)
		st = TESS_PLUGIN_CALL(style->table, site->module, partition_param, site, p, place);
	close_states(style, &lone);
	return st;
}

static bool accepts_any(const struct conform_style *style, int32_t nranks, bool data)
{
	for (const char *const *kind = site_kinds; *kind; kind++)
		if (!call_for_module(style, nranks, *kind, data, NULL, NULL))
			return true;
	return false;
}

enum conform_role conform_style_find_role(const struct conform_style *style, int32_t nranks)
{
	if (style->table->begins_stage)
		return CONFORM_STAGE;
	if (accepts_any(style, nranks, false))
		return CONFORM_TENSOR;
	if (accepts_any(style, nranks, true))
		return CONFORM_DATA;
	call_for_module(style, nranks, site_kinds[0], false, NULL, NULL);
	return CONFORM_NO_ROLE;
}

/* ---- one call -------------------------------------------------------------------------------- */

/*
 * Checks the status of a call whose own message is in tess_error(), as the style set it. Returns
 * true for TESS_OK.
 */
static bool check_status(struct conform_rank *me, const char *function, const char *module,
                         tess_status st)
{
	if (st > TESS_OK || st < TESS_EBUG)
		conform_add_fault(
			me,
			"%s() returned %d. The rule: TESS_OK, or a negative status of the "
			"table in tessera/plugin.h, by host->fail()",
			function, (int)st);
	else if (st && !*tess_error())
		conform_add_fault(me,
		                  "%s() returned %s without a message. The rule: a refusal has a "
		                  "message; use host->fail()",
		                  function, tess_status_name(st));
	else if (st && !strstr(tess_error(), module))
		conform_add_fault(me,
		                  "%s() refuses with \"%s\". The rule: the message names the "
		                  "module, site->module",
		                  function, tess_error());
	return !st;
}

static void check_given_place(struct conform_rank *me, const char *what, struct tess_place p)
{
	bool cut = p.kind == TESS_SHARD;

	if (p.kind < TESS_ASIS || p.kind > TESS_PARTIAL)
		conform_add_fault(me,
		                  "%s has the placement %d. The rule: TESS_ASIS, TESS_REPLICATE, "
		                  "TESS_SHARD or TESS_PARTIAL",
		                  what, (int)p.kind);
	else if ((cut && (p.dim < -TESS_DIMS || p.dim >= TESS_DIMS)) || (!cut && p.dim))
		conform_add_fault(me,
		                  "%s has the dimension %d in its placement. The rule: -%d to %d "
		                  "for TESS_SHARD, else 0",
		                  what, (int)p.dim, TESS_DIMS, TESS_DIMS - 1);
	else if ((p.op && p.op != TESS_SUM) || p.reserved)
		conform_add_fault(
			me,
			"%s has op %d and reserved %d in its placement. The rule: op is 0 "
			"or TESS_SUM, reserved is 0",
			what, (int)p.op, (int)p.reserved);
}

/* Sets the activity to a function, its parameter unless it is NULL, and the module. */
static void set_call_activity(struct conform_rank *me, const char *function,
                              const struct tess_param *p, const struct tess_site *site)
{
	conform_set_activity(me, "%s(%s) of a module of kind \"%s\"%s%s%.60s", function,
	                     p ? p->name : "", site->kind,
	                     site->data ? ", each rank with its own sequences" : "",
	                     *site->config ? ", configuration " : "", site->config);
}

/* Calls layout twice. Returns whether the module is accepted. */
static bool check_layout_calls(struct conform_rank *me, const struct conform_style *style,
                               const struct tess_site *site)
{
	struct tess_io io[2] = { 0 };
	tess_status st[2];

	set_call_activity(me, "layout", NULL, site);
	for (int i = 0; i < 2; i++) {
		tess_error_clear();
		st[i] = TESS_PLUGIN_VALUE(style->table, site->module, layout, site, &io[i]);
	}
	if (!check_status(me, "layout", site->module, st[1]))
		return false;
	check_given_place(me, "the input", io[0].in[0]);
	check_given_place(me, "the output", io[0].out[0]);
	if (st[0] != st[1] || memcmp(&io[0], &io[1], sizeof io[0]) != 0)
		conform_add_fault(me, "layout() gives another result when it is called again. The "
		                      "rule: it depends on its arguments only");
	return true;
}

static void check_param(struct conform_rank *me, const struct conform_style *style,
                        const struct tess_site *site, const struct tess_param *p)
{
	struct tess_param_place place[2] = { 0 };
	tess_status st[2];

	set_call_activity(me, "partition_param", p, site);
	for (int i = 0; i < 2; i++) {
		tess_error_clear();
		st[i] = TESS_PLUGIN_VALUE(style->table, site->module, partition_param, site, p,
		                          &place[i]);
	}
	if (!check_status(me, "partition_param", site->module, st[1]))
		return;
	check_given_place(me, p->name, place[0].use);
	if (st[0] != st[1] || memcmp(&place[0], &place[1], sizeof place[0]) != 0)
		conform_add_fault(me, "partition_param() gives another result when it is called "
		                      "again. The rule: it depends on its arguments only");
}

/* ---- parameters ------------------------------------------------------------------------------ */

static const int64_t *const one_part[] = { NULL, NULL, NULL };
static const int64_t two_halves[] = { 7, 7, 0 };
static const int64_t *const fused_part[] = { two_halves, NULL, NULL };
static const int64_t square[] = { 14, 9, 5 }, units[] = { 7, 3, 5 }, ones[] = { 1, 1, 1 };

static const struct {
	const char *kind, *name; /* kind: of the module */
	int32_t ndim, out_dim, in_dim, expert_dim;
	const int64_t *shape, *units, *const *parts;
} params[] = {
	{ "linear", "weight", 2, 0, 1, -1, square, square, one_part },
	{ "linear", "weight", 2, 1, 0, -1, square, square, one_part }, /* [in, out], as in GPT-2 */
	{ "linear", "weight", 2, 0, 1, -1, square, units, fused_part },
	{ "linear", "weight", 2, 0, 1, -1, ones, ones, one_part },
	{ "linear", "bias", 1, 0, -1, -1, square, square, one_part },
	{ "linear", "bias", 1, 0, -1, -1, square, units, fused_part },
	{ "embedding", "weight", 2, 1, 0, -1, square, square, one_part },
	{ "norm", "weight", 1, -1, -1, -1, square, square, one_part },
	{ "experts", "gate_up_proj", 3, 1, 2, 0, square, units, one_part },
	{ "experts", "down_proj", 3, 1, 2, 0, square, square, one_part },
};
enum { PARAMS = sizeof params / sizeof *params };

static struct tess_param make_param(int i)
{
	return (struct tess_param){ .size = sizeof(struct tess_param),
		                    .dtype = TESS_F32,
		                    .ndim = params[i].ndim,
		                    .out_dim = params[i].out_dim,
		                    .in_dim = params[i].in_dim,
		                    .expert_dim = params[i].expert_dim,
		                    .name = params[i].name,
		                    .shape = params[i].shape,
		                    .units = params[i].units,
		                    .parts = params[i].parts };
}

bool conform_style_cuts(const struct conform_style *style, int32_t nranks, const char *kind)
{
	struct tess_param_place place = { 0 };

	for (int i = 0; i < PARAMS; i++) {
		const struct tess_param p = make_param(i);

		if (!strcmp(params[i].kind, kind) &&
		    !call_for_module(style, nranks, kind, false, &p, &place) &&
		    place.use.kind == TESS_SHARD)
			return true;
	}
	return false;
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* Checks the calls for a module of each kind, with its parameters, or with all of them. */
static void check_kinds(struct conform_rank *me, const struct conform_style *style, bool data,
                        bool all_params)
{
	for (const char *const *kind = site_kinds; *kind; kind++) {
		struct lone_module lone;
		struct tess_site *site = make_style_site(&lone, style, me->n, *kind, data);

		set_call_activity(me, "open", NULL, site);
		tess_error_clear();
		if (style->table->open &&
		    !check_status(me, "open", site->module,
		                  TESS_PLUGIN_VALUE(style->table, site->module, open, site,
		                                    &site->state))) {
			tess_program_free(&lone.opened);
			continue;
		}
		if (check_layout_calls(me, style, site) || all_params)
			for (int i = 0; i < PARAMS; i++) {
				const struct tess_param p = make_param(i);

				if (all_params || !strcmp(params[i].kind, *kind))
					check_param(me, style, site, &p);
			}
		set_call_activity(me, "close", NULL, site);
		close_states(style, &lone);
		me->state->ncases++;
	}
}

tess_status conform_run_style_functions(struct conform_rank *me)
{
	struct conform_style style;
	tess_status st = conform_style_find(me->job->style, &style);

	if (st || me->rank)
		return st;
	check_kinds(me, &style, false, false);
	check_kinds(me, &style, true, false);
	conform_set_activity(me, "all kinds of modules");
	if (conform_style_find_role(&style, me->n) == CONFORM_NO_ROLE)
		conform_add_fault(me,
		                  "it refuses modules of every kind: %s. The rule: a style is for "
		                  "some kind; if it needs a configuration, use NAME:CONFIGURATION",
		                  tess_error());
	return TESS_OK;
}

tess_status conform_run_style_refusals(struct conform_rank *me)
{
	char text[4097];
	const char *const odd[] = { "no-such-configuration", ",,=", "%s%n", "=", ":", text, NULL };
	struct conform_style style;
	tess_status st = conform_style_find(me->job->style, &style);

	memset(text, 'x', sizeof text - 1);
	text[sizeof text - 1] = '\0';
	for (int i = 0; odd[i] && !st && !me->rank; i++) {
		style.config = odd[i];
		check_kinds(me, &style, false, true);
	}
	return st;
}

/* Opens and closes the state of a module many times. */
tess_status conform_run_style_life(struct conform_rank *me)
{
	enum { ROUNDS = 2000, WARM = 200, PER_ROUND = 16 };
	struct conform_style style;
	size_t before = 0, after;
	tess_status st = conform_style_find(me->job->style, &style);

	conform_set_activity(me, "open, layout and close, %d times", (int)ROUNDS);
	for (int i = 0; i < ROUNDS && !st; i++) {
		if (i == WARM)
			before = mallinfo2().uordblks;
		call_for_module(&style, 2, "linear", false, NULL, NULL);
	}
	after = mallinfo2().uordblks;
	if (!st && after > before + (size_t)(ROUNDS - WARM) * PER_ROUND)
		conform_add_fault(
			me,
			"bytes of heap: %zu became %zu. The rule: close() frees the state "
			"that open() made",
			before, after);
	me->state->ncases++;
	return st;
}

/* ---- the plugin ------------------------------------------------------------------------------ */

static bool is_same_file(const char *a, const char *b)
{
	struct stat x, y;

	return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Lists the styles of a file, or the one that is named. */
static tess_status list_plugin_styles(const struct conform_job *job, struct conform_backend_info *f)
{
	struct conform_style style = { .name = "" };
	struct tess_plugin_info p;
	tess_status st =
		*job->file ? tess_registry_open_all() : conform_style_find(job->style, &style);

	if (!st && !*job->file)
		snprintf(f->style[f->nstyles++], sizeof *f->style, "%s", job->style);
	for (size_t i = 0; !st && tess_registry_at(i, &p); i++) {
		bool named = *job->file && is_same_file(p.path, job->file);

		if (named && p.status)
			return tess_fail(p.status, "%s", p.why);
		for (size_t k = 0; k < p.noffers; k++) {
			if (p.offers[k].table == style.table || named)
				snprintf(f->path, sizeof f->path, "%s", p.path);
			if (named && f->nstyles < CONFORM_STYLES)
				snprintf(f->style[f->nstyles++], sizeof *f->style, "%s",
				         p.offers[k].name);
		}
	}
	if (!st && !f->nstyles)
		st = tess_fail(TESS_ENOENT, "%s: has no style", job->file);
	return st;
}

int conform_inspect_style(struct conform_shared *shared)
{
	struct conform_rank me = { .state = &shared->rank_state[0] };
	tess_status st;

	conform_set_activity(&me, "opening the plugin");
	st = list_plugin_styles(&shared->job, &shared->backend);
	if (st) {
		conform_add_failure(&me, st);
		return 1;
	}
	shared->backend.opened = true;
	return 0;
}
