#include "nn/run/sends.h"

#include "core/base/status.h"
#include "core/call/background.h"
#include "core/call/queue.h"
#include "core/call/work.h"

#include <stdlib.h>

struct tess_send {
	struct tess_send *next;
	struct tess_work *work;
	int32_t stage, micro;
};

tess_status tess_work_finish(struct tess_work *work, const struct tess_opened_device *d)
{
	tess_status st;

	if (tess_work_is_ordered(work))
		return tess_work_queue(work, d->stream);
	st = tess_work_wait(work, 0);
	tess_work_release(work);
	return st;
}

tess_status tess_sends_add(struct tess_sends *s, struct tess_work *work)
{
	struct tess_send *send = malloc(sizeof *send);

	if (!send) {
		tess_work_abandon(work);
		return tess_fail(TESS_ENOMEM, "out of memory");
	}
	tess_background_add(work);
	*send = (struct tess_send){ s->first, work, s->stage, s->micro };
	s->first = send;
	return TESS_OK;
}

void tess_sends_test(const struct tess_sends *s)
{
	for (const struct tess_send *send = s->first; send; send = send->next)
		tess_work_test(send->work);
}

tess_status tess_sends_wait(struct tess_sends *s, int32_t stage, int32_t micro,
                            const struct tess_opened_device *d)
{
	struct tess_send **at = &s->first;
	tess_status st = TESS_OK;

	while (*at && !st) {
		struct tess_send *send = *at;

		if (micro >= 0 && (send->stage != stage || send->micro != micro)) {
			at = &send->next;
			continue;
		}
		*at = send->next;
		st = tess_work_finish(send->work, d);
		free(send);
	}
	return st;
}

void tess_sends_abandon(struct tess_sends *s)
{
	while (s->first) {
		struct tess_send *send = s->first;

		s->first = send->next;
		tess_work_abandon(send->work);
		free(send);
	}
}
