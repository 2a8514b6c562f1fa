/*
 * members.h - the ranks of a group, for its members and the coordinator. One block of memory,
 * stored and sent unchanged.
 */
#ifndef TESS_RENDEZVOUS_MEMBERS_H
#define TESS_RENDEZVOUS_MEMBERS_H

#include <stdbool.h>
#include <tessera/plugin.h>

enum { TESS_GROUP_NAME = 28 }; /* bytes of a name, with the 0 */

struct tess_members {
	uint32_t bytes; /* size of the block, a multiple of 8 */
	uint32_t id; /* unique in the job, agreed by all members; 0: all ranks */
	int32_t n;
	char name[TESS_GROUP_NAME]; /* "dp/1"; several groups may have one name */
	int32_t member[]; /* the world rank of each */
};

/* Returns a group with the members 0 to n - 1, until they are set. NULL: no memory. */
struct tess_members *tess_members_new(uint32_t id, const char *name, int32_t n);

/* Returns the rank in the group; -1: not a member. */
int32_t tess_members_find(const struct tess_members *m, int32_t world_rank);

/* Formats "group dp/1 of ranks 1, 3"; lists the first few ranks of a large group. */
void tess_members_format(const struct tess_members *m, char *text, size_t size);

/* "dp/1#9": unique in the job; keys of its backend begin with this and a slash. */
enum { TESS_MEMBERS_KEY = TESS_GROUP_NAME + 12 };
void tess_members_key(const struct tess_members *m, char text[TESS_MEMBERS_KEY]);

/*
 * Returns whether `bytes` at `m`, aligned to 8, are well-formed members of a job of `nranks`; for
 * input from a socket.
 */
bool tess_members_valid(const struct tess_members *m, size_t bytes, int32_t nranks);

#endif
