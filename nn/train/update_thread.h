/*
 * update_thread.h - a thread that executes an update (update.h) while the rank computes: the disk
 * works during ops, too. It has a device of its own with one thread, until the rank waits for it
 * and lends its device.
 */
#ifndef TESS_NN_UPDATE_THREAD_H
#define TESS_NN_UPDATE_THREAD_H

#include "nn/train/update.h"

struct tess_update_thread;

/*
 * Starts the thread, without work. `u` and `device`, the rank's, are borrowed; group: for the count
 * of CPUs. *out is yours: tess_update_thread_close. TESS_ENOMEM, or the device's failure.
 */
tess_status tess_update_thread_open(struct tess_update *u, const struct tess_opened_device *device,
                                    struct tess_group *group, struct tess_update_thread **out);
/* Abandons an update, and ends the thread. NULL: does nothing. */
void tess_update_thread_close(struct tess_update_thread *t);

/* Starts to execute the update, which has begun; it is the thread's until finish or abandon. */
void tess_update_thread_begin(struct tess_update_thread *t);
/* Adds a weight to the update; does not block. */
void tess_update_thread_add(struct tess_update_thread *t, const struct tess_weight *w);
/* Adds all trained weights that have not been added; does not block. */
void tess_update_thread_add_rest(struct tess_update_thread *t);
/* Waits until an added weight is changed, or the update has failed, which finish reports. */
void tess_update_thread_await(struct tess_update_thread *t, const struct tess_weight *w);
/* Lends the rank's device, and waits until the added weights are changed. Returns the failure. */
tess_status tess_update_thread_finish(struct tess_update_thread *t);
/* Ends the transfers of a step that has failed. Blocking; does nothing without an update. */
void tess_update_thread_abandon(struct tess_update_thread *t);

#endif
