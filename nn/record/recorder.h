/* recorder.h - the state of a recording, shared by all files of this folder. */
#ifndef TESS_NN_RECORDER_H
#define TESS_NN_RECORDER_H

#include "nn/record/options.h"

struct tess_recorder {
	struct tess_nn nn; /* first: models see this */
	const struct tess_record_options *options;
	json_t *settings; /* config.json with the defaults of the model */
	struct tess_program *p;
	tess_status status; /* the first error; after it calls do nothing */
	const char *sentence;
	bool *used_rules; /* rules of the plan that matched */
	const struct tess_record *of; /* of records that are appended: see tess_record */
	const struct tess_entered *path; /* the innermost entered module; NULL: none */
	const struct tess_module *modules; /* all modules, the last opened first */
	const struct tess_place *whole; /* Replicate along each mesh dimension */
	/* outputs of all modules, in the order in which they end; NULL: no options->values */
	struct tess_module_output *outputs, *last_output;
	struct tess_stage_begin *stage_begins; /* begins of pipeline stages in the plan */
	int32_t nstage_begins;
};

struct tess_module_output { /* the value that a module returns */
	struct tess_module_output *next; /* that of the module which ends after this one */
	const char *module, *styles; /* styles: as in tess_value */
	struct tess_tensor *value;
};

struct tess_stage_begin { /* the begin of a stage */
	const char *module;
	int32_t record; /* its first record */
};

struct tess_entered { /* an entered module */
	const struct tess_entered *outer;
	const char *module;
	const struct tess_module *opened;
};

/*
 * A site along one mesh dimension, with its style. A module is an array of sites, one per mesh
 * dimension; the first has the `hooks` of all.
 */
struct tess_module {
	struct tess_site site; /* first: host->redistribute receives a pointer to it */
	const struct tess_module *before; /* opened before this one */
	struct tess_recorder *r;
	int32_t along; /* the mesh dimension */
	const struct tess_style *style;
	const char *spec; /* "packed_colwise:parts=2,1" */
	const struct tess_plan_rule *rule; /* NULL: no rule, replicated */
	struct tess_io io;
	bool hooks;
	int32_t ndim; /* axes of the hook's value */
	struct tess_module *inners; /* sites of styles under this one, the last opened first */
	struct tess_module *next_inner;
	const struct tess_module *outer; /* the site whose style is over this one; NULL: none */
};

/*
 * Appends a collective of the local value x along its mesh dimension; `kind` is one of
 * tess_collective, or TESS_REDUCE. num: the kind, and root or shift. The result has `rows` rows.
 * NULL: failure.
 */
struct tess_record *tess_record_append_collective(struct tess_recorder *r, const char *module,
                                                  int32_t along, const int32_t num[2],
                                                  struct tess_tensor *x, int64_t rows);
/* Makes the dim of n addends, one per rank of a mesh dimension. NULL: failure. */
const struct tess_dim *tess_dim_new_addends(struct tess_recorder *r, int32_t n);

struct tess_recorder *tess_recorder_get(struct tess_nn *nn);
/* Records the first failure. Returns NULL, so that a recording function can return it. */
void *tess_recorder_fail(struct tess_recorder *r, tess_status why, const char *fmt, ...)
	TESS_PRINTF(3, 4);
/* Records the first failure with this thread's current message. */
void *tess_recorder_keep_error(struct tess_recorder *r, tess_status why);

/* Fails if a rule of the plan matched nothing (refuse.c). */
void tess_recorder_check_rules(struct tess_recorder *r);
/* Adds the plan's rules for the modules that a failure names to its message. */
void tess_recorder_name_rules(struct tess_recorder *r);

/* Formats "path.of.modules.NAME"; name NULL: the open module. */
const char *tess_recorder_format_path(struct tess_recorder *r, const char *name);
/* Formats " along xp" if the mesh has several dimensions, else "". */
const char *tess_recorder_along(struct tess_recorder *r, int32_t along);
/* Finds and opens the module's styles, and requests their layouts. */
const struct tess_module *tess_module_open(struct tess_recorder *r, const char *module,
                                           const char *kind);

/* Moves a model's output to its readers: ranks, or the loss (logits.c). */
struct tess_tensor *tess_logits_place(struct tess_recorder *r, struct tess_tensor *x);
/* Makes the inputs of a step, with their dims (inputs.c). TESS_EINVAL, TESS_ENOMEM. */
tess_status tess_inputs_make(struct tess_recorder *r);

