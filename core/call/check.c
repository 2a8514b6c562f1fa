/* check.c - checks calls by the rules of tessera/group.h on kinds, lists and buffers. */
#include "core/call/check.h"

#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"

#include <inttypes.h>
#include <stdio.h>

/* limit of a buffer, far below 2^64, so that products do not overflow */
static const uint64_t max_bytes = UINT64_C(1) << 48;

static tess_status TESS_PRINTF(3, 4)
	refuse_call(const struct tess_coll *c, tess_status why, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	return tess_fail(why, "%s%s%s: %s", c->where ? c->where : "", c->where ? ": " : "",
	                 tess_kind_name(c->kind), text);
}

static tess_status check_fields(const struct tess_coll *c, int32_t rank, int32_t nranks,
                                uint64_t kinds)
{
	bool pair = tess_kind_is_p2p(c->kind),
	     known = c->kind >= TESS_BARRIER && c->kind <= TESS_RECV;
	struct tess_coll host = *c;
	char fault[128];

	if (known && (c->mem < 1 || c->mem > TESS_MEM_MAX || !(kinds >> c->mem & 1)))
		return refuse_call(c, TESS_ENOTSUP,
		                   "memory of kind %d; this group moves host memory, and what its "
		                   "backend or its device takes",
		                   c->mem);
	host.mem = TESS_HOST;
	if (tess_coll_find_fault(&host, fault, sizeof fault))
		return refuse_call(c, TESS_EINVAL, "%s", fault);
	if ((pair || tess_kind_rooted(c->kind)) && (c->peer < 0 || c->peer >= nranks))
		return refuse_call(c, TESS_EINVAL, "%s %d; the group's ranks are 0 to %d",
		                   pair ? "peer" : "root", c->peer, nranks - 1);
	if (pair && c->peer == rank)
		return refuse_call(c, TESS_EINVAL, "peer %d is this rank itself; copy instead",
		                   rank);
	return TESS_OK;
}

static tess_status check_lists(const struct tess_coll *c, int32_t rank, int32_t nranks)
{
	bool takes_send = c->kind == TESS_SCATTER || c->kind == TESS_REDUCE_SCATTER;
	bool takes_recv = c->kind == TESS_GATHER || c->kind == TESS_ALL_GATHER;
	const uint64_t *mine = takes_send ? c->send_counts : c->recv_counts;

	if (!c->send_counts && !c->recv_counts)
		return TESS_OK;
	if (c->kind == TESS_ALL_TO_ALL) {
		if (!c->send_counts != !c->recv_counts)
			return refuse_call(c, TESS_EINVAL,
			                   "one list of counts; give both, or none");
		mine = NULL;
	} else if ((c->send_counts && !takes_send) || (c->recv_counts && !takes_recv)) {
		return refuse_call(c, TESS_EINVAL, "a list `%s`, which it does not take",
		                   c->send_counts && !takes_send ? "send_counts" : "recv_counts");
	}
	if (mine && mine[rank] != c->count)
		return refuse_call(c, TESS_EINVAL,
		                   "count %" PRIu64 ", but the list has %" PRIu64 " for rank %d",
		                   c->count, mine[rank], rank);
	for (int32_t r = 0; r < nranks; r++)
		if ((c->send_counts && c->send_counts[r] > max_bytes) ||
		    (c->recv_counts && c->recv_counts[r] > max_bytes))
			return refuse_call(c, TESS_EINVAL,
			                   "the count of rank %d is larger than 2^48", r);
	return TESS_OK;
}

static tess_status check_in_place(const struct tess_coll *c, int32_t nranks)
{
	for (int32_t r = 0; c->kind == TESS_ALL_TO_ALL && c->send_counts && r < nranks; r++)
		if (c->send_counts[r] != c->recv_counts[r])
			return refuse_call(c, TESS_EINVAL,
			                   "in place, but rank %d gets %" PRIu64
			                   " elements and sends %" PRIu64 "; use two buffers",
			                   r, c->send_counts[r], c->recv_counts[r]);
	return TESS_OK;
}

static tess_status check_buffers(const struct tess_coll *c, int32_t rank, int32_t nranks)
{
	size_t width = c->kind == TESS_BARRIER ? 1 : tess_width(c->dtype);
	uintptr_t src = (uintptr_t)c->src, dst = (uintptr_t)c->dst;
	uintptr_t align_mask = width - 1; /* widths are powers of 2 */
	uint64_t from, to;

	if (c->count > max_bytes)
		return refuse_call(c, TESS_EINVAL, "a count of %" PRIu64 " is larger than 2^48",
		                   c->count);
	tess_coll_extents(c, rank, nranks, &from, &to);
	if (from > max_bytes || to > max_bytes)
		return refuse_call(c, TESS_EINVAL, "%" PRIu64 " elements are more than 2^48",
		                   from > to ? from : to);
	if ((from && !src) || (to && !dst))
		return refuse_call(c, TESS_EINVAL, "%s is NULL", from && !src ? "src" : "dst");
	if ((from && src & align_mask) || (to && dst & align_mask))
		return refuse_call(c, TESS_EINVAL, "%s is not aligned to %s",
		                   from && src & align_mask ? "src" : "dst",
		                   tess_dtype_name(c->dtype));
	if (!from || !to)
		return TESS_OK;
	if (src == dst)
		return check_in_place(c, nranks);
	if (src < dst + to * width && dst < src + from * width)
		return refuse_call(
			c, TESS_EINVAL,
			"src and dst overlap; in place is src == dst, each block where it belongs");
	return TESS_OK;
}

tess_status tess_coll_check(const struct tess_coll *c, int32_t rank, int32_t nranks, uint64_t kinds)
{
	tess_status st;

	if ((st = check_fields(c, rank, nranks, kinds)) || (st = check_lists(c, rank, nranks)))
		return st;
	return check_buffers(c, rank, nranks);
}
