/* machine.c - reads machine files, and estimates the time of ops and calls by them. */
#include "nn/cost/machine.h"

#include "core/base/json.h"
#include "core/base/status.h"
#include "nn/cost/machines.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MACHINE_BYTES_MAX = 16 << 20 };

static const char *const term_names[TESS_TERMS] = { "product",   "attention", "memory",   "latency",
	                                            "tensor",    "data",      "pipeline", "bubble",
	                                            "optimizer", "fixed",     "disk" };
static const char *const holds_names[TESS_HOLDS] = { "weights",  "gradients", "state", "step",
	                                             "gathered", "loss",      "cache", "fixed" };
static const char *const link_names[TESS_LINKS] = { "within", "between" };

const char *tess_term_get_name(int32_t term)
{
	return term_names[term];
}

/* ---- reading --------------------------------------------------------------------------------- */

/* A file in progress. `where` begins messages. */
struct machine_reader {
	struct tess_machine *m;
	const char *where;
};

enum { POINT_NUMBERS = 5 };

/* Reads a row of three positive numbers, or of a call five; the second may be 0. */
static tess_status read_point(const struct machine_reader *r, const char *key, const json_t *row,
                              bool call, double out[POINT_NUMBERS])
{
	size_t n = json_array_size(row);
	bool right = n == 3 || (call && n == POINT_NUMBERS);

	memset(out, 0, sizeof *out * POINT_NUMBERS);
	for (size_t i = 0; i < n && right; i++) {
		const json_t *v = json_array_get(row, i);

		out[i] = json_number_value(v);
		right = json_is_number(v) && isfinite(out[i]) &&
		        (i == 1 ? out[i] >= 0 : out[i] > 0);
	}
	return right ? TESS_OK
	             : tess_fail(TESS_EINVAL,
	                         "%s: %s: a point is [a, b, rate]: numbers, a and the rate above "
	                         "0, b not negative",
	                         r->where, key);
}

/* Reads a list of points of an op or of a call. */
static tess_status read_points(const struct machine_reader *r, const char *key, const json_t *list,
                               bool call, int32_t *n, double (**out)[POINT_NUMBERS])
{
	tess_status st = TESS_OK;

	*n = (int32_t)json_array_size(list);
	if (!*n)
		return tess_fail(TESS_EINVAL, "%s: %s: needs a list with at least one point",
		                 r->where, key);
	*out = tess_arena_alloc(&r->m->arena, sizeof **out * (size_t)*n);
	if (!*out)
		return TESS_ENOMEM;
	for (int32_t i = 0; i < *n && !st; i++)
		st = read_point(r, key, json_array_get(list, (size_t)i), call, (*out)[i]);
	return st;
}

static struct tess_machine_point make_point(const double row[3])
{
	return (struct tess_machine_point){ log2(row[0]), log2(row[1] > 1 ? row[1] : 1),
		                            log2(row[2]) };
}

/* Reads a table of rates by op: "rates" or "training_rates". */
static tess_status read_rates(const struct machine_reader *r, json_t *device, const char *key,
                              int32_t *n, struct tess_machine_rates **out)
{
	struct tess_machine *m = r->m;
	json_t *rates = json_object_get(device, key), *list;
	const char *op;
	tess_status st = tess_json_require(r->where, device, key, JSON_OBJECT);

	if (st)
		return st;
	*out = TESS_NEW(&m->arena, struct tess_machine_rates, json_object_size(rates));
	if (!*out)
		return TESS_ENOMEM;
	json_object_foreach(rates, op, list) {
		struct tess_machine_rates *to = &(*out)[(*n)++];
		double(*points)[POINT_NUMBERS];

		to->op = tess_arena_copy(&m->arena, op, strlen(op));
		st = to->op ? read_points(r, op, list, false, &to->npoints, &points) : TESS_ENOMEM;
		if (st)
			return st;
		to->point = TESS_NEW(&m->arena, struct tess_machine_point, to->npoints);
		for (int32_t i = 0; i < to->npoints && to->point; i++)
			to->point[i] = make_point(points[i]);
		if (!to->point)
			return TESS_ENOMEM;
	}
	for (int32_t i = TESS_TERM_PRODUCT; i <= TESS_TERM_MEMORY; i++)
		if (!json_object_get(rates, term_names[i]))
			return tess_fail(TESS_EINVAL,
			                 "%s: %s: \"%s\" is missing, which stands for all ops of "
			                 "its class that are not listed",
			                 r->where, key, term_names[i]);
	return TESS_OK;
}

