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

static int64_t get_window_size(const struct tess_kept *k)
{
	return (k->offload ? FILE_WINDOW : DEVICE_WINDOW) / (int64_t)tess_width(k->dtype);
}

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

/* Moves the window to the one that has element `first`; in files windows are aligned. */
static tess_status shift_window(struct tess_kept *k, int64_t first)
{
	int64_t max = get_window_size(k);
	tess_status st = k->mapped && k->writes ? move_window(k, true) : TESS_OK;

	k->first = k->offload ? first / max * max : first;
	k->mapped = k->n - k->first < max ? k->n - k->first : max;
	st = st ? st : move_window(k, false);
	k->mapped = st ? 0 : k->mapped;
	return st;
}

tess_status tess_kept_map(struct tess_kept *k, int64_t first, int64_t *n, void **out)
{
	uint64_t width = tess_width(k->dtype);
	bool inside = first >= k->first && first < k->first + k->mapped;
	tess_status st = TESS_OK;

	if (!k->offload && tess_device_is_host(k->device)) {
		*out = k->data + (uint64_t)first * width;
		return TESS_OK;
	}
	if (!k->window)
		k->window =
			aligned_alloc(TESS_DISK_ALIGN, k->offload ? FILE_WINDOW : DEVICE_WINDOW);
	if (!k->window)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", k->weight->name);
	if (!inside)
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
	free(k->window);
	k->window = NULL;
	k->mapped = 0;
	return st;
}
