/* segment.h - shared memory, and the slots of a group in it. */
#ifndef SHM_SEGMENT_H
#define SHM_SEGMENT_H

#include "state.h"

/* Creates a file of fixed size, whose pages are allocated when they are written. */
tess_status segment_file(const struct group *g, size_t bytes, int *out);
tess_status segment_map(const struct group *g, int fd, size_t bytes, struct map **out);
/* Finds the map of another rank of this process, if it still exists. */
tess_status segment_share(const struct group *g, struct map *theirs, struct map **out);
void segment_unmap(struct map *m);
static inline char *segment_slot(const struct group *g, int32_t r, uint64_t round)
{
	return g->slot + ((size_t)r * g->slots + round % g->slots) * (TABLE + g->chunk);
}
struct pair *segment_pair(const struct group *g, int32_t from, int32_t to);
/* Opens the segment of a group: rank 0 creates it, and passes it to the other ranks. */
tess_status segment_open(struct group *g, const struct tess_group_entry *how,
                         const unsigned char *process);
void segment_close(struct group *g);

#endif
