/* attention_runs.cuh - the kernels of tiles: attend to the runs of one slot in a tile in turn. */

/* Returns whether a tile has a run of many rows: each thread checks one row. */
DEVICE int has_tiled_rows(const struct attention_args *a, int64_t first, int rows)
{
	DYNAMIC_SHARED(shared);
	uint32_t *tiled = (uint32_t *)shared;
	int found;

	if (!threadIdx.x)
		*tiled = 0;
	sync_block();
	for (int r = threadIdx.x; r < rows; r += blockDim.x)
		if (is_tiled(a, first + r))
			add_atomic(tiled, 1);
	sync_block();
	found = *tiled != 0;
	sync_block(); /* keys and values overwrite it */
	return found;
}

enum tile_kind { TILE_F32, TILE_TENSOR, TILE_WGMMA };

/*
 * Computes R rows a tile, `heads` heads, D elements each. The last tiles have the maximum number of
 * keys and start first.
 */
DEVICE void attend_runs(const struct attention_args *a, int R, int heads, const int D,
                        const enum tile_kind kind)
{
	struct tile t;

	t.row = (int64_t)(gridDim.y - 1 - blockIdx.y) * R;
	t.head = blockIdx.x * heads;
	t.g = (a->first_head + t.head) / a->group - a->first_head / a->group;
	t.rows = a->rows - t.row < R ? (int)(a->rows - t.row) : R;
	if (!has_tiled_rows(a, t.row, t.rows)) /* a step that decodes many sequences */
		return;
	for (t.from = 0; t.from < t.rows; t.from = t.to) {
		int64_t at = t.row + t.from, last;

		for (t.to = t.from + 1; t.to < t.rows && a->slot[t.row + t.to] == a->slot[at];)
			t.to++;
		last = t.row + t.to - 1;
		if (!has_place(a, at) || !has_place(a, last) || !is_tiled(a, at))
			continue;
		t.position = a->position[at] - t.from;
		t.first = find_first_key(a, a->position[at]);
		t.end = a->position[last] + 1;
		if (kind == TILE_F32)
			attend_tile(a, &t, D);
		else if (kind == TILE_TENSOR)
			attend_tile_tensor(a, &t, D);
#ifdef HAS_WGMMA
		else
			attend_tile_wgmma(a, &t, D);
#endif
	}
}

#define ATTEND_TILES(D) \
	KERNEL(ATTEND_THREADS, attend_tiles_##D, attention_args) \
	{ \
		attend_runs(&a, TILE_ROWS, 1, D, TILE_F32); \
	}
#define ATTEND_TENSOR(D) \
	KERNEL_EARLY(ATTEND_THREADS, 2, attend_tensor_##D, attention_args) \
	{ \
		wait_for_kernels(); \
		attend_runs(&a, TENSOR_ROWS / a.tile_heads, a.tile_heads, D, TILE_TENSOR); \
	}
#ifdef HAS_WGMMA
#define ATTEND_WGMMA(D) \
	KERNEL_EARLY(GROUPS(D) * GROUP_THREADS, 1, attend_wgmma_##D, attention_args) \
	{ \
		wait_for_kernels(); \
		attend_runs(&a, GROUPS(D) * GROUP_ROWS / a.tile_heads, a.tile_heads, D, \
		            TILE_WGMMA); \
	}
#else /* not launched */
#define ATTEND_WGMMA(D) \
	KERNEL_EARLY(GROUPS(D) * GROUP_THREADS, 1, attend_wgmma_##D, attention_args) \
	{ \
		(void)a; \
	}
#endif

ATTEND_TILES(64)
ATTEND_TILES(128)
ATTEND_TILES(256)
ATTEND_TENSOR(64)
ATTEND_TENSOR(96)
ATTEND_TENSOR(128)
ATTEND_WGMMA(64)
ATTEND_WGMMA(128)
