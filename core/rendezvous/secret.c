#include "core/rendezvous/secret.h"

#include "core/base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SECRET_MAX = 4096 };

static void compute_hmac(const unsigned char *key, size_t key_len, const char *label,
                         const void *one, size_t len_one, const void *two, size_t len_two,
                         unsigned char *out)
{
	crypto_auth_hmacsha256_state state;

	crypto_auth_hmacsha256_init(&state, key, key_len);
	crypto_auth_hmacsha256_update(&state, (const void *)label, strlen(label) + 1);
	crypto_auth_hmacsha256_update(&state, one, len_one);
	crypto_auth_hmacsha256_update(&state, two, len_two);
	crypto_auth_hmacsha256_final(&state, out);
	sodium_memzero(&state, sizeof state);
}

static tess_status check_secret_file(const char *path, int fd)
{
	struct stat st;

	if (fstat(fd, &st))
		return tess_fail(TESS_EIO, "%s cannot be read: %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode) || st.st_uid != geteuid())
		return tess_fail(TESS_EPERM,
		                 "the secret %s must be a regular file that belongs to you", path);
	if (st.st_mode & 077)
		return tess_fail(
			TESS_EPERM,
			"the secret %s has mode %04o and is open to others; make a new one, or "
			"close it: chmod 600 %s",
			path, (unsigned)st.st_mode & 07777, path);
	return TESS_OK;
}

static tess_status read_secret_file(const char *path, int fd, unsigned char *text, size_t *len)
{
	ssize_t n;

	*len = 0;
	while ((n = read(fd, text + *len, SECRET_MAX + 1 - *len)) > 0)
		*len += (size_t)n;
	if (n < 0)
		return tess_fail(TESS_EIO, "%s cannot be read: %s", path, strerror(errno));
	if (*len > SECRET_MAX)
		return tess_fail(TESS_EINVAL, "the secret %s is longer than %d bytes", path,
		                 SECRET_MAX);
	while (*len && memchr(" \t\r\n", text[*len - 1], 4))
		--*len;
	if (*len < TESS_SECRET_MIN)
		return tess_fail(TESS_EINVAL,
		                 "the secret %s has %zu bytes, fewer than %d; make one with: "
		                 "(umask 077; head -c 32 /dev/urandom | base64 >%s)",
		                 path, *len, TESS_SECRET_MIN, path);
	return TESS_OK;
}

tess_status tess_secret_load(const char *path, const char *job, struct tess_secret *out)
{
	unsigned char text[SECRET_MAX + 1];
	size_t len = 0;
	tess_status st;
	int fd;

	if (!*path)
		return tess_fail(
			TESS_EINVAL,
			"ranks on several hosts must prove that they hold the same secret, and "
			"TESSERA_SECRET_FILE is not set; make one: "
			"(umask 077; head -c 32 /dev/urandom | base64 >~/.tessera-secret), copy it "
			"to every host: scp -p ~/.tessera-secret HOST: and set "
			"TESSERA_SECRET_FILE=$HOME/.tessera-secret on each");
	if (sodium_init() < 0)
		return tess_fail(TESS_EIO, "libsodium has no source of random numbers");
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
	if (fd < 0 && errno == ELOOP)
		return tess_fail(TESS_EPERM,
		                 "the secret %s is a symbolic link; name the file itself in "
		                 "TESSERA_SECRET_FILE",
		                 path);
	if (fd < 0)
		return tess_fail(errno == ENOENT ? TESS_ENOENT : TESS_EIO,
		                 "the secret %s (TESSERA_SECRET_FILE) cannot be opened: %s", path,
		                 strerror(errno));
	st = check_secret_file(path, fd);
	if (!st)
		st = read_secret_file(path, fd, text, &len);
	close(fd);
	if (!st)
		compute_hmac(text, len, "tessera rendezvous 1", job, strlen(job), NULL, 0,
		             out->key);
	sodium_memzero(text, sizeof text);
	return st;
}

void tess_nonce_make(unsigned char *nonce)
{
	randombytes_buf(nonce, TESS_NONCE);
}

void tess_secret_prove(const struct tess_secret *s, enum tess_side side,
                       const unsigned char *client_nonce, const unsigned char *server_nonce,
                       unsigned char *proof)
{
	compute_hmac(s->key, sizeof s->key, side == TESS_CLIENT ? "client" : "server", client_nonce,
	             TESS_NONCE, server_nonce, TESS_NONCE, proof);
}

bool tess_secret_check(const struct tess_secret *s, enum tess_side side,
                       const unsigned char *client_nonce, const unsigned char *server_nonce,
                       const unsigned char *proof)
{
	unsigned char want[TESS_PROOF];

	tess_secret_prove(s, side, client_nonce, server_nonce, want);
	return !crypto_verify_32(want, proof);
}
