/* batch.h - several calls as one work. */
#ifndef LOOPBACK_BATCH_H
#define LOOPBACK_BATCH_H

#include "call.h"

/* tess_backend.batch */
tess_status batch_start_calls(void *self, const struct tess_coll *const *c, uint32_t n,
                              void **work);
/* Tests each call of a batch, so that all of them advance. */
tess_status batch_test_calls(struct member *me, struct work *work);
tess_status batch_wait_calls(struct member *me, struct work *work, int64_t deadline);
void batch_release_calls(struct member *me, struct work *work);

#endif
