/*
 * shim.cc - Gloo's TCP transport behind the functions of shim.h; with small_channel.h the only C++
 * of the backend.
 */
#include "shim.h"

#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <exception>

#include "small_channel.h"

using namespace shim;
using std::chrono::milliseconds;

namespace
{

int count_cpus()
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

/*
 * Blocks signals of this thread in a scope. Gloo writes to sockets without MSG_NOSIGNAL, and its
 * thread takes any signal of the process. A SIGPIPE caused by Gloo is discarded.
 */
class BlockSignals
{
      public:
	explicit BlockSignals(bool all)
	{
		sigset_t set;

		sigemptyset(&pipe_);
		sigaddset(&pipe_, SIGPIPE);
		sigfillset(&set);
		pthread_sigmask(SIG_BLOCK, all ? &set : &pipe_, &old_);
	}
	~BlockSignals()
	{
		const struct timespec none = { 0, 0 };

		if (!sigismember(&old_, SIGPIPE))
			while (sigtimedwait(&pipe_, nullptr, &none) < 0 && errno == EINTR)
				;
		pthread_sigmask(SIG_SETMASK, &old_, nullptr);
	}
	BlockSignals(const BlockSignals &) = delete;
	BlockSignals &operator=(const BlockSignals &) = delete;

      private:
	sigset_t pipe_, old_;
};

/*
 * Keeps Gloo's thread awake in a scope, by a descriptor that is always readable. The thread sleeps
 * for 10 ms at a time, and opening or closing a connection waits for its next turn. The object may
 * outlive the device.
 */
class KeepDeviceAwake
{
      public:
	explicit KeepDeviceAwake(tcp::Device &device) : fd_(eventfd(1, EFD_CLOEXEC))
	{
		static IdleHandler idle; /* static, since Gloo may still call it after the scope */

		if (fd_ >= 0)
			device.registerDescriptor(fd_, EPOLLIN, &idle);
	}
	~KeepDeviceAwake()
	{
		eventfd_t value;

		if (fd_ < 0)
			return;
		eventfd_read(fd_, &value); /* for what a fork may have kept of it */
		close(fd_);
	}
	KeepDeviceAwake(const KeepDeviceAwake &) = delete;
	KeepDeviceAwake &operator=(const KeepDeviceAwake &) = delete;

      private:
	struct IdleHandler final : tcp::Handler {
		void handleEvents(int) override
		{
			const struct timespec pause = { 0, 20000 }; /* so that other threads run */

			nanosleep(&pause, nullptr);
		}
	};

	const int fd_;
};

/* Describes the current exception in a handler, without the position in Gloo's source. */
void describe_exception(char *why) noexcept
{
	const char *text = "Gloo failed without a reason", *end;

	try {
		throw;
	} catch (const std::exception &e) {
		text = e.what();
		end = *text == '[' ? std::strstr(text, "] ") : nullptr;
		std::strncpy(why, end ? end + 2 : text, SHIM_WHY - 1);
	} catch (...) {
		std::strncpy(why, text, SHIM_WHY - 1);
	}
	why[SHIM_WHY - 1] = '\0';
}

} /* namespace */

struct shim_mesh {
	int rank, nranks;
	bool crowded; /* more ranks than CPUs */
	bool cut = false; /* all connections are closed */
	std::shared_ptr<tcp::Device> device;
	std::shared_ptr<Context> context;
	std::vector<std::unique_ptr<SmallChannel>> channels; /* by peer */

	Pair *get_pair(int peer)
	{
		return context->pair_to(peer);
	}
	/* Takes messages from all peers, which may wait for a place to continue. */
	void take_from_all()
	{
		for (auto &l : channels)
			if (l)
				l->take_arrived();
	}
};

static int await_large(shim_io *io, int64_t until)
{
	SmallChannel *channel = io->mesh->channels[io->peer].get();

	for (;;) {
		const bool lost =
			channel->has_lost_peer(); /* before taking what has arrived until then */

		io->mesh->take_from_all(); /* other works: their senders wait for a place */
		if (io->piece->is_done(io->sends))
			return SHIM_DONE;
		if (io->woken)
			return SHIM_WOKEN;
		if (lost)
			channel->tell_loss();
		if (tess_now() >= until)
			return SHIM_PENDING;
		io->piece->sleep_until(io->sends, until, io->woken);
	}
}

