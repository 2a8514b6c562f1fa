/* report.c - the reports of a run: progress lines, log, curve. */
#include "train.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tessera/util/clock.h>
#include <unistd.h>

/* ns between two lines: on a terminal, which redraws the line, and elsewhere */
static const int64_t redrawn_every = 100000000, printed_every = 10000000000;

static tess_status add_point(struct train_report *p, int64_t step, double loss, double evaluation)
{
	int64_t capacity = p->capacity ? p->capacity : 1024;
	struct train_point *more;

	if (!p->options->curve)
		return TESS_OK;
	if (p->npoints == p->capacity) {
		capacity *= p->capacity ? 2 : 1;
		more = realloc(p->points, (size_t)capacity * sizeof *more);
		if (!more)
			return tess_fail(TESS_ENOMEM, "--curve: out of memory");
		p->points = more;
		p->capacity = capacity;
	}
	p->points[p->npoints++] = (struct train_point){ step, loss, evaluation };
	return TESS_OK;
}

/* ---- the log --------------------------------------------------------------------------------- */

/* Reads a line of the log that follows step `last`. Returns false if it is not one. */
static bool read_log_line(const char *line, int64_t last, struct train_point *out)
{
	json_t *o = json_loads(line, 0, NULL), *loss = json_object_get(o, "loss");
	json_t *step = json_object_get(o, "step"), *evaluation = json_object_get(o, "eval_loss");
	bool read =
		json_is_integer(step) && json_is_number(loss) && json_integer_value(step) > last;

	if (read)
		*out = (struct train_point){ .step = json_integer_value(step),
			                     .loss = json_number_value(loss),
			                     .evaluation = NAN };
	if (read && json_is_number(evaluation))
		out->evaluation = json_number_value(evaluation);
	json_decref(o);
	return read;
}

/* Returns whether the line is the incomplete last one of a killed run. */
static bool is_cut_line(const char *line, FILE *log)
{
	static const char begin[] = "{\"step\":";
	size_t len = strlen(line), n = len < sizeof begin - 1 ? len : sizeof begin - 1;

	return n && feof(log) && !strncmp(line, begin, n);
}

/*
 * Reads the lines of steps up to p->first, and truncates the rest: those steps run again. A file
 * with other lines before is refused, and stays unchanged.
 */
static tess_status keep_log(struct train_report *p)
{
	struct train_point point = { 0 };
	char line[4096];
	long at = 0;
	tess_status st = TESS_OK;

	for (int64_t n = 1; !st && fgets(line, sizeof line, p->log); n++) {
		bool whole = strchr(line, '\n') && read_log_line(line, point.step, &point);

		if (!whole && !is_cut_line(line, p->log))
			return tess_fail(TESS_EINVAL,
			                 "--log %s: line %lld is not a line of this run's log, "
			                 "whose steps rise; name the log of this run or a new file",
			                 p->options->log, (long long)n);
		if (!whole || point.step > p->first)
			break;
		st = add_point(p, point.step, point.loss, point.evaluation);
		at = ftell(p->log);
	}
	if (!st && (fseek(p->log, at, SEEK_SET) || ftruncate(fileno(p->log), at)))
		st = tess_fail(TESS_EIO, "--log %s: %s", p->options->log, strerror(errno));
	return st;
}

/* Returns whether the log has lines to keep; pipes and devices have none. */
static bool has_lines(const char *path)
{
	struct stat about;

	return !stat(path, &about) && S_ISREG(about.st_mode);
}

/* Checks that the curve can be written, without creating the file. */
static bool can_write_curve(const char *path)
{
	struct stat about;
	bool there = !lstat(path, &about);
	FILE *f = fopen(path, "ae");

	if (!f)
		return false;
	fclose(f);
	return there || !unlink(path);
}

tess_status train_open_report(const struct train_options *a, int64_t first, int64_t steps,
                              struct train_report *out)
{
	bool kept;

	*out = (struct train_report){ .options = a,
		                      .shows = isatty(STDERR_FILENO),
		                      .began = tess_now(),
		                      .first = first,
		                      .steps = steps };
	if (a->curve && !can_write_curve(a->curve))
		return tess_fail(TESS_EIO, "--curve %s: %s", a->curve, strerror(errno));
	if (!a->log)
		return TESS_OK;
	kept = first && has_lines(a->log);
	out->log = fopen(a->log, kept ? "r+e" : "we");
	if (!out->log)
		return tess_fail(TESS_EIO, "--log %s: %s", a->log, strerror(errno));
	return kept ? keep_log(out) : TESS_OK;
}

static tess_status write_log_line(struct train_report *p, int64_t step, double lr,
                                  const struct train_evaluation *evaluation,
                                  const struct tess_training_result *r)
{
	json_t *o = json_pack("{s:I, s:f, s:f, s:f, s:I, s:I, s:f, s:f}", "step", (json_int_t)step,
	                      "loss", r->loss, "lr", lr, "norm", r->norm, "tokens",
	                      (json_int_t)r->ntokens, "labels", (json_int_t)r->nlabels, "seconds",
	                      r->seconds, "communication", r->communication);
	char *line;

	if (o && p->options->aux_loss > 0)
		json_object_set_new(o, "aux_loss", json_real(r->balance));
	if (o && evaluation->made) /* JSON has no non-finite numbers */
		json_object_set_new(o, "eval_loss",
		                    isfinite(evaluation->loss) ? json_real(evaluation->loss)
		                                               : json_null());
	line = o ? json_dumps(o, JSON_COMPACT) : NULL;
	json_decref(o);
	if (!line)
		return tess_fail(TESS_EIO, "--log %s: step %lld has a number that is not finite",
		                 p->options->log, (long long)step);
	fprintf(p->log, "%s\n", line);
	free(line);
	return fflush(p->log)
	               ? tess_fail(TESS_EIO, "--log %s: %s", p->options->log, strerror(errno))
	               : TESS_OK;
}

