/*
 * bf12.c - weights of bf16 in 12 bits, without loss ("12-bit weights" in docs/ops.md): sign and
 * mantissa, and a code of 4 bits for one of the 16 most frequent exponents of a panel. Elements
 * with another exponent are exceptions, in a list.
 */
#include "bf12.h"

#include "pack.h"

enum { CODES = 16, NO_CODE = 16, EXPONENTS = 256, CHUNK = 256 };
enum { AHEAD = 8 * BF12_BLOCK_BYTES }; /* distance of prefetches in bytes; measured */
#define REST_MASK 0x807f /* sign and mantissa of bf16 */

struct exception {
	uint32_t at, bits; /* element k * LANES + j, and its value as a float */
};

struct panel { /* the start of a panel */
	uint8_t exponent[CODES];
	uint32_t count, zero[11]; /* count: exceptions, in increasing order */
	struct exception exception[];
};

/* ---- elements of a block ----------------------------------------------------------------------
 *
 * A block of 8 elements is three times 32 words of 16 bits; the word of column j and parity e is
 * 2 * j + e. The first word has the codes of elements e, 2 + e, 4 + e and 6 + e, 4 bits each from
 * the lowest on. The second has sign and mantissa of element e at their places in bf16, and with
 * its bytes exchanged those of 2 + e; the third has those of 4 + e and 6 + e.
 */
#if defined(__AVX512BW__)
typedef uint16_t words __attribute__((vector_size(64)));

LANES_INLINE words load_words(const void *p)
{
	return (words)_mm512_loadu_si512(p);
}

/* Loads exponents by code, twice: vpermw reads 5 bits of an index, the fifth from another code. */
LANES_INLINE words load_exponents(const char *panel)
{
	__m256i e = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)panel));

	return (words)_mm512_broadcast_i64x4(_mm256_slli_epi16(e, 7));
}

/* Decodes elements 2i and 2i + 1 of a block from codes, and from signs and mantissas. */
LANES_INLINE void decode_pair(const words *exponents, words code, words rest, int i,
                              struct lanes w[2])
{
	const __m512i exchange = _mm512_set4_epi32(0x0e0f0c0d, 0x0a0b0809, 0x06070405, 0x02030001);
	words both =
		(words)_mm512_permutexvar_epi16((__m512i)(code >> (4 * i)), (__m512i)*exponents);

	if (i % 2)
		rest = (words)_mm512_shuffle_epi8((__m512i)rest, exchange);
	both |= rest & REST_MASK;
	w[0].v = (__m512)_mm512_slli_epi32((__m512i)both, 16);
	w[1].v = (__m512)_mm512_and_si512((__m512i)both, _mm512_set1_epi32(-0x10000));
}
#elif defined(__AVX2__) && defined(__FMA__)
typedef uint16_t half_words __attribute__((vector_size(32)));
typedef struct {
	half_words half[2];
} words;

LANES_INLINE words load_words(const void *p)
{
	const __m256i *at = p;

	return (words){ { (half_words)_mm256_loadu_si256(at),
		          (half_words)_mm256_loadu_si256(at + 1) } };
}

LANES_INLINE words load_exponents(const char *panel)
{
	__m128i e = _mm_loadu_si128((const void *)panel);

	return (words){ { (half_words)_mm256_broadcastsi128_si256(e) } };
}

/* Decodes 8 columns. */
LANES_INLINE half_words decode_half(half_words exponents, half_words code, half_words rest, int i)
{
	const __m256i exchange = _mm256_set_epi32(0x0e0f0c0d, 0x0a0b0809, 0x06070405, 0x02030001,
	                                          0x0e0f0c0d, 0x0a0b0809, 0x06070405, 0x02030001);
	/* an index with bit 7 gives 0 */
	half_words at = (code >> (4 * i) & 15) | 0x8000;
	half_words e = (half_words)_mm256_shuffle_epi8((__m256i)exponents, (__m256i)at);

	if (i % 2)
		rest = (half_words)_mm256_shuffle_epi8((__m256i)rest, exchange);
	return e << 7 | (rest & REST_MASK);
}

