#include "core/rendezvous/sigusr1.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Global, since a signal belongs to the process and its handler has no argument. */
static atomic_int event_fd = -1;
static atomic_bool caught, noted; /* caught: the handler stays when the descriptor is closed */

static void handle_sigusr1(int sig)
{
	int saved = errno, fd = atomic_load(&event_fd);
	uint64_t one = 1;

	(void)sig;
	atomic_store(&noted, true);
	if (fd >= 0 && write(fd, &one, sizeof one) < 0)
		errno = 0; /* it is readable already */
	errno = saved;
}

/* Returns true if `act` is the handler of this file. */
static bool is_own_handler(const struct sigaction *act)
{
	return !(act->sa_flags & SA_SIGINFO) && act->sa_handler == handle_sigusr1;
}

static bool set_handler(void)
{
	const struct sigaction act = { .sa_handler = handle_sigusr1, .sa_flags = SA_RESTART };

	return !sigaction(SIGUSR1, &act, NULL);
}

int tess_sigusr1_open(void)
{
	struct sigaction old;
	int fd, none = -1;

	if (sigaction(SIGUSR1, NULL, &old) ||
	    (!is_own_handler(&old) && (old.sa_flags & SA_SIGINFO || old.sa_handler != SIG_DFL)))
		return -1;
	fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (fd < 0)
		return -1;
	if (atomic_compare_exchange_strong(&event_fd, &none, fd) && set_handler())
		return fd;
	none = fd;
	atomic_compare_exchange_strong(&event_fd, &none, -1);
	close(fd);
	return -1;
}

void tess_sigusr1_close(int fd)
{
	struct sigaction now;

	if (fd < 0)
		return;
	atomic_store(&event_fd, -1);
	if (!atomic_load(&caught) && !sigaction(SIGUSR1, NULL, &now) && is_own_handler(&now))
		signal(SIGUSR1, SIG_DFL);
	close(fd);
}

void tess_sigusr1_catch(void)
{
	atomic_store(&caught, set_handler());
}

void tess_sigusr1_note(void)
{
	atomic_store(&noted, true);
}

bool tess_sigusr1_take(void)
{
	return atomic_exchange(&noted, false);
}
