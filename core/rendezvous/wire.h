/*
 * wire.h - frames over the rendezvous socket: native integers, every frame a multiple of 8 bytes.
 *
 *   to the server     a          b              payload
 *   HELLO             rank       ranks          version and pid (struct tess_hello)
 *   SET               key bytes  value bytes    key, value
 *   GET               key bytes  id             key
 *   CALL_DESC         -          -              struct tess_call_desc
 *   DEADLINE          calls      -              as many struct tess_call_key: passed in these calls
 *   GROUP             -          -              struct tess_members
 *   GROUP_LEAVE       id         -
 *   FAIL              -          status         sentence, ended by 0
 *   LEAVE             -          -
 *   HEARTBEAT         -          -              between hosts, every TESS_HEARTBEAT_MS
 *   STAY              ms         overdue        slow call of a plugin, ended by 0; "": none now
 *   to a rank
 *   WELCOME           -          -              all ranks have joined
 *   VALUE             value bytes  id           value
 *   FAILED            rank       status         sentence, ended by 0
 *   REFUSED           -          status         sentence, ended by 0; the connection ends
 *   ALL_LEFT          -          -              all ranks have sent LEAVE
 *   RECORD            -          -              write the flight record
 */
#ifndef TESS_RENDEZVOUS_WIRE_H
#define TESS_RENDEZVOUS_WIRE_H

#include <dirent.h>
#include <stdbool.h>
#include <sys/types.h>
#include <tessera/plugin.h>

enum {
	TESS_HELLO = 1,
	TESS_SET,
	TESS_GET,
	TESS_CALL_DESC,
	TESS_DEADLINE,
	TESS_FAIL,
	TESS_LEAVE,
	TESS_GROUP,
	TESS_GROUP_LEAVE,
	TESS_HEARTBEAT,
	TESS_STAY,
	TESS_WELCOME = 32,
	TESS_VALUE,
	TESS_FAILED,
	TESS_REFUSED,
	TESS_ALL_LEFT,
	TESS_RECORD
};
enum {
	TESS_WIRE_VERSION = 4,
	TESS_HEARTBEAT_MS = 250,
	/* a rank without heartbeats for this time has ended, is stopped, or cannot be reached */
	TESS_SILENT_MS = 5 * TESS_HEARTBEAT_MS,
	TESS_KEY_MAX = 1024,
	TESS_FRAME_MAX = (1 << 20) + 4096
};

struct tess_frame {
	uint32_t bytes; /* size of the frame, with the header */
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

/* Appends a frame with a payload of two pieces (NULL, 0: none). False: no memory. */
bool tess_pipe_put(struct tess_pipe *p, uint32_t kind, int32_t a, int32_t b, const void *one,
                   size_t len_one, const void *two, size_t len_two);
/*
 * Takes out the next complete frame; NULL: none yet, or *bad: malformed. Borrowed, aligned to 8,
 * until the pipe is used again.
 */
const struct tess_frame *tess_pipe_next(struct tess_pipe *p, bool *bad);
/* Write or read without blocking. False: the connection has ended. */
bool tess_pipe_flush(struct tess_pipe *p, int fd);
bool tess_pipe_fill(struct tess_pipe *p, int fd);
void tess_pipe_free(struct tess_pipe *p);

/*
 * Returns XDG_RUNTIME_DIR, or /tmp if it is not set or its directory is *missing, as after a
 * logout. Borrowed from the environment.
 */
const char *tess_socket_find_base(bool *missing);
/*
 * Returns the path of `job`'s socket in the directory ${XDG_RUNTIME_DIR:-/tmp}/tessera-UID, which
 * is created with mode 0700 if missing. TESS_EPERM: the directory belongs to another user, or
 * grants others access; TESS_EINVAL: the name.
 */
tess_status tess_socket_path(const char *job, char *path, size_t size);
/* Open a listening, or connected, socket: close-on-exec, non-blocking; -1 with errno. */
int tess_socket_listen(const char *path, int backlog);
int tess_socket_connect(const char *path);
/* Removes the socket `path` and its lock file. False: a server holds the lock. */
bool tess_socket_remove_dead(const char *path);
/* Opens the directory of the sockets and sets `dir`, its path; closedir() it. NULL: failed. */
DIR *tess_socket_open_directory(char *dir, size_t size);
/* Calls tess_socket_remove_dead for all jobs whose names begin with `prefix`. */
void tess_socket_sweep(const char *prefix);
/* Returns the process at the other end of a socket, if it belongs to this user; else -1. */
pid_t tess_socket_peer(int fd);

#endif
