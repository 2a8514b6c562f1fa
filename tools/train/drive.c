/* drive.c - rank 0 of `tessera train`: data, steps, evaluations, saves, resuming. */
#include "train.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/names.h>
#include <unistd.h>

enum { DIGEST = 2 * crypto_hash_sha256_BYTES + 1 };

struct drive {
	struct train_run *run;
	struct tess_dataset *data, *evaluation; /* evaluation may be NULL */
	struct tess_dataset_info info;
	struct train_report report;
	int64_t step, steps; /* completed; in total */
	int64_t position; /* number of sequences used, over all epochs */
	unsigned char losses[crypto_hash_sha256_BYTES]; /* running digest of the losses */
	char saved[TRAIN_TEXT]; /* the last save; "": none */
	int64_t saved_step;
	int lock; /* lock of the directory of saves; -1: none */
};

/* ---- what a save keeps of a run -------------------------------------------------------------- */

/* Lists the options that determine the bits of later steps. */
static json_t *list_kept_options(const struct drive *d)
{
	const struct train_options *a = d->run->options;
	bool sgd = a->optimizer == TESS_SGD;

	return json_pack(
		"{s:i, s:i, s:I, s:f, s:f, s:i, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:s}",
		"batch", (int)a->batch, "micro-batches", (int)a->micro, "seed", (json_int_t)a->seed,
		"lr", a->lr, "min-lr", a->min_lr, "warmup", (int)a->warmup, "steps",
		(json_int_t)(a->schedule == TESS_COSINE ? d->steps : 0), "beta1", a->betas[0],
		"beta2", a->betas[1], "eps", a->eps, "momentum", sgd ? a->momentum : 0,
		"weight-decay", a->weight_decay, "clip", a->clip, "aux-loss", a->aux_loss,
		"dropout", a->dropout, "math", tess_tool_get_math(&a->session));
}

static char *format_hash(uint64_t hash, char out[17])
{
	snprintf(out, 17, "%016llx", (unsigned long long)hash);
	return out;
}

static tess_status make_state(struct drive *d)
{
	char losses[DIGEST], hash[17];
	json_t *o;

	sodium_bin2hex(losses, sizeof losses, d->losses, sizeof d->losses);
	o = json_pack("{s:I, s:I, s:s, s:s, s:o}", "position", (json_int_t)d->position, "sequences",
	              (json_int_t)d->info.sequences, "data", format_hash(d->info.hash, hash),
	              "losses", losses, "options", list_kept_options(d));
	free(d->run->state);
	d->run->state = o ? json_dumps(o, JSON_COMPACT) : NULL;
	json_decref(o);
	return d->run->state ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
}

static const char *format_kept_option(const char *name, double value, char out[32])
{
	if (!strcmp(name, "schedule"))
		return value > 0 ? "cosine" : "constant";
	if (!strcmp(name, "dropout") && value < 0)
		return "not given";
	snprintf(out, 32, "%.10g", value);
	return out;
}

/* Checks that the state has a value of this type; integers must be from lo to hi. */
static tess_status check_kept_value(const struct drive *d, const json_t *o, const char *key,
                                    json_type type, int64_t lo, int64_t hi)
{
	static const char *const types[] = { [JSON_OBJECT] = "an object",
		                             [JSON_STRING] = "text",
		                             [JSON_INTEGER] = "a whole number",
		                             [JSON_REAL] = "a number with a decimal point" };
	const json_t *value = json_object_get(o, key);
	int64_t n = json_integer_value(value);
	char range[64] = "";

	if (value && json_typeof(value) == type && (type != JSON_INTEGER || (n >= lo && n <= hi)))
		return TESS_OK;
	if (type == JSON_INTEGER)
		snprintf(range, sizeof range, " from %lld to %lld", (long long)lo, (long long)hi);
	return tess_fail(TESS_EINVAL, "%s/training.json: program: %s: %s%s%s is needed", d->saved,
	                 key, value ? "" : "is missing; ", types[type], range);
}

