#include "nn/offload/traffic.h"

/* Returns the kind of a value, by the file that contains it. */
static int32_t find_traffic_kind(int32_t what, int32_t file)
{
	return what == TESS_GRADIENT ? TESS_TRAFFIC_GRADIENTS
	       : file == TESS_REST   ? TESS_TRAFFIC_WEIGHTS
	                             : TESS_TRAFFIC_STATE;
}

static uint64_t count_moved_bytes(const struct tess_weight *w, int32_t what, int64_t n)
{
	return (uint64_t)n * tess_weight_get_width(w, what);
}

void tess_traffic_add_transfer(const struct tess_transfer *t, struct tess_traffic *sum)
{
	bool rest = t->what == TESS_WEIGHT || t->what == TESS_GRADIENT;
	int32_t kind = find_traffic_kind(t->what, rest ? TESS_REST : TESS_STATE);
	uint64_t *to = t->writes ? sum->written : sum->read;

	to[kind] += count_moved_bytes(t->weight, t->what, t->n);
}

void tess_traffic_add_times(const struct tess_traffic *a, uint64_t times, struct tess_traffic *sum)
{
	for (int32_t i = 0; i < TESS_TRAFFIC_KINDS; i++) {
		sum->read[i] += times * a->read[i];
		sum->written[i] += times * a->written[i];
	}
}

void tess_traffic_subtract(const struct tess_traffic *a, struct tess_traffic *sum)
{
	for (int32_t i = 0; i < TESS_TRAFFIC_KINDS; i++) {
		sum->read[i] -= a->read[i];
		sum->written[i] -= a->written[i];
	}
}

/* Returns the bytes of the gradient that a rank has in its file for a weight. */
static uint64_t count_gradient_bytes(const struct tess_offload_layout *files,
                                     const struct tess_weight *w)
{
	const struct tess_weight *home = tess_weight_get_home(w);
	int64_t n = tess_weight_get_kept(files->program, home, files->rank, TESS_STATE).len;

	return files->weight[w->index].has_gradient ? (uint64_t)n * sizeof(float) : 0;
}

void tess_traffic_add_first(const struct tess_offload_layout *files, struct tess_traffic *sum)
{
	for (int32_t i = 0; i < files->program->nweights; i++)
		sum->read[TESS_TRAFFIC_GRADIENTS] +=
			count_gradient_bytes(files, files->program->weight[i]);
}

/* ---- the end of a step ----------------------------------------------------------------------- */

/*
 * Follows nn/train/update.c: what is in files is read, and written once it has changed. Next to
 * a device with memory of its own, what is not in memory of the host is copied to it to be changed
 * there, and copied back.
 */
void tess_traffic_add_updated(const struct tess_offload_layout *files, const struct tess_weight *w,
                              struct tess_traffic *sum)
{
	int64_t n = tess_weight_get_kept(files->program, w, files->rank, TESS_STATE).len;
	uint64_t *fetched = files->pinned ? sum->written : sum->read;
	uint64_t *returned = files->pinned ? sum->read : sum->written;

	if (!tess_offload_has_updated(files, w))
		return;
	for (int32_t what = TESS_WEIGHT; what <= TESS_MOMENT2 && n; what++) {
		uint64_t bytes = count_moved_bytes(w, what, n);
		struct tess_stored_run run;
		int32_t kind;

		if (!tess_offload_is_moved(files, w, what, 0, n, &run))
			continue;
		kind = find_traffic_kind(what, run.file);
		fetched[kind] += what == TESS_WEIGHT ? 0 : bytes;
		returned[kind] += what == TESS_GRADIENT ? 0 : bytes;
	}
}

void tess_traffic_add_update(const struct tess_offload_layout *files, struct tess_traffic *sum)
{
	for (int32_t i = 0; i < files->program->nweights; i++)
		tess_traffic_add_updated(files, files->program->weight[i], sum);
}

/* Adds the weights of which each rank has updated a share, and all keep all elements. */
static void add_gathered_weight(const struct tess_offload_layout *files,
                                const struct tess_weight *w, struct tess_traffic *sum)
{
	const struct tess_program *p = files->program;
	int64_t rest = tess_weight_get_kept(p, w, files->rank, TESS_REST).len;
	int64_t own = tess_weight_get_kept(p, w, files->rank, TESS_STATE).len;

	if (!files->weight[w->index].fetched || !tess_weight_is_shared(p, w))
		return;
	sum->read[TESS_TRAFFIC_WEIGHTS] += count_moved_bytes(w, TESS_WEIGHT, own);
	sum->written[TESS_TRAFFIC_WEIGHTS] += count_moved_bytes(w, TESS_WEIGHT, rest - own);
}

/*
 * Returns whether the gradient of a tied head, or of a copy of the table without one, is apart from
 * that of the table (nn/backward).
 */
static bool is_gradient_apart(const struct tess_program *p, const struct tess_weight *w)
{
	return tess_weight_get_table(w) && (p->pipeline_along >= 0 || p->training->several) &&
	       tess_offload_has_own_gradient(p, w);
}

/* Adds the gradient of a tied head, which is added to that of its table. */
static void add_tied_gradient(const struct tess_offload_layout *files, const struct tess_weight *w,
                              struct tess_traffic *sum)
{
	const struct tess_program *p = files->program;
	const struct tess_weight *table = tess_weight_get_table(w);

	if (!is_gradient_apart(p, w))
		return;
	if (tess_program_has_stage(p, files->rank, w->stage))
		sum->read[TESS_TRAFFIC_GRADIENTS] += count_gradient_bytes(files, w);
	if (!tess_program_has_stage(p, files->rank, table->stage))
		return;
	sum->read[TESS_TRAFFIC_GRADIENTS] += count_gradient_bytes(files, table);
	sum->written[TESS_TRAFFIC_GRADIENTS] += count_gradient_bytes(files, table);
}

/* Adds the copy of a table for a tied head in another stage, which gets the updated table. */
static void add_copied_table(const struct tess_offload_layout *files, const struct tess_weight *w,
                             struct tess_traffic *sum)
{
	const struct tess_program *p = files->program;
	bool has_copy = tess_program_has_stage(p, files->rank, w->stage);
	const struct tess_weight *mine = has_copy ? w : w->copies;
	uint64_t *moved = has_copy ? sum->written : sum->read;

	if (mine && w->copies && files->weight[mine->index].fetched &&
	    tess_program_has_stage(p, files->rank, mine->stage))
		moved[TESS_TRAFFIC_WEIGHTS] += count_moved_bytes(
			w, TESS_WEIGHT, tess_weight_get_kept(p, mine, files->rank, TESS_REST).len);
}

void tess_traffic_add_rest(const struct tess_offload_layout *files, bool reads_norm,
                           struct tess_traffic *sum)
{
	const struct tess_program *p = files->program;

	for (int32_t i = 0; i < p->nweights && !files->pinned; i++) {
		const struct tess_weight *w = p->weight[i];

		add_tied_gradient(files, w, sum);
		add_copied_table(files, w, sum);
		add_gathered_weight(files, w, sum);
		if (reads_norm && files->weight[i].trained &&
		    !tess_weight_get_copy(p, w, files->rank, TESS_STATE))
			sum->read[TESS_TRAFFIC_GRADIENTS] += count_gradient_bytes(files, w);
	}
}
