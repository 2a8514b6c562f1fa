#include "data.h"
#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"

#include <inttypes.h>

tess_status data_start(struct tess_group *g, const struct conform_case *c, struct data_pending *out)
{
	tess_status st = conform_data_make(c, tess_group_rank(g), tess_group_size(g), &out->data);

	return st ? st : tess_group_start(g, &out->data->coll[0], &out->work);
}

tess_status data_check(struct conform_data *d)
{
	tess_status st = conform_data_check(d);

	if (st)
		return tess_fail_in(st, "%s of %" PRIu64 " %s, %s, root %d%s%s, rank %d of %d",
		                    tess_kind_name(d->c.kind), d->c.count,
		                    tess_dtype_name(d->c.dtype), tess_reduce_op_name(d->c.op),
		                    d->c.root, d->c.uneven ? ", uneven" : "",
		                    d->c.in_place ? ", in place" : "", d->rank, d->n);
	conform_data_free(d);
	return TESS_OK;
}

tess_status data_finish(struct data_pending *p)
{
	tess_status st = tess_work_wait(p->work, 0);

	tess_work_release(p->work);
	return st ? st : data_check(p->data);
}

tess_status data_run(struct tess_group *g, const struct conform_case *c)
{
	struct conform_data *d;
	tess_status st = conform_data_make(c, tess_group_rank(g), tess_group_size(g), &d);

	if (!st)
		st = tess_group_run(g, &d->coll[0]);
	return st ? st : data_check(d);
}