LANES_INLINE void decode_pair(const words *exponents, words code, words rest, int i,
                              struct lanes w[2])
{
	half_words lo = decode_half(exponents->half[0], code.half[0], rest.half[0], i);
	half_words hi = decode_half(exponents->half[0], code.half[1], rest.half[1], i);
	__m256i upper = _mm256_set1_epi32(-0x10000);

	w[0].lo = (__m256)_mm256_slli_epi32((__m256i)lo, 16);
	w[0].hi = (__m256)_mm256_slli_epi32((__m256i)hi, 16);
	w[1].lo = (__m256)_mm256_and_si256((__m256i)lo, upper);
	w[1].hi = (__m256)_mm256_and_si256((__m256i)hi, upper);
}
#else
typedef struct {
	uint16_t word[2 * LANES];
} words;

LANES_INLINE words load_words(const void *p)
{
	words w;

	memcpy(&w, p, sizeof w);
	return w;
}

LANES_INLINE words load_exponents(const char *panel)
{
	words w = { { 0 } };

	for (int j = 0; j < CODES; j++)
		w.word[j] = (uint16_t)((uint8_t)panel[j] << 7);
	return w;
}

LANES_INLINE void decode_pair(const words *exponents, words code, words rest, int i,
                              struct lanes w[2])
{
	uint16_t half[2][LANES];

	for (int j = 0; j < 2 * LANES; j++) {
		uint16_t r = rest.word[j];

		r = i % 2 ? (uint16_t)(r << 8 | r >> 8) : r;
		half[j % 2][j / 2] =
			exponents->word[code.word[j] >> (4 * i) & 15] | (r & REST_MASK);
	}
	w[0] = lanes_load_bf16(half[0]);
	w[1] = lanes_load_bf16(half[1]);
}
#endif

/* Loads element k of the blocks of a panel. */
LANES_INLINE struct lanes load_element(const words *exponents, const char *blocks, int64_t k)
{
	const char *b = blocks + k / BF12_BLOCK * BF12_BLOCK_BYTES;
	int i = (int)(k % BF12_BLOCK) / 2;
	struct lanes w[2];

	decode_pair(exponents, load_words(b), load_words(b + 64 * (1 + i / 2)), i, w);
	return w[k % 2];
}

