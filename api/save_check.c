/* save_check.c - compares the tensors of a save with its checksums. */
#include "api/save.h"
#include "core/base/status.h"
#include "hf/checksum.h"
#include "hf/safetensors.h"

#include <stdio.h>
#include <stdlib.h>

enum { CHECKED_BYTES = 1 << 20 };

struct save_check {
	const char *dir;
	const json_t *state;
	void (*report)(void *self, const char *message);
	void *self;
	char *piece;
	int64_t checked;
};

static tess_status sum_tensor(const struct save_check *c, const struct tess_safetensors *in,
                              const struct tess_slice *s, uint32_t *out)
{
	struct tess_checksum sum = { 0 };
	tess_status st = TESS_OK;

	for (uint64_t at = 0, n; at < s->bytes && !st; at += n) {
		n = s->bytes - at < CHECKED_BYTES ? s->bytes - at : CHECKED_BYTES;
		st = tess_safetensors_read(in, s, at, n, c->piece);
		if (!st)
			tess_checksum_add(&sum, at, c->piece, n);
	}
	if (s->data)
		tess_safetensors_drop(in, s->data, s->bytes);
	*out = tess_checksum_end(&sum, s->bytes);
	return st;
}

static tess_status compare_tensor(struct save_check *c, const struct tess_safetensors *in,
                                  const char *file, const char *name)
{
	const struct tess_slice *s = tess_safetensors_find(in, name);
	uint32_t sum = 0;
	tess_status st =
		s ? sum_tensor(c, in, s, &sum)
		  : tess_fail(TESS_EINVAL, "%s/%s: tensor %s is missing", c->dir, file, name);

	return st ? st : tess_save_compare_checksum(c->dir, c->state, file, name, sum);
}

/* Checks that a file contains all tensors with a checksum, and compares them. */
static tess_status check_saved_file(struct save_check *c, const char *file, json_t *sums)
{
	char path[PATH_MAX + 64];
	struct tess_safetensors *in;
	const char *name;
	json_t *sum;
	tess_status st;

	snprintf(path, sizeof path, "%s/%s", c->dir, file);
	st = tess_safetensors_open(path, false, &in);
	if (st)
		return st;
	json_object_foreach(sums, name, sum) {
		if (compare_tensor(c, in, file, name))
			c->report(c->self, tess_error());
		else
			c->checked++;
	}
	tess_safetensors_close(in);
	return TESS_OK;
}

tess_status tess_save_check(const char *dir, const json_t *state,
                            void (*report)(void *self, const char *message), void *self,
                            int64_t *checked)
{
	struct save_check c = { .dir = dir, .state = state, .report = report, .self = self };
	const char *file;
	json_t *sums;

	c.piece = malloc(CHECKED_BYTES);
	if (!c.piece)
		return tess_fail(TESS_ENOMEM, "out of memory");
	json_object_foreach(json_object_get(state, "checksums"), file, sums) {
		if (check_saved_file(&c, file, sums))
			report(self, tess_error());
	}
	*checked = c.checked;
	free(c.piece);
	return TESS_OK;
}
