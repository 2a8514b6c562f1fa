/* segment.h - shared memory, and the slots of a group in it. */
#ifndef SHM_SEGMENT_H
#define SHM_SEGMENT_H

#include "state.h"

/* A file whose size cannot change. Its pages are allocated when they are written. */
tess_status segment_file(const struct group *g, size_t bytes, int *out);
tess_status segment_map(const struct group *g, int fd, size_t bytes, struct map **out);
/* The map of another rank of this process, if it is still there. */
tess_status segment_share(const struct group *g, struct map *theirs, struct map **out);
void segment_unmap(struct map *m);
static inline char *segment_slot(const struct group *g, int32_t r, uint64_t round)
{
	return g->slot + ((size_t)r * g->slots + round % g->slots) * (TABLE + g->chunk);
}
struct pair *segment_pair(const struct group *g, int32_t from, int32_t to);
/* Opens the segment of a group: made by rank 0, then passed to the other ranks. */
tess_status segment_open(struct group *g, const struct tess_group_entry *how,
                         const unsigned char *process);
void segment_close(struct group *g);

#endif
