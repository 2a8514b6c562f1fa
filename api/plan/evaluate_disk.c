/*
 * evaluate_disk.c - predicts what files of ranks take: bytes, and time of the disk. On machines
 * whose devices have memory of their own: what memory of the host takes, and time of copies.
 */
#include "api/plan/evaluation.h"
#include "core/base/status.h"

static bool is_in_files(const struct tess_explained_rank *k)
{
	return k->weights_disk || k->state_disk || k->weights_host || k->state_host;
}

bool evaluation_can_offload(const struct tess_machine *m)
{
	return m->exact ? m->disk_read > 0 && m->disk_write > 0
	                : m->host_read > 0 && m->host_write > 0 && m->host_memory > 0;
}

tess_status evaluation_check_disk(const struct evaluation *e)
{
	const struct tess_machine *m = e->planner->machine;
	int32_t r = 0;

	while (r < e->x.e.nranks && !is_in_files(e->x.e.ranks[r]))
		r++;
	if (r == e->x.e.nranks || evaluation_can_offload(m))
		return TESS_OK;
	if (!m->exact)
		return tess_fail(TESS_EINVAL,
		                 "machine %s has no rates of its host, in whose memory the "
		                 "strategy keeps values; add \"host\": {\"read\": ..., "
		                 "\"write\": ..., \"memory\": ...} to its file, in bytes a second",
		                 m->name);
	return tess_fail(
		TESS_EINVAL,
		"machine %s has no rates of a disk, on which the strategy keeps values; add "
		"\"disk\": {\"read\": ..., \"write\": ...} to its file, in bytes a second",
		m->name);
}

static double sum_moved(const uint64_t bytes[TESS_DISK_KINDS])
{
	double sum = 0;

	for (int32_t i = 0; i < TESS_DISK_KINDS; i++)
		sum += (double)bytes[i];
	return sum;
}

void evaluation_measure_files(struct evaluation *e)
{
	const struct tess_machine *m = e->planner->machine;
	struct tess_forecast *f = e->out;

	for (int32_t r = 0; r < e->x.e.nranks; r++) {
		const struct tess_explained_rank *k = e->x.e.ranks[r];
		double bytes =
			(double)(k->weights_disk + k->state_disk + k->weights_host + k->state_host);
		double read = sum_moved(k->disk_read) + sum_moved(k->host_read);
		double written = sum_moved(k->disk_written) + sum_moved(k->host_written);

		bytes += (double)(k->transfer - tess_explained_get_transfer(k));
		f->disk = bytes > f->disk ? bytes : f->disk;
		f->disk_read = read > f->disk_read ? read : f->disk_read;
		f->disk_written = written > f->disk_written ? written : f->disk_written;
	}
	f->disk_limit = m->exact ? m->disk_size : m->host_size;
	f->disk_limit /= m->disk_ranks ? m->disk_ranks : 1;
}

double evaluation_time_files(const struct evaluation *e, int32_t part)
{
	double most = 0;

	for (int32_t r = 0; r < e->x.e.nranks; r++) {
		const struct explained_pages *pages =
			(const struct explained_pages *)e->x.e.ranks[r];
		double seconds = tess_traffic_time(e->planner->machine, &pages->traffic[part]);

		most = seconds > most ? seconds : most;
	}
	return most * e->planner->machine->time[TESS_TERM_DISK];
}
