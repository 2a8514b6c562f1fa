/* attention_runs.cuh - the kernels of tiles: the runs of one slot in a tile, one after another. */

/* Returns whether a tile has a run of many rows: each thread looks at one row. */
DEVICE int has_tiled_rows(const struct attention_args *a, int64_t first, int rows)
{
	DYNAMIC_SHARED(shared);
	uint32_t *tiled = (uint32_t *)shared;
	int found;

	if (!threadIdx.x)
		*tiled = 0;
	sync_block();
	for (int r = threadIdx.x; r < rows; r += ATTEND_THREADS)
		if (is_tiled(a, first + r))
			add_atomic(tiled, 1);
	sync_block();
	found = *tiled != 0;
	sync_block(); /* keys and values come there */
	return found;
}

/* `R` rows a tile, D elements a head; the last tiles, with most keys, go first. */
DEVICE void attend_runs(const struct attention_args *a, const int R, const int D, const int tensor)
{
	struct tile t;
	int rows;

	t.row = (int64_t)(gridDim.x - 1 - blockIdx.x) * R;
	t.head = blockIdx.y;
	t.g = (a->first_head + t.head) / a->group - a->first_head / a->group;
	rows = a->rows - t.row < R ? (int)(a->rows - t.row) : R;
	if (!has_tiled_rows(a, t.row, rows)) /* a step that decodes many texts */
		return;
	for (t.from = 0; t.from < rows; t.from = t.to) {
		int64_t at = t.row + t.from, last;

		for (t.to = t.from + 1; t.to < rows && a->slot[t.row + t.to] == a->slot[at];)
			t.to++;
		last = t.row + t.to - 1;
		if (!has_place(a, at) || !has_place(a, last) || !is_tiled(a, at))
			continue;
		t.position = a->position[at] - t.from;
		t.first = find_first_key(a, a->position[at]);
		t.end = a->position[last] + 1;
		if (tensor)
			attend_tile_tensor(a, &t, D);
		else
			attend_tile(a, &t, D);
	}
}

#define ATTEND_TILES(name, R, D, tensor) \
	KERNEL(ATTEND_THREADS, name##_##D, attention_args) \
	{ \
		attend_runs(&a, R, D, tensor); \
	}

ATTEND_TILES(attend_tiles, TILE_ROWS, 64, 0)
ATTEND_TILES(attend_tiles, TILE_ROWS, 128, 0)
ATTEND_TILES(attend_tiles, TILE_ROWS, 256, 0)
ATTEND_TILES(attend_tensor, TENSOR_ROWS, 64, 1)
ATTEND_TILES(attend_tensor, TENSOR_ROWS, 128, 1)
