/* machine_file.c - fits what `tessera bench machine` has measured, and writes the machine file. */
#include "machine.h"

#include "core/base/json.h"
#include "core/base/status.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

tess_status machine_set_add(struct machine_set *s, const struct machine_result *r)
{
	int32_t np = s->npoints + r->npoints, nc = s->ncalls + r->ncalls;
	struct machine_point *point = realloc(s->point, sizeof *point * (size_t)(np + 1));
	struct machine_call *call = realloc(s->call, sizeof *call * (size_t)(nc + 1));

	s->point = point ? point : s->point;
	s->call = call ? call : s->call;
	if (!point || !call)
		return tess_fail(TESS_ENOMEM, "out of memory");
	memcpy(point + s->npoints, r->point, sizeof *point * (size_t)r->npoints);
	memcpy(call + s->ncalls, r->call, sizeof *call * (size_t)r->ncalls);
	s->npoints = np;
	s->ncalls = nc;
	s->threads = r->threads ? r->threads : s->threads;
	return TESS_OK;
}

/* ---- rates ----------------------------------------------------------------------------------- */

/* Returns the time of the shortest step: what each of them takes besides its work. */
static double find_latency(const struct machine_set *s)
{
	double least = 1;

	for (int32_t i = 0; i < s->npoints; i++)
		if (s->point[i].seconds < least)
			least = s->point[i].seconds;
	return least;
}

/* Names the class of a point as a key; products of bf16 have one of their own. */
static void name_point_class(const struct machine_point *p, char key[static TESS_STEP_NAME])
{
	const char *bf16 = strstr(p->key, TESS_MACHINE_BF16);

	snprintf(key, TESS_STEP_NAME, "%s%s", tess_term_get_name(p->class), bf16 ? bf16 : "");
}

/* A class is for single ops that are not listed; what is no op is only listed. */
static bool stands_for_class(const struct machine_point *p)
{
	return !strchr(p->key, '+') && strcmp(p->key, "sample") != 0 &&
	       strcmp(p->key, "adamw") != 0;
}

/* Adds a point to a list, or takes the mean with one of alike rows and work. */
static void add_rate_point(json_t *rates, const char *key, double rows, double work, double rate)
{
	json_t *list = json_object_get(rates, key), *point;
	size_t i;

	if (!list) {
		list = json_array();
		json_object_set_new(rates, key, list);
	}
	json_array_foreach(list, i, point) {
		double w = json_number_value(json_array_get(point, 1)) / work;
		json_t *r = json_array_get(point, 2);

		if (json_number_value(json_array_get(point, 0)) != rows || w < 0.98 || w > 1.02)
			continue;
		json_real_set(r, sqrt(json_real_value(r) * rate));
		return;
	}
	json_array_append_new(list, json_pack("[f, f, f]", rows, work, rate));
}

static json_t *make_rates(const struct machine_set *s, bool training, double latency)
{
	json_t *rates = json_object();

	for (int32_t i = 0; i < s->npoints; i++) {
		const struct machine_point *p = &s->point[i];
		double work = p->work / (p->rows > 1 ? p->rows : 1), rate,
		       seconds = p->seconds - latency, least = p->seconds / 8;
		char class[TESS_STEP_NAME];

		if (p->rows <= 0 || p->work <= 0 || p->training != training)
			continue;
		rate = p->work / (seconds > least ? seconds : least);
		add_rate_point(rates, p->key, p->rows, work, rate);
		name_point_class(p, class);
		if (stands_for_class(p))
			add_rate_point(rates, class, p->rows, work, rate);
	}
	return rates;
}

/* Makes the device of a number of ranks, which share the host. */
static json_t *make_device(const struct machine_host *h, const struct machine_set *s)
{
	double latency = find_latency(s);

	return json_pack("{s:i, s:i, s:f, s:f, s:o, s:o}", "ranks", (int)s->ranks, "threads",
	                 (int)s->threads, "memory", h->memory / s->ranks, "latency", latency,
	                 "rates", make_rates(s, false, latency), "training_rates",
	                 make_rates(s, true, latency));
}

