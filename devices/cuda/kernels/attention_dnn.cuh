/*
 * attention_dnn.cuh - copies sequences to padded ones of equal length, as bf16, and back.
 */

/*
 * Returns the row of position p of sequence s, -1 without one. Sequences of equal length need no
 * search.
 */
DEVICE int64_t find_padded_row(const struct padded_args *a, int64_t s, int64_t p)
{
	int64_t row = s * a->longest + p, lo = 0, hi = a->rows;

	if (row < a->rows && a->slot[row] == s && a->position[row] == p)
		return row;
	while (lo < hi) {
		int64_t at = (lo + hi) / 2;

		if (a->slot[at] < s)
			lo = at + 1;
		else
			hi = at;
	}
	row = lo + p;
	if (row >= a->rows || a->slot[row] != s)
		return -1;
	if (a->position[row] != p)
		*a->fault = FAULT_TEXT;
	return row;
}

/* Returns which element of a row of `part` is copied to padded[i]. */
DEVICE int64_t find_padded_column(const struct padded_args *a, const struct padded *part, int64_t i)
{
	int head = (int)(i / a->d) + a->shift;

	if (part->of_group)
		head = (a->first_head + head) / a->group - a->first_head / a->group;
	return (int64_t)head * a->d + i % a->d;
}

/* Copies one row of one part a block; the four elements of a thread are of one head. */
KERNEL(MAP_THREADS, round_texts, padded_args)
{
	const struct padded *part = &a.part[blockIdx.y];
	int64_t at = blockIdx.x, columns = (int64_t)a.heads * a.d, c;
	int64_t row = find_padded_row(&a, a.first_text + at / a.length, at % a.length);
	const float *from = part->row + (row < 0 ? 0 : row) * part->pitch;
	int wide = (uintptr_t)part->row % 16 == 0 && part->pitch % 4 == 0;

	for (int64_t i = threadIdx.x * 4; i < columns; i += MAP_THREADS * 4) {
		float x[4] = { 0, 0, 0, 0 };

		c = find_padded_column(&a, part, i);
		if (row >= 0)
			load_four(from, c, c + 4, wide, x);
		store_global_pair(part->padded + at * columns + i, pack_bf16(x[0], x[1]),
		                  pack_bf16(x[2], x[3]));
	}
}

KERNEL(MAP_THREADS, widen_texts, padded_args)
{
	const struct padded *part = &a.part[blockIdx.y];
	int64_t at = blockIdx.x, columns = (int64_t)a.heads * a.d, c;
	int64_t row = find_padded_row(&a, a.first_text + at / a.length, at % a.length);
	int wide = (uintptr_t)part->row % 16 == 0 && part->pitch % 4 == 0;

	if (row < 0)
		return;
	for (int64_t i = threadIdx.x * 4; i < columns; i += MAP_THREADS * 4) {
		float x[4];

		c = find_padded_column(&a, part, i);
		load_four_halves(part->padded, at * columns + i, x);
		store_four(part->row + row * part->pitch, c, c + 4, wide, x);
	}
}
