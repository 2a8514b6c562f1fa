/* grad.c - `tessera grad`: writes the loss and the gradients of one step. */
#include "tool.h"

#include "core/base/status.h"
#include "hf/safetensors.h"

#include <getopt.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/split.h>

enum { PIECE = 4 << 20 }; /* elements that rank 0 gathers at once */

struct grad_command {
	struct tess_tool_session session;
	const char *ids_file, *out, *values, *values_of;
	struct tess_tool_list recompute, data;
	struct tess_tool_data rows;
	int32_t micro, batch;
	double aux_loss;
	bool quiet;
	/* contents of the ids file, or of sequences of the data */
	int32_t *ids, *labels;
	int64_t nsequences, *lengths;
};

#define AT(member) TESS_TOOL_AT(struct grad_command, member)

static const struct tess_tool_option batch_options[] = {
	{ "ids-file", "FILE",
	  "batch: safetensors with \"ids\" and \"labels\", I64 [sequences, ids]", AT(ids_file) },
	{ "data", "FILE", "batch: the first sequences of data, as for train; repeatable",
	  AT(data) },
	{ "batch", "N", "maximum number of sequences of --data", AT(batch), .lo = 1,
	  .hi = 1 << 20 },
	{ "out", "FILE", "write loss and gradients as safetensors, by the names of the checkpoint",
	  AT(out), .local = true },
	{ "values", "FILE",
	  "write outputs of modules, the loss, and gradients as NAME.grad, as safetensors",
	  AT(values) },
	{ "values-of", "PATTERN",
	  "modules of --values, as in plans: model.layers.*.mlp (default: *, all modules)",
	  AT(values_of) },
	{ "micro-batches", "N",
	  "parts of the batch that are computed one after the other (default: 1)", AT(micro),
	  .lo = 1, .hi = INT32_MAX },
	{ "aux-loss", "X", "factor of the load balancing loss of experts", AT(aux_loss),
	  .hi = 1e30 },
	{ "quiet", NULL, NULL, AT(quiet) }, /* of tessera compare: no digest */
	{ "recompute", "PATTERN",
	  "recompute values of these modules for the backward, to save memory; repeatable",
	  AT(recompute) },
	{ "check", NULL,
	  "compare weights and values across ranks, find NaN and Inf (TESSERA_CHECK)",
	  .parse = tess_tool_set_option },
	{ 0 },
};

/* TESS_PENDING: --help was printed. */
static tess_status parse_grad_options(int argc, char **argv, struct grad_command *a)
{
	const struct tess_tool_section sections[] = {
		{ "Batch", batch_options, .to = a },
		{ "", tess_tool_data_options, .to = &a->rows },
		{ "Ranks", tess_tool_mesh_options, .to = &a->session },
		{ "", tess_tool_job_options, .to = &a->session },
		{ "Plan", tess_tool_plan_options, .to = &a->session },
		{ "Precision", tess_tool_math_options, .to = &a->session },
		{ 0 },
	};
	tess_status st =
		tess_tool_parse_model(argc, argv, &tess_tool_grad, sections, &a->session.model);

	if (!st && (a->ids_file != NULL) == (a->data.n > 0))
		st = tess_fail(TESS_EINVAL, "give --ids-file FILE or --data FILE%s; see --help",
		               a->ids_file ? ", not both" : "");
	if (!st && a->values_of && !a->values)
		st = tess_fail(TESS_EINVAL, "--values-of: give --values FILE, too");
	if (!st)
		st = tess_tool_take_strategy(&a->session);
	if (!st && a->session.strategy && !a->micro)
		a->micro = (int32_t)a->session.strategy->micro_batches;
	return st;
}

/* ---- the batch ------------------------------------------------------------------------------- */

static const struct tess_slice *find_ids(const struct tess_safetensors *f, const char *name)
{
	const struct tess_slice *s = tess_safetensors_find(f, name);

	if (!s)
		tess_fail(TESS_EINVAL,
		          "%s: has no tensor \"%s\"; it needs ids and labels, I64 "
		          "[sequences, ids]",
		          tess_safetensors_path(f), name);
	else if (s->dtype != TESS_I64 || s->ndim != 2)
		tess_fail(TESS_EINVAL, "%s: %s is %s of %d axes, but must be I64 [sequences, ids]",
		          tess_safetensors_path(f), name, s->type, (int)s->ndim);
	else
		return s;
	return NULL;
}

