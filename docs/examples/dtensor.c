/*
 * dtensor.c - a product y = x w on a mesh: x and w are cut, and y is a Partial until its sum is
 * finished.
 *
 *   cc dtensor.c -o dtensor $(pkg-config --cflags --libs tessera) \
 *      -Wl,-rpath,"$(pkg-config --variable=libdir tessera)"
 *   tessera launch -n 4 -- ./dtensor dp=2,tp=2
 */
#include <stdio.h>
#include <tessera/names.h>
#include <tessera/tessera.h>

enum { ROWS = 5, INNER = 7, COLUMNS = 3 };

static const struct tess_place replicate = { .kind = TESS_REPLICATE };
static const struct tess_place partial = { .kind = TESS_PARTIAL, .op = TESS_SUM };
static const struct tess_place shard[] = { { .kind = TESS_SHARD, .dim = 0 },
	                                   { .kind = TESS_SHARD, .dim = 1 } };

/* Makes a tensor that is placed along dp and tp: from full[] of rank 0, or, if NULL, of zeros. */
static tess_status make_tensor(struct tess_mesh *m, const char *name, const int64_t *shape,
                               struct tess_place dp, struct tess_place tp, const float *full,
                               struct tess_dtensor **out)
{
	const struct tess_place places[] = { dp, tp };
	const struct tess_dtensor_spec spec = { .size = sizeof spec,
		                                .dtype = TESS_F32,
		                                .ndim = 2,
		                                .shape = shape,
		                                .places = places,
		                                .name = name };

	return full ? tess_dtensor_distribute(m, &spec, 0, full, out)
	            : tess_dtensor_from_local(m, &spec, NULL, out);
}

/* Multiplies what this rank holds of x and w: an addend of what it holds of y. */
static tess_status multiply_local(struct tess_dtensor *x, struct tess_dtensor *w,
                                  struct tess_dtensor *y)
{
	const float *a = tess_dtensor_local(x), *b = tess_dtensor_local(w);
	float *sum = tess_dtensor_local(y);
	int64_t n[2];
	tess_status st = tess_dtensor_get_local_shape(x, -1, n);

	for (int64_t i = 0; !st && i < n[0] * COLUMNS; i++)
		for (int64_t k = 0; k < n[1]; k++)
			sum[i] += a[i / COLUMNS * n[1] + k] * b[k * COLUMNS + i % COLUMNS];
	return st;
}

/* Prints which elements of x this rank holds. */
static void print_held(const struct tess_dtensor *x, int32_t rank)
{
	int64_t rows[1][2], columns[1][2];

	tess_dtensor_list_ranges(x, -1, 0, rows, 1);
	tess_dtensor_list_ranges(x, -1, 1, columns, 1);
	printf("rank %d holds rows %d to %d, columns %d to %d of x\n", (int)rank, (int)rows[0][0],
	       (int)rows[0][1] - 1, (int)columns[0][0], (int)columns[0][1] - 1);
}

/* Prints the moves that finish y. */
static tess_status print_moves(const struct tess_dtensor *y, const struct tess_place *to)
{
	struct tess_dtensor_move move[4];
	char from[TESS_PLACE_SIZE], then[TESS_PLACE_SIZE];
	int32_t n = 0;
	tess_status st = tess_dtensor_list_moves(y, to, move, 4, &n);

	for (int32_t i = 0; i < n; i++)
		printf("%s -> %s along dimension %d: %s, %d bytes\n",
		       tess_place_format(move[i].from, from), tess_place_format(move[i].to, then),
		       (int)move[i].dim, tess_kind_name(move[i].kind), (int)move[i].sent);
	return st;
}

int main(int argc, char **argv)
{
	static const int64_t x_shape[] = { ROWS, INNER }, w_shape[] = { INNER, COLUMNS };
	static const int64_t y_shape[] = { ROWS, COLUMNS };
	const struct tess_place whole[] = { replicate, replicate };
	struct tess_dtensor *x = NULL, *w = NULL, *y = NULL, *z = NULL;
	float a[ROWS * INNER], b[INNER * COLUMNS];
	struct tess_mesh *mesh = NULL;
	struct tess_world *world;
	int failed;

	if (argc != 2 || tess_world_open(&world)) {
		fprintf(stderr, "dtensor: %s\n",
		        argc != 2 ? "usage: dtensor dp=N,tp=N" : tess_error());
		return 1;
	}
	for (int i = 0; i < ROWS * INNER; i++)
		a[i] = (float)i;
	for (int i = 0; i < INNER * COLUMNS; i++)
		b[i] = (float)(i % 4);
	failed = tess_mesh_open(world, argv[1], &mesh) ||
	         make_tensor(mesh, "x", x_shape, shard[0], shard[1], a, &x) ||
	         make_tensor(mesh, "w", w_shape, replicate, shard[0], b, &w) ||
	         make_tensor(mesh, "y", y_shape, shard[0], partial, NULL, &y) ||
	         multiply_local(x, w, y);
	if (!failed)
		print_held(x, tess_world_rank(world));
	if (!failed && !tess_world_rank(world))
		failed = print_moves(y, whole);
	failed = failed || tess_dtensor_redistribute(y, whole, &z);
	if (failed)
		fprintf(stderr, "dtensor: %s\n", tess_error());
	else
		printf("the last element of y is %g\n",
		       ((float *)tess_dtensor_local(z))[ROWS * COLUMNS - 1]);
	tess_dtensor_free(x);
	tess_dtensor_free(w);
	tess_dtensor_free(y);
	tess_dtensor_free(z);
	tess_mesh_close(mesh);
	tess_world_close(world);
	return failed;
}