static int await_small(shim_io *io, int64_t until)
{
	SmallChannel *channel = io->mesh->channels[io->peer].get();
	const int64_t polls = std::min(until, tess_now() + kPoll);

	for (;;) {
		const bool lost = channel->has_lost_peer();
		int64_t t;

		io->mesh->take_from_all();
		if (io->done)
			return SHIM_DONE;
		if (io->woken)
			return SHIM_WOKEN;
		if (lost)
			channel->tell_loss();
		t = tess_now();
		if (t >= until)
			return SHIM_PENDING;
		if (t >= polls)
			channel->sleep_until_arrival(until, io->woken);
		else
			channel->poll_pair();
		if (t < polls && io->mesh->crowded)
			sched_yield();
	}
}

int shim_open(const char *host, int rank, int nranks, int64_t patience, struct shim_mesh *with,
              struct shim_mesh **out, char *why)
{
	try {
		BlockSignals quiet(true); /* for the thread that the device starts */
		auto mesh = std::make_unique<shim_mesh>();

		mesh->rank = rank;
		mesh->nranks = nranks;
		mesh->device = with ? with->device
		                    : std::dynamic_pointer_cast<tcp::Device>(
					      tcp::CreateDevice(tcp::attr(host)));
		if (!mesh->device)
			throw std::logic_error("Gloo's TCP device is not one");
		mesh->context = std::make_shared<Context>(mesh->device, rank, nranks);
		mesh->crowded = nranks > count_cpus();
		/* Gloo waits five times its time-out for a connection. */
		mesh->context->setTimeout(
			std::max(milliseconds(1), milliseconds(patience / 5 / 1000000)));
		mesh->channels.resize(nranks);
		for (int peer = 0; peer < nranks; peer++) {
			if (peer == rank)
				continue;
			mesh->context->createPair(peer);
			/* at once: a peer that is ready may send before this one is */
			mesh->channels[peer] = std::make_unique<SmallChannel>(mesh->context, peer);
		}
		*out = mesh.release();
		return 0;
	} catch (...) {
		describe_exception(why);
		return -1;
	}
}

int shim_address(struct shim_mesh *m, int peer, void *out, char *why)
{
	try {
		const std::vector<char> bytes = m->get_pair(peer)->address().bytes();

		if (bytes.size() > SHIM_ADDRESS)
			throw std::length_error("an address of Gloo is longer than expected");
		std::memset(out, 0, SHIM_ADDRESS);
		std::memcpy(out, bytes.data(), bytes.size());
		return 0;
	} catch (...) {
		describe_exception(why);
		return -1;
	}
}

/* Copies an address; Gloo's constructor requires its exact length. */
static std::vector<char> address_of(struct shim_mesh *m, int peer, const void *address)
{
	const char *at = static_cast<const char *>(address);

	return std::vector<char>(at, at + m->get_pair(peer)->address().bytes().size());
}

/* Splits an address, which begins with its sockaddr, into host and port. */
static void split_address(const void *address, const void **name, size_t *len, int *port)
{
	const auto *s4 = static_cast<const struct sockaddr_in *>(address);
	const auto *s6 = static_cast<const struct sockaddr_in6 *>(address);
	const bool six = s4->sin_family == AF_INET6;

	if (s4->sin_family != AF_INET && !six)
		throw std::runtime_error("an address is neither IPv4 nor IPv6");
	*name = six ? static_cast<const void *>(&s6->sin6_addr) : &s4->sin_addr;
	*len = six ? sizeof s6->sin6_addr : sizeof s4->sin_addr;
	*port = six ? s6->sin6_port : s4->sin_port;
}

