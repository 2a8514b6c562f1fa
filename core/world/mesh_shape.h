/* mesh_shape.h - the shape of a mesh: named dimensions with sizes; needs no ranks. */
#ifndef TESS_GROUP_MESH_SHAPE_H
#define TESS_GROUP_MESH_SHAPE_H

#include <tessera/tessera.h>

/* More dimensions than TESS_RANKS_MAX has factors; further ones would have one rank each. */
enum { TESS_MESH_DIMS = 16, TESS_MESH_NAME = 16, TESS_MESH_TEXT = 28 * TESS_MESH_DIMS };

struct tess_mesh_dim {
	char name[TESS_MESH_NAME];
	int32_t size;
	int32_t stride; /* ranks from one coordinate to the next */
};

struct tess_mesh_shape { /* copied by value; the last dimension varies fastest */
	int32_t ndims, nranks; /* nranks: the product of the sizes */
	struct tess_mesh_dim dim[TESS_MESH_DIMS];
};

/*
 * Parses "dp=2,tp=4" for `nranks` ranks; one size may be omitted. nranks 0: the product of the
 * sizes. TESS_EINVAL: another form, a repeated name, or sizes that do not multiply to nranks.
 */
tess_status tess_mesh_shape_parse(const char *text, int32_t nranks, struct tess_mesh_shape *out);
/* Makes a mesh of one dimension of n ranks. */
struct tess_mesh_shape tess_mesh_shape_make(const char *name, int32_t n);
/* Appends tp=1, which plans are for, if the mesh has only ddp, dp and pp. */
struct tess_mesh_shape tess_mesh_shape_complete(const struct tess_mesh_shape *s);
/* Returns the mesh of one replica: without dp, and complete. */
struct tess_mesh_shape tess_mesh_shape_get_replica(const struct tess_mesh_shape *s);
/* Merges dimensions i and i + 1 into one with the latter's name; ranks keep their order. */
struct tess_mesh_shape tess_mesh_shape_merge(const struct tess_mesh_shape *s, int32_t i);
/* Formats "dp=2,tp=4". */
const char *tess_mesh_shape_format(const struct tess_mesh_shape *s, char text[TESS_MESH_TEXT]);

/* Returns the index of the dimension with the first `len` letters of `name`; -1: none. */
int32_t tess_mesh_shape_find(const struct tess_mesh_shape *s, const char *name, size_t len);
int32_t tess_mesh_shape_coordinate(const struct tess_mesh_shape *s, int32_t dim, int32_t rank);
/* Returns the rank in `part`, a mesh of some dimensions of s, with the coordinates of `rank`. */
int32_t tess_mesh_shape_project(const struct tess_mesh_shape *s, int32_t rank,
                                const struct tess_mesh_shape *part);

/* Returns the dimensions of an open mesh, with all sizes, borrowed. */
const struct tess_mesh_shape *tess_mesh_get_shape(const struct tess_mesh *m);
struct tess_world *tess_mesh_world(const struct tess_mesh *m);
/* Counts what is open on the mesh, which closes after it: n 1 opens, -1 closes. */
void tess_mesh_hold(struct tess_mesh *m, int32_t n);

#endif
