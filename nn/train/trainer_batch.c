/* trainer_batch.c - checks batches, and runs a replica's part of one. */
#include "core/base/hash.h"
#include "core/base/status.h"
#include "core/world/world.h"
#include "nn/program/agree.h"
#include "nn/train/trainer_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/util/random.h>

enum { IGNORED = -100 }; /* the label of a row that predicts nothing */

/* ---- checks ---------------------------------------------------------------------------------- */

/* Returns the maximum length of a sequence. */
static int64_t get_length_limit(const struct tess_trainer *t)
{
	int64_t positions = t->programs.first->program->max_positions;

	return positions ? positions : INT32_MAX;
}

/* Counts the ids before the first sequence with an invalid length. */
static int64_t count_tokens(const struct tess_batch *b, int64_t limit)
{
	int64_t n = 0;

	for (int64_t i = 0; i < b->nsequences && b->lengths[i] > 0 && b->lengths[i] <= limit; i++)
		n += b->lengths[i];
	return n;
}

static int64_t hash_batches(const struct tess_batch *micro, int64_t n, double lr, int64_t limit)
{
	uint64_t h = tess_hash_bytes(TESS_HASH_EMPTY, &n, sizeof n);

	h = tess_hash_bytes(h, &lr, sizeof lr);
	for (int64_t i = 0; i < n; i++) {
		const struct tess_batch *b = &micro[i];
		size_t tokens = (size_t)count_tokens(b, limit);

		h = tess_hash_bytes(h, &b->nsequences, sizeof b->nsequences);
		if (b->nsequences > 0)
			h = tess_hash_bytes(h, b->lengths,
			                    (size_t)b->nsequences * sizeof *b->lengths);
		h = tess_hash_bytes(h, b->ids, tokens * sizeof *b->ids);
		h = b->labels ? tess_hash_bytes(h, b->labels, tokens * sizeof *b->labels) : h;
	}
	return (int64_t)h;
}

/* Compares batches: all ranks must pass equal ones, since each computes its rows of one sum. */
static tess_status compare_batches(struct tess_trainer *t, const struct tess_batch *micro,
                                   int64_t n, double lr)
{
	int32_t nranks = tess_group_size(t->parts.group);
	int64_t mine = hash_batches(micro, n, lr, get_length_limit(t));
	int64_t *all = calloc((size_t)nranks, sizeof *all);
	tess_status st = all ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	if (!st)
		st = tess_all_gather(t->parts.group, &mine, all, 1, TESS_I64, "batch");
	for (int32_t r = 0; r < nranks && !st; r++)
		if (all[r] != all[0])
			st = tess_fail(TESS_EMISMATCH,
			               "rank %d passes another batch or learning rate to the step "
			               "than rank 0; all ranks must pass the same, and each takes "
			               "its part of the batch",
			               (int)r);
	free(all);
	return st == TESS_EMISMATCH ? tess_group_fail_together(t->parts.group, st) : st;
}

static tess_status check_batch_sequence(const struct tess_trainer *t, const struct tess_batch *b,
                                        int64_t i, int64_t at)
{
	const struct tess_program *p = t->programs.first->program;
	int64_t n = b->lengths[i], vocabulary = p->logits->dim[1]->size,
		limit = get_length_limit(t);
	tess_status st;

	if (n < 1)
		return tess_fail(TESS_EINVAL, "sequence %lld is empty", (long long)i);
	if (n > limit)
		return tess_fail(TESS_EINVAL,
		                 "sequence %lld has %lld ids; at most %lld positions are possible",
		                 (long long)i, (long long)n, (long long)limit);
	st = tess_ids_check(b->ids + at, n, 0, vocabulary);
	if (st)
		return tess_fail_in(st, "sequence %lld", (long long)i);
	for (int64_t k = 0; b->labels && k < n; k++) {
		int32_t label = b->labels[at + k];

		if (label != IGNORED && (label < 0 || label >= vocabulary))
			return tess_fail(TESS_EINVAL,
			                 "sequence %lld: label %d at position %lld is outside the "
			                 "vocabulary; use 0 to %lld, or -100 where none is to be "
			                 "predicted",
			                 (long long)i, (int)label, (long long)k,
			                 (long long)vocabulary - 1);
	}
	return TESS_OK;
}