/* Checks the state that this command has stored in a save; `o`: its member program. */
static tess_status check_kept_state(const struct drive *d, const json_t *o)
{
	json_t *options = list_kept_options(d), *value;
	int64_t step = d->run->info.step;
	const char *key;
	tess_status st =
		check_kept_value(d, o, "position", JSON_INTEGER, step, step * TRAIN_BATCH_MAX);

	if (!st)
		st = check_kept_value(d, o, "sequences", JSON_INTEGER, 1, INT64_MAX);
	if (!st)
		st = check_kept_value(d, o, "data", JSON_STRING, 0, 0);
	if (!st)
		st = check_kept_value(d, o, "options", JSON_OBJECT, 0, 0);
	json_object_foreach(options, key, value) {
		/* saves before --math have none: their products are f32 */
		if (!st && strcmp(key, "math") != 0)
			st = check_kept_value(d, json_object_get(o, "options"), key,
			                      json_typeof(value), INT64_MIN, INT64_MAX);
	}
	json_decref(options);
	return st;
}

static void warn_changed_math(const struct drive *d, const json_t *saved)
{
	const char *was = json_string_value(json_object_get(saved, "math"));
	const char *is = tess_tool_get_math(&d->run->options->session);

	was = was ? was : tess_dtype_name(TESS_F32);
	if (strcmp(was, is) != 0)
		fprintf(stderr, "tessera train: math was %s in %s, and is %s from here on\n", was,
		        d->saved, is);
}

/* Warns of options that differ from the save. `steps` is kept for the cosine schedule only. */
static void warn_changed_options(const struct drive *d, const json_t *saved)
{
	json_t *now = list_kept_options(d), *value;
	const char *key, *name;

	warn_changed_math(d, saved);
	json_object_foreach(now, key, value) {
		const json_t *old = json_object_get(saved, key);
		double was = json_number_value(old), is = json_number_value(value);
		char text[2][32];

		if (json_is_string(value) || json_equal(old, value))
			continue;
		name = !strcmp(key, "steps") && (was > 0) != (is > 0) ? "schedule" : key;
		fprintf(stderr, "tessera train: %s was %s in %s, and is %s from here on\n", name,
		        format_kept_option(name, was, text[0]), d->saved,
		        format_kept_option(name, is, text[1]));
	}
	json_decref(now);
}

static tess_status resume_state(struct drive *d)
{
	json_t *o = json_loads(d->run->state, 0, NULL);
	const char *losses = json_string_value(json_object_get(o, "losses"));
	const char *data = json_string_value(json_object_get(o, "data"));
	char hash[17];
	size_t n = 0;
	tess_status st = TESS_OK;

	if (tess_tool_lacked_json_memory())
		st = tess_fail(TESS_ENOMEM, "%s: out of memory", d->saved);
	else if (!losses ||
	         sodium_hex2bin(d->losses, sizeof d->losses, losses, strlen(losses), NULL, &n,
	                        NULL) ||
	         n != sizeof d->losses)
		st = tess_fail(TESS_EINVAL, "%s: was not saved by tessera train", d->saved);
	if (!st)
		st = check_kept_state(d, o);
	d->position = json_integer_value(json_object_get(o, "position"));
	if (!st && strcmp(data, format_hash(d->info.hash, hash)) != 0)
		st = tess_fail(TESS_EINVAL,
		               "%s: was saved from other data: it had %lld sequences, and these "
		               "files have %lld of %lld ids; resume with the same --data, in the "
		               "same order, and the same --sequence",
		               d->saved,
		               (long long)json_integer_value(json_object_get(o, "sequences")),
		               (long long)d->info.sequences, (long long)d->run->sequence);
	if (!st)
		warn_changed_options(d, json_object_get(o, "options"));
	json_decref(o);
	return st;
}

/* ---- begin or resume ------------------------------------------------------------------------- */

static tess_status open_data_files(const struct drive *d, const struct tess_tool_list *files,
                                   struct tess_dataset **out)
{
	const struct train_options *a = d->run->options;
	struct tess_tool_data rows = a->rows;

	rows.sequence = (int32_t)d->run->sequence;
	return tess_tool_open_data(&rows, a->session.model, d->run->info.vocabulary, files, out);
}

static tess_status open_data_sets(struct drive *d)
{
	const struct train_options *a = d->run->options;
	tess_status st = open_data_files(d, &a->data, &d->data);

	if (st)
		return st;
	tess_dataset_get_info(d->data, &d->info);
	d->steps = a->steps ? a->steps : (d->info.sequences + a->batch - 1) / a->batch;
	return a->eval_data.n ? open_data_files(d, &a->eval_data, &d->evaluation) : TESS_OK;
}