int shim_calls(struct shim_mesh *m, int peer, const void *address, char *why)
{
	try {
		/* the rule of tcp::Pair::connect: the greater (host, port as stored) calls */
		const void *a, *b;
		size_t alen, blen;
		int aport, bport, order;
		alignas(struct sockaddr_storage) char own[SHIM_ADDRESS], other[SHIM_ADDRESS];

		if (shim_address(m, peer, own, why))
			return -1;
		std::memcpy(other, address, sizeof other);
		split_address(own, &a, &alen, &aport);
		split_address(other, &b, &blen, &bport);
		if (alen != blen)
			throw std::runtime_error(
				"one rank has an IPv4 address and another an IPv6 one");
		order = std::memcmp(a, b, alen);
		return order ? order > 0 : aport > bport;
	} catch (...) {
		describe_exception(why);
		return -1;
	}
}

int shim_connect(struct shim_mesh *m, int peer, const void *address, char *why)
{
	try {
		KeepDeviceAwake hurry(*m->device);

		m->get_pair(peer)->connect(address_of(m, peer, address));
		return 0;
	} catch (...) {
		describe_exception(why);
		return -1;
	}
}

void shim_cut(struct shim_mesh *m)
{
	m->cut = true;
	try {
		KeepDeviceAwake hurry(*m->device);

		for (int peer = 0; peer < m->nranks; peer++)
			if (peer != m->rank && m->get_pair(peer))
				m->get_pair(peer)->close();
	} catch (...) {
		/* a connection that cannot be closed is gone */
	}
}

void shim_close(struct shim_mesh *m)
{
	if (!m)
		return;
	try {
		for (auto &channel : m->channels)
			if (channel && !m->cut) /* else nothing more goes out, without an error */
				channel->flush_sent(tess_now() + kFlush);
		KeepDeviceAwake hurry(*m->device);
		m->context
			->close_pairs(); /* before the places go; what was written still arrives */
		delete m;
	} catch (...) {
		/* the kernel closes the rest */
	}
}

static int post_io(struct shim_mesh *m, int peer, uint64_t slot, bool known, void *at, size_t bytes,
                   bool sends, struct shim_io **out, char *why)
{
	try {
		BlockSignals quiet(false);
		auto io = std::make_unique<shim_io>(m, peer, slot, at, bytes, sends);
		SmallChannel *channel = m->channels[peer].get();

		if (bytes > kSmallMost) {
			io->piece = std::make_unique<Piece>(m->context, at, bytes);
			if (sends)
				m->get_pair(peer)->send_buffer(io->piece.get(), slot, bytes, known);
			else
				m->get_pair(peer)->expect_message(io->piece.get(), slot, known);
		} else if (sends) {
			channel->send_small(io.get());
		} else {
			channel->receive_small(io.get());
		}
		*out = io.release();
		return 0;
	} catch (...) {
		describe_exception(why);
		return -1;
	}
}

int shim_send(struct shim_mesh *m, int peer, uint64_t slot, int known, const void *src,
              size_t bytes, struct shim_io **out, char *why)
{
	return post_io(m, peer, slot, known, const_cast<void *>(src), bytes, true, out, why);
}

int shim_recv(struct shim_mesh *m, int peer, uint64_t slot, int known, void *dst, size_t bytes,
              struct shim_io **out, char *why)
{
	return post_io(m, peer, slot, known, dst, bytes, false, out, why);
}

int shim_wait(struct shim_io *io, int64_t until, char *why)
{
	if (io->done)
		return SHIM_DONE;
	try {
		BlockSignals quiet(false); /* arrived messages may release another one */

		return io->piece ? await_large(io, until) : await_small(io, until);
	} catch (...) {
		describe_exception(why);
		return -1;
	}
}

void shim_wake(struct shim_io *io)
{
	try {
		io->woken = true;
		if (io->piece)
			io->piece->wake_waiters();
		else
			io->mesh->channels[io->peer]->wake_sleepers();
	} catch (...) {
		/* the mutex cannot be locked; the deadline wakes the waiter */
	}
}

void shim_free(struct shim_io *io)
{
	try {
		if (!io->piece && !io->done)
			io->mesh->channels[io->peer]->forget_message(io);
		delete io;
	} catch (...) {
	}
}