/* ---- links ----------------------------------------------------------------------------------- */

/* What is written of a call; cached 0: one rate for all sizes. */
struct fitted_call {
	double seconds, rate, cached, beyond;
	double error; /* sum of the squares of relative errors */
};
enum { CALL_POINTS_MIN = 4 }; /* below the size from which on a call has another rate */

/*
 * Fits seconds + bytes / rate to the points of a call of up to `most` bytes with the least relative
 * errors, seconds not below half of the smallest time. Returns the number of points.
 */
static int32_t fit_small_calls(const struct machine_set *s, const char *name, double most,
                               struct fitted_call *f)
{
	double w = 0, wx = 0, wxx = 0, wy = 0, wxy = 0, least = 1, slope;
	int32_t n = 0;

	for (int32_t i = 0; i < s->ncalls; i++) {
		double x = s->call[i].bytes, y = s->call[i].seconds, k = 1 / (y * y);

		if (strcmp(s->call[i].name, name) != 0 || x > most)
			continue;
		w += k;
		wx += k * x;
		wxx += k * x * x;
		wy += k * y;
		wxy += k * x * y;
		least = y < least ? y : least;
		n++;
	}
	slope = (w * wxy - wx * wy) / (w * wxx - wx * wx);
	f->seconds = (wy - slope * wx) / w;
	if (!(f->seconds > least / 2)) {
		f->seconds = least / 2;
		slope = (wxy - f->seconds * wx) / wxx;
	}
	f->rate = slope > 0 ? 1 / slope : 1e12;
	return n;
}

/* Fits the rate of the bytes after the first `cached`, and sets the error of all sizes. */
static void fit_large_calls(const struct machine_set *s, const char *name, double cached,
                            struct fitted_call *f)
{
	double xx = 0, xy = 0;

	for (int32_t i = 0; i < s->ncalls; i++) {
		double x = s->call[i].bytes - cached, y = s->call[i].seconds;

		if (strcmp(s->call[i].name, name) != 0 || x <= 0)
			continue;
		xx += x * x / (y * y);
		xy += x * (y - f->seconds - cached / f->rate) / (y * y);
	}
	f->cached = xx > 0 && xy > 0 ? cached : 0;
	f->beyond = f->cached > 0 ? xx / xy : 0;
	f->error = 0;
	for (int32_t i = 0; i < s->ncalls; i++) {
		double x = s->call[i].bytes, y = s->call[i].seconds;
		double more = f->cached > 0 && x > cached ? x - cached : 0;
		double e = (f->seconds + (x - more) / f->rate + (more > 0 ? more / f->beyond : 0)) /
		                   y -
		           1;

		f->error += strcmp(s->call[i].name, name) ? 0 : e * e;
	}
}

/* Fits a call, with another rate from the size on that explains its points best. */
static struct fitted_call fit_call(const struct machine_set *s, const char *name)
{
	struct fitted_call best = { 0 };

	fit_small_calls(s, name, INFINITY, &best);
	fit_large_calls(s, name, INFINITY, &best);
	for (int32_t i = 0; i < s->ncalls; i++) {
		struct fitted_call f = { 0 };
		double cached = s->call[i].bytes;

		if (strcmp(s->call[i].name, name) != 0 ||
		    fit_small_calls(s, name, cached, &f) < CALL_POINTS_MIN)
			continue;
		fit_large_calls(s, name, cached, &f);
		if (f.error < best.error && f.cached > 0 && f.beyond < f.rate)
			best = f;
	}
	return best;
}

static void add_link(json_t *within, const char *call, int32_t ranks, const struct fitted_call *f)
{
	json_t *list = json_object_get(within, call);

	if (!list) {
		list = json_array();
		json_object_set_new(within, call, list);
	}
	json_array_append_new(
		list, f->cached > 0 ? json_pack("[i, f, f, f, f]", (int)ranks, f->seconds, f->rate,
	                                        f->cached, f->beyond)
				    : json_pack("[i, f, f]", (int)ranks, f->seconds, f->rate));
}

