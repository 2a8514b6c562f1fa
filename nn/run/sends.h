/* sends.h - sends to other stages that have been started and not waited for. */
#ifndef TESS_NN_RUN_SENDS_H
#define TESS_NN_RUN_SENDS_H

#include "nn/weights/device.h"

#include <tessera/tessera.h>

struct tess_send;

/* {0}: none; the caller sets what the next sends belong to: two numbers, in training these */
struct tess_sends {
	struct tess_send *first; /* the newest */
	int32_t stage, micro;
};

/*
 * Waits for a started call and releases it. If streams order the call, later ops wait for it
 * instead of the host.
 */
tess_status tess_work_finish(struct tess_work *work, const struct tess_opened_device *d);

/* Adds a started send, which the list owns. TESS_ENOMEM: the send is abandoned. */
tess_status tess_sends_add(struct tess_sends *s, struct tess_work *work);
/* Lets backends that move data only while they are called progress. */
void tess_sends_test(const struct tess_sends *s);
/* Waits for the sends of a stage and micro-batch; micro -1: for all. */
tess_status tess_sends_wait(struct tess_sends *s, int32_t stage, int32_t micro,
                            const struct tess_opened_device *d);
/* Abandons all after a failure: other ranks may be reading memory that the caller frees. */
void tess_sends_abandon(struct tess_sends *s);

#endif
