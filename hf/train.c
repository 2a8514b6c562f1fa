/* train.c - opens a checkpoint on a mesh, to train it. */
#include "core/base/status.h"
#include "hf/session.h"
#include "nn/agree.h"
#include "nn/trainer.h"

#include <fenv.h>
#include <stdlib.h>
#include <string.h>

static void close_model(void *self)
{
	tess_planned_model_close(self);
	free(self);
}

static tess_status open_model_to_train(struct tess_mesh *mesh, const char *dir,
                                       const struct tess_trainer_options *how,
                                       struct tess_trainer **out)
{
	struct tess_trainer_options mine = { .size = sizeof mine };
	struct tess_group *all = tess_world_group(tess_mesh_world(mesh));
	struct tess_trainer_parts parts = { .group = all,
		                            .mesh = *tess_mesh_get_shape(mesh),
		                            .options = &mine,
		                            .close_parts = close_model };
	struct tess_planned_model *p = calloc(1, sizeof *p);
	tess_status st = p ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	if (how)
		memcpy(&mine, how, how->size < sizeof mine ? how->size : sizeof mine);
	if (!st) {
		struct tess_session_options options = { .size = sizeof options,
			                                .plan = mine.plan,
			                                .overrides = mine.overrides,
			                                .ignore_unexpected = mine.ignore_unexpected,
			                                .positions = mine.positions };

		st = tess_planned_model_open(dir, &options, TESS_CHECKPOINT_WHOLE, p);
	}
	st = tess_group_agree_status(all, st, "trainer");
	if (!st) {
		parts.self = p;
		parts.model = p->model;
		parts.plan = &p->plan;
		parts.source = &p->source;
		parts.positions = p->positions;
		for (int32_t i = 0; i < parts.mesh.ndims; i++)
			parts.along[i] = tess_mesh_group(mesh, parts.mesh.dim[i].name);
		if (tess_group_rank(all) == 0)
			tess_checkpoint_warn_unused(p->checkpoint);
		st = tess_trainer_new(&parts, out);
	}
	if (st && p)
		close_model(p);
	return st;
}

/* Reads numbers and makes tables in the default floating-point state, not that of the caller. */
tess_status tess_trainer_open(struct tess_mesh *mesh, const char *dir,
                              const struct tess_trainer_options *options, struct tess_trainer **out)
{
	fenv_t callers;
	tess_status st;

	fegetenv(&callers);
	fesetenv(FE_DFL_ENV);
	st = open_model_to_train(mesh, dir, options, out);
	fesetenv(&callers);
	return st;
}
