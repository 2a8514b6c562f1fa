/* shim.cc - the only C++ of the house: Gloo's TCP transport behind the functions of shim.h. */
#include "shim.h"

#include <netinet/in.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <vector>

#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

namespace tcp = gloo::transport::tcp;
using std::chrono::milliseconds;

namespace
{

/*
 * The slot that nobody ever sends on: what is posted there only hears that the connection is gone.
 */
constexpr uint64_t kWatch = uint64_t(SHIM_SLOTS) + 1;
/* How long a wait sleeps before it looks at its deadline and its peer. */
constexpr long kLook = 20 * 1000000;
/* A wait of Gloo's that times out closes every connection of the mesh, so none ever does. */
constexpr milliseconds kNever(std::chrono::hours(1000));

int64_t now()
{
	return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch())
	        .count();
}

/*
 * Gloo writes to sockets without MSG_NOSIGNAL, and its thread takes any signal of the process.
 * While one of these lives the thread has `which` blocked; a SIGPIPE that Gloo caused is taken
 * back.
 */
class Quiet
{
      public:
	explicit Quiet(bool all)
	{
		sigset_t set;

		sigemptyset(&pipe_);
		sigaddset(&pipe_, SIGPIPE);
		sigfillset(&set);
		pthread_sigmask(SIG_BLOCK, all ? &set : &pipe_, &old_);
	}
	~Quiet()
	{
		const struct timespec none = { 0, 0 };

		if (!sigismember(&old_, SIGPIPE))
			while (sigtimedwait(&pipe_, nullptr, &none) < 0 && errno == EINTR)
				;
		pthread_sigmask(SIG_SETMASK, &old_, nullptr);
	}
	Quiet(const Quiet &) = delete;
	Quiet &operator=(const Quiet &) = delete;

      private:
	sigset_t pipe_, old_;
};

/* In a handler: the current exception as a sentence, without the place in Gloo's source. */
void explain(char *why) noexcept
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

/* One message, or a watch; at most one thread waits for one at a time. */
struct shim_io {
	shim_io(struct shim_mesh *m, int peer, uint64_t slot, void *at, size_t bytes, bool sending);

	int await(int64_t until);
	/* Throws where the connection is gone. Only of a watch, on which nothing ever arrives. */
	void check()
	{
		stir();
		wait();
	}
	void wake()
	{
		woken_ = true;
		stir();
	}
	/* Ends a wait() of now or the next one. */
	void stir()
	{
		sending_ ? buffer_->abortWaitSend() : buffer_->abortWaitRecv();
	}

      private:
	bool wait()
	{
		return sending_ ? buffer_->waitSend(nullptr, kNever)
		                : buffer_->waitRecv(nullptr, kNever);
	}

	struct shim_mesh *const mesh_;
	const int peer_;
	const bool sending_;
	std::atomic<bool> woken_{ false };
	std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
};

namespace
{

/* Stirs the message that is waited for every now and then, from Gloo's own thread. */
class Clock final : public tcp::Handler
{
      public:
	explicit Clock(const std::shared_ptr<tcp::Device> &device) : device_(device)
	{
		fd_ = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
		if (fd_ < 0)
			throw std::system_error(errno, std::generic_category(), "timerfd_create");
		set(kLook);
		device_->registerDescriptor(fd_, EPOLLIN, this);
	}
	~Clock() override
	{
		try {
			device_->unregisterDescriptor(fd_, this);
		} catch (...) {
			/* It was not there. */
		}
		close(fd_);
	}
	Clock(const Clock &) = delete;
	Clock &operator=(const Clock &) = delete;

	void handleEvents(int) override
	{
		std::lock_guard<std::mutex> lock(mutex_);
		uint64_t ticks;

		if (read(fd_, &ticks, sizeof ticks) > 0 && waiting_)
			waiting_->stir();
	}
	void arm(shim_io *io, int64_t left)
	{
		{
			std::lock_guard<std::mutex> lock(mutex_);

			waiting_ = io;
		}
		if (left < kLook)
			set(left > 0 ? left : 1);
	}
	void disarm()
	{
		std::lock_guard<std::mutex> lock(mutex_);

		waiting_ = nullptr;
	}

      private:
	void set(long first)
	{
		struct itimerspec t = {};

		t.it_interval.tv_nsec = kLook;
		t.it_value.tv_nsec = first;
		timerfd_settime(fd_, 0, &t, nullptr);
	}

	const std::shared_ptr<tcp::Device> device_;
	int fd_;
	std::mutex mutex_;
	shim_io *waiting_ = nullptr;
};

} /* namespace */

struct shim_mesh {
	int rank, nranks;
	std::shared_ptr<gloo::transport::Device> device;
	std::shared_ptr<gloo::transport::Context> context;
	std::unique_ptr<Clock> clock;
	std::vector<std::unique_ptr<shim_io>> watch; /* by peer */

	std::unique_ptr<gloo::transport::Pair> &pair(int peer)
	{
		return context->getPair(peer);
	}
};

shim_io::shim_io(struct shim_mesh *m, int peer, uint64_t slot, void *at, size_t bytes, bool sending)
    : mesh_(m), peer_(peer), sending_(sending), buffer_(m->context->createUnboundBuffer(at, bytes))
{
	if (sending)
		buffer_->send(peer, slot, 0, bytes);
	else
		buffer_->recv(peer, slot, 0, bytes);
}