/* Finds the first exception from element k on. */
static const struct exception *find_exception(const struct panel *p, int64_t k)
{
	const struct exception *lo = p->exception, *hi = lo + p->count;

	while (lo < hi) {
		const struct exception *mid = lo + (hi - lo) / 2;

		if (mid->at < k * LANES)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Reads elements [at, at + len); `blocks`: bytes from the start of the panel to the blocks. */
LANES_INLINE void read_elements(bool widen, const char *panel, int64_t blocks, int64_t at,
                                int64_t len, char *to)
{
	const struct panel *p = (const struct panel *)panel;
	const struct exception *e = find_exception(p, at), *last = p->exception + p->count;
	const int64_t width = widen ? 4 : 2;
	words exponents = load_exponents(panel);

	for (int64_t i = 0; i < len; i++) {
		struct lanes w = load_element(&exponents, panel + blocks, at + i);

		if (widen)
			lanes_store((float *)to + i * LANES, w);
		else
			lanes_store_upper(to + i * LANES * width, w);
	}
	for (; e < last && e->at < (at + len) * LANES; e++)
		memcpy(to + (e->at - at * LANES) * width, (const char *)&e->bits + (4 - width),
		       (size_t)width);
}

void bf12_widen(const char *panel, int64_t k, int64_t at, int64_t len, float *to)
{
	read_elements(true, panel, bf12_get_offset(k), at, len, (char *)to);
}

void bf12_unpack(const char *panel, int64_t k, int64_t at, int64_t len, void *to)
{
	read_elements(false, panel, bf12_get_offset(k), at, len, (char *)to);
}

/* ---- from rows ------------------------------------------------------------------------------- */

/* Counts the elements of each exponent in the panel from `column` on. */
static void count_exponents(const struct tess_view *rows, int64_t column, uint32_t *count)
{
	uint32_t part[4][EXPONENTS] = { { 0 } }; /* four counters avoid waits for the last store */
	uint16_t half[CHUNK * LANES];
	int64_t n;

	for (int64_t at = 0; at < rows->shape[1]; at += n) {
		n = rows->shape[1] - at < CHUNK ? rows->shape[1] - at : CHUNK;
		pack_as_stored(rows, column, at, n, half);
		for (int64_t i = 0; i < n * LANES; i++)
			part[i % 4][half[i] >> 7 & 255]++;
	}
	for (int e = 0; e < EXPONENTS; e++)
		count[e] = part[0][e] + part[1][e] + part[2][e] + part[3][e];
}

/* Chooses the most frequent exponents, in decreasing order; code: by exponent, or NO_CODE. */
static void choose_exponents(uint32_t *count, uint8_t *exponent, uint8_t *code)
{
	memset(code, NO_CODE, EXPONENTS);
	for (int c = 0; c < CODES; c++) {
		int best = 0;

		for (int e = 1; e < EXPONENTS; e++)
			best = count[e] > count[best] ? e : best;
		exponent[c] = (uint8_t)best;
		if (count[best])
			code[best] = (uint8_t)c;
		count[best] = 0;
	}
}

/* Encodes the words of a block, by pairs, from elements and codes, [BF12_BLOCK][LANES]. */
static void encode_block(const uint16_t *half, const uint8_t *code, uint32_t *to)
{
	const uint32_t mask = REST_MASK | (uint32_t)REST_MASK << 16, bytes = 0x00ff00ff;

	CPU_LANES
	for (int j = 0; j < LANES; j++) {
		uint32_t codes = 0, rest[4];

		for (int i = 0; i < 4; i++) {
			int even = 2 * i * LANES + j, odd = even + LANES;

			codes |= ((uint32_t)code[even] | (uint32_t)code[odd] << 16) << (4 * i);
			rest[i] = (half[even] | (uint32_t)half[odd] << 16) & mask;
		}
		to[j] = codes;
		to[LANES + j] = rest[0] | (rest[1] & bytes) << 8 | (rest[1] >> 8 & bytes);
		to[2 * LANES + j] = rest[2] | (rest[3] & bytes) << 8 | (rest[3] >> 8 & bytes);
	}
}

/* Lists the exceptions of a block and sets them to zero; false: no room. */
static bool list_exceptions(int64_t at, int64_t room, uint16_t *half, uint8_t *code,
                            struct panel *p)
{
	for (int i = 0; i < BF12_BLOCK * LANES; i++) {
		if (code[i] != NO_CODE)
			continue;
		if (p->count == room)
			return false;
		p->exception[p->count++] =
			(struct exception){ (uint32_t)(at * LANES + i), (uint32_t)half[i] << 16 };
		half[i] = code[i] = 0;
	}
	return true;
}

/* Packs a panel; false: more exceptions than room. */
static bool pack_coded(const struct tess_view *rows, int64_t column, char *to)
{
	int64_t k = rows->shape[1], room = 8 * tess_up(k, 256);
	struct panel *p = (struct panel *)to;
	uint32_t count[EXPONENTS];
	uint16_t half[CHUNK * LANES];
	uint8_t table[EXPONENTS], code[BF12_BLOCK * LANES];
	bool fits = true;

	memset(to, 0, (size_t)bf12_get_offset(k));
	count_exponents(rows, column, count);
	choose_exponents(count, p->exponent, table);
	to += bf12_get_offset(k);
	for (int64_t at = 0; at < k && fits; at += BF12_BLOCK, to += BF12_BLOCK_BYTES) {
		int64_t n = k - at < CHUNK ? k - at : CHUNK;
		uint16_t *block = half + at % CHUNK * LANES;
		uint8_t all = 0;

		if (at % CHUNK == 0) {
			pack_as_stored(rows, column, at, n, half);
			for (int64_t i = n * LANES; i < tess_up(n, BF12_BLOCK) * BF12_BLOCK * LANES;
			     i++)
				half[i] = (uint16_t)(p->exponent[0] << 7); /* code 0 */
		}
		for (int i = 0; i < BF12_BLOCK * LANES; i++)
			all |= code[i] = table[block[i] >> 7 & 255];
		if (all & NO_CODE)
			fits = list_exceptions(at, room, block, code, p);
		encode_block(block, code, (uint32_t *)to);
	}
	return fits;
}

void bf12_pack_panels(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct pack *p = arg;

	(void)thread;
	for (int64_t i = lo; i < hi; i++)
		if (!pack_coded(p->rows, i * LANES,
		                (char *)p->panels->data + i * p->panels->stride[0]))
			p->refused[i] = true;
}

/* ---- products -------------------------------------------------------------------------------- */

struct tile { /* a tile of panels, `bp` bytes apart */
	const char *panel; /* the first panel */
	int64_t bp, blocks; /* blocks: bytes from the start of a panel to them */
	const struct exception *next[TILE_WIDEST], *last[TILE_WIDEST];
	int64_t odd[TILE_WIDEST], next_odd; /* element of the next exception: by panel, of all */
	words exponents[TILE_WIDEST];
};

/* Moves to the first exceptions from element k on. */
LANES_INLINE void skip_exceptions(struct tile *t, int panels, int64_t k)
{
	t->next_odd = INT64_MAX;
	TILE_UNROLL
	for (int i = 0; i < panels; i++) {
		while (t->next[i] < t->last[i] && t->next[i]->at < k * LANES)
			t->next[i]++;
		t->odd[i] = t->next[i] < t->last[i] ? t->next[i]->at / LANES : INT64_MAX;
		t->next_odd = t->odd[i] < t->next_odd ? t->odd[i] : t->next_odd;
	}
}

LANES_INLINE void begin_tile(struct tile *t, int panels, int64_t k)
{
	for (int i = 0; i < panels; i++) {
		const char *panel = t->panel + i * t->bp;
		const struct panel *p = (const struct panel *)panel;

		t->exponents[i] = load_exponents(panel);
		t->next[i] = find_exception(p, k);
		t->last[i] = p->exception + p->count;
	}
	skip_exceptions(t, panels, k);
}

/*
 * Multiplies full blocks of `panels` of the tile's panels, without exceptions, from element k to
 * `end`; `of`: chains of a row, which stay in registers after inlining.
 */
LANES_INLINE void multiply_blocks(int rows, int panels, int of, const float *a, int64_t ar,
                                  const struct tile *t, int first, int64_t k, int64_t end,
                                  struct lanes *chain)
{
	const char *b = t->panel + first * t->bp + t->blocks + k / BF12_BLOCK * BF12_BLOCK_BYTES;
	struct lanes c[TILE_ROWS * TILE_WIDEST];

	TILE_UNROLL
	for (int i = 0; i < rows * panels; i++)
		c[i] = chain[i / panels * of + first + i % panels];
	for (; k < end; k += BF12_BLOCK, a += BF12_BLOCK, b += BF12_BLOCK_BYTES) {
		TILE_UNROLL
		for (int i = 0; i < BF12_BLOCK / 2; i++) {
			TILE_UNROLL
			for (int p = 0; p < panels; p++) {
				const char *at = b + p * t->bp;
				struct lanes w[2];

				if (i < BF12_BLOCK_BYTES / 64)
					__builtin_prefetch(at + AHEAD + 64 * i);
				decode_pair(&t->exponents[first + p], load_words(at),
				            load_words(at + 64 * (1 + i / 2)), i, w);
				TILE_UNROLL
				for (int r = 0; r < rows; r++) {
					const float *x = a + r * ar + 2 * i;

					c[r * panels + p] =
						lanes_fma(x[0], w[0], c[r * panels + p]);
					c[r * panels + p] =
						lanes_fma(x[1], w[1], c[r * panels + p]);
				}
			}
		}
	}
	TILE_UNROLL
	for (int i = 0; i < rows * panels; i++)
		chain[i / panels * of + first + i % panels] = c[i];
}

/* Multiplies elements [k, k + n) of a block with exceptions; of: chains of a row. */
LANES_INLINE void multiply_odd_block(int rows, int of, const float *a, int64_t ar,
                                     const struct tile *t, int panel, int64_t k, int64_t n,
                                     struct lanes *chain)
{
	const struct exception *e = t->next[panel];
	const char *b = t->panel + panel * t->bp + t->blocks + k / BF12_BLOCK * BF12_BLOCK_BYTES;
	int64_t first = k % BF12_BLOCK;
	float w[BF12_BLOCK * LANES];
	words code = load_words(b);

	TILE_UNROLL
	for (int i = 0; i < BF12_BLOCK / 2; i++) {
		struct lanes pair[2];

		decode_pair(&t->exponents[panel], code, load_words(b + 64 * (1 + i / 2)), i, pair);
		lanes_store(w + 2 * i * LANES, pair[0]);
		lanes_store(w + (2 * i + 1) * LANES, pair[1]);
	}
	for (; e < t->last[panel] && e->at < (k + n) * LANES; e++)
		w[e->at - (k - first) * LANES] = tess_float(e->bits);
	for (int64_t i = 0; i < n; i++) {
		TILE_UNROLL
		for (int r = 0; r < rows; r++) {
			struct lanes *c = &chain[r * of + panel];

			*c = lanes_fma(a[r * ar + i], lanes_load(w + (first + i) * LANES), *c);
		}
	}
}

TILE_INLINE void run_coded_tile(int rows, int panels, const float *a, int64_t ar, struct tile *t,
                                float *slot, int64_t pitch, const struct sum_step *step)
{
	struct lanes c[TILE_ROWS * TILE_WIDEST];
	int64_t end = step->at + step->len, n;

	slot += step->level * pitch;
	tile_begin(rows * panels, c, slot, step);
	for (int64_t k = step->at; k < end; k += n, a += n) {
		int64_t even = (t->next_odd < end ? t->next_odd : end) - k;

		if (k % BF12_BLOCK == 0 && even >= BF12_BLOCK) {
			n = even / BF12_BLOCK * BF12_BLOCK;
			multiply_blocks(rows, panels, panels, a, ar, t, 0, k, k + n, c);
			continue;
		}
		n = BF12_BLOCK - k % BF12_BLOCK;
		n = n < end - k ? n : end - k;
		for (int p = 0; p < panels; p++)
			if (n == BF12_BLOCK && t->odd[p] >= k + n)
				multiply_blocks(rows, 1, panels, a, ar, t, p, k, k + n, c);
			else
				multiply_odd_block(rows, panels, a, ar, t, p, k, n, c);
		skip_exceptions(t, panels, k + n);
	}
	tile_finish(rows * panels, c, slot, pitch, step);
}

#define TILE(name, rows, panels) \
	static void name(const float *a, int64_t ar, const void *b, int64_t bk, int64_t bp, \
	                 float *slot, int64_t pitch, const struct sum_step *step, \
	                 const struct sum_step *end) \
	{ \
		struct tile t; \
		t.panel = b; \
		t.bp = bp; \
		t.blocks = bk; \
		const int64_t first = step->at; \
		begin_tile(&t, panels, first); \
		for (; step < end; step++) \
			run_coded_tile(rows, panels, a + step->at - first, ar, &t, slot, pitch, \
			               step); \
	}
#define TILES(rows, wide) \
	TILE(run_##rows, rows, 1) \
	TILE(run_wide_##rows, rows, wide)

TILES(1, TILE_WIDE_1)
TILES(2, TILE_WIDE_3)
TILES(3, TILE_WIDE_3)
TILES(4, TILE_WIDE_6)
TILES(5, TILE_WIDE_6)
TILES(6, TILE_WIDE_6)

tile_fn *bf12_find_tile(int rows, bool wide)
{
	static tile_fn *const table[2][TILE_ROWS] = {
		{ run_1, run_2, run_3, run_4, run_5, run_6 },
		{ run_wide_1, run_wide_2, run_wide_3, run_wide_4, run_wide_5, run_wide_6 },
	};

	return table[wide][rows - 1];
}
