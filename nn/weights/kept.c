#include "nn/weights/kept.h"

#include "core/base/status.h"

#include <stdlib.h>
#include <tessera/reduce.h>

enum { DEVICE_WINDOW = 64 << 10, FILE_WINDOW = 1 << 20 }; /* bytes */

void tess_kept_open(const struct tess_parameters *s, const struct tess_weight *w, int32_t what,
                    bool writes, struct tess_kept *out)
{
	struct tess_stored_run run;

	*out = (struct tess_kept){
		.device = &s->weights.device, .weight = w, .what = what, .writes = writes
	};
	out->data = tess_parameter_find(s, w, what, &out->dtype, &out->n);
	if (out->n && tess_offload_find(&s->offload.layout, w, what, 0, out->n, &run))
		out->offload = &s->offload;
}

/* ---- windows of files ------------------------------------------------------------------------ */

/* Makes the transfer of adjacent elements from `first` on, at most a window. */
static struct tess_transfer make_window(const struct tess_kept *k, int64_t first)
{
	int64_t max = FILE_WINDOW / (int64_t)tess_width(k->dtype);
	struct tess_transfer t = { .weight = k->weight, .what = k->what, .first = first };
	struct tess_stored_run run;

	tess_offload_find(&k->offload->layout, k->weight, k->what, first,
	                  k->n - first < max ? k->n - first : max, &run);
	t.n = run.n;
	return t;
}

/* Chooses the window that has element `first`: an aligned one, if its elements are adjacent. */
static struct tess_transfer choose_window(const struct tess_kept *k, int64_t first)
{
	int64_t align = TESS_DISK_ALIGN / (int64_t)tess_width(k->dtype);
	struct tess_transfer t = make_window(k, first - first % align);

	return first < t.first + t.n ? t : make_window(k, first);
}

static tess_status finish_ahead(struct tess_kept *k)
{
	tess_status st = k->ahead.n ? tess_offload_wait(&k->ahead) : TESS_OK;

	k->ahead.n = 0;
	return st;
}

/* Starts reading the window after the current one, if there is one. */
static tess_status start_ahead(struct tess_kept *k)
{
	int64_t first = k->first + k->mapped;
	void *memory = k->ahead.memory;
	tess_status st;

	if (first == k->n)
		return TESS_OK;
	k->ahead = make_window(k, first);
	k->ahead.memory = memory;
	st = tess_offload_start(k->offload, &k->ahead);
	k->ahead.n = st ? 0 : k->ahead.n;
	return st;
}

/* Exchanges the window for the one that was read ahead. Returns false if it is another one. */
static bool take_ahead(struct tess_kept *k, int64_t first, int64_t n)
{
	void *memory = k->ahead.memory;

	if (first < k->ahead.first || first >= k->ahead.first + n)
		return false;
	k->ahead.memory = k->window;
	k->window = memory;
	k->first = k->ahead.first;
	k->mapped = n;
	return true;
}

/* Moves the window of a file to the elements from `first` on, and reads ahead. */
static tess_status read_window(struct tess_kept *k, int64_t first)
{
	bool in_order = !k->writes && first == k->first + k->mapped;
	int64_t ahead = k->ahead.n;
	tess_status st = finish_ahead(k);

	if (!st && !take_ahead(k, first, ahead)) {
		struct tess_transfer t = choose_window(k, first);

		k->first = t.first;
		k->mapped = t.n;
		st = tess_offload_move(k->offload, k->weight, k->what, t.first, t.n, false,
		                       k->window);
	}
	return st || !in_order ? st : start_ahead(k);
}

/* ---- windows --------------------------------------------------------------------------------- */

/* Copies the window to where the part is (back), or from there. */
static tess_status move_window(const struct tess_kept *k, bool back)
{
	uint64_t width = tess_width(k->dtype);
	char *there = k->data + (uint64_t)k->first * width;

	if (k->offload)
		return tess_offload_move(k->offload, k->weight, k->what, k->first, k->mapped, back,
		                         k->window);
	return tess_device_move(k->device, k->weight->name, back ? there : k->window,
	                        back ? k->window : there, (uint64_t)k->mapped * width);
}

/* Moves the window to elements from `first` on. */
static tess_status shift_window(struct tess_kept *k, int64_t first)
{
	int64_t max = DEVICE_WINDOW / (int64_t)tess_width(k->dtype);
	tess_status st = k->mapped && k->writes ? move_window(k, true) : TESS_OK;

	if (!st && k->offload) {
		st = read_window(k, first);
	} else if (!st) {
		k->first = first;
		k->mapped = k->n - first < max ? k->n - first : max;
		st = move_window(k, false);
	}
	k->mapped = st ? 0 : k->mapped;
	return st;
}

/* Allocates the window, and another one for a file that is only read. */
static tess_status alloc_windows(struct tess_kept *k)
{
	size_t bytes = k->offload ? FILE_WINDOW : DEVICE_WINDOW;
	bool two = k->offload && !k->writes;

	k->window = aligned_alloc(TESS_DISK_ALIGN, bytes);
	k->ahead.memory = two ? aligned_alloc(TESS_DISK_ALIGN, bytes) : NULL;
	if (k->window && (k->ahead.memory || !two))
		return TESS_OK;
	free(k->window);
	k->window = NULL;
	return tess_fail(TESS_ENOMEM, "%s: out of memory", k->weight->name);
}

tess_status tess_kept_map(struct tess_kept *k, int64_t first, int64_t *n, void **out)
{
	uint64_t width = tess_width(k->dtype);
	bool inside = first >= k->first && first < k->first + k->mapped;
	tess_status st = TESS_OK;

	if (k->offload && k->offload->pinned) {
		*out = tess_offload_find_pinned(k->offload, k->weight, k->what, first, n);
		return TESS_OK;
	}
	if (!k->offload && tess_device_is_host(k->device)) {
		*out = k->data + (uint64_t)first * width;
		return TESS_OK;
	}
	if (!k->window)
		st = alloc_windows(k);
	if (!st && !inside)
		st = shift_window(k, first);
	if (*n > k->first + k->mapped - first)
		*n = k->first + k->mapped - first;
	*out = k->window + (uint64_t)(first - k->first) * width;
	return st;
}

tess_status tess_kept_close(struct tess_kept *k, tess_status st)
{
	if (!st && k->mapped && k->writes)
		st = move_window(k, true);
	finish_ahead(k); /* nobody reads it */
	free(k->window);
	free(k->ahead.memory);
	k->window = NULL;
	k->ahead.memory = NULL;
	k->mapped = 0;
	return st;
}