/* Returns the label of row `at`, whose sequence ends before row `end`. */
static int32_t get_shifted_label(const struct tess_batch *b, int64_t at, int64_t end)
{
	return at + 1 >= end ? IGNORED : b->labels ? b->labels[at + 1] : b->ids[at + 1];
}

static tess_status check_batch(const struct tess_trainer *t, const struct tess_batch *b,
                               struct tess_batch_totals *totals)
{
	int64_t at = 0;

	if (b->nsequences < t->nreplicas)
		return tess_fail(TESS_EINVAL,
		                 "%lld sequences cannot be cut for %d ranks along dp; give a "
		                 "batch more of them",
		                 (long long)b->nsequences, (int)t->nreplicas);
	for (int64_t i = 0; i < b->nsequences; i++) {
		tess_status st = check_batch_sequence(t, b, i, at);
		int64_t end = st ? at : at + b->lengths[i];

		if (st)
			return st;
		for (; at < end; at++)
			totals->nlabels += get_shifted_label(b, at, end) != IGNORED;
	}
	totals->nsequences += b->nsequences;
	totals->ntokens += at;
	return TESS_OK;
}

tess_status tess_trainer_check_batches(struct tess_trainer *t, const struct tess_batch *micro,
                                       int64_t n, double lr, struct tess_batch_totals *out)
{
	tess_status st = compare_batches(t, micro, n, lr);

	*out = (struct tess_batch_totals){ 0 };
	if (!st && n < 1)
		st = tess_fail(TESS_EINVAL, "a step has no batch");
	if (!st && !(lr >= 0 && isfinite(lr)))
		st = tess_fail(TESS_EINVAL, "learning rate %g; use 0 or more", lr);
	for (int64_t i = 0; i < n && !st; i++)
		st = check_batch(t, &micro[i], out);
	if (!st && !out->nlabels)
		st = tess_fail(TESS_EINVAL, "no label of the step counts: each is -100, or the "
		                            "first of its sequence");
	return st;
}

/* ---- a replica's part ------------------------------------------------------------------------ */

struct batch_part { /* the part of a micro-batch that this rank's replica runs */
	struct tess_run sequences, tokens;
};

static struct batch_part cut_batch_for(const struct tess_trainer *t, const struct tess_batch *b,
                                       int32_t replica)
{
	int64_t lo = tess_edge(b->nsequences, t->nreplicas, replica),
		hi = tess_edge(b->nsequences, t->nreplicas, replica + 1);
	struct batch_part part = { .sequences = { lo, hi - lo } };

	for (int64_t i = 0; i < hi; i++)
		*(i < lo ? &part.tokens.start : &part.tokens.len) += b->lengths[i];
	return part;
}

static struct batch_part cut_batch(const struct tess_trainer *t, const struct tess_batch *b)
{
	return cut_batch_for(t, b, t->replica);
}

struct tess_shape tess_trainer_make_shape(const struct tess_trainer *t, const struct tess_batch *b,
                                          bool accumulate, struct tess_training *training)
{
	struct batch_part part = cut_batch(t, b);
	uint64_t key =
		tess_hash_bytes(accumulate, b->lengths, (size_t)b->nsequences * sizeof *b->lengths);

	key = tess_hash_bytes(key, &t->training.balance, sizeof t->training.balance);
	key = tess_hash_bytes(key, &t->training.dropout, sizeof t->training.dropout);
	key = tess_hash_bytes(key, &t->training.several, sizeof t->training.several);
	*training = t->training;
	training->lengths = b->lengths + part.sequences.start;
	training->nsequences = part.sequences.len;
	training->all_sequences = b->nsequences;
	training->first = part.sequences.start;
	training->accumulate = accumulate;
	return (struct tess_shape){ .ntokens = part.tokens.len,
		                    .nselected = part.tokens.len,
		                    .root = TESS_LOGITS_CUT,
		                    .training = training,
		                    .key = key };
}

static tess_status reserve_losses(struct tess_trainer *t, int64_t n)
{
	float *more = n > t->nlosses ? realloc(t->losses, sizeof *more * (size_t)n) : t->losses;

	if (n > t->nlosses && !more)
		return tess_fail(TESS_ENOMEM, "out of memory");
	t->losses = more;
	t->nlosses = n > t->nlosses ? n : t->nlosses;
	return TESS_OK;
}

