/* attention_tiles.cuh - attention of 32 adjacent rows of a sequence and one head, in f32. */

enum { TILE_EACH = 4 }; /* rows, and keys or elements, of a thread's square */

struct tile { /* rows [from, to) after `row`, all of one slot */
	int64_t row, position; /* position: of the tile's row 0, as if it were of that slot */
	int rows, from, to, head, g;
	int64_t first, end; /* keys that any row attends to */
	float *q, *kv, *p; /* [D][32]; keys [D][64], or values [64][D]; weights [64][32] */
};

/* Loads keys or values of block u to shared memory, zeros for missing ones; by all threads. */
DEVICE void load_page(const struct attention_args *a, const struct tile *t, const int D, int64_t u,
                      const char *page, int values)
{
	int64_t width = a->dtype == PORT_F32 ? 4 : 2;
	int n = values ? a->dv : a->d;
	const char *from = page + (values ? a->values : a->keys) + (int64_t)t->g * n * KEYS * width;

	sync_block(); /* the earlier contents have been read */
	for (int at = threadIdx.x; at < D * KEYS; at += ATTEND_THREADS) {
		int key = values ? at / D : at % KEYS, i = values ? at % D : at / KEYS;
		int there = i < n && u * KEYS + key >= t->first && u * KEYS + key < t->end;

		t->kv[at] =
			there ? widen_element(from, a->dtype, values ? (int64_t)key * n + i : at)
			      : 0.0f;
	}
	sync_block();
}

DEVICE void multiply_square(const float *rows, const float *columns, float sum[][TILE_EACH])
{
	EACH(r, TILE_EACH)
		EACH(c, TILE_EACH)
			sum[r][c] = fmaf(rows[r], columns[c], sum[r][c]);
}

/* Turns scores of the thread's square into weights, row by row; 16 lanes have all keys of a row. */
DEVICE void weigh_square(const struct attention_args *a, const struct tile *t, int64_t u,
                         float z[][TILE_EACH], float *max, float *sum, float *factor)
{
	int r0 = threadIdx.x / 16 * TILE_EACH, c0 = threadIdx.x % 16 * TILE_EACH;

	EACH(r, TILE_EACH) {
		int64_t own = t->position + r0 + r, first = find_first_key(a, own);
		float m = max[r], s = 0.0f;

		EACH(c, TILE_EACH) {
			int64_t key = u * KEYS + c0 + c;
			int seen =
				r0 + r >= t->from && r0 + r < t->to && key >= first && key <= own;

			z[r][c] = seen ? scale_score(a, z[r][c]) : -INFINITY;
			m = z[r][c] > m ? z[r][c] : m;
		}
		EACH_MASK(mask, 1, 16) {
			float other = shuffle_xor(m, mask);

			m = other > m ? other : m;
		}
		EACH(c, TILE_EACH) {
			z[r][c] = weigh_score(z[r][c], m);
			s += z[r][c];
			t->p[(c0 + c) * TILE_ROWS + r0 + r] = z[r][c];
		}
		EACH_MASK(mask, 1, 16)
			s += shuffle_xor(s, mask);
		factor[r] = weigh_score(max[r], m);
		sum[r] = sum[r] * factor[r] + s;
		max[r] = m;
	}
}

/* Computes rows [from, to) of a tile, at most D elements a head. */
DEVICE void attend_tile(const struct attention_args *a, struct tile *t, const int D)
{
	DYNAMIC_SHARED(shared);
	int r0 = threadIdx.x / 16 * TILE_EACH, c0 = threadIdx.x % 16 * TILE_EACH;
	float acc[TILED_HEAD_MAX / KEYS][TILE_EACH][TILE_EACH], max[TILE_EACH], sum[TILE_EACH];
	float sink = load_sink(&a->sinks, t->head);

	t->q = shared;
	t->kv = t->q + D * TILE_ROWS;
	t->p = t->kv + D * KEYS;
	EACH(r, TILE_EACH) {
		max[r] = sink;
		sum[r] = weigh_score(sink, sink);
		EACH(c, TILE_EACH)
			EACH(j, D / KEYS)
				acc[j][r][c] = 0.0f;
	}
	for (int at = threadIdx.x; at < D * TILE_ROWS; at += ATTEND_THREADS) {
		int r = at / D, i = at % D;

		t->q[i * TILE_ROWS + r] =
			r >= t->from && r < t->to && i < a->d
				? a->q[(t->row + r) * a->q_pitch + t->head * a->d + i]
				: 0.0f;
	}
	for (int64_t u = t->first / KEYS; u * KEYS < t->end; u++) {
		const char *page = find_page(a, t->row + t->from, u);
		float z[TILE_EACH][TILE_EACH], factor[TILE_EACH];

		if (!page)
			return;
		load_page(a, t, D, u, page, 0);
		EACH(r, TILE_EACH)
			EACH(c, TILE_EACH)
				z[r][c] = 0.0f;
		UNROLL_BY(4)
		for (int i = 0; i < a->d; i++) {
			float q[TILE_EACH], k[TILE_EACH];

			widen_quad(load_quad(t->q + i * TILE_ROWS + r0), PORT_F32, q);
			widen_quad(load_quad(t->kv + i * KEYS + c0), PORT_F32, k);
			multiply_square(q, k, z);
		}
		weigh_square(a, t, u, z, max, sum, factor);
		EACH(j, D / KEYS)
			EACH(r, TILE_EACH)
				EACH(c, TILE_EACH)
					acc[j][r][c] *= factor[r];
		load_page(a, t, D, u, page, 1);
		UNROLL_BY(4)
		for (int key = 0; key < KEYS; key++) {
			float p[TILE_EACH], v[TILE_EACH];

			widen_quad(load_quad(t->p + key * TILE_ROWS + r0), PORT_F32, p);
			EACH(j, D / KEYS) {
				widen_quad(load_quad(t->kv + key * D + j * KEYS + c0), PORT_F32, v);
				multiply_square(p, v, acc[j]);
			}
		}
	}
	EACH(j, D / KEYS)
		EACH(r, TILE_EACH)
			EACH(c, TILE_EACH) {
				int i = j * KEYS + c0 + c;

				if (r0 + r >= t->from && r0 + r < t->to && i < a->dv)
					write_out(a, t->row + r0 + r, t->head * a->dv + i,
					          acc[j][r][c] / sum[r]);
			}
}
