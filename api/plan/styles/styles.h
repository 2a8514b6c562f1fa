/*
 * styles.h - the search of a style for each module: what it decides, and from what.
 */
#ifndef TESS_API_PLAN_STYLES_H
#define TESS_API_PLAN_STYLES_H

#include "api/plan/planner.h"

enum { SPECS_MAX = 32, STATES_MAX = 1024, ALIKE_MAX = 4, WORKLOADS_MAX = 2 };
enum { TAILS_MAX = 8 }; /* whole values, and presets of the model */
enum { UNDECIDED = -1 };

/*
 * Modules with one style: those of alike layers, and linear modules of one shape that are opened
 * together, such as k_proj and v_proj. If tied: an embedding and the head that reads its table,
 * whose styles are a pair.
 */
struct choice {
	const char *pattern[ALIKE_MAX];
	const char *spec[SPECS_MAX][ALIKE_MAX];
	const char *tail[TAILS_MAX][ALIKE_MAX];
	int32_t npatterns, nspecs;
	bool tied;
};

struct placed_site { /* a module */
	const char *path;
	int32_t choice;
	bool contains; /* it has no op of its own, and is left after other modules */
	double times; /* how often the model has it */
};

struct transition { /* from a state before a site, by a style */
	int32_t site, spec;
	const char *from, *to; /* keys of states; to NULL: it is refused */
	const char *places; /* of values, without copies */
	double seconds, bytes;
};

struct placed_state {
	const char *key; /* places of the values that later modules read */
	const char *begun; /* of those at the begin of alike layers; NULL: before it */
	double seconds, bytes;
	const int32_t *spec; /* by choice */
};

struct workload { /* rows that a step computes, and how often */
	int64_t sequences, length, from;
	double times;
	int32_t *rows; /* positions, then slots */
};

struct style_search {
	struct tess_planner *planner;
	struct tess_planned_model model; /* one with few layers */
	struct tess_mesh_shape mesh;
	struct tess_arena arena;
	struct workload load[WORKLOADS_MAX];
	int32_t nloads;
	struct choice *choice;
	struct placed_site *site;
	int32_t nchoices, nsites;
	int32_t ntails, tail; /* tail: the one that was accepted last */
	int32_t begin, end; /* sites of the alike layers; equal: there are none */
	struct transition *transition;
	int32_t ntransitions;
	struct placed_state state[2][STATES_MAX];
};

/* ---- programs (program.c) -------------------------------------------------------------------- */

/*
 * Records the program of one workload. Modules that have no style yet have that of a tail: whole
 * values, or a preset of the model, the first that is accepted. TESS_ENOMEM; another failure: the
 * styles are refused with every tail.
 */
tess_status tess_styles_record(struct style_search *s, const int32_t *spec,
                               const struct workload *w, struct tess_program **out);
/* Records it with one tail. */
tess_status tess_styles_record_tail(struct style_search *s, const int32_t *spec,
                                    const struct workload *w, int32_t tail,
                                    struct tess_program **out);
/* Formats the rules of a plan, without those of modules as they would be anyway. Free it. */
char *tess_styles_format_plan(const struct style_search *s, const int32_t *spec);
/* Returns the number of records of the forward. */
int32_t tess_styles_count_forward(const struct tess_program *p);
/* Returns the first record after site i; the last site has the rest of the forward. */
int32_t tess_styles_find_end(const struct tess_program *p, int32_t i);
/* Returns whether a name is that of something in a module. */
bool tess_styles_is_below(const char *name, const char *path);

/* ---- choices (choices.c) --------------------------------------------------------------------- */

/* Lists the modules of the model, and the styles that each of them may have. */
tess_status tess_styles_list_choices(struct style_search *s);
/* Returns the styles of a state in which nothing is decided. NULL: out of memory. */
int32_t *tess_styles_make_undecided(struct style_search *s);

/* ---- states (places.c) ----------------------------------------------------------------------- */

struct value_places { /* by id of a tensor, of the forward */
	int32_t *made; /* the record that makes it; -1: an input */
	int32_t *owner; /* the value that the model has, of which it is a copy with other places */
	int32_t *order; /* of the value among those that no move makes */
	bool *read; /* by a record after the site, or a copy of it is */
};

/* Finds the values that records from `end` on read. False: out of memory. */
bool tess_styles_find_values(struct tess_arena *a, const struct tess_program *p, int32_t end,
                             struct value_places *v);
/* Formats the places of these values. NULL: out of memory. */
const char *tess_styles_format_places(struct style_search *s, const struct tess_program *p,
                                      const struct value_places *v, int32_t end, bool with_copies);
/* Formats the state after site i: all that the cost of later sites depends on. */
const char *tess_styles_format_key(struct style_search *s, const struct tess_program *p,
                                   const struct value_places *v, int32_t i, const int32_t *spec);

/* ---- transitions (transition.c) -------------------------------------------------------------- */

/* Finds a transition, or measures it. spec: the styles so far, with that of the site. */
tess_status tess_styles_find_transition(struct style_search *s, int32_t site, const char *from,
                                        const int32_t *spec, const struct transition **out);

#endif
