/*
 * wire.h - frames over the rendezvous socket: native integers, every frame a multiple of 8 bytes.
 *
 *   to the server     a          b              payload
 *   HELLO             rank       ranks          version and pid (struct tess_hello)
 *   SET               key bytes  value bytes    key, value
 *   GET               key bytes  id             key
 *   NOTE              -          -              struct tess_call_desc
 *   LATE              calls      -              as many struct tess_call_key
 *   GROUP             -          -              struct tess_members
 *   GROUP_BYE         id         -
 *   FAIL              -          status         sentence, ended by 0
 *   BYE               -          -
 *   ALIVE             -          -              now and then, between hosts
 *   to a rank
 *   WELCOME           -          -              all ranks are here
 *   VALUE             value bytes  id           value
 *   FAILED            rank       status         sentence, ended by 0
 *   REFUSED           -          status         sentence, ended by 0; the connection ends
 *   GONE              -          -              all ranks have said BYE
 *   RECORD            -          -              write down the last calls (flight.h)
 */
#ifndef TESS_COMM_WIRE_H
#define TESS_COMM_WIRE_H

#include <stdbool.h>
#include <sys/types.h>
#include <tessera/plugin.h>

enum {
	TESS_HELLO = 1,
	TESS_SET,
	TESS_GET,
	TESS_CALL_DESC,
	TESS_LATE,
	TESS_FAIL,
	TESS_BYE,
	TESS_GROUP,
	TESS_GROUP_LEAVE,
	TESS_ALIVE,
	TESS_WELCOME = 32,
	TESS_VALUE,
	TESS_FAILED,
	TESS_REFUSED,
	TESS_GONE,
	TESS_RECORD
};
enum {
	TESS_WIRE_VERSION = 3,
	TESS_ALIVE_MS = 250, /* between two of a rank */
	TESS_SILENT_MS =
		5 * TESS_ALIVE_MS, /* of a rank that has ended, is stopped, or out of reach */
	TESS_KEY_MAX = 1024,
	TESS_FRAME_MAX = (1 << 20) + 4096
};

struct tess_frame {
	uint32_t bytes; /* of all, header included */
	uint32_t kind;
	int32_t a, b;
	char payload[];
};

struct tess_hello {
	uint32_t version;
	int32_t pid;
};

struct tess_pipe { /* bytes in [begin, end); {0}: empty */
	char *at;
	size_t begin, end, capacity;
};

/* Appends a frame of two pieces (NULL, 0: none); false without memory. */
bool tess_pipe_put(struct tess_pipe *p, uint32_t kind, int32_t a, int32_t b, const void *one,
                   size_t len_one, const void *two, size_t len_two);
/*
 * Takes out the next whole frame; NULL: none yet. *bad: what stands there is no frame. Borrowed,
 * aligned to 8, until the pipe is used again.
 */
const struct tess_frame *tess_pipe_next(struct tess_pipe *p, bool *bad);
/* Writes, or reads, what goes without blocking. False: the connection has ended. */
bool tess_pipe_flush(struct tess_pipe *p, int fd);
bool tess_pipe_fill(struct tess_pipe *p, int fd);
void tess_pipe_free(struct tess_pipe *p);

/*
 * The directory ${XDG_RUNTIME_DIR:-/tmp}/tessera-UID, made with mode 0700 where it is missing, and
 * the path of `job`'s socket in it. TESS_EPERM: it is not ours, or open to others; TESS_EINVAL: the
 * name.
 */
tess_status tess_socket_path(const char *job, char *path, size_t room);
/* Makes, or connects, a socket; -1 with errno. Closed on exec, not blocking. */
int tess_socket_listen(const char *path, int backlog);
int tess_socket_connect(const char *path);
/*
 * Removes the socket at `path`, and the lock beside it, if nobody serves it any more: whoever does holds the
 * lock. False: somebody does.
 */
bool tess_socket_forget(const char *path);
/* The same, of all jobs whose names begin so. */
void tess_socket_sweep(const char *prefix);
/* The process at the other end of a socket, if it is of our user; else -1. */
pid_t tess_socket_peer(int fd);

#endif
