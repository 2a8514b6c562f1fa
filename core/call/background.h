/*
 * background.h - works that progress while this rank waits for other works.
 *
 * A send is done when its receiver has taken it, and a rank that has started one often goes on
 * without waiting. Backends may move data only during calls, and only of the group that is called.
 * So a rank that waits in one group for a rank that needs, over others, what this one sends in
 * another group would wait for ever: sends in the background are tested meanwhile.
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
/* Tests the works in the background but `w`, which is awaited; false: there are none. */
bool tess_background_test(const struct tess_work *w);

#endif
