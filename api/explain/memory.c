/* memory.c - the memory of ranks in an explanation, and whether it fits. */
#include "api/explain/format.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/names.h>

enum { MEMORY_PARTS = 7 };

struct memory_part { /* a part of a rank's memory */
	const char *name, *key; /* heading; member of JSON */
	uint64_t bytes;
};

static void add_memory_part(struct memory_part **end, const char *name, const char *key,
                            uint64_t bytes)
{
	*(*end)++ = (struct memory_part){ name, key, bytes };
}

/*
 * Lists the parts of a rank's memory with their sum, and, if ranks have files, the bytes on disk,
 * and those that a step of inference reads; or those in memory of the host next to a device.
 * Returns their number.
 */
static int list_parts(const struct tess_explanation *e, const struct tess_explained_rank *r,
                      int64_t positions, struct memory_part out[MEMORY_PARTS])
{
	bool files = explain_has_files(e), host = explain_uses_host(e);
	uint64_t cache = r->cache * (uint64_t)positions;
	struct memory_part *end = out;

	add_memory_part(&end, "weights", "weights", r->weights);
	if (e->sequences) {
		add_memory_part(&end, "gradients", "gradients", r->gradients);
		add_memory_part(&end, "optimizer", "optimizer", r->state);
	} else {
		add_memory_part(&end, "KV cache", "cache", cache);
	}
	add_memory_part(&end, "step", "step", r->step);
	if (files && e->sequences)
		add_memory_part(&end, "transfers", "transfers", r->transfer);
	add_memory_part(&end, "total", "total", r->total + (e->sequences ? 0 : cache));
	if (files)
		add_memory_part(&end, "on disk", "disk", r->weights_disk + r->state_disk);
	if (host)
		add_memory_part(&end, "on host", "host",
		                r->weights_host + r->state_host + r->transfer);
	if (files && !e->sequences)
		add_memory_part(&end, "read", "read", r->disk_read[0]);
	return (int)(end - out);
}

/* Lists the sums over all ranks. */
static int sum_parts(const struct tess_explanation *e, int64_t positions,
                     struct memory_part out[MEMORY_PARTS])
{
	struct memory_part one[MEMORY_PARTS] = { 0 };
	int n = list_parts(e, e->ranks[0], positions, out);