/* Reads 64-bit ids as 32-bit ones; values out of range stay outside of any vocabulary. */
static tess_status read_wide_ids(const struct tess_safetensors *f, const struct tess_slice *s,
                                 int32_t **out)
{
	int64_t n = s->shape[0] * s->shape[1], *wide = malloc(s->bytes + 8);
	int32_t *ids = malloc((size_t)n * sizeof *ids + 4);
	tess_status st = wide && ids ? tess_safetensors_read(f, s, 0, s->bytes, wide)
	                             : tess_fail(TESS_ENOMEM, "out of memory");

	for (int64_t i = 0; i < n && !st; i++)
		ids[i] = wide[i] < INT32_MIN   ? INT32_MIN
		         : wide[i] > INT32_MAX ? INT32_MAX
		                               : (int32_t)wide[i];
	free(wide);
	*out = ids;
	return st;
}

static tess_status read_batch_file(struct grad_command *a)
{
	struct tess_safetensors *f;
	const struct tess_slice *ids, *labels;
	tess_status st = tess_safetensors_open(a->ids_file, false, &f);

	if (st)
		return st;
	ids = find_ids(f, "ids");
	labels = ids ? find_ids(f, "labels") : NULL;
	st = labels ? TESS_OK : TESS_EINVAL;
	if (!st && memcmp(ids->shape, labels->shape, 2 * sizeof *ids->shape))
		st = tess_fail(TESS_EINVAL,
		               "%s: ids are [%lld, %lld], but labels [%lld, %lld]; each id has a "
		               "label, -100 where it is not to be predicted",
		               a->ids_file, (long long)ids->shape[0], (long long)ids->shape[1],
		               (long long)labels->shape[0], (long long)labels->shape[1]);
	if (!st && a->micro > ids->shape[0])
		st = tess_fail(TESS_EINVAL, "--micro-batches %d: %s has %lld sequences",
		               (int)a->micro, a->ids_file, (long long)ids->shape[0]);
	if (!st)
		st = read_wide_ids(f, ids, &a->ids);
	if (!st)
		st = read_wide_ids(f, labels, &a->labels);
	a->nsequences = st ? 0 : ids->shape[0];
	a->lengths = calloc((size_t)a->nsequences + 1, sizeof *a->lengths);
	if (!st && !a->lengths)
		st = tess_fail(TESS_ENOMEM, "out of memory");
	for (int64_t i = 0; i < a->nsequences && !st; i++)
		a->lengths[i] = ids->shape[1];
	tess_safetensors_close(f);
	return st;
}

/* Reads the first sequences of the data, at most a->batch. */
static tess_status read_data_batch(struct grad_command *a, const struct tess_dataset *d)
{
	struct tess_dataset_info info;
	int64_t at = 0;
	size_t n;
	tess_status st = TESS_OK;

	tess_dataset_get_info(d, &info);
	a->nsequences = info.sequences < a->batch ? info.sequences : a->batch;
	if (a->micro > a->nsequences)
		return tess_fail(TESS_EINVAL, "--micro-batches %d: the data has %lld sequences",
		                 (int)a->micro, (long long)a->nsequences);
	n = (size_t)(a->nsequences * a->rows.sequence);
	a->ids = calloc(n, sizeof *a->ids);
	a->labels = calloc(n, sizeof *a->labels);
	a->lengths = calloc((size_t)a->nsequences, sizeof *a->lengths);
	if (!a->ids || !a->labels || !a->lengths)
		return tess_fail(TESS_ENOMEM, "out of memory");
	for (int64_t i = 0; i < a->nsequences && !st; at += a->lengths[i++])
		st = tess_dataset_read_labels(d, i, a->ids + at, a->labels + at, &a->lengths[i]);
	return st;
}

