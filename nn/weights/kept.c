#include "nn/weights/kept.h"

#include "core/base/status.h"

#include <stdlib.h>
#include <tessera/reduce.h>

enum { WINDOW_BYTES = 64 << 10 };

void tess_kept_open(const struct tess_parameters *s, const struct tess_weight *w, int32_t what,
                    bool writes, struct tess_kept *out)
{
	*out = (struct tess_kept){ .device = &s->weights.device,
		                   .where = w->name,
		                   .writes = writes };
	out->data = tess_parameter_find(s, w, what, &out->dtype, &out->n);
}

/* Copies the window to the device (back), or from it. */
static tess_status move_window(const struct tess_kept *k, bool back)
{
	uint64_t width = tess_width(k->dtype);
	char *there = k->data + (uint64_t)k->first * width;

	return tess_device_move(k->device, k->where, back ? there : k->window,
	                        back ? k->window : there, (uint64_t)k->mapped * width);
}

tess_status tess_kept_map(struct tess_kept *k, int64_t first, int64_t *n, void **out)
{
	int64_t max = WINDOW_BYTES / (int64_t)tess_width(k->dtype);
	bool inside = first >= k->first && first < k->first + k->mapped;
	tess_status st = TESS_OK;

	if (tess_device_is_host(k->device)) {
		*out = k->data + (uint64_t)first * tess_width(k->dtype);
		return TESS_OK;
	}
	if (!k->window && !(k->window = malloc(WINDOW_BYTES)))
		return tess_fail(TESS_ENOMEM, "%s: out of memory", k->where);
	if (!inside && k->mapped && k->writes)
		st = move_window(k, true);
	if (!inside) {
		k->first = first;
		k->mapped = k->n - first < max ? k->n - first : max;
		st = st ? st : move_window(k, false);
		k->mapped = st ? 0 : k->mapped;
	}
	if (*n > k->first + k->mapped - first)
		*n = k->first + k->mapped - first;
	*out = k->window + (uint64_t)(first - k->first) * tess_width(k->dtype);
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
