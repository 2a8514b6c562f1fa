/* explain_disk.c - what each rank keeps in files, and what a step of training moves. */
#include "api/explaining.h"
#include "core/base/status.h"
#include "nn/program/compressed.h"
#include "nn/program/storage.h"
#include "nn/train/update.h"
#include "nn/weights/fetch.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

_Static_assert((int)TESS_DISK_KINDS == (int)TESS_TRAFFIC_KINDS, "kinds of what is in files");

int64_t tess_explaining_count_micro_batches(const struct explanation *x)
{
	int64_t n = x->training ? x->training->micro_batches : 0;

	return x->pipeline ? x->pipeline->nmicro : n ? n : 1;
}

bool tess_explaining_updates_early(const struct explanation *x)
{
	return tess_update_may_be_early(x->training->clip, x->training->balance,
	                                x->pipeline != NULL) &&
	       tess_program_is_on_host(x->program);
}

/* Returns the share of a record's weights that its rows can request: of experts, some. */
static double find_requested_share(const struct tess_program *p, const struct tess_record *rec,
                                   int32_t rank)
{
	struct tess_cut cut = tess_program_find_cut(p, rank, rec->weight[0]->place, 0);
	double local =
		(double)tess_dim_get_local_size(rec->weight[0]->dim[0], cut.nranks, cut.rank);
	double most = rec->num[TESS_EXPERTS_TOP] * (double)p->ntokens;

	return most < local ? most / local : 1;
}

/* Counts the bytes of weights that a step of inference reads from files. */
static uint64_t count_read(const struct tess_program *p, int32_t rank)
{
	uint64_t bytes = tess_fetched_count_bytes(p, rank);

	for (int32_t i = 0; i < p->nrecords && bytes; i++) {
		const struct tess_record *rec = p->record[i];

		for (int32_t k = 0; rec->kind == TESS_OP_EXPERTS && k < rec->nweight; k++) {
			const struct tess_weight *w = rec->weight[k];
			uint64_t all = tess_weight_count_bytes(p, w, rank);

			if (w->ndim == 3 && tess_weight_is_fetched(p, w, rank))
				bytes -= all - (uint64_t)((double)all *
				                          find_requested_share(p, rec, rank));
		}
	}
	return bytes;
}

void tess_explaining_measure_files(const struct explanation *x, const struct tess_rank_program *l,
                                   const struct tess_offload_layout *files,
                                   struct explained_pages *pages)
{
	struct tess_explained_rank *out = &pages->rank;
	struct tess_traffic *part = pages->traffic, all = { 0 };

	*(files->pinned ? &out->weights_host : &out->weights_disk) = files->bytes[TESS_REST];
	*(files->pinned ? &out->state_host : &out->state_disk) = files->bytes[TESS_STATE];
	if (!files->bytes[TESS_REST] && !files->bytes[TESS_STATE])
		return;
	if (!x->training) {
		out->disk_read[0] = count_read(files->program, files->rank);
		return;
	}
	out->transfer = tess_update_count_bytes(files);
	for (int32_t i = 0; i < l->nsteps; i++)
		if (l->step[i]->kind == TESS_STEP_TRANSFER)
			tess_traffic_add_transfer(l->step[i]->transfer,
			                          &part[TESS_EXPLAINED_MICRO]);
	if (files->program->training->accumulate)
		tess_traffic_add_first(files, &part[TESS_EXPLAINED_FIRST]);
	tess_traffic_add_rest(files, !tess_explaining_updates_early(x), &part[TESS_EXPLAINED_REST]);
	tess_traffic_add_update(files, &part[TESS_EXPLAINED_UPDATE]);
	tess_traffic_add_times(&part[TESS_EXPLAINED_MICRO],
	                       (uint64_t)tess_explaining_count_micro_batches(x), &all);
	tess_traffic_subtract(&part[TESS_EXPLAINED_FIRST], &all);
	tess_traffic_add_times(&part[TESS_EXPLAINED_REST], 1, &all);
	tess_traffic_add_times(&part[TESS_EXPLAINED_UPDATE], 1, &all);
	memcpy(files->pinned ? out->host_read : out->disk_read, all.read, sizeof all.read);
	memcpy(files->pinned ? out->host_written : out->disk_written, all.written,
	       sizeof all.written);
}

/* ---- refusals -------------------------------------------------------------------------------- */

/* Returns whether an option names a folder: "disk" is one that a strategy does not name. */
static bool is_folder(const char *option)
{
	return tess_location_parse(option) == TESS_LOCATION_DISK && strcmp(option, "disk") != 0;
}

tess_status tess_explaining_check_offload(const struct explanation *x)
{
	const struct tess_device *device = x->model.device;
	const struct tess_trainer_options *o = device ? x->training : NULL;
	tess_status st = TESS_OK;

	if (o)
		st = tess_location_check_device("offload-optimizer", o->offload_optimizer, device);
	if (o && !st)
		st = tess_location_check_device("offload-weights", o->offload_weights, device);
	return st;
}

struct offload_folder {
	const char *dir; /* NULL: none */
	struct stat about;
	struct statvfs space;
	uint64_t bytes; /* that all ranks need there */
};

static tess_status open_offload_folder(const char *name, const char *dir,
                                       struct offload_folder *out)
{
	out->dir = dir;
	errno = ENOTDIR;
	return !stat(dir, &out->about) && S_ISDIR(out->about.st_mode) && !statvfs(dir, &out->space)
	               ? TESS_OK
	               : tess_fail(TESS_EIO,
	                           "--%s %s: not a folder here: %s; name one on a local disk, or "
	                           "for a forecast \"disk\", a folder of another host",
	                           name, dir, strerror(errno));
}

static tess_status check_folder_space(const struct explanation *x, const struct offload_folder *f)
{
	uint64_t available = f->dir ? (uint64_t)f->space.f_bavail * f->space.f_frsize : 0;

	if (!f->dir || f->bytes <= available)
		return TESS_OK;
	return tess_fail(TESS_ENOMEM,
	                 "%s: %d rank%s need%s files of %llu bytes together there, and %llu bytes "
	                 "are free; free space, or offload to a larger file system",
	                 f->dir, (int)x->e.nranks, x->e.nranks == 1 ? "" : "s",
	                 x->e.nranks == 1 ? "s" : "", (unsigned long long)f->bytes,
	                 (unsigned long long)available);
}

tess_status tess_explaining_check_space(const struct explanation *x)
{
	const struct tess_trainer_options *o = x->training;
	struct offload_folder weights = { 0 }, state = { 0 };
	tess_status st = TESS_OK;

	if (o && is_folder(o->offload_weights))
		st = open_offload_folder("offload-weights", o->offload_weights, &weights);
	if (o && !st && is_folder(o->offload_optimizer))
		st = open_offload_folder("offload-optimizer", o->offload_optimizer, &state);
	if (st)
		return st;
	for (int32_t r = 0; r < x->e.nranks; r++) {
		weights.bytes += x->e.ranks[r]->weights_disk;
		state.bytes += x->e.ranks[r]->state_disk;
	}
	if (weights.dir && state.dir && weights.about.st_dev == state.about.st_dev)
		weights.bytes = state.bytes += weights.bytes;
	st = check_folder_space(x, &weights);
	return st ? st : check_folder_space(x, &state);
}
