/*
 * secret.h - both ends of a TCP connection prove that they hold the same secret, for one job.
 *
 *   to the server    32 bytes   its client's nonce
 *   to the client    32 bytes   the server's nonce
 *   to the server    32 bytes   HMAC-SHA-256(key, "client" and both nonces)
 *   to the client    32 bytes   HMAC-SHA-256(key, "server" and both nonces)
 * where key = HMAC-SHA-256(secret, the job's name). The server sends its proof only after the
 * client's; a proof is valid for one connection and one direction. Later data are neither encrypted
 * nor signed: this excludes unauthenticated peers, not an attacker in the network between the
 * hosts.
 */
#ifndef TESS_RENDEZVOUS_SECRET_H
#define TESS_RENDEZVOUS_SECRET_H

#include <stdbool.h>
#include <stddef.h>
#include <tessera/plugin.h>

enum { TESS_NONCE = 32, TESS_PROOF = 32, TESS_SECRET_MIN = 32 };
enum tess_side { TESS_CLIENT, TESS_SERVER };

struct tess_secret { /* the secret of one job */
	unsigned char key[32];
};

/*
 * Reads the file, which must be regular, belong to this user with no access for others, and contain
 * 32 bytes to 4 KiB without the white space at its end. TESS_EINVAL: `path` is ""; TESS_EPERM,
 * TESS_ENOENT, TESS_EIO.
 */
tess_status tess_secret_load(const char *path, const char *job, struct tess_secret *out);

void tess_nonce_make(unsigned char *nonce);
void tess_secret_prove(const struct tess_secret *s, enum tess_side side,
                       const unsigned char *client_nonce, const unsigned char *server_nonce,
                       unsigned char *proof);
/* Returns whether the proof is that of `side`, in constant time. */
bool tess_secret_check(const struct tess_secret *s, enum tess_side side,
                       const unsigned char *client_nonce, const unsigned char *server_nonce,
                       const unsigned char *proof);

#endif
