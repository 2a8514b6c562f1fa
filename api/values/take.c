/* take.c - takes the values that the steps of a session or a trainer have kept. */
#include "api/session.h"
#include "api/values/values.h"
#include "core/base/option.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "core/base/thread_state.h"
#include "nn/program/agree.h"
#include "nn/train/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/names.h>

static bool is_exact(const struct tess_program *p)
{
	return tess_program_is_exact(p) && strcmp(tess_option_get("reduce"), "fast") != 0;
}

/* Describes what determines bits in addition to checkpoint and inputs. */
static tess_status set_numerics(struct tess_values *v, const struct tess_program *p, int32_t math,
                                int32_t weights)
{
	const char *kv = p->kv_dtype ? tess_dtype_name(p->kv_dtype) : "none";
	char text[256];

	snprintf(text, sizeof text, "%s sums, products of %s, KV cache %s, weights %s",
	         is_exact(p) ? "exact" : "fast", tess_dtype_name(math ? math : TESS_F32), kv,
	         weights ? tess_dtype_name(weights) : "as stored");
	return tess_values_set_numerics(v, text);
}

/* Gradients of micro-batches are added in their order, so their number changes bits. */
static tess_status set_training_numerics(struct tess_values *v, const struct tess_program *p,
                                         int64_t nmicro)
{
	char text[256];

	snprintf(text, sizeof text, "%s sums, micro-batches %lld", is_exact(p) ? "exact" : "fast",
	         (long long)nmicro);
	return tess_values_set_numerics(v, text);
}

/* Moves the taken values into a list. */
static tess_status append_taken(struct tess_taken_value *taken, int32_t n, struct tess_values *v)
{
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < n && !st; i++) {
		struct tess_taken_value *t = &taken[i];
		struct tess_value_entry e = { .name = strdup(t->name),
			                      .styles = t->styles ? strdup(t->styles) : NULL,
			                      .dtype = TESS_F32,
			                      .ndim = 2,
			                      .shape = { t->rows, t->columns },
			                      .size = t->rows * t->columns };

		if (!e.name || (t->styles && !e.styles)) {
			tess_value_entry_free(&e);
			return tess_fail(TESS_ENOMEM, "values: out of memory");
		}
		e.holders = t->holders;
		e.data = t->data;
		t->data = NULL;
		t->holders = NULL;
		st = tess_values_append(v, &e);
	}
	return st;
}

/* Makes a list of values without a description of bits. */
static tess_status make_values(struct tess_taken_value *taken, const struct tess_program *p,
                               struct tess_values **out)
{
	struct tess_values *v = NULL;
	tess_status st = tess_values_new(&v);

	if (!st)
		st = append_taken(taken, p->nvalues, v);
	tess_taken_values_free(taken, p->nvalues);
	if (st)
		tess_values_free(v);
	else
		*out = v;
	return st;
}

static tess_status take_session_values(struct tess_session *s, struct tess_values **out)
{
	const struct tess_program *p = tess_runner_get_program(s->runner);
	struct tess_taken_value *taken = NULL;
	struct tess_values *v = NULL;
	tess_status st = tess_runner_take_values(s->runner, &taken);

	if (!st && taken && !tess_group_rank(s->all))
		st = make_values(taken, p, &v);
	else
		tess_taken_values_free(taken, p->nvalues);
	if (!st && v)
		st = set_numerics(v, p, s->model.math, s->model.weights);
	if (st)
		tess_values_free(v);
	else
		*out = v;
	return st;
}

tess_status tess_session_take_values(struct tess_session *s, struct tess_values **out)
{
	struct tess_thread_state callers;
	struct tess_values *v = NULL;
	tess_status st = TESS_REQUIRE(s, out);

	if (st)
		return st;
	tess_thread_state_begin(&callers);
	st = take_session_values(s, &v);
	st = tess_group_agree_status(s->all, st, "values");
	tess_thread_state_restore(&callers);
	if (st)
		tess_values_free(v);
	else
		*out = v;
	return st;
}

tess_status tess_trainer_take_values(struct tess_trainer *t, struct tess_values **out)
{
	struct tess_thread_state callers;
	struct tess_taken_value *taken = NULL;
	struct tess_values *v = NULL;
	int64_t nmicro = 0;
	tess_status st = TESS_REQUIRE(t, out);

	if (st)
		return st;
	tess_thread_state_begin(&callers);
	st = tess_trainer_take_stored(t, &taken, &nmicro);
	if (!st && taken)
		st = make_values(taken, tess_trainer_get_program(t), &v);
	if (!st && v)
		st = set_training_numerics(v, tess_trainer_get_program(t), nmicro);
	st = tess_group_agree_status(tess_trainer_get_parts(t)->group, st, "values");
	tess_thread_state_restore(&callers);
	if (st)
		tess_values_free(v);
	else
		*out = v;
	return st;
}