static tess_status read_link(const struct machine_reader *r, json_t *links, int32_t level)
{
	struct tess_machine *m = r->m;
	json_t *calls = json_object_get(links, link_names[level]), *list;
	const char *call;
	tess_status st;

	if (!calls && level == TESS_LINK_BETWEEN && !m->ranks_per_host)
		return TESS_OK;
	st = tess_json_require(r->where, links, link_names[level], JSON_OBJECT);
	if (st)
		return st;
	m->link[level] = TESS_NEW(&m->arena, struct tess_machine_link, json_object_size(calls));
	if (!m->link[level])
		return TESS_ENOMEM;
	json_object_foreach(calls, call, list) {
		struct tess_machine_link *to = &m->link[level][m->nlinks[level]++];
		double(*points)[POINT_NUMBERS];

		to->call = tess_arena_copy(&m->arena, call, strlen(call));
		st = to->call ? read_points(r, call, list, true, &to->npoints, &points)
		              : TESS_ENOMEM;
		if (st)
			return st;
		to->point = TESS_NEW(&m->arena, struct tess_machine_call, to->npoints);
		for (int32_t i = 0; i < to->npoints && to->point; i++)
			to->point[i] = (struct tess_machine_call){ points[i][0], points[i][1],
				                                   points[i][2], points[i][3],
				                                   points[i][4] };
		if (!to->point)
			return TESS_ENOMEM;
	}
	return json_object_get(calls, "default")
	               ? TESS_OK
	               : tess_fail(TESS_EINVAL,
	                           "%s: links: %s: \"default\" is missing, which stands for all "
	                           "collectives that are not listed",
	                           r->where, link_names[level]);
}

/* Reads factors by name; those without one are 1, "loss" and "fixed" 0. */
static tess_status read_factors(const struct machine_reader *r, const json_t *corrections,
                                const char *key, const char *const *name, int32_t n, double *out)
{
	json_t *factors = json_object_get(corrections, key), *value;
	const char *given;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < n; i++) {
		out[i] = strcmp(name[i], "fixed") != 0 && strcmp(name[i], "loss") != 0;
		if (!st)
			st = tess_json_get_number(r->where, factors, name[i], 0, 1e18, &out[i]);
	}
	json_object_foreach(factors, given, value) {
		int32_t i = 0;

		while (i < n && strcmp(name[i], given) != 0)
			i++;
		if (i == n && !st)
			st = tess_fail(TESS_EINVAL, "%s: corrections: %s: there is no \"%s\"",
			               r->where, key, given);
	}
	return st;
}

/* Reads one device: that of a file, or a rank's part of it. */
static tess_status read_part(const struct machine_reader *r, json_t *device,
                             struct tess_machine_device *out)
{
	int64_t ranks = 0;
	tess_status st = TESS_OK;

	out->memory = out->latency = -1;
	st = tess_json_get_int(r->where, device, "ranks", 1, 1 << 20, &ranks);
	out->ranks = (int32_t)ranks;
	if (!st)
		st = tess_json_get_number(r->where, device, "memory", 1, 1e18, &out->memory);
	if (!st)
		st = tess_json_get_number(r->where, device, "latency", 0, 1e3, &out->latency);
	if (!st && (out->memory < 0 || out->latency < 0))
		st = tess_fail(TESS_EINVAL, "%s: device: \"%s\" is missing", r->where,
		               out->memory < 0 ? "memory" : "latency");
	if (!st)
		st = read_rates(r, device, "rates", &out->nrates[0], &out->rates[0]);
	if (!st && json_object_get(device, "training_rates"))
		st = read_rates(r, device, "training_rates", &out->nrates[1], &out->rates[1]);
	return st;
}