static json_t *make_links(const struct machine_host *h)
{
	json_t *within = json_object();

	for (int32_t n = 0; n < h->nsets; n++) {
		const struct machine_set *s = &h->set[n];

		for (int32_t i = 0; i < s->ncalls; i++) {
			const char *name = s->call[i].name;
			struct fitted_call f;

			if (i && !strcmp(name, s->call[i - 1].name))
				continue;
			f = fit_call(s, name);
			add_link(within, name, s->ranks, &f);
			if (!strcmp(name, "all_gather"))
				add_link(within, "default", s->ranks, &f);
		}
	}
	return json_pack("{s:o}", "within", within);
}

/* ---- the file -------------------------------------------------------------------------------- */

static json_t *make_machine_object(const struct machine_host *h)
{
	json_t *device = make_device(h, &h->set[0]), *shared = json_array(), *root;
	char about[256], host[64] = "host", date[32];
	time_t now = time(NULL);
	struct tm tm;

	gethostname(host, sizeof host - 1);
	gmtime_r(&now, &tm);
	strftime(date, sizeof date, "%Y-%m-%d", &tm);
	snprintf(about, sizeof about,
	         "Measured by tessera bench machine on %s: %d CPUs, backend %s", date,
	         (int)h->ncpus, h->backend);
	for (int32_t i = 1; i < h->nsets; i++)
		json_array_append_new(shared, make_device(h, &h->set[i]));
	json_object_set_new(device, "shared", shared);
	root = json_pack("{s:s, s:s, s:o, s:o}", "name", host, "about", about, "device", device,
	                 "links", make_links(h));
	json_object_set_new(root, "disk",
	                    json_pack("{s:f, s:f, s:f}", "read", h->disk_read, "write",
	                              h->disk_write, "size", h->disk_size));
	return root;
}

/* Writes a member of an object a line, and lists of points in one line. */
static void write_value(FILE *f, json_t *v, int32_t depth)
{
	const char *key;
	json_t *member;
	size_t i;

	if (json_is_object(v)) {
		bool first = true;

		json_object_foreach(v, key, member) {
			fprintf(f, "%s%*s\"%s\": ", first ? "{\n" : ",\n", 2 * depth + 2, "", key);
			write_value(f, member, depth + 1);
			first = false;
		}
		fprintf(f, "\n%*s}", 2 * depth, "");
	} else if (json_is_object(json_array_get(v, 0))) {
		json_array_foreach(v, i, member) {
			fputs(i ? ", " : "[", f);
			write_value(f, member, depth);
		}
		fputs("]", f);
	} else {
		json_dumpf(v, f, JSON_ENCODE_ANY | JSON_REAL_PRECISION(4));
	}
}

static tess_status write_machine_text(const char *path, json_t *root)
{
	FILE *f = fopen(path, "we");
	bool written = f;

	if (f) {
		write_value(f, root, 0);
		written = fputs("\n", f) >= 0 && !ferror(f);
		written = !fclose(f) && written;
	}
	return written ? TESS_OK : tess_fail(TESS_EIO, "--out %s: %s", path, strerror(errno));
}

/* Frees sets. */
static void free_sets(struct machine_host *h)
{
	for (int32_t i = 0; i < h->nsets; i++) {
		free(h->set[i].point);
		free(h->set[i].call);
	}
	h->nsets = 0;
}

tess_status machine_write_file(const char *path, struct machine_host *h)
{
	json_t *root = make_machine_object(h);
	bool lacked = !root || tess_tool_lacked_json_memory();
	tess_status st = lacked ? tess_fail(TESS_ENOMEM, "out of memory") : TESS_OK;

	free_sets(h);
	if (!st)
		st = write_machine_text(path, root);
	json_decref(root);
	return st;
}
