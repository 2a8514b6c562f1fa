/* compute.c - computes logits and gradients of a model with a plan, and compares them. */
#include "style.h"

#include "core/base/status.h"
#include "nn/generate/runner.h"
#include "nn/train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void conform_values_free(struct conform_values *v)
{
	while (v->n)
		free(v->value[--v->n].data);
}

/* Appends a value without elements; NULL: no memory, or too many. */
static float *append_value(struct conform_values *v, const char *name, int64_t size,
                           int64_t columns)
{
	struct conform_value *to = &v->value[v->n];

	if (v->n == CONFORM_VALUES)
		return NULL;
	*to = (struct conform_value){ .size = size, .columns = columns };
	to->data = malloc((size_t)size * sizeof *to->data + 1);
	snprintf(to->name, sizeof to->name, "%s", name);
	v->n += to->data != NULL;
	return to->data;
}

/* ---- logits ---------------------------------------------------------------------------------- */

static tess_status step_runner(struct tess_runner *r, const struct conform_model *m, bool first,
                               struct conform_values *out)
{
	int32_t ids[64], slot;
	struct tess_rows rows = { .n = m->size[CONFORM_TOKENS], .ids = ids };
	int64_t columns = tess_runner_vocabulary(r), size;
	const float *logits;
	tess_status st = tess_runner_open_slot(r, &slot);

	rows.slot = slot;
	rows.nselected = rows.n;
	size = rows.n * columns;
	for (int32_t i = 0; i < 64; i++)
		ids[i] = (int32_t)(i * 7 % m->nids);
	if (!st)
		st = tess_runner_step(r, &rows, 1, 0, &logits);
	if (st || !first)
		return st;
	if (!append_value(out, "the output", size, columns))
		return tess_fail(TESS_ENOMEM, "out of memory");
	memcpy(out->value[0].data, logits, (size_t)size * sizeof *logits);
	return TESS_OK;
}

tess_status conform_compute_logits(const struct conform_mesh *mesh, const struct conform_model *m,
                                   const char *plan, bool *began, struct conform_values *out)
{
	struct tess_plan p;
	struct tess_runner *r = NULL;
	struct tess_runner_parts parts = { .model = m->model,
		                           .plan = &p,
		                           .source = &m->source,
		                           .group = mesh->group,
		                           .mesh = mesh->shape,
		                           .threads = 1 };
	tess_status st = tess_plan_open(m->model, plan, NULL, 0, &p);

	*began = false;
	out->n = 0;
	out->loss = 0;
	if (st)
		return st;
	memcpy(parts.along, mesh->along, sizeof parts.along);
	st = tess_runner_new(&parts, &r);
	*began = !st;
	if (!st)
		st = step_runner(r, m, tess_group_rank(mesh->group) == 0, out);
	tess_runner_free(r);
	tess_plan_free(&p);
	return st;
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* Gathers the gradients on rank 0. */
static tess_status gather_gradients(struct tess_trainer *t, bool first, struct conform_values *out)
{
	tess_status st = TESS_OK;

	for (int64_t i = 0; i < tess_trainer_count_tensors(t) && !st; i++) {
		const struct tess_trained *about = tess_trainer_get_tensor(t, i);
		float *data = NULL;
		char name[96];

		if (!about->trained)
			continue;
		snprintf(name, sizeof name, "the gradient of %s", about->name);
		if (first &&
		    !(data = append_value(out, name, about->size, about->shape[about->ndim - 1])))
			return tess_fail(TESS_ENOMEM, "out of memory");
		st = tess_trainer_gather(t, TESS_GRADIENT, i, 0, about->size, 0, data);
	}
	return st;
}

static tess_status compute_drawn_batch(struct tess_trainer *t, const struct conform_model *m,
                                       int32_t nsequences, struct tess_training_result *result)
{
	static const int64_t lengths[CONFORM_RANKS] = { 75, 13, 33, 2, 5, 3, 2, 7 };
	int32_t ids[256], labels[256];
	struct tess_batch batch = {
		.nsequences = nsequences, .lengths = lengths, .ids = ids, .labels = labels
	};

	for (int32_t i = 0; i < 256; i++) {
		ids[i] = (int32_t)(i * 7 % m->nids);
		labels[i] = i % 5 ? (int32_t)(i * 11 % m->width) : -100;
	}
	return tess_trainer_compute_gradients(t, &batch, 1, result);
}

tess_status conform_compute_gradients(const struct conform_mesh *mesh,
                                      const struct conform_model *m, const char *plan,
                                      int32_t nsequences, bool *began, struct conform_values *out)
{
	const struct tess_trainer_options options = { .size = sizeof options, .threads = 1 };
	struct tess_training_result result = { .size = sizeof result };
	struct tess_plan p;
	struct tess_trainer *t = NULL;
	struct tess_trainer_parts parts = { .model = m->model,
		                            .plan = &p,
		                            .source = &m->source,
		                            .group = mesh->group,
		                            .mesh = mesh->shape,
		                            .options = &options };
	tess_status st = tess_plan_open(m->model, plan, NULL, 0, &p);

	*began = false;
	out->n = 0;
	out->loss = 0;
	if (st)
		return st;
	memcpy(parts.along, mesh->along, sizeof parts.along);
	st = tess_trainer_new(&parts, &t);
	*began = !st;
	if (!st)
		st = compute_drawn_batch(t, m, nsequences, &result);
	if (!st)
		st = gather_gradients(t, tess_group_rank(mesh->group) == 0, out);
	out->loss = result.loss;
	tess_trainer_close(t);
	tess_plan_free(&p);
	return st;
}

/* ---- comparison ------------------------------------------------------------------------------ */

/* Returns the index of the first element that differs; -1: none. */
static int64_t find_first_difference(const struct conform_value *want,
                                     const struct conform_value *have, double tolerance)
{
	double largest = 0;

	for (int64_t i = 0; i < want->size && tolerance > 0; i++)
		largest = fmax(largest, fabs((double)want->data[i]));
	for (int64_t i = 0; i < want->size; i++) {
		double x = (double)want->data[i], y = (double)have->data[i];

		if (memcmp(&want->data[i], &have->data[i], sizeof *want->data) != 0 &&
		    !(fabs(x - y) <= tolerance * largest))
			return i;
	}
	return -1;
}

bool conform_values_are_equal(const struct conform_values *want, const struct conform_values *have,
                              double tolerance, char text[CONFORM_TEXT])
{
	if (memcmp(&want->loss, &have->loss, sizeof want->loss) != 0 &&
	    !(fabs(want->loss - have->loss) <= tolerance * fabs(want->loss))) {
		snprintf(text, CONFORM_TEXT, "the loss is %.17g, expected %.17g", have->loss,
		         want->loss);
		return false;
	}
	for (int32_t k = 0; k < want->n; k++) {
		const struct conform_value *w = &want->value[k], *h = &have->value[k];
		bool missing = k >= have->n || w->size != h->size;
		int64_t i = missing ? 0 : find_first_difference(w, h, tolerance);

		if (i < 0)
			continue;
		if (missing)
			snprintf(text, CONFORM_TEXT, "%s is missing", w->name);
		else
			snprintf(text, CONFORM_TEXT,
			         "row %lld, column %lld of %s is %.9g, expected %.9g",
			         (long long)(i / w->columns), (long long)(i % w->columns), w->name,
			         (double)h->data[i], (double)w->data[i]);
		return false;
	}
	return true;
}
