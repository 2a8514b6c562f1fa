/*
 * roster.h - who is in a group, as its members and the hub know it. One block of memory: kept and sent
 * as it is.
 */
#ifndef TESS_COMM_ROSTER_H
#define TESS_COMM_ROSTER_H

#include <stdbool.h>
#include <tessera/plugin.h>

enum { TESS_GROUP_NAME = 28 }; /* bytes of a name, the 0 included */

struct tess_members {
	uint32_t bytes; /* of all, a multiple of 8 */
	uint32_t id; /* unique in the job, agreed by all members; 0: all ranks */
	int32_t n;
	char name[TESS_GROUP_NAME]; /* "dp/1"; several groups may have one name */
	int32_t member[]; /* the world rank of each */
};

/* Its members are 0 to n - 1 until they are set; NULL: no memory. */
struct tess_members *tess_members_new(uint32_t id, const char *name, int32_t n);

/* Its rank in the group; -1: it is no member. */
int32_t tess_members_find(const struct tess_members *r, int32_t world_rank);

/* "group dp/1 of ranks 1, 3"; of many the first few. */
void tess_members_format(const struct tess_members *r, char *text, size_t room);

/* "dp/1#9": unique in the job, what its backend's keys in the store begin with; a slash follows. */
enum { TESS_MEMBERS_KEY = TESS_GROUP_NAME + 12 };
void tess_members_key(const struct tess_members *r, char text[TESS_MEMBERS_KEY]);

/*
 * Whether `bytes` at `r`, aligned to 8, are that of a group of some of `nranks`; for what comes over a
 * socket.
 */
bool tess_members_valid(const struct tess_members *r, size_t bytes, int32_t nranks);

#endif