/* Reads the parts of more ranks on a host. */
static tess_status read_shared(const struct machine_reader *r, json_t *device)
{
	struct tess_machine *m = r->m;
	json_t *shared = json_object_get(device, "shared");
	size_t n = json_array_size(shared);
	tess_status st = TESS_OK;

	m->device = TESS_NEW(&m->arena, struct tess_machine_device, n + 1);
	if (!m->device)
		return TESS_ENOMEM;
	m->ndevices = (int32_t)n + 1;
	for (size_t i = 0; i <= n && !st; i++) {
		struct tess_machine_device *to = &m->device[i];

		st = read_part(r, i ? json_array_get(shared, i - 1) : device, to);
		if (!st && n && to->ranks <= (i ? to[-1].ranks : 0))
			st = tess_fail(TESS_EINVAL,
			               "%s: device: shared: each device needs \"ranks\", in "
			               "increasing order",
			               r->where);
	}
	return st;
}

static tess_status read_device(const struct machine_reader *r, json_t *root)
{
	json_t *device = json_object_get(root, "device");
	struct tess_machine *m = r->m;
	int64_t rows = 512;
	tess_status st = tess_json_require(r->where, root, "device", JSON_OBJECT);

	m->exact = true;
	m->width = 4;
	if (!st)
		st = tess_json_get_number(r->where, device, "launch", 0, 1e3, &m->launch);
	if (!st)
		st = tess_json_get_number(r->where, device, "width", 1, 8, &m->width);
	if (!st)
		st = tess_json_get_int(r->where, device, "prompt_rows", 1, 1 << 20, &rows);
	m->prompt_rows = (int32_t)rows;
	if (!st)
		st = tess_json_get_bool(r->where, device, "exact", &m->exact);
	if (!st)
		st = tess_json_get_bool(r->where, device, "parts_at_once", &m->at_once);
	if (!st)
		st = tess_json_get_bool(r->where, device, "gradients_once", &m->once);
	if (!st)
		st = read_shared(r, device);
	if (!st)
		tess_machine_choose(m, m->device->ranks, false);
	return st;
}

static tess_status read_links(const struct machine_reader *r, json_t *root)
{
	json_t *links = json_object_get(root, "links");
	tess_status st = tess_json_require(r->where, root, "links", JSON_OBJECT);
	int64_t per_host = 0;

	if (!st)
		st = tess_json_get_int(r->where, links, "ranks_per_host", 1, 1 << 20, &per_host);
	r->m->ranks_per_host = (int32_t)per_host;
	for (int32_t i = 0; i < TESS_LINKS && !st; i++)
		st = read_link(r, links, i);
	return st;
}

/* Reads what is known of the disk and the memory of a host. */
static tess_status read_host(const struct machine_reader *r, json_t *root)
{
	struct tess_machine *m = r->m;
	const struct {
		const char *of, *key;
		double max;
		double *to;
	} number[] = {
		{ "disk", "read", 1e15, &m->disk_read },
		{ "disk", "write", 1e15, &m->disk_write },
		{ "disk", "size", 1e18, &m->disk_size },
		{ "host", "read", 1e15, &m->host_read },
		{ "host", "write", 1e15, &m->host_write },
		{ "host", "memory", 1e15, &m->host_memory },
		{ "host", "size", 1e18, &m->host_size },
	};
	tess_status st = TESS_OK;

	for (size_t i = 0; i < sizeof number / sizeof *number && !st; i++)
		st = tess_json_get_number(r->where, json_object_get(root, number[i].of),
		                          number[i].key, 0, number[i].max, number[i].to);
	return st;
}