int shim_io::await(int64_t until)
{
	for (;;) {
		struct Armed {
			Clock &clock;
			~Armed()
			{
				clock.disarm();
			}
		} armed{ *mesh_->clock };
		const int64_t left = until - now();

		armed.clock.arm(this, left);
		if (wait())
			return SHIM_DONE;
		if (woken_)
			return SHIM_WOKEN;
		/* Gloo tells a loss to what waits for its turn, not to what is half done. */
		mesh_->watch[peer_]->check();
		if (left < kLook && now() >= until)
			return SHIM_PENDING;
	}
}

int shim_open(const char *host, int rank, int nranks, int64_t patience, struct shim_mesh *with,
              struct shim_mesh **out, char *why)
{
	try {
		Quiet quiet(true); /* for the thread that the device starts */
		auto mesh = std::make_unique<shim_mesh>();

		mesh->rank = rank;
		mesh->nranks = nranks;
		mesh->device = with ? with->device : tcp::CreateDevice(tcp::attr(host));
		auto device = std::dynamic_pointer_cast<tcp::Device>(mesh->device);
		if (!device)
			throw std::logic_error("Gloo's TCP device is not one");
		mesh->clock = std::make_unique<Clock>(device);
		mesh->context = mesh->device->createContext(rank, nranks);
		/* Gloo waits five times as long as it is told for a connection. */
		mesh->context->setTimeout(
			std::max(milliseconds(1), milliseconds(patience / 5 / 1000000)));
		for (int peer = 0; peer < nranks; peer++)
			if (peer != rank)
				mesh->context->createPair(peer);
		*out = mesh.release();
		return 0;
	} catch (...) {
		explain(why);
		return -1;
	}
}

int shim_address(struct shim_mesh *m, int peer, void *out, char *why)
{
	try {
		const std::vector<char> bytes = m->pair(peer)->address().bytes();

		if (bytes.size() > SHIM_ADDRESS)
			throw std::length_error("an address of Gloo is longer than expected");
		std::memset(out, 0, SHIM_ADDRESS);
		std::memcpy(out, bytes.data(), bytes.size());
		return 0;
	} catch (...) {
		explain(why);
		return -1;
	}
}

/* Addresses have one length; Gloo's constructor wants exactly that. */
static std::vector<char> address_of(struct shim_mesh *m, int peer, const void *address)
{
	const char *at = static_cast<const char *>(address);

	return std::vector<char>(at, at + m->pair(peer)->address().bytes().size());
}

/* Host and port of an address, which begins with its sockaddr. */
static void split(const void *address, const void **name, size_t *len, int *port)
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
		/*
		 * The rule of tcp::Pair::connect: the greater one of (host, port as it is stored)
		 * calls.
		 */
		const void *a, *b;
		size_t alen, blen;
		int aport, bport, order;
		alignas(struct sockaddr_storage) char own[SHIM_ADDRESS], other[SHIM_ADDRESS];

		if (shim_address(m, peer, own, why))
			return -1;
		std::memcpy(other, address, sizeof other);
		split(own, &a, &alen, &aport);
		split(other, &b, &blen, &bport);
		if (alen != blen)
			throw std::runtime_error(
				"one rank has an IPv4 address and another an IPv6 one");
		order = std::memcmp(a, b, alen);
		return order ? order > 0 : aport > bport;
	} catch (...) {
		explain(why);
		return -1;
	}
}

int shim_connect(struct shim_mesh *m, int peer, const void *address, char *why)
{
	try {
		m->pair(peer)->connect(address_of(m, peer, address));
		return 0;
	} catch (...) {
		explain(why);
		return -1;
	}
}

int shim_watch(struct shim_mesh *m, char *why)
{
	try {
		Quiet quiet(false);

		m->watch.resize(m->nranks);
		for (int peer = 0; peer < m->nranks; peer++) {
			if (peer == m->rank)
				continue;
			m->watch[peer] =
				std::make_unique<shim_io>(m, peer, kWatch, nullptr, 0, false);
		}
		return 0;
	} catch (...) {
		explain(why);
		return -1;
	}
}

void shim_cut(struct shim_mesh *m)
{
	try {
		for (int peer = 0; peer < m->nranks; peer++)
			if (peer != m->rank && m->pair(peer))
				m->pair(peer)->close();
	} catch (...) {
		/* A connection that cannot be closed is one that is not there. */
	}
}

void shim_close(struct shim_mesh *m)
{
	try {
		delete m;
	} catch (...) {
		/* What is left is closed by the kernel. */
	}
}

static int post(struct shim_mesh *m, int peer, uint64_t slot, void *at, size_t bytes, bool sending,
                struct shim_io **out, char *why)
{
	try {
		Quiet quiet(false);
		*out = new shim_io(m, peer, slot, at, bytes, sending);
		return 0;
	} catch (...) {
		explain(why);
		return -1;
	}
}

int shim_send(struct shim_mesh *m, int peer, uint64_t slot, const void *src, size_t bytes,
              struct shim_io **out, char *why)
{
	return post(m, peer, slot, const_cast<void *>(src), bytes, true, out, why);
}

int shim_recv(struct shim_mesh *m, int peer, uint64_t slot, void *dst, size_t bytes,
              struct shim_io **out, char *why)
{
	return post(m, peer, slot, dst, bytes, false, out, why);
}

int shim_wait(struct shim_io *io, int64_t until, char *why)
{
	try {
		return io->await(until);
	} catch (...) {
		explain(why);
		return -1;
	}
}

void shim_wake(struct shim_io *io)
{
	try {
		io->wake();
	} catch (...) {
		/* A mutex that cannot be locked: the deadline wakes the waiter. */
	}
}

void shim_free(struct shim_io *io)
{
	try {
		delete io;
	} catch (...) {
	}
}