/* Opens the data by the vocabulary and the maximum length of the model. */
static tess_status read_data_files(struct grad_command *a)
{
	struct tess_session_info info = { .size = sizeof info };
	struct tess_dataset *d = NULL;
	tess_status st = tess_session_check(a->session.model, NULL, 1, NULL, &info);

	a->rows.sequence = tess_tool_choose_sequence(&a->rows, info.positions);
	if (!st)
		st = tess_tool_open_data(&a->rows, a->session.model, info.vocabulary, &a->data, &d);
	if (!st)
		st = read_data_batch(a, d);
	tess_dataset_close(d);
	return st;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static tess_status compute_batch(const struct grad_command *a, struct tess_trainer *t,
                                 struct tess_training_result *r)
{
	int64_t n = a->micro ? a->micro : 1, at = 0;
	struct tess_batch *micro = calloc((size_t)n, sizeof *micro);
	tess_status st = micro ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	for (int64_t i = 0; i < n && !st; i++) {
		int64_t first = tess_edge(a->nsequences, n, i),
			count = tess_edge(a->nsequences, n, i + 1) - first;

		micro[i] = (struct tess_batch){ count, a->lengths + first, a->ids + at,
			                        a->labels + at };
		for (int64_t k = 0; k < count; k++)
			at += a->lengths[first + k];
	}
	if (!st)
		st = tess_trainer_compute_gradients(t, micro, n, r);
	free(micro);
	return st;
}

struct output { /* on rank 0 */
	struct tess_safetensors_writer *file; /* NULL: without --out */
	crypto_hash_sha256_state digest;
	int32_t *place; /* index of each tensor in the file */
	struct tess_values *values; /* NULL: without --values */
	float **gradients; /* for `values`, by index of the tensor */
};

/* Opens the file for the loss and the gradients of all tensors that have one. */
static tess_status open_gradient_file(const struct grad_command *a, const struct tess_trainer *t,
                                      const struct tess_training_result *r, struct output *o)
{
	static const int64_t one = 1;
	int64_t n = tess_trainer_count_tensors(t);
	struct tess_slice *slices = calloc((size_t)n + 1, sizeof *slices);
	int32_t used = 1;
	tess_status st = TESS_OK;

	crypto_hash_sha256_init(&o->digest);
	crypto_hash_sha256_update(&o->digest, (const unsigned char *)&r->loss, sizeof r->loss);
	o->place = calloc((size_t)n + 1, sizeof *o->place);
	if (!slices || !o->place)
		st = tess_fail(TESS_ENOMEM, "out of memory");
	for (int64_t i = 0; i < n && !st; i++) {
		const struct tess_trained *about = tess_trainer_get_tensor(t, i);

		if (!about->trained)
			continue;
		o->place[i] = used;
		slices[used++] = (struct tess_slice){ .name = about->name,
			                              .dtype = TESS_F32,
			                              .ndim = about->ndim,
			                              .shape = about->shape };
	}
	if (!st && a->out) {
		slices[0] = (struct tess_slice){
			.name = "loss", .dtype = TESS_F64, .ndim = 1, .shape = &one
		};
		tess_tool_catch_interrupt(NULL); /* the signal would leave a partial file */
		st = tess_safetensors_writer_open(a->out, used, slices, &o->file);
		if (!st)
			st = tess_safetensors_writer_put(o->file, 0, 0, sizeof r->loss, &r->loss);
	}
	free(slices);
	return st;
}

static tess_status write_gradient_piece(struct output *o, int64_t i, int64_t at, int64_t n,
                                        const float *piece)
{
	uint64_t bytes = (uint64_t)n * sizeof *piece;

	crypto_hash_sha256_update(&o->digest, (const unsigned char *)piece, bytes);
	if (o->values)
		memcpy(o->gradients[i] + at, piece, bytes);
	if (!o->file)
		return TESS_OK;
	if (tess_tool_is_interrupted())
		return tess_fail(TESS_EABORTED, "stopped by a signal; the gradients are not "
		                                "written");
	return tess_safetensors_writer_put(o->file, o->place[i], (uint64_t)at * sizeof *piece,
	                                   bytes, piece);
}

/* Gathers the pieces of one tensor, if it has a gradient. */
static tess_status write_gradient(struct tess_trainer *t, int64_t i, struct output *o, float *piece)
{
	const struct tess_trained *about = tess_trainer_get_tensor(t, i);
	tess_status st = TESS_OK;

	for (int64_t at = 0; at < about->size && about->trained && !st; at += PIECE) {
		int64_t n = about->size - at < PIECE ? about->size - at : PIECE;

		st = tess_trainer_gather(t, TESS_GRADIENT, i, at, n, 0, piece);
		if (!st && o)
			st = write_gradient_piece(o, i, at, n, piece);
	}
	return st;
}

/* Gathers one piece of one tensor at a time. `o` NULL: another rank writes them. */
static tess_status write_gradients(struct tess_trainer *t, struct output *o)
{
	float *piece = o ? malloc(PIECE * sizeof *piece) : NULL;
	tess_status st = !o || piece ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	for (int64_t i = 0; i < tess_trainer_count_tensors(t) && !st; i++)
		st = write_gradient(t, i, o, piece);
	free(piece);
	return st;
}

/* ---- values of modules ----------------------------------------------------------------------- */

/* Takes the values of modules. Collective. */
static tess_status take_values(const struct grad_command *a, struct tess_trainer *t,
                               struct output *o)
{
	int64_t n = tess_trainer_count_tensors(t);
	tess_status st = a->values ? tess_trainer_take_values(t, &o->values) : TESS_OK;

	if (st || !o->values)
		return st;
	o->gradients = calloc((size_t)n + 1, sizeof *o->gradients);
	for (int64_t i = 0; i < n && o->gradients; i++) {
		const struct tess_trained *about = tess_trainer_get_tensor(t, i);

		o->gradients[i] = malloc((size_t)about->size * sizeof **o->gradients + 1);
		if (!o->gradients[i])
			return tess_fail(TESS_ENOMEM, "%s: no memory for its gradient",
			                 about->name);
	}
	return o->gradients ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
}

static tess_status add_gradient_value(const struct tess_trained *about, const float *gradient,
                                      struct tess_values *v)
{
	struct tess_value value = {
		.size = sizeof value, .dtype = TESS_F32, .data = gradient, .ndim = about->ndim
	};
	char *name = NULL;
	tess_status st;

	if (asprintf(&name, "%s.grad", about->name) < 0)
		return tess_fail(TESS_ENOMEM, "out of memory");
	value.name = name;
	memcpy(value.shape, about->shape, sizeof about->shape);
	st = tess_values_add(v, &value);
	free(name);
	return st;
}

/* Writes values of modules, the loss, and gradients in the order of the backward. */
static tess_status write_values_file(const struct grad_command *a, const struct tess_trainer *t,
                                     const struct tess_training_result *r, struct output *o)
{
	const float rounded = (float)r->loss; /* wider elements would come first in the file */
	const struct tess_value loss = { .size = sizeof loss,
		                         .dtype = TESS_F32,
		                         .name = "loss",
		                         .data = &rounded,
		                         .shape = { 1 },
		                         .ndim = 1 };
	tess_status st = tess_values_add(o->values, &loss);

	for (int64_t i = tess_trainer_count_tensors(t) - 1; i >= 0 && !st; i--)
		if (tess_trainer_get_tensor(t, i)->trained)
			st = add_gradient_value(tess_trainer_get_tensor(t, i), o->gradients[i],
			                        o->values);
	return st ? st : tess_values_save(o->values, a->values);
}

static void free_output(struct output *o, int64_t n)
{
	for (int64_t i = 0; o->gradients && i < n; i++)
		free(o->gradients[i]);
	free(o->gradients);
	tess_values_free(o->values);
	tess_safetensors_writer_close(o->file);
	free(o->place);
}

static tess_status print_grad_result(const struct grad_command *a,
                                     const struct tess_training_result *r, struct output *o)
{
	unsigned char hash[crypto_hash_sha256_BYTES];
	char hex[2 * sizeof hash + 1], line[128];
	int n;

	crypto_hash_sha256_final(&o->digest, hash);
	sodium_bin2hex(hex, sizeof hex, hash, sizeof hash);
	n = snprintf(line, sizeof line, "loss    %.17g\nnorm    %.17g\nlabels  %lld\n", r->loss,
	             r->norm, (long long)r->nlabels);
	tess_tool_print_lines(line, (size_t)n);
	if (!a->quiet)
		fprintf(stderr, "digest  %s\n", hex);
	return TESS_OK;
}

/* Values that a strategy keeps in files are in memory of the host: one step needs no folder. */
static struct tess_trainer_options make_trainer_options(const struct grad_command *a)
{
	const struct tess_strategy *s = a->session.strategy;

	return (struct tess_trainer_options){
		.size = sizeof(struct tess_trainer_options),
		.threads = a->session.threads,
		.plan = a->session.plan,
		.overrides = a->session.overrides.text,
		.ignore_unexpected = a->session.ignore_unexpected,
		.balance = a->aux_loss,
		.dropout = -1,
		.values = !a->values     ? NULL
		          : a->values_of ? a->values_of
		                         : "*",
		.recompute = a->recompute.n ? a->recompute.text : NULL,
		.offload_optimizer = s && s->offload_optimizer ? "host" : NULL,
		.offload_weights = s && s->offload_weights ? "host" : NULL,
		.math = a->session.math
	};
}

static tess_status compute_and_write(const struct grad_command *a, struct tess_mesh *mesh,
                                     bool first, struct tess_trainer **t)
{
	struct tess_trainer_options options = make_trainer_options(a);
	struct tess_training_result r = { .size = sizeof r };
	struct output o = { 0 };
	tess_status st = tess_trainer_open(mesh, a->session.model, &options, t);

	if (!st)
		st = compute_batch(a, *t, &r);
	if (!st && first)
		st = open_gradient_file(a, *t, &r, &o);
	if (!st)
		st = take_values(a, *t, &o);
	if (!st)
		st = write_gradients(*t, first ? &o : NULL);
	if (!st && o.file)
		st = tess_safetensors_writer_finish(o.file);
	if (!st && o.values)
		st = write_values_file(a, *t, &r, &o);
	if (!st && first)
		st = print_grad_result(a, &r, &o);
	free_output(&o, *t ? tess_trainer_count_tensors(*t) : 0);
	return st;
}

static tess_status run_grad_rank(struct tess_world *world, void *arg)
{
	const struct grad_command *a = arg;
	struct tess_mesh *mesh = NULL;
	struct tess_trainer *t = NULL;
	tess_status st = tess_mesh_open(world, a->session.mesh ? a->session.mesh : "tp", &mesh);

	if (!st)
		st = compute_and_write(a, mesh, tess_world_rank(world) == 0, &t);
	if (st)
		tess_world_fail(world, st, tess_error());
	tess_trainer_close(t);
	tess_mesh_close(mesh);
	return st;
}

static tess_status check_grad_output(const struct grad_command *a)
{
	const struct tess_tool_output outputs[] = { { "--out", a->out },
		                                    { "--values", a->values },
		                                    { 0 } };
	const char *const files[] = { a->ids_file, NULL };

	return tess_tool_check_outputs(
		outputs, &(struct tess_tool_inputs){ .model = a->session.model,
	                                             .plan = a->session.plan,
	                                             .files = { files, a->data.text } });
}

static int64_t find_longest_sequence(const struct grad_command *a)
{
	int64_t longest = 0;

	for (int64_t i = 0; i < a->nsequences; i++)
		longest = a->lengths[i] > longest ? a->lengths[i] : longest;
	return longest;
}

static tess_status run_grad(struct grad_command *a, char **argv, int *exit_status)
{
	struct tess_trainer_options options = make_trainer_options(a);
	bool launched;
	tess_status st = tess_tool_is_launched(&launched);

	a->rows.quiet = !st && launched; /* the launcher has printed */
	if (!st)
		st = check_grad_output(a);
	if (!st)
		st = a->ids_file ? read_batch_file(a) : read_data_files(a);
	if (!st && launched)
		return tess_tool_join_job(a->session.ranks, run_grad_rank, a);
	if (!st && !a->session.ranks)
		st = tess_mesh_count_ranks(a->session.mesh, &a->session.ranks);
	if (!st)
		st = tess_tool_check_training(a->session.model, a->session.mesh, a->session.ranks,
		                              a->nsequences / (a->micro ? a->micro : 1),
		                              find_longest_sequence(a), &options);
	if (!st && a->out)
		st = tess_safetensors_check_writable(a->out);
	if (!st && a->values)
		st = tess_safetensors_check_writable(a->values);
	return st ? st : tess_tool_run_ranks(a->session.ranks, argv, run_grad_rank, a, exit_status);
}

static int execute_grad(int argc, char **argv)
{
	struct grad_command a = { .batch = 8 };
	tess_status st = parse_grad_options(argc, argv, &a);
	int exit_status = 0;
	bool usage = st < 0;

	if (!st)
		st = run_grad(&a, argv, &exit_status);
	if (st < 0)
		tess_tool_print_error("grad");
	free(a.ids);
	free(a.labels);
	free(a.lengths);
	if (tess_tool_is_interrupted())
		return tess_tool_get_interrupt_status();
	return st < 0 ? usage ? 2 : 1 : exit_status;
}

const struct tess_tool_command tess_tool_grad = {
	"grad",
	"write the loss and the gradients of one training step",
	"MODEL --ids-file FILE [options]\n       tessera grad MODEL --data FILE [options]",
	"Computes the loss of a batch and the gradient of every parameter on N ranks, and changes\n"
	"no weight. Prints loss, norm and a digest, which are the same for any number of ranks,\n"
	"backend, mesh and plan. It serves to test a model, a plan or a style.\n",
	"  tessera grad llama --ids-file batch.safetensors --out gradients.safetensors\n"
	"  tessera grad llama --ids-file batch.safetensors --mesh dp=2,tp=2\n"
	"  tessera grad llama --data chats.jsonl --separate --batch 4\n",
	execute_grad,
};
