/* mesh_shape.h - ranks laid out in named dimensions; needs no ranks. */
#ifndef TESS_GROUP_MESH_SHAPE_H
#define TESS_GROUP_MESH_SHAPE_H

#include <tessera/tessera.h>

/* More dimensions than TESS_RANKS_MAX has factors: what is more has one rank in each. */
enum { TESS_MESH_DIMS = 16, TESS_MESH_NAME = 16, TESS_MESH_TEXT = 28 * TESS_MESH_DIMS };

struct tess_mesh_dim {
	char name[TESS_MESH_NAME];
	int32_t size;
	int32_t stride; /* ranks from one coordinate to the next */
};

struct tess_mesh_shape { /* a value; the last dimension varies fastest */
	int32_t ndims, nranks; /* nranks: the product of the sizes */
	struct tess_mesh_dim dim[TESS_MESH_DIMS];
};

/*
 * Parses "dp=2,tp=4" for `nranks` ranks; one size may be left out. nranks 0: as many as the sizes
 * make. TESS_EINVAL: another form, a name given twice, or sizes that do not multiply to nranks.
 */
tess_status tess_mesh_shape_parse(const char *text, int32_t nranks, struct tess_mesh_shape *out);
/* One dimension of n ranks. */
struct tess_mesh_shape tess_mesh_shape_make(const char *name, int32_t n);
/* Behind its dimensions tp=1, which plans are for, if it has none but ddp, dp and pp. */
struct tess_mesh_shape tess_mesh_shape_complete(const struct tess_mesh_shape *s);
/* The ranks that run one copy of a model: without dp, and complete. */
struct tess_mesh_shape tess_mesh_shape_get_replica(const struct tess_mesh_shape *s);
/* Dimension i and the one after it as one, which has the latter's name: the ranks stay. */
struct tess_mesh_shape tess_mesh_shape_merge(const struct tess_mesh_shape *s, int32_t i);
/* "dp=2,tp=4" */
const char *tess_mesh_shape_format(const struct tess_mesh_shape *s, char text[TESS_MESH_TEXT]);

/* The index of the dimension that the first `len` letters of `name` name; -1: none. */
int32_t tess_mesh_shape_find(const struct tess_mesh_shape *s, const char *name, size_t len);
int32_t tess_mesh_shape_coordinate(const struct tess_mesh_shape *s, int32_t dim, int32_t rank);
/* The rank in `part`, a mesh of some of the dimensions of s, that has the coordinates of `rank`. */
int32_t tess_mesh_shape_project(const struct tess_mesh_shape *s, int32_t rank,
                                const struct tess_mesh_shape *part);

/* The dimensions of an open mesh, with all sizes. Borrowed. */
const struct tess_mesh_shape *tess_mesh_get_shape(const struct tess_mesh *m);
struct tess_world *tess_mesh_world(const struct tess_mesh *m);
/* n 1: a session or trainer opens on the mesh, which is not closed before it; -1: it closes. */
void tess_mesh_hold(struct tess_mesh *m, int32_t n);

#endif