/* Finds the style and the configuration of m->spec. */
tess_status tess_module_find_style(struct tess_recorder *r, struct tess_module *m);
/* Opens the state of a module's style, which the program closes. */
tess_status tess_module_open_style(struct tess_recorder *r, struct tess_module *m);
/* tess_host.inner, layout and partition_param (inner.c). */
tess_status tess_module_open_inner(const struct tess_site *s, const char *spec,
                                   const struct tess_site **inner);
tess_status tess_module_layout_inner(const struct tess_site *inner, struct tess_io *out);
tess_status tess_module_partition_inner(const struct tess_site *inner, const struct tess_param *p,
                                        struct tess_param_place *out);
/* The calls of styles: tess_site.host (hooks.c). */
extern const struct tess_host tess_recording_host;
/* Fails with TESS_EINVAL if the place is not possible along a dimension of data. */
tess_status tess_module_check_data(const struct tess_module *m, struct tess_place place);

struct tess_tensor *tess_tensor_new(struct tess_recorder *r, int32_t ndim,
                                    const struct tess_dim *const *dim,
                                    const struct tess_place *place, const char *module);
struct tess_record *tess_record_append(struct tess_recorder *r, int32_t kind, const char *module,
                                       int32_t nin, struct tess_tensor *const *in, int32_t nout,
                                       struct tess_tensor *const *out, int32_t nweight,
                                       const struct tess_weight *const *weight);

/* Fails if mesh dimension `along` has more ranks than units. */
bool tess_recorder_check_cut(struct tess_recorder *r, const struct tess_dim *dim, int32_t along,
                             const char *module);
/* Reports that two mesh dimensions would cut one dim of module `of`'s output. Returns false. */
bool tess_recorder_fail_cut_twice(struct tess_recorder *r, const struct tess_dim *dim,
                                  const char *of, int32_t a, int32_t b, const char *module);
/* Returns the mesh dimension along which a value is Partial; -1: none. */
int32_t tess_recorder_find_partial(const struct tess_recorder *r, const struct tess_place *place);
/* Allocates places for the result of an op, whose rule sets each of them. */
struct tess_place *tess_recorder_alloc_places(struct tess_recorder *r);
/* Returns the first mesh dimension along which x has this place; -1: none. */
int32_t tess_recorder_find_place(const struct tess_recorder *r, const struct tess_tensor *x,
                                 int32_t kind, int32_t dim);
/* Fails unless x is rows [tokens, elements], not NULL or an input of the step; for `what`. */
bool tess_recorder_check_rows(struct tess_recorder *r, const char *what,
                              const struct tess_tensor *x);
/* Fails unless x is rows whose sum is finished. */
bool tess_recorder_check_finished(struct tess_recorder *r, const char *what,
                                  const struct tess_tensor *x);
/* Describes how to replicate x. */
const char *tess_recorder_describe_gather(const struct tess_recorder *r,
                                          const struct tess_tensor *x);
/* Returns the places of x, with `to` along one mesh dimension. */
struct tess_place *tess_tensor_replace_place(struct tess_recorder *r, const struct tess_tensor *x,
                                             int32_t along, struct tess_place to);
/* Moves x along one mesh dimension. Cached per value, so that q, k and v gather x once. */
struct tess_tensor *tess_tensor_move(struct tess_recorder *r, struct tess_tensor *x, int32_t along,
                                     struct tess_place to, const char *module);
/*
 * Moves x to the place `to` of a layout, along each mesh dimension; ASIS: unchanged.
 */
struct tess_tensor *tess_tensor_redistribute(struct tess_recorder *r, struct tess_tensor *x,
                                             const struct tess_place *to, const char *module);
/* Moves an operand of an op, which may be sliced if it is replicated, but not moved otherwise. */
struct tess_tensor *tess_tensor_slice_operand(struct tess_recorder *r, struct tess_tensor *x,
                                              const struct tess_place *to, const char *module);
/* Returns an input [tokens] placed as the rows of x. */
struct tess_tensor *tess_tensor_place_rows(struct tess_recorder *r, const struct tess_tensor *x,
                                           struct tess_tensor *input);
/* Apply the hook prepare_input or prepare_output, then the layout. */
struct tess_tensor *tess_module_prepare_input(struct tess_recorder *r, const struct tess_module *m,
                                              struct tess_tensor *x);
struct tess_tensor *tess_module_prepare_output(struct tess_recorder *r, const struct tess_module *m,
                                               struct tess_tensor *y);

