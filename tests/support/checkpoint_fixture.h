/* checkpoint_fixture.h - a checkpoint of the source tree, and the program recorded from it. */
#ifndef TESS_TESTS_SUPPORT_CHECKPOINT_FIXTURE_H
#define TESS_TESTS_SUPPORT_CHECKPOINT_FIXTURE_H

#include "core/base/status.h"
#include "core/registry/registry.h"
#include "hf/checkpoint.h"

#include <check.h>
#include <stdio.h>

struct checkpoint_fixture {
	struct tess_checkpoint *checkpoint;
	struct tess_source source;
	const struct tess_model *model;
};

/* Opens the checkpoint; fails the test if that is impossible. Close f->checkpoint. */
static inline void open_checkpoint_fixture(const char *dir, struct checkpoint_fixture *f)
{
	char path[512];

	snprintf(path, sizeof path, "%s/%s", SOURCE_ROOT, dir);
	ck_assert_msg(!tess_checkpoint_open(path, TESS_CHECKPOINT_WHOLE, &f->checkpoint), "%s",
	              tess_error());
	f->source = tess_checkpoint_make_source(f->checkpoint);
	ck_assert_msg(
		!tess_plugin_find_model(tess_checkpoint_config(f->checkpoint)->type, &f->model),
		"%s", tess_error());
}

#endif
