/* open_disk.h - opens a file in the scratch folder with an engine. */
#ifndef TESS_TESTS_NN_OPEN_DISK_H
#define TESS_TESTS_NN_OPEN_DISK_H

#include "../../support/scratch.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "nn/offload/disk.h"
#include "nn/offload/disk_engine.h"

/* Opens the file, or returns NULL with a line of output if this host has no io_uring. */
static inline struct tess_disk *open_disk_by(const char *engine, int32_t rank, uint64_t bytes)
{
	struct tess_disk *d = NULL;
	tess_status st;

	ck_assert_int_eq(tess_option_add("test", tess_disk_options), TESS_OK);
	ck_assert_int_eq(tess_option_set("disk_io", engine), TESS_OK);
	st = tess_disk_open(scratch, rank, bytes, &d);
	if (st && !strcmp(engine, "uring"))
		printf("disk: %s skipped: %s\n", engine, tess_error());
	else
		ck_assert_msg(!st, "%s", tess_error());
	return d;
}

#endif