	for (int32_t r = 1; r < e->nranks; r++) {
		list_parts(e, e->ranks[r], positions, one);
		for (int i = 0; i < n; i++)
			out[i].bytes += one[i].bytes;
	}
	return n;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void print_heading(const struct tess_explanation *e, int64_t positions, FILE *f)
{
	if (e->sequences)
		fprintf(f, "\nmemory of a rank (a %s of %lld sequence%s of %lld tokens",
		        e->micro_batches > 1 ? "micro-batch" : "step", (long long)e->sequences,
		        e->sequences == 1 ? "" : "s", (long long)(e->tokens / e->sequences));
	else
		fprintf(f,
		        "\nmemory of a rank (KV cache for %lld positions%s%s, step of %lld token%s",
		        (long long)positions, e->kv_dtype ? " in " : "",
		        e->kv_dtype ? tess_dtype_name(e->kv_dtype) : "", (long long)e->tokens,
		        e->tokens == 1 ? "" : "s");
	if (e->micro_batches > 1)
		fprintf(f, ", one of %lld: values of all that are kept at once",
		        (long long)e->micro_batches);
	fprintf(f, ")\n\n");
}

static void print_parts(const char *name, int32_t count, const struct memory_part *part, int n,
                        FILE *f)
{
	char bytes[16];

	fprintf(f, "%-20s %8d", name, (int)count);
	for (int i = 0; i < n; i++)
		fprintf(f, " %10s", explain_format_bytes(part[i].bytes, bytes));
	fprintf(f, "\n");
}

static void print_fit(const struct tess_explanation *e, FILE *f)
{
	const struct tess_explained_fit *fit = e->fit;
	bool fits = fit->used <= fit->memory;
	char memory[16], used[16], rest[16];

	explain_format_bytes(fit->memory, memory);
	fprintf(f, "\n%s: the most loaded rank, %d, uses %s of %s", fits ? "fits" : "DOES NOT FIT",
	        (int)fit->rank, explain_format_bytes(fit->used, used), memory);
	if (!e->sequences)
		fprintf(f, " with a sequence of %lld positions", (long long)fit->positions);
	fprintf(f, "; %s %s\n",
	        explain_format_bytes(fits ? fit->memory - fit->used : fit->used - fit->memory,
	                             rest),
	        fits ? "free" : "missing");
}

/* Returns the number of replicas that divide the sequences of a step. */
static int64_t count_divided(const struct tess_explanation *e)
{
	int64_t n = 1;

	for (int32_t d = 0; d < e->ndims; d++)
		if (!strcmp(e->dim_names[d], "dp") || !strcmp(e->dim_names[d], "ddp"))
			n *= e->dim_sizes[d];
	return n;
}

static void print_training_sequences(const struct tess_explanation *e, FILE *f)
{
	const struct tess_explained_fit *fit = e->fit;
	int64_t replicas = count_divided(e);
	long long all = (long long)(fit->sequences / replicas * replicas * e->micro_batches);

	if (!fit->sequences)
		fprintf(f, "no step fits: one sequence of %lld tokens a replica needs more\n",
		        (long long)fit->positions);
	else
		fprintf(f,
		        "largest %s that fits: %lld sequence%s of %lld tokens, %lld for each of "
		        "%lld replica%s (--batch %lld)\n",
		        e->micro_batches > 1 ? "micro-batch" : "step", (long long)fit->sequences,
		        fit->sequences == 1 ? "" : "s", (long long)fit->positions,
		        (long long)(fit->sequences / replicas), (long long)replicas,
		        replicas == 1 ? "" : "s", all);
}

static void print_sequences(const struct tess_explanation *e, FILE *f)
{
	const struct tess_explained_fit *fit = e->fit;
	int64_t replicas = count_divided(e);

	fprintf(f, "sequences that fit at once%s: %lld of %lld positions",
	        replicas > 1 ? " on each replica" : "", (long long)fit->sequences,
	        (long long)fit->positions);
	if (e->positions && e->positions != fit->positions)
		fprintf(f, ", or %lld of %lld, the maximum length", (long long)fit->longest,
		        (long long)e->positions);
	fprintf(f, "\n");
}

tess_status explain_print_memory(const struct tess_explanation *e, int64_t positions, FILE *f)
{
	struct memory_part part[MEMORY_PARTS];
	struct explain_class *list;
	int32_t nclasses;
	int n;
	tess_status st = explain_list_classes(e, &list, &nclasses);

	if (st)
		return st;
	print_heading(e, positions, f);
	n = sum_parts(e, positions, part);
	fprintf(f, "%-20s %8s", e->nranks > 1 ? "ranks" : "rank", "number");
	for (int i = 0; i < n; i++)
		fprintf(f, " %10s", part[i].name);
	fprintf(f, "\n");
	for (int32_t i = 0; i < nclasses; i++) {
		struct memory_part one[MEMORY_PARTS];

		list_parts(e, e->ranks[list[i].first], positions, one);
		print_parts(list[i].name, list[i].count, one, n, f);
	}
	free(list);
	if (e->nranks > 1)
		print_parts("all", e->nranks, part, n, f);
	if (e->fit) {
		print_fit(e, f);
		e->sequences ? print_training_sequences(e, f) : print_sequences(e, f);
	}
	return TESS_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *make_parts_json(const struct memory_part *part, int n)
{
	json_t *o = json_object();

	for (int i = 0; i < n; i++)
		json_object_set_new(o, part[i].key, json_integer((json_int_t)part[i].bytes));
	return o;
}

/* Returns NULL if memory is exhausted. */
static json_t *make_classes_json(const struct tess_explanation *e, int64_t positions)
{
	struct explain_class *list;
	json_t *all;
	int32_t n;

	if (explain_list_classes(e, &list, &n))
		return NULL;
	all = json_array();
	for (int32_t i = 0; i < n; i++) {
		struct memory_part part[MEMORY_PARTS];
		json_t *o = make_parts_json(
			part, list_parts(e, e->ranks[list[i].first], positions, part));

		json_object_set_new(o, "ranks", json_string(list[i].name));
		json_object_set_new(o, "number", json_integer(list[i].count));
		json_array_append_new(all, o);
	}
	free(list);
	return all;
}

static json_t *make_fit_json(const struct tess_explanation *e)
{
	const struct tess_explained_fit *fit = e->fit;
	json_t *o = json_pack("{s:b, s:I, s:I, s:i, s:I, s:I}", "fits", fit->used <= fit->memory,
	                      "memory", (json_int_t)fit->memory, "used", (json_int_t)fit->used,
	                      "rank", (int)fit->rank, "positions", (json_int_t)fit->positions,
	                      "sequences", (json_int_t)fit->sequences);

	if (o && !e->sequences)
		json_object_set_new(o, "longest", json_integer(fit->longest));
	return o;
}

bool explain_add_memory_json(const struct tess_explanation *e, int64_t positions, json_t *o)
{
	struct memory_part part[MEMORY_PARTS];
	json_t *ranks = json_array(), *classes = make_classes_json(e, positions);
	int n;

	for (int32_t r = 0; r < e->nranks; r++) {
		n = list_parts(e, e->ranks[r], positions, part);
		json_array_append_new(ranks, make_parts_json(part, n));
	}
	json_object_set_new(o, "memory", ranks);
	n = sum_parts(e, positions, part);
	json_object_set_new(o, "memory_of_all", make_parts_json(part, n));
	if (classes)
		json_object_set_new(o, "classes", classes);
	if (e->fit)
		json_object_set_new(o, "fit", make_fit_json(e));
	return classes;
}
