#include "core/rendezvous/sigusr1.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* A signal belongs to the process, and its handler gets no argument: this has to be global. */
static atomic_int event_fd = -1;

static void handle_sigusr1(int sig)
{
	int saved = errno, fd = atomic_load(&event_fd);
	uint64_t one = 1;

	(void)sig;
	if (fd >= 0 && write(fd, &one, sizeof one) < 0)
		errno = 0; /* it is readable already */
	errno = saved;
}

int tess_sigusr1_open(void)
{
	struct sigaction action = { .sa_handler = handle_sigusr1, .sa_flags = SA_RESTART }, old;
	int fd, none = -1;

	if (sigaction(SIGUSR1, NULL, &old) || old.sa_flags & SA_SIGINFO ||
	    old.sa_handler != SIG_DFL)
		return -1;
	fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (fd < 0)
		return -1;
	if (atomic_compare_exchange_strong(&event_fd, &none, fd) &&
	    !sigaction(SIGUSR1, &action, NULL))
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
	if (!sigaction(SIGUSR1, NULL, &now) && !(now.sa_flags & SA_SIGINFO) &&
	    now.sa_handler == handle_sigusr1)
		signal(SIGUSR1, SIG_DFL);
	close(fd);
}