static tess_status begin_run(struct drive *d)
{
	struct train_command c = { .kind = TRAIN_LOAD };
	tess_status st = train_check_outputs(d->run->options);

	if (!st)
		st = open_data_sets(d);
	if (!st)
		st = train_find_resumed(d->run->options, d->saved);
	if (!st)
		st = train_claim_directory(d->run->options, d->saved, &d->lock);
	if (!st && *d->saved) {
		memcpy(c.text, d->saved, sizeof c.text);
		st = train_run_command(d->run, &c);
		tess_trainer_get_info(d->run->trainer, &d->run->info);
		if (!st)
			st = resume_state(d);
		d->step = d->saved_step = d->run->info.step;
	}
	if (!st)
		st = train_open_report(d->run->options, d->step, d->steps, &d->report);
	if (!st)
		tess_tool_check_environment();
	if (!st)
		train_report_offload(d->run->options, &d->run->info);
	if (!st)
		train_report_math(d->run->options);
	if (!st && !d->run->options->save && d->step < d->steps)
		fprintf(stderr, "tessera train: nothing is saved without --save DIR\n");
	return st;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/*
 * Reads a batch from sequence `first` on, in the order of training or of the files. The last batch
 * of an evaluation is padded by sequences of one id, which predict nothing, so that it has the same
 * bits on every mesh.
 */
static tess_status read_sequences(struct drive *d, const struct tess_dataset *from, int64_t first,
                                  struct train_command *c)
{
	const struct train_options *a = d->run->options;
	struct tess_dataset_labels labels = { .size = sizeof labels };
	struct tess_dataset_info info;
	tess_status st = TESS_OK;

	tess_dataset_get_info(from, &info);
	tess_dataset_count_labels(from, &labels);
	c->masked = labels.masked;
	c->nsequences = a->batch;
	c->nmicro = a->micro;
	c->nids = 0;
	for (int64_t i = 0; i < a->batch && !st; i++) {
		int32_t *ids = d->run->ids + c->nids, *to = d->run->labels + c->nids;
		int64_t which = first + i;

		if (from == d->data)
			which = tess_dataset_shuffle(from, (uint64_t)a->seed, which);
		*ids = *to = 0;
		d->run->lengths[i] = 1;
		if (which < info.sequences)
			st = tess_dataset_read_labels(from, which, ids, to, &d->run->lengths[i]);
		c->nids += d->run->lengths[i];
	}
	return st;
}

/* Computes the mean loss over the labels of all sequences, in the order of the files. */
static tess_status evaluate_model(struct drive *d, struct train_evaluation *out)
{
	struct train_command c = { .kind = TRAIN_EVALUATE };
	int32_t batch = d->run->options->batch;
	struct tess_dataset_info info;
	double sum = 0, labels = 0;
	tess_status st = TESS_OK;

	tess_dataset_get_info(d->evaluation, &info);
	for (int64_t at = 0; at < info.sequences && !st && !tess_tool_is_interrupted();
	     at += batch) {
		st = read_sequences(d, d->evaluation, at, &c);
		if (!st)
			st = train_run_command(d->run, &c);
		sum += d->run->result.loss * (double)d->run->result.nlabels;
		labels += (double)d->run->result.nlabels;
	}
	if (!st && !tess_tool_is_interrupted())
		*out = (struct train_evaluation){ .made = true, .loss = sum / labels };
	return st;
}

static tess_status save_run(struct drive *d)
{
	struct train_command c = { .kind = TRAIN_SAVE };
	tess_status st = make_state(d);

	if (!st)
		st = train_run_command(d->run, &c);
	if (st)
		return st;
	snprintf(d->saved, sizeof d->saved, "%s/step-%lld", d->run->options->save,
	         (long long)d->step);
	d->saved_step = d->step;
	return train_write_curve(&d->report);
}

/*
 * Saves after a failure of rank 0 alone, of data or a file: the other ranks still wait for
 * commands, and all completed steps are valid. Returns the failure.
 */
static tess_status save_before_failing(struct drive *d, tess_status why)
{
	char text[TRAIN_TEXT];
	tess_status st;

	if (d->run->failed || !d->run->options->save || d->step <= d->saved_step)
		return why;
	snprintf(text, sizeof text, "%s", tess_error());
	st = save_run(d);
	if (d->saved_step == d->step)
		return tess_fail(why, "%s", text);
	fprintf(stderr, "tessera train: %s\n", text);
	return st;
}

/* Adds a loss to the running digest, which a save stores. */
static void hash_loss(struct drive *d, double loss)
{
	crypto_hash_sha256_state h;

	crypto_hash_sha256_init(&h);
	crypto_hash_sha256_update(&h, d->losses, sizeof d->losses);
	crypto_hash_sha256_update(&h, (const unsigned char *)&loss, sizeof loss);
	crypto_hash_sha256_final(&h, d->losses);
}

static bool is_due(int64_t step, int32_t every)
{
	return every && step % every == 0;
}

static tess_status make_step(struct drive *d)
{
	const struct train_options *a = d->run->options;
	const struct tess_schedule schedule = { .kind = a->schedule,
		                                .lr = a->lr,
		                                .least = a->min_lr,
		                                .warmup = a->warmup,
		                                .steps = d->steps };
	struct train_command c = { .kind = TRAIN_STEP,
		                   .lr = tess_schedule_get(&schedule, d->step) };
	struct tess_training_result result;
	struct train_evaluation evaluation = { 0 };
	tess_status st = read_sequences(d, d->data, d->position, &c), reported;
	bool requested;

	if (!st)
		st = train_run_command(d->run, &c);
	if (st)
		return st;
	d->step++;
	d->position += a->batch;
	result = d->run->result;
	hash_loss(d, result.loss);
	tess_trainer_get_info(d->run->trainer, &d->run->info);
	if (d->evaluation && (is_due(d->step, a->eval_every) || d->step == d->steps))
		st = evaluate_model(d, &evaluation);
	/* even if the evaluation failed: the step may be saved */
	reported =
		train_report_step(&d->report, d->step, c.lr, &evaluation, &result, &d->run->info);
	st = st ? st : reported;
	if (st || !a->save)
		return st;
	requested = tess_tool_take_save_request();
	if (requested || is_due(d->step, a->save_every))
		st = save_run(d);
	if (requested && !st)
		train_report_request(&d->report, d->saved);
	return st;
}

/* ---- the end --------------------------------------------------------------------------------- */

static tess_status print_digests(struct drive *d)
{
	struct train_command c = { .kind = TRAIN_HASH };
	unsigned char hash[crypto_hash_sha256_BYTES];
	char losses[DIGEST], weights[DIGEST];
	tess_status st = train_run_command(d->run, &c);

	if (st)
		return st;
	crypto_hash_sha256_final(&d->run->weights, hash);
	sodium_bin2hex(weights, sizeof weights, hash, sizeof hash);
	sodium_bin2hex(losses, sizeof losses, d->losses, sizeof d->losses);
	fprintf(stderr, "losses  %s\nweights %s\n", losses, weights);
	return TESS_OK;
}

static tess_status drive_run(struct drive *d)
{
	const struct train_options *a = d->run->options;
	tess_status st = begin_run(d);

	if (!st && d->step >= d->steps)
		fprintf(stderr, "%s already has %lld of %lld steps\n", d->saved, (long long)d->step,
		        (long long)d->steps);
	while (!st && d->step < d->steps && !tess_tool_is_interrupted())
		st = make_step(d);
	if (!st && a->save && (!*d->saved || d->saved_step < d->step))
		st = save_run(d);
	if (st)
		return save_before_failing(d, st);
	st = train_write_curve(&d->report);
	if (!st && a->digest && !tess_tool_is_interrupted())
		st = print_digests(d);
	return st;
}

tess_status train_drive(struct train_run *r)
{
	struct drive d = { .run = r, .lock = -1 };
	struct train_command c = { .kind = TRAIN_END };
	tess_status st = drive_run(&d);

	train_close_report(&d.report, *d.saved ? d.saved : NULL);
	tess_dataset_close(d.data);
	tess_dataset_close(d.evaluation);
	if (d.lock >= 0)
		close(d.lock);
	if (r->failed) /* on all ranks */
		return st;
	c.status = st;
	if (st)
		snprintf(c.text, sizeof c.text, "%s", tess_error());
	return train_run_command(r, &c);
}