/* ---- files of state and weights -------------------------------------------------------------- */

/* Prints where an option puts values of rank 0. */
/* on_disk, on_host: bytes in files, and in memory of the host next to another device. */
static void report_offload(const char *option, const char *place, const char *what,
                           uint64_t on_disk, uint64_t on_host)
{
	bool host = place && !strcmp(place, "host");
	uint64_t bytes = host ? on_host : on_disk;

	if (host && !bytes)
		fprintf(stderr,
		        "tessera train: %s host: the same as without it: this device computes in "
		        "memory of the host, or each weight of the model is too small\n",
		        option);
	else if (place)
		fprintf(stderr, "tessera train: rank 0 keeps %.1f MiB of %s in %s%s\n",
		        (double)bytes / 1048576, what, host ? "memory of the host" : place,
		        bytes ? "" : ": each weight of the model is too small");
}

void train_report_offload(const struct train_options *a, const struct tess_trainer_info *info)
{
	report_offload("--offload-weights", a->offload_weights, "weights and gradients",
	               info->weight_disk_bytes, info->weight_host_bytes);
	report_offload("--offload-optimizer", a->offload_optimizer, "optimizer state",
	               info->state_disk_bytes, info->state_host_bytes);
	if (info->transfer_bytes)
		fprintf(stderr, "tessera train: rank 0 has %.1f MiB of memory for their update\n",
		        (double)info->transfer_bytes / 1048576);
}

/* Returns whether the cpu device has an instruction for products of bf16. */
static bool has_bf16_products(void)
{
	const char *set = tess_option_get("cpu"); /* "": of another device */

	if (*set && strcmp(set, "auto") != 0 && strcmp(set, "avx512bf16") != 0)
		return false;
#if defined(__x86_64__)
	return __builtin_cpu_supports("avx512bf16");
#else
	return false;
#endif
}

void train_report_math(const struct train_options *a)
{
	if (a->session.math == TESS_BF16 && !has_bf16_products())
		fprintf(stderr,
		        "tessera train: --math bf16: no AVX512_BF16 instructions here, so steps "
		        "have the same bits and are slower than with --math f32\n");
}

/* ---- progress -------------------------------------------------------------------------------- */

static void print_progress(struct train_report *p, int64_t step,
                           const struct train_evaluation *evaluation,
                           const struct tess_training_result *r,
                           const struct tess_trainer_info *info)
{
	uint64_t bytes = info->weight_bytes + info->gradient_bytes + info->state_bytes +
	                 info->step_bytes + info->transfer_bytes;
	int64_t now = tess_now();
	bool last = step == p->steps || evaluation->made;

	if (!last && p->shown && now - p->shown < (p->shows ? redrawn_every : printed_every))
		return;
	p->shown = now;
	p->unended = p->shows && !last;
	fprintf(stderr, "%sstep %lld/%lld  loss %.4f  ", p->shows ? "\r\033[K" : "",
	        (long long)step, (long long)p->steps, r->loss);
	if (evaluation->made)
		fprintf(stderr, "eval %.4f  ", isnan(evaluation->loss) ? NAN : evaluation->loss);
	fprintf(stderr, "%.0f tok/s  %.1f ms  %.0f%% communication  %.1f MiB%s",
	        r->seconds > 0 ? (double)r->ntokens / r->seconds : 0, 1e3 * r->seconds,
	        r->seconds > 0 ? 100 * r->communication / r->seconds : 0, (double)bytes / 1048576,
	        p->unended ? "" : "\n");
	if (evaluation->made && !isfinite(evaluation->loss))
		fprintf(stderr,
		        "tessera train: the loss of --eval-data is not finite after step %lld: "
		        "look at its ids, and use a lower --lr or a longer --warmup; "
		        "TESSERA_CHECK=1 names the first module that computes NaN or Inf\n",
		        (long long)step);
}

tess_status train_report_step(struct train_report *p, int64_t step, double lr,
                              const struct train_evaluation *evaluation,
                              const struct tess_training_result *result,
                              const struct tess_trainer_info *info)
{
	tess_status st =
		add_point(p, step, result->loss, evaluation->made ? evaluation->loss : NAN);

	p->ntokens += result->ntokens;
	print_progress(p, step, evaluation, result, info);
	return st || !p->log ? st : write_log_line(p, step, lr, evaluation, result);
}

void train_report_request(struct train_report *p, const char *saved)
{
	fprintf(stderr, "%stessera train: SIGUSR1: saved %s; the run continues\n",
	        p->unended ? "\n" : "", saved);
	p->unended = false;
}

tess_status train_write_curve(const struct train_report *p)
{
	const char *path = p->options->curve;
	FILE *f;
	bool written;

	if (!path || !p->npoints)
		return TESS_OK;
	f = fopen(path, "we");
	if (f)
		train_draw_curve(p->points, p->npoints, f);
	written = f && !fflush(f) && !ferror(f);
	if (f)
		fclose(f);
	return written ? TESS_OK : tess_fail(TESS_EIO, "--curve %s: %s", path, strerror(errno));
}

void train_close_report(struct train_report *p, const char *saved)
{
	double seconds = 1e-9 * (double)(tess_now() - p->began);

	if (p->unended)
		fprintf(stderr, "\n");
	if (p->ntokens)
		fprintf(stderr, "%lld tokens in %.1f s%s%s\n", (long long)p->ntokens, seconds,
		        saved ? "; the last save is " : "", saved ? saved : "");
	if (p->log)
		fclose(p->log);
	free(p->points);
}
