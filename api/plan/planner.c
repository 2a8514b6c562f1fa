/* planner.c - opens planners, and keeps their strategies. */
#include "api/plan/planner.h"
#include "core/base/sized.h"
#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/train.h>

_Static_assert((int)TESS_TIMES == (int)TESS_TERMS, "terms of a forecast");
_Static_assert((int)TESS_MEMORIES == (int)TESS_HOLDS, "memory of a forecast");

enum { PRESET_BATCH = 8, PRESET_SEQUENCE = 1024, PRESET_PROMPT = 512, PRESET_TOKENS = 128 };

static void choose_presets(struct tess_planner *p)
{
	struct tess_planner_options *o = &p->options;
	int64_t most = p->model.positions;

	o->batch = o->batch ? o->batch : o->train ? PRESET_BATCH : 1;
	if (!o->sequence)
		o->sequence = most && most < PRESET_SEQUENCE ? most : PRESET_SEQUENCE;
	if (!o->prompt)
		o->prompt = most && most / 2 < PRESET_PROMPT ? most / 2 : PRESET_PROMPT;
	o->tokens = o->tokens ? o->tokens : PRESET_TOKENS;
	o->optimizer = o->optimizer ? o->optimizer : TESS_ADAMW;
}

void tess_planner_choose_ranks(struct tess_planner *p, int32_t nranks)
{
	tess_machine_choose(p->machine, nranks, p->options.train);
	p->memory = p->options.memory ? (double)p->options.memory : p->machine->memory;
}

static tess_status check_planner_options(const struct tess_planner *p)
{
	const struct tess_planner_options *o = &p->options;
	int64_t length = o->train ? o->sequence : o->prompt + o->tokens;

	if (o->batch < 1 || o->sequence < 1 || o->prompt < 1 || o->tokens < 1 ||
	    o->batch > INT32_MAX || length > INT32_MAX)
		return tess_fail(TESS_EINVAL,
		                 "a batch of %lld sequences of %lld ids; both must be 1 to %d",
		                 (long long)o->batch, (long long)length, INT32_MAX);
	if (p->model.positions && length > p->model.positions)
		return tess_fail(TESS_EINVAL,
		                 "sequences of %lld ids; the checkpoint was made for %lld "
		                 "positions",
		                 (long long)length, (long long)p->model.positions);
	return TESS_OK;
}

/* Checks the dtype of products. Devices that add in any order are GPUs. */
static tess_status check_planned_math(const struct tess_planner *p)
{
	const struct tess_planner_options *o = &p->options;
	tess_status st = tess_trainer_check_math(o->math);

	if (st || o->math != TESS_BF16)
		return st;
	if (!o->train)
		return tess_fail(TESS_EINVAL, "products of bf16 are planned for training; leave "
		                              "out math, or set train");
	if (!p->machine->exact)
		return tess_fail(TESS_EINVAL,
		                 "machine %s: products of bf16 are for the cpu device; on a GPU "
		                 "TESSERA_CUDA_MATH sets the dtype of products, and the rates of "
		                 "the machine are those; leave out --math",
		                 p->machine->name);
	return TESS_OK;
}

static tess_status accept_op(const struct tess_op *op)
{
	(void)op;
	return TESS_OK;
}

/* Describes the device of a machine whose sums have any order. */
static void describe_device(struct tess_planner *p)
{
	p->device = (struct tess_device){
		.size = sizeof p->device,
		.mem = TESS_CUDA,
		.name = p->machine->name,
		.supports = accept_op,
		.layout = TESS_ROWS,
		.exact = 0,
	};
}

static tess_status open_planner_parts(struct tess_planner *p, const char *dir)
{
	struct tess_session_options session = { .size = sizeof session };
	struct tess_trainer_options trainer = { .size = sizeof trainer };
	struct tess_optimizer optimizer;
	tess_status st = tess_machine_open(p->options.machine, &p->machine);

	if (!st)
		st = check_planned_math(p);
	session.plan = "none";
	session.weights = p->options.train ? 0 : p->options.weights;
	session.kv_dtype = p->options.kv_dtype ? p->options.kv_dtype : TESS_F32;
	if (!st)
		st = tess_session_options_read(&session, &session);
	if (!st)
		st = tess_planned_model_open(dir, &session, TESS_CHECKPOINT_CONFIG, &p->model);
	if (st)
		return st;
	choose_presets(p);
	describe_device(p);
	trainer.optimizer = p->options.optimizer;
	st = tess_optimizer_read(&trainer, &optimizer);
	p->moments = st ? 0 : tess_optimizer_count_moments(&optimizer);
	if (!st)
		st = check_planner_options(p);
	return st ? st : tess_planner_find_layers(p);
}

tess_status tess_planner_open(const char *dir, const struct tess_planner_options *options,
                              struct tess_planner **out)
{
	struct tess_planner *p;
	tess_status st = TESS_REQUIRE(dir, options, out);

	if (st)
		return st;
	p = calloc(1, sizeof *p);
	if (!p)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", dir);
	p->options.size = sizeof p->options;
	st = tess_sized_copy("tess_planner_options", options, &p->options, sizeof p->options);
	if (!st && !p->options.machine)
		st = tess_fail(TESS_EINVAL, "%s: name a machine, or its file", __func__);
	if (!st)
		st = open_planner_parts(p, dir);
	if (st)
		tess_planner_close(p);
	else
		*out = p;
	return st;
}

void tess_planner_close(struct tess_planner *p)
{
	if (!p)
		return;
	tess_planner_close_layers(p);
	tess_planned_model_close(&p->model);
	tess_machine_close(p->machine);
	tess_arena_free(&p->arena);
	free(p);
}

static const char *keep_text(struct tess_planner *p, const char *text, bool *failed)
{
	const char *kept = text ? tess_arena_copy(&p->arena, text, strlen(text)) : NULL;

	*failed |= text && !kept;
	return kept;
}

static const char *const *keep_list(struct tess_planner *p, const char *const *list, bool *failed)
{
	const char **kept;
	size_t n = 0;

	while (list && list[n])
		n++;
	if (!list)
		return NULL;
	kept = TESS_NEW(&p->arena, const char *, n + 1);
	for (size_t i = 0; i < n && kept; i++)
		kept[i] = keep_text(p, list[i], failed);
	*failed |= !kept;
	return kept;
}

const struct tess_strategy *tess_planner_keep_strategy(struct tess_planner *p,
                                                       const struct tess_strategy *s)
{
	struct tess_strategy *kept = TESS_NEW(&p->arena, struct tess_strategy, 1);
	bool failed = !kept;

	if (failed)
		return NULL;
	*kept = *s;
	kept->plan = keep_text(p, s->plan, &failed);
	kept->mesh = keep_text(p, s->mesh, &failed);
	kept->pipeline_schedule = keep_text(p, s->pipeline_schedule, &failed);
	kept->offload_optimizer = keep_text(p, s->offload_optimizer, &failed);
	kept->offload_weights = keep_text(p, s->offload_weights, &failed);
	kept->predicted = kept->name = NULL;
	kept->overrides = keep_list(p, s->overrides, &failed);
	kept->recompute = keep_list(p, s->recompute, &failed);
	return failed ? NULL : kept;
}