struct tess_weight_request { /* argument of tess_weight_add */
	const char *leaf; /* "weight", "bias" */
	int32_t ndim, out_dim, in_dim; /* three axes: 0 is the expert */
	const struct tess_dim *dim[3];
	bool in_out;
};
/* Adds the module's parameter, placed by its style; its shape must match the checkpoint's. */
const struct tess_weight *tess_weight_add(struct tess_recorder *r, const struct tess_module *m,
                                          const struct tess_weight_request *request);
/* Fails if a style cuts the weight; `why`: "a norm adds whole rows". w NULL: does nothing. */
void tess_weight_check_whole(struct tess_recorder *r, const struct tess_weight *w, const char *why);
/*
 * Adds the parameter MODULE.LEAF, a vector that no style cuts; `name` is its path below the open
 * module. why: the reason, for tess_weight_check_whole.
 */
const struct tess_weight *tess_weight_add_vector(struct tess_recorder *r, const char *name,
                                                 const struct tess_dim *dim, const char *why);
/* Adds the table of another module as this module's weight; their styles must agree. */
const struct tess_weight *tess_weight_add_tied(struct tess_recorder *r, const struct tess_module *m,
                                               const struct tess_weight *table);
/*
 * Gives a tied head whose table is on another rank along pp a copy of it. The head itself becomes
 * the copy; if training keeps the table in other places than the head reads, the copy is a weight
 * of its own, whose elements ranks have as they have those of the table.
 */
void tess_weight_copy_table(struct tess_recorder *r, struct tess_weight *w);

/* Functions of tess_nn that record nothing (dims.c). */
int64_t tess_op_integer(struct tess_nn *nn, const char *key, int64_t preset);
double tess_op_number(struct tess_nn *nn, const char *key, double preset);
const char *tess_op_string(struct tess_nn *nn, const char *key, const char *preset);
int32_t tess_op_activation(struct tess_nn *nn, const char *key, const char *preset);
int32_t tess_op_has(struct tess_nn *nn, const char *key);
int32_t tess_op_choice(struct tess_nn *nn, const char *const *names, const char *fmt, ...)
	TESS_PRINTF(3, 4);
struct tess_dim *tess_op_dim(struct tess_nn *nn, const char *name, int64_t n, int64_t each);
struct tess_dim *tess_op_grouped(struct tess_nn *nn, const char *name, struct tess_dim *of,
                                 int64_t n);
struct tess_dim *tess_op_fused(struct tess_nn *nn, struct tess_dim *const *parts);
/* Makes a dim of n elements; the caller sets its units. */
struct tess_dim *tess_dim_new(struct tess_recorder *r, const char *name, int64_t n, int64_t each);

/* Makes n heads of `each` elements, each shared by a range of units of `of` and cut with it. */
struct tess_dim *tess_dim_new_heads(struct tess_recorder *r, const char *name,
                                    const struct tess_dim *of, int64_t n, int64_t each);
struct tess_dim *tess_op_heads(struct tess_nn *nn, const char *name, struct tess_dim *of, int64_t n,
                               int64_t each);

/*
 * Returns the rate of dropout of a module, 0 in inference, and the first of its sites. Fails the
 * recording if it is no rate.
 */
double tess_recorder_choose_dropout(struct tess_recorder *r, const char *module, double rate,
                                    int64_t sites, int64_t *site);

/* Appends dropout of in[0]; in[1]: positions of the rows, in[2]: slots, in[3]: seeds. */
struct tess_record *tess_record_append_dropout(struct tess_recorder *r,
                                               struct tess_tensor *const in[4], double rate,
                                               double site);

/* Set the functions of `nn`: all (ops.c), and those of one file. */
void tess_ops_install(struct tess_nn *nn);
void tess_ops_install_rows(struct tess_nn *nn);
void tess_ops_install_linear(struct tess_nn *nn);
void tess_ops_install_attention(struct tess_nn *nn);
void tess_ops_install_heads(struct tess_nn *nn);
void tess_ops_install_dropout(struct tess_nn *nn);
void tess_ops_install_experts(struct tess_nn *nn);
/* tess_nn.enter and leave. */
struct tess_tensor *tess_module_enter(struct tess_nn *nn, struct tess_tensor *x, const char *fmt,
                                      ...) TESS_PRINTF(3, 4);
struct tess_tensor *tess_module_leave(struct tess_nn *nn, struct tess_tensor *y);

#endif
