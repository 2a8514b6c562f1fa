/* hash.h - the running hash of a program's records, which locates differences between ranks. */
#ifndef TESS_NN_HASH_H
#define TESS_NN_HASH_H

#include "nn/program/program.h"

/* Sets p->hash[nrecords]: element i covers records 0 to i. TESS_ENOMEM. */
tess_status tess_program_hash(struct tess_program *p);

#endif