static tess_status reserve_inputs(struct tess_trainer *t, const struct tess_trainer_room *room)
{
	const struct tess_program *p = t->programs.first->program;
	struct tess_step_memory *m = &t->memory;
	tess_status st = TESS_OK;

	if (room->ninputs > m->ninputs)
		st = tess_step_memory_grow_inputs(m, room->ninputs);
	if (!st && p->nropes && room->positions > m->at.rope_positions)
		st = tess_step_memory_grow_rope(m, p, room->positions);
	return st;
}

void tess_trainer_include_lengths(struct tess_trainer_room *room,
                                  const struct tess_training *training)
{
	for (int64_t i = 0; i < training->nsequences; i++)
		if (training->lengths[i] > room->positions)
			room->positions = training->lengths[i];
}

tess_status tess_trainer_reserve(struct tess_trainer *t, const struct tess_rank_program *l,
                                 const struct tess_trainer_room *room)
{
	tess_status st = tess_trainer_settle(t);

	if (!st)
		st = tess_parameters_reserve_gradients(&t->parameters, l);
	if (!st)
		st = reserve_losses(t, room->ntokens);
	if (!st)
		st = reserve_inputs(t, room);
	st = tess_group_agree_status(t->parts.group, st, "step");
	if (!st)
		st = tess_step_memory_reserve(&t->memory, room->bytes, room->calls);
	t->memory.at.gradients = t->parameters.gradients;
	return tess_group_agree_status(t->parts.group, st, "step");
}

tess_status tess_trainer_prepare(struct tess_trainer *t, struct tess_shape shape,
                                 struct tess_shaped_program **out)
{
	struct tess_shaped_program *k;
	tess_status st = tess_programs_find(&t->programs, shape, &k);

	if (!st && !k->used) {
		struct tess_trainer_room room = { .bytes = k->lowered->bytes,
			                          .calls = tess_rank_program_hash_calls(k->lowered),
			                          .ntokens = shape.ntokens,
			                          .ninputs = 4 * shape.ntokens + 5 };

		tess_trainer_include_lengths(&room, k->shape.training);
		st = tess_trainer_reserve(t, k->lowered, &room);
	}
	if (st)
		return st;
	k->used = ++t->nruns;
	tess_rank_program_bind(k->lowered, &t->memory.at);
	tess_parameters_find_gradients(&t->parameters, k->lowered);
	*out = k;
	return TESS_OK;
}

/* Writes the key of the step, and the index of this replica's first sequence. */
static void write_random_words(const struct tess_trainer *t, int64_t first, uint32_t out[4])
{
	uint32_t c[4] = { (uint32_t)t->step, (uint32_t)(t->step >> 32), 0, 0 };

	tess_philox((uint32_t)t->seed, (uint32_t)(t->seed >> 32), c);
	out[0] = c[0];
	out[1] = c[1];
	out[2] = (uint32_t)first;
	out[3] = 0;
}

/* Writes inputs in the order of tess_memory.inputs; there are no selected rows. */
tess_status tess_trainer_write_inputs(struct tess_trainer *t, int64_t at,
                                      const struct tess_batch *b, int64_t before,
                                      const struct tess_batch_totals *totals)
{
	const struct tess_step_memory *m = &t->memory;
	struct batch_part part = cut_batch(t, b);
	int64_t n = part.tokens.len, row = 0;
	int32_t *id = m->inputs[0] + at, *position = id + n, *sequence = position + n,
		*label = sequence + n;
	float count = (float)totals->nlabels;

	memcpy(id, b->ids + part.tokens.start, sizeof *id * (size_t)n);
	for (int64_t i = 0; i < part.sequences.len; i++) {
		int64_t length = b->lengths[part.sequences.start + i];

		for (int64_t k = 0; k < length; k++, row++) {
			int64_t token = part.tokens.start + row;

			position[row] = (int32_t)k;
			sequence[row] = (int32_t)i;
			label[row] = get_shifted_label(b, token, token + length - k);
		}
	}
	memcpy(label + n, &count, sizeof count);
	write_random_words(t, before + part.sequences.start, (uint32_t *)label + n + 1);
	return tess_device_copy(&t->device, "inputs", (int32_t *)m->at.inputs + at, id,
	                        (uint64_t)(4 * n + 5) * sizeof *id);
}