static tess_status read_machine(const struct machine_reader *r, json_t *root)
{
	struct tess_machine *m = r->m;
	json_t *corrections = json_object_get(root, "corrections");
	const char *name = json_string_value(json_object_get(root, "name"));
	const char *about = json_string_value(json_object_get(root, "about"));
	const char *measured = json_string_value(json_object_get(root, "measured"));
	tess_status st = tess_json_require(r->where, root, "name", JSON_STRING);

	if (!st && json_object_get(root, "measured"))
		st = tess_json_require(r->where, root, "measured", JSON_STRING);
	if (st)
		return st;
	m->name = tess_arena_copy(&m->arena, name, strlen(name));
	m->about = tess_arena_copy(&m->arena, about ? about : "", about ? strlen(about) : 0);
	m->measured = tess_arena_copy(&m->arena, measured ? measured : "",
	                              measured ? strlen(measured) : 0);
	st = m->name && m->about && m->measured ? read_device(r, root) : TESS_ENOMEM;
	if (!st)
		st = read_links(r, root);
	if (!st)
		st = read_factors(r, corrections, "time", term_names, TESS_TERMS, m->time);
	if (!st)
		st = read_factors(r, corrections, "memory", holds_names, TESS_HOLDS, m->holds);
	if (!st)
		st = read_host(r, root);
	return st ? st : tess_json_get_number(r->where, root, "error", 0, 10, &m->error);
}

static tess_status load_machine(const char *name, json_t **root)
{
	const struct tess_machine_file *file = tess_machine_find_file(name);

	if (file)
		return tess_json_parse(name, file->text, (size_t)(file->end - file->text), root);
	if (!strchr(name, '/') && !strchr(name, '.'))
		return tess_fail(TESS_ENOENT,
		                 "there is no machine \"%s\"; use %sor a file that `tessera "
		                 "bench machine --out FILE` has written",
		                 name, tess_machine_list_files());
	return tess_json_load(name, MACHINE_BYTES_MAX, root);
}

tess_status tess_machine_open(const char *name, struct tess_machine **out)
{
	struct machine_reader r = { .m = calloc(1, sizeof *r.m), .where = name };
	json_t *root = NULL;
	tess_status st =
		r.m ? load_machine(name, &root) : tess_fail(TESS_ENOMEM, "%s: out of memory", name);

	if (!st)
		st = json_is_object(root)
		             ? read_machine(&r, root)
		             : tess_fail(TESS_EINVAL, "%s: a machine file is an object", name);
	json_decref(root);
	if (st)
		tess_machine_close(r.m);
	else
		*out = r.m;
	return st;
}

void tess_machine_close(struct tess_machine *m)
{
	if (!m)
		return;
	tess_arena_free(&m->arena);
	free(m);
}

/* ---- ops ------------------------------------------------------------------------------------- */

void tess_machine_choose(struct tess_machine *m, int32_t nranks, bool training)
{
	const struct tess_machine_device *d = m->device;

	while (d < m->device + m->ndevices - 1 && d->ranks < nranks)
		d++;
	m->share = d->ranks && d->ranks < nranks ? (double)d->ranks / nranks : 1;
	m->memory = d->memory * m->share;
	m->latency = d->latency;
	m->disk_ranks =
		m->ranks_per_host && m->ranks_per_host < nranks ? m->ranks_per_host : nranks;
	training = training && d->nrates[1];
	m->nrates = d->nrates[training];
	m->rates = d->rates[training];
}

static const struct tess_machine_rates *find_rates(const struct tess_machine *m, const char *op)
{
	for (int32_t i = 0; i < m->nrates; i++)
		if (!strcmp(m->rates[i].op, op))
			return &m->rates[i];
	return NULL;
}

bool tess_machine_has_op(const struct tess_machine *m, const char *op)
{
	return find_rates(m, op) != NULL;
}

bool tess_machine_has_bf16(const struct tess_machine *m)
{
	for (int32_t i = 0; i < m->nrates; i++)
		if (strstr(m->rates[i].op, TESS_MACHINE_BF16))
			return true;
	return false;
}

/* Returns the rates of an op, or those that stand for it. */
static const struct tess_machine_rates *choose_rates(const struct tess_machine *m, const char *op,
                                                     const char *class)
{
	const struct tess_machine_rates *r = find_rates(m, op);
	const char *bf16 = strstr(op, TESS_MACHINE_BF16);
	char key[256];

	if (!r && bf16) {
		snprintf(key, sizeof key, "%s%s", class, bf16);
		r = find_rates(m, key);
	}
	if (!r && bf16) {
		snprintf(key, sizeof key, "%.*s", (int)(bf16 - op), op);
		r = find_rates(m, key);
	}
	return r ? r : find_rates(m, class);
}

