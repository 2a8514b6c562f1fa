/*
 * stored_gradient.c - gradients of weights in files: written when they are final, and read again
 * where a later micro-batch, or another use of the weight, adds to them.
 *
 * Writes are under way while the backward continues, up to the bytes of two buckets. An addition
 * goes through memory part by part: the next part is read while one is added.
 */
#include "nn/lower/build.h"
#include "nn/program/storage.h"

enum { BUCKETS_UNDER_WAY = 2 };

struct gradient_write { /* a write under way */
	const struct tess_weight *weight;
	struct tess_step *step;
	struct value from;
	uint64_t bytes;
};

struct build_writes {
	struct gradient_write *list; /* in the order of their starts */
	int32_t nstarted, nwaited;
	uint64_t bytes; /* under way */
};

struct build_writes *build_make_writes(struct build *b)
{
	return TESS_NEW(&b->l->arena, struct build_writes, 1);
}

bool build_is_gradient_stored(const struct build *b, const struct tess_weight *w)
{
	return tess_weight_is_fetched(b->p, tess_weight_get_home(w), b->l->rank);
}

static void wait_for_oldest_write(struct build *b)
{
	struct build_writes *o = b->writes;
	const struct gradient_write *oldest = &o->list[o->nwaited++];

	build_add_wait(b, oldest->step);
	build_keep_value(b, &oldest->from);
	o->bytes -= oldest->bytes;
	build_announce_gradient(b, oldest->weight);
}

/* Waits until no gradient of w is being written. */
static void wait_for_writes(struct build *b, const struct tess_weight *w)
{
	struct build_writes *o = b->writes;
	int32_t last = o->nstarted;

	while (last > o->nwaited && o->list[last - 1].weight != w)
		last--;
	while (o->nwaited < last && !b->status)
		wait_for_oldest_write(b);
}

static void write_part(struct build *b, const struct tess_weight *w, int64_t first,
                       const struct value *d)
{
	struct build_writes *o = b->writes;
	struct gradient_write write = { .weight = w, .from = *d, .bytes = 4 * (uint64_t)d->cols };
	struct gradient_write *list;

	while (o->nwaited < o->nstarted && !b->status &&
	       o->bytes + write.bytes > BUCKETS_UNDER_WAY * tess_program_get_bucket(b->p))
		wait_for_oldest_write(b);
	write.step = build_start_transfer(b, w, TESS_GRADIENT, true, first, d->cols, d);
	list = tess_arena_grow(&b->l->arena, o->list, (size_t)o->nstarted, sizeof *list);
	if (!list) {
		b->status = TESS_ENOMEM;
		return;
	}
	o->list = list;
	list[o->nstarted++] = write;
	o->bytes += write.bytes;
	build_expect_gradient(b, w);
}

static struct build_earlier read_stored_part(struct build *b, const struct tess_weight *w,
                                             int64_t first, int64_t n)
{
	struct build_earlier part = { .memory = build_add_temporary(b, 0, 1, n, TESS_F32) };

	part.step = build_start_transfer(b, w, TESS_GRADIENT, false, first, n, &part.memory);
	return part;
}

void build_read_earlier(struct build *b, const struct tess_weight *w, int64_t first, int64_t n,
                        struct build_earlier *out)
{
	if (!n)
		return;
	wait_for_writes(b, w);
	*out = read_stored_part(b, w, first, tess_program_limit_part(b->p, n));
}

/* Adds d to what has been read, and writes the sum. */
static void add_earlier(struct build *b, const struct tess_weight *w, int64_t first,
                        const struct build_earlier *to, const struct value *d)
{
	build_add_wait(b, to->step);
	build_add_to_value(b, d, &to->memory);
	write_part(b, w, first, &to->memory);
}

void build_store_gradient(struct build *b, const struct tess_weight *w, int64_t first,
                          const struct value *d, struct build_earlier *earlier)
{
	if (!d->cols)
		return;
	if (!earlier) {
		write_part(b, w, first, d);
		return;
	}
	if (!earlier->step)
		build_read_earlier(b, w, first, d->cols, earlier);
	for (int64_t at = 0; at < d->cols && !b->status;) {
		struct build_earlier now = *earlier;
		struct value part = build_slice_value(d, 0, 1, at, now.memory.cols);
		int64_t next = at + part.cols;

		if (next < d->cols)
			*earlier = read_stored_part(b, w, first + next,
			                            tess_program_limit_part(b->p, d->cols - next));
		add_earlier(b, w, first + at, &now, &part);
		at = next;
	}
}

void build_finish_stored_gradients(struct build *b)
{
	while (b->writes->nwaited < b->writes->nstarted && !b->status)
		wait_for_oldest_write(b);
}