/* Waits for the load balancing loss of a micro-batch. */
static tess_status read_balance(const struct tess_trainer *t, const struct tess_shaped_program *k,
                                double *out)
{
	const struct tess_tensor *balance = k->program->balance;
	size_t bytes = sizeof(float) * (size_t)(balance->dim[0]->size * balance->dim[1]->size);
	float *sums = malloc(bytes);
	tess_status st = sums ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	if (!st)
		st = tess_device_move(&t->device, "loss", sums, k->lowered->balance, bytes);
	if (!st)
		*out = tess_program_compute_balance(k->program, sums);
	free(sums);
	return st;
}

tess_status tess_trainer_copy_losses(struct tess_trainer *t, const struct tess_shaped_program *k,
                                     int64_t row, int32_t stage, double *balance)
{
	tess_status st = TESS_OK;

	if (stage == k->program->loss_stage)
		st = tess_device_copy(&t->device, "loss", t->losses + row, k->lowered->loss,
		                      sizeof *t->losses * (size_t)k->shape.ntokens);
	if (!st && k->program->balance && stage == k->program->balance_stage)
		st = read_balance(t, k, balance);
	return st;
}

/* Marks the sequences of this part with non-finite losses. */
static void find_nonfinite_losses(const struct tess_batch *b, const struct batch_part *part,
                                  const float *loss, int32_t *nonfinite)
{
	for (int64_t i = 0; i < part->sequences.len; i++) {
		int64_t s = part->sequences.start + i;

		for (int64_t k = 0; k < b->lengths[s]; k++)
			nonfinite[s] |= !isfinite(*loss++);
	}
}

void tess_trainer_count_losses(const struct tess_trainer *t, const struct tess_batch *b,
                               int64_t row, struct tess_accumulator *loss, int32_t *nonfinite)
{
	struct batch_part part = cut_batch(t, b);

	tess_accumulator_add(loss, t->losses + row, part.tokens.len);
	find_nonfinite_losses(b, &part, t->losses + row, nonfinite);
}

tess_status tess_trainer_add_value_step(struct tess_trainer *t, const struct tess_batch *b)
{
	int64_t *rows;
	tess_status st;

	if (!t->pattern)
		return TESS_OK;
	rows = calloc((size_t)t->nreplicas, sizeof *rows);
	if (!rows)
		return tess_fail(TESS_ENOMEM, "values: out of memory");
	for (int32_t d = 0; d < t->nreplicas; d++)
		rows[d] = cut_batch_for(t, b, d).tokens.len;
	st = tess_value_store_add_step(&t->values, rows, t->nreplicas);
	free(rows);
	return st;
}

/* Lets a profile read the inputs that the cost of ops depends on. */
static void show_inputs(const struct tess_trainer *t)
{
	struct tess_profile *p = t->groups.profile;

	if (!p)
		return;
	p->inputs = (const char *)t->memory.inputs[0];
	p->at = t->memory.at.inputs;
	p->input_bytes = (int64_t)sizeof(int32_t) * t->memory.ninputs;
	p->on_host = tess_device_is_host(&t->device);
}

tess_status tess_trainer_run_batch(struct tess_trainer *t, const struct tess_batch *b,
                                   bool accumulate, bool updates, struct tess_batch_totals *totals,
                                   struct tess_accumulator *loss, int32_t *nonfinite)
{
	struct tess_training training;
	struct tess_shape shape = tess_trainer_make_shape(t, b, accumulate, &training);
	struct tess_shaped_program *k;
	double balance = 0;
	tess_status st = tess_trainer_prepare(t, shape, &k);

	if (!st)
		st = tess_trainer_write_inputs(t, 0, b, totals->before, totals);
	show_inputs(t);
	if (!st && updates)
		tess_early_update_watch(t, k, nonfinite, totals->before);
	if (!st)
		st = tess_rank_program_run(k->lowered, &t->device, &t->groups, NULL);
	if (!st)
		st = tess_trainer_copy_losses(t, k, 0, 0, &balance);
	if (!st)
		st = tess_early_update_execute(t); /* while the device computes */
	if (!st)
		st = tess_device_sync(&t->device, "step");
	if (st)
		return st;
	tess_trainer_count_losses(t, b, 0, loss, nonfinite + totals->before);
	totals->before += b->nsequences;
	totals->balance += balance;
	if (t->pattern)
		st = tess_value_store_read(&t->values, k->program, k->lowered, TESS_STAGES_ALL,
		                           &t->device);
	return st ? st : tess_trainer_add_value_step(t, b);
}
