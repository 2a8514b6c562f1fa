/*
 * background.h - works that are tested while this rank waits for other works.
 *
 * A rank often starts a send and continues without waiting for its end. Backends may move data only
 * during calls of the send's group. Ranks then deadlock if this rank waits in another group for a
 * rank that depends, through further ranks, on the send. So waits test the works of this list.
 */
#ifndef TESS_CALL_BACKGROUND_H
#define TESS_CALL_BACKGROUND_H

#include "core/world/group.h"

/*
 * Adds a started work, which leaves by itself when it is done or has failed. Does nothing for works
 * in the order of a device's streams: these progress alone.
 */
void tess_background_add(struct tess_work *w);
/* Removes a work that may be in the background. */
void tess_background_remove(struct tess_work *w);

#endif
