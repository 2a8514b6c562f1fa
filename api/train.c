/* train.c - opens a checkpoint on a mesh for training. */
#include "api/fingerprint.h"
#include "api/session.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "nn/program/agree.h"
#include "nn/program/strategy.h"
#include "nn/train/trainer.h"

#include <fenv.h>
#include <stdlib.h>
#include <string.h>

struct trained_model {
	struct tess_planned_model model;
	struct tess_mesh *mesh;
	struct tess_group *alone; /* a group of this rank along tp, if the mesh has only dp */
};

static void close_model(void *self)
{
	struct trained_model *m = self;

	tess_group_close(m->alone);
	tess_planned_model_close(&m->model);
	tess_mesh_hold(m->mesh, -1);
	free(m);
}

/*
 * Collective. Sets the dimensions of the mesh, ddp and dp combined, and a group for each.
 */
static tess_status set_mesh(struct tess_mesh *mesh, struct trained_model *m,
                            struct tess_trainer_parts *parts)
{
	struct tess_mesh_shape *shape = &parts->mesh;
	int32_t shards, n;
	tess_status st = tess_mesh_shape_train(tess_mesh_get_shape(mesh), shape, &shards);

	if (!st && shards)
		st = tess_mesh_slice(mesh, "ddp,dp");
	if (st)
		return st;
	parts->shards = shards ? tess_mesh_group(mesh, "dp") : NULL;
	for (int32_t i = 0; i < shape->ndims; i++) {
		const char *name = shape->dim[i].name;

		parts->along[i] =
			tess_mesh_group(mesh, shards && !strcmp(name, "dp") ? "ddp,dp" : name);
	}
	n = shape->ndims;
	*shape = tess_mesh_shape_complete(shape);
	if (shape->ndims > n) {
		st = tess_group_split(parts->group, tess_group_rank(parts->group), 0, "tp",
		                      &m->alone);
		parts->along[n] = m->alone;
	}
	return st;
}

static tess_status open_model_to_train(struct tess_mesh *mesh, const char *dir,
                                       const struct tess_trainer_options *how,
                                       struct tess_trainer **out)
{
	struct tess_trainer_options mine = { .size = sizeof mine };
	struct tess_trainer_parts parts = { .group = tess_world_group(tess_mesh_world(mesh)),
		                            .options = &mine,
		                            .close_parts = close_model };
	struct tess_strategy *strategy = NULL;
	struct trained_model *m = calloc(1, sizeof *m);
	tess_status st = m ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	if (m) {
		m->mesh = mesh;
		tess_mesh_hold(mesh, 1);
	}
	if (!st)
		st = tess_sized_copy("tess_trainer_options", how, &mine, sizeof mine);
	if (!st)
		st = tess_strategy_complete(&mine, tess_mesh_get_shape(mesh), &strategy);
	if (!st) {
		struct tess_session_options options = { .size = sizeof options,
			                                .plan = mine.plan,
			                                .overrides = mine.overrides,
			                                .ignore_unexpected = mine.ignore_unexpected,
			                                .positions = mine.positions };

		st = tess_planned_model_open(dir, &options, TESS_CHECKPOINT_WHOLE, &m->model);
	}
	st = tess_checkpoint_compare(m ? m->model.checkpoint : NULL, parts.group, st, "trainer");
	if (!st)
		st = set_mesh(mesh, m, &parts);
	if (!st) {
		parts.self = m;
		parts.model = m->model.model;
		parts.plan = &m->model.plan;
		parts.source = &m->model.source;
		parts.positions = m->model.positions;
		if (tess_group_rank(parts.group) == 0)
			tess_checkpoint_warn_unused(m->model.checkpoint);
		st = tess_trainer_new(&parts, out);
	}
	tess_strategy_free(strategy);
	if (st && m)
		close_model(m);
	return st;
}

/* Reads numbers and computes tables in the default floating-point state, not the caller's. */
tess_status tess_trainer_open(struct tess_mesh *mesh, const char *dir,
                              const struct tess_trainer_options *options, struct tess_trainer **out)
{
	fenv_t callers;
	tess_status st = TESS_REQUIRE(mesh, dir, out);

	if (st)
		return st;
	fegetenv(&callers);
	fesetenv(FE_DFL_ENV);
	st = open_model_to_train(mesh, dir, options, out);
	fesetenv(&callers);
	return st;
}
