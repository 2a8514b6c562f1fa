/* hash.h - the running hash of a program's records, by which ranks find where theirs differ. */
#ifndef TESS_NN_HASH_H
#define TESS_NN_HASH_H

#include "nn/program/program.h"

/* Sets p->hash[nrecords]: element i covers records 0 to i. TESS_ENOMEM. */
tess_status tess_program_hash(struct tess_program *p);

#endif