/*
 * Interpolates between points: the mean of the logarithms of their rates, weighted by 1 / d^4, d
 * the distance in the logarithms of rows and work.
 */
static double interpolate_rate(const struct tess_machine_rates *r, double rows, double work)
{
	double sum = 0, weights = 0, x = log2(rows > 1 ? rows : 1), y = log2(work > 1 ? work : 1);

	for (int32_t i = 0; i < r->npoints; i++) {
		const struct tess_machine_point *p = &r->point[i];
		double dx = p->rows - x, dy = p->work - y;
		double d = dx * dx + dy * dy, w = 1 / (d * d + 1e-6);

		sum += w * p->rate;
		weights += w;
	}
	return exp2(sum / weights);
}

double tess_machine_compute(const struct tess_machine *m, const char *op, const char *class,
                            double rows, double work)
{
	const struct tess_machine_rates *r = choose_rates(m, op, class);

	if (work <= 0)
		return 0;
	return work / (interpolate_rate(r, rows, work / (rows > 1 ? rows : 1)) * m->share);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static const struct tess_machine_link *find_link(const struct tess_machine *m, int32_t level,
                                                 const char *call)
{
	const struct tess_machine_link *preset = NULL;

	for (int32_t i = 0; i < m->nlinks[level]; i++) {
		if (!strcmp(m->link[level][i].call, call))
			return &m->link[level][i];
		if (!strcmp(m->link[level][i].call, "default"))
			preset = &m->link[level][i];
	}
	return preset;
}

/* Interpolates between two values by their logarithms; 0 in one of them: the first. */
static double interpolate_power(double a, double b, double share)
{
	return a > 0 && b > 0 ? exp(log(a) + share * (log(b) - log(a))) : a;
}

/* Interpolates seconds and rates by the logarithm of the number of ranks or hosts. */
static struct tess_machine_call interpolate_call(const struct tess_machine_link *l, double n)
{
	int32_t i = 0;

	while (i < l->npoints && l->point[i].ranks < n)
		i++;
	if (i == l->npoints)
		return l->point[i - 1];
	if (i && l->point[i].ranks > n) {
		const struct tess_machine_call *a = &l->point[i - 1], *b = &l->point[i];
		double share = log(n / a->ranks) / log(b->ranks / a->ranks);

		return (struct tess_machine_call){
			.ranks = n,
			.seconds = a->seconds + share * (b->seconds - a->seconds),
			.rate = interpolate_power(a->rate, b->rate, share),
			.cached = interpolate_power(a->cached, b->cached, share),
			.beyond = interpolate_power(a->beyond, b->beyond, share),
		};
	}
	return l->point[i];
}

bool tess_machine_is_within(const struct tess_machine *m, int32_t nranks, int32_t stride)
{
	return !m->ranks_per_host || (int64_t)nranks * stride <= m->ranks_per_host;
}

bool tess_machine_hides_calls(const struct tess_machine *m)
{
	return !m->device->ranks;
}

double tess_machine_move(const struct tess_machine *m, double read, double written)
{
	if (!m->exact)
		return read / m->host_read + written / m->host_write;
	return m->disk_ranks * (read / m->disk_read + written / m->disk_write);
}

double tess_machine_communicate(const struct tess_machine *m, const char *call, int32_t nranks,
                                int32_t stride, double bytes)
{
	bool within = tess_machine_is_within(m, nranks, stride);
	int32_t level = within ? TESS_LINK_WITHIN : TESS_LINK_BETWEEN;
	int32_t side = m->ranks_per_host > stride ? m->ranks_per_host / stride : 1; /* on a host */
	double n = within ? nranks : ceil((double)nranks / side);
	struct tess_machine_call c = interpolate_call(find_link(m, level, call), n);

	if (nranks == 1)
		return 0;
	if (c.cached > 0 && bytes > c.cached)
		return c.seconds + c.cached / c.rate + (bytes - c.cached) / c.beyond;
	return c.seconds + bytes / c.rate;
}
