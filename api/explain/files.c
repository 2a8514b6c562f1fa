/*
 * files.c - what ranks keep in files or in memory of the host, and what a training step reads from
 * and writes to them.
 */
#include "api/explain/format.h"

#include <string.h>

static const char *const disk_kinds[TESS_DISK_KINDS] = { "weights", "gradients", "optimizer" };

bool explain_has_files(const struct tess_explanation *e)
{
	int32_t r = 0;

	while (r < e->nranks && !e->ranks[r]->weights_disk && !e->ranks[r]->state_disk)
		r++;
	return r < e->nranks;
}

bool explain_uses_host(const struct tess_explanation *e)
{
	int32_t r = 0;

	while (r < e->nranks && !e->ranks[r]->weights_host && !e->ranks[r]->state_host)
		r++;
	return r < e->nranks;
}

static void keep_larger(uint64_t *most, uint64_t n)
{
	*most = n > *most ? n : *most;
}

/* Returns the maximum of each number over the ranks. */
static struct tess_explained_rank find_most_moved(const struct tess_explanation *e)
{
	struct tess_explained_rank most = { 0 };

	for (int32_t r = 0; r < e->nranks; r++) {
		const struct tess_explained_rank *k = e->ranks[r];

		keep_larger(&most.weights_disk, k->weights_disk);
		keep_larger(&most.state_disk, k->state_disk);
		keep_larger(&most.weights_host, k->weights_host);
		keep_larger(&most.state_host, k->state_host);
		for (int32_t i = 0; i < TESS_DISK_KINDS; i++) {
			keep_larger(&most.disk_read[i], k->disk_read[i]);
			keep_larger(&most.disk_written[i], k->disk_written[i]);
			keep_larger(&most.host_read[i], k->host_read[i]);
			keep_larger(&most.host_written[i], k->host_written[i]);
		}
	}
	return most;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void print_moved(const char *name, const uint64_t bytes[TESS_DISK_KINDS], FILE *f)
{
	char text[16];
	uint64_t sum = 0;

	fprintf(f, "%-10s", name);
	for (int32_t i = 0; i < TESS_DISK_KINDS; i++) {
		fprintf(f, " %10s", explain_format_bytes(bytes[i], text));
		sum += bytes[i];
	}
	fprintf(f, " %10s\n", explain_format_bytes(sum, text));
}

void explain_print_disk(const struct tess_explanation *e, FILE *f)
{
	struct tess_explained_rank most = find_most_moved(e);
	bool host = explain_uses_host(e);
	char weights[16], state[16];

	if (!explain_has_files(e) && !host)
		return;
	fprintf(f,
	        "\n%s of a rank, at most: %s of weights and gradients, %s of optimizer state\n"
	        "what a rank %s in a step%s, at most\n\n%-10s",
	        host ? "memory of the host" : "files",
	        explain_format_bytes(host ? most.weights_host : most.weights_disk, weights),
	        explain_format_bytes(host ? most.state_host : most.state_disk, state),
	        host ? "copies to the device, and back" : "reads and writes",
	        e->micro_batches > 1 ? " of all micro-batches" : "", "");
	for (int32_t i = 0; i < TESS_DISK_KINDS; i++)
		fprintf(f, " %10s", disk_kinds[i]);
	fprintf(f, " %10s\n", "sum");
	print_moved(host ? "to device" : "read", host ? most.host_read : most.disk_read, f);
	print_moved(host ? "to host" : "written", host ? most.host_written : most.disk_written, f);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *make_moved_json(const uint64_t bytes[TESS_DISK_KINDS])
{
	json_t *o = json_object();

	for (int32_t i = 0; i < TESS_DISK_KINDS; i++)
		json_object_set_new(o, disk_kinds[i], json_integer((json_int_t)bytes[i]));
	return o;
}

/* Describes what a rank keeps in files, or in memory of the host. */
static json_t *make_rank_json(const struct tess_explained_rank *k, bool host)
{
	json_t *o = json_object();

	json_object_set_new(o, host ? "weights" : "weights_file",
	                    json_integer((json_int_t)(host ? k->weights_host : k->weights_disk)));
	json_object_set_new(o, host ? "optimizer" : "optimizer_file",
	                    json_integer((json_int_t)(host ? k->state_host : k->state_disk)));
	if (host)
		json_object_set_new(o, "transfers", json_integer((json_int_t)k->transfer));
	json_object_set_new(o, host ? "to_device" : "read",
	                    make_moved_json(host ? k->host_read : k->disk_read));
	json_object_set_new(o, host ? "to_host" : "written",
	                    make_moved_json(host ? k->host_written : k->disk_written));
	return o;
}

json_t *explain_make_files_json(const struct tess_explanation *e, bool host)
{
	json_t *all = json_array();

	for (int32_t r = 0; r < e->nranks; r++)
		json_array_append_new(all, make_rank_json(e->ranks[r], host));
	return all;
}
