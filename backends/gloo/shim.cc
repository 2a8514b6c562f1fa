/*
 * shim.cc - the only C++ of the house: Gloo's TCP transport behind the functions of shim.h.
 *
 * A message of Gloo's waits until the other side has said that it has a place for it. Small ones do not: each rank
 * keeps places for a few of every other rank's, which are posted from the beginning, and a message goes as soon as
 * it is there, with its slot in front. Where it goes then is the business of this file.
 */
#include "shim.h"

#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <deque>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <vector>

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/tcp/unbound_buffer.h>

namespace tcp = gloo::transport::tcp;
using std::chrono::milliseconds;

namespace
{

constexpr uint64_t kWatch =
	uint64_t(SHIM_SLOTS) + 1; /* nobody ever sends on it: it hears of a loss */
constexpr uint64_t kSmall = kWatch + 1; /* the slot of all small messages */
constexpr size_t kSmallMost =
	64 * 1024; /* bytes; one more copy at each end is less than a round trip */
/*
 * A rank has kPlaces for small messages of a peer, which tells how many it has taken with each of its own messages,
 * or in one for that purpose when kTell were not told. Of kData that were not told, none more is sent but such.
 * They are answers to messages that came: at most kData / kTell + 1 are on their way, and have a place.
 */
constexpr uint64_t kPlaces = 8, kData = 5, kTell = 3;
static_assert(kData + kData / kTell + 1 < kPlaces, "a message could find no place");

constexpr int64_t kLook = 20 * 1000000; /* ns that a wait sleeps before it looks at its peer */
/* ns for which one reads the sockets itself before it sleeps: otherwise two threads have to be woken */
constexpr int64_t kPoll = 100 * 1000;
constexpr int64_t kFlush =
	INT64_C(1000000000); /* ns that the end waits for the kernel to take what was sent */

int cpus()
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

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

/* Memory that Gloo reads or writes, one message at a time. */
class Piece final : public tcp::UnboundBuffer
{
      public:
	using tcp::UnboundBuffer::UnboundBuffer;

	bool done(bool sent)
	{
		std::lock_guard<std::mutex> lock(m_);

		return over(sent);
	}
	/* The connection is gone, after what was done was done. */
	bool lost()
	{
		std::lock_guard<std::mutex> lock(m_);

		return ex_ != nullptr;
	}
	/* Until it is done, `until`, or stir() after `woken` was set. */
	void sleep(bool sent, int64_t until, const std::atomic<bool> &woken)
	{
		std::unique_lock<std::mutex> lock(m_);
		const int64_t left = std::min(until - now(), kLook);

		if (!over(sent) && !ex_ && !woken && left > 0)
			(sent ? sendCv_ : recvCv_).wait_for(lock, std::chrono::nanoseconds(left));
	}
	void stir()
	{
		std::lock_guard<std::mutex> lock(m_);

		sendCv_.notify_all();
		recvCv_.notify_all();
	}
	void check()
	{
		std::lock_guard<std::mutex> lock(m_);

		throwIfException();
	}
	/* Before it is used again. */
	void renew()
	{
		std::lock_guard<std::mutex> lock(m_);

		sendCompletions_ = recvCompletions_ = 0;
	}
	gloo::WeakNonOwningPtr<tcp::UnboundBuffer> weak() const
	{
		return getWeakNonOwningPtr();
	}

      private:
	bool over(bool sent)
	{
		return (sent ? sendCompletions_ : recvCompletions_) > 0;
	}
};

class Context final : public tcp::Context
{
      public:
	using tcp::Context::Context;

	std::unique_ptr<gloo::transport::Pair> &createPair(int peer) override;
	class Pair *to(int peer);
	/* Whether `peer` has told of a place that is not used yet; then it is. The lock of the pair is held. */
	bool has_place(uint64_t slot, int peer)
	{
		Mutator mutator(*this, slot, peer);

		return mutator.shiftRemotePendingRecv();
	}
	void close()
	{
		for (auto &pair : pairs_)
			pair.reset();
	}
};

/*
 * A connection as Gloo has it, but the receiver alone tells of its place, and not where it is known. (Gloo's sender
 * tells as well, for those who receive from anybody.)
 */
class Pair final : public tcp::Pair
{
      public:
	using tcp::Pair::Pair;

	/* A place for a message; in the order of the messages of this slot. Known: also before it is connected. */
	void receive(Piece *p, uint64_t slot, bool known)
	{
		std::lock_guard<std::mutex> lock(m_);

		throwIfException();
		localPendingRecv_[slot].emplace_back(p->weak(), 0, p->size);
		if (!known)
			sendNotifyRecvReady(slot, p->size);
	}
	void send(Piece *p, uint64_t slot, size_t bytes, bool known)
	{
		std::lock_guard<std::mutex> lock(m_);

		throwIfException();
		if (known || static_cast<Context *>(context_)->has_place(slot, rank_))
			sendUnboundBuffer(p->weak(), slot, 0, bytes);
		else
			localPendingSend_[slot].emplace_back(p->weak(), 0, bytes);
	}
};

std::unique_ptr<gloo::transport::Pair> &Context::createPair(int peer)
{
	pairs_[peer] = std::make_unique<Pair>(this, device_.get(), peer, getTimeout());
	return pairs_[peer];
}

Pair *Context::to(int peer)
{
	return static_cast<Pair *>(pairs_[peer].get());
}

/* What a small message begins with. */
struct Head {
	uint64_t slot, taken; /* taken: how many the sender has taken of the receiver's so far */
	uint64_t bytes; /* that follow; kNone: it only tells */
};
constexpr uint64_t kNone = UINT64_MAX;

} /* namespace */

/* One message; at most one thread waits for one at a time. */
struct shim_io {
	shim_io(struct shim_mesh *m, int peer, uint64_t slot, void *at, size_t bytes, bool sends)
	    : mesh(m), peer(peer), slot(slot), at(static_cast<char *>(at)), bytes(bytes),
	      sends(sends)
	{
	}

	struct shim_mesh *const mesh;
	const int peer;
	const uint64_t slot;
	char *const at;
	const size_t bytes;
	const bool sends;
	bool done = false; /* of a small one */
	std::atomic<bool> woken{ false };
	std::unique_ptr<Piece> piece; /* of a large one */
};

namespace
{

/* Small messages to and from one peer. All but stir() is for the thread that uses the mesh. */
class Lane
{
      public:
	Lane(const std::shared_ptr<Context> &context, int peer)
	    : pair_(context->to(peer)), watch_(context, nullptr, 0),
	      memory_(new char[2 * kPlaces * kRoom]) /* which is not touched before it is used */
	{
		for (size_t i = 0; i < 2 * kPlaces; i++)
			(i < kPlaces ? in_ : out_)
				.push_back(std::make_unique<Piece>(
					context, memory_.get() + i * kRoom, kRoom));
		for (auto &place : in_)
			pair_->receive(place.get(), kSmall, true);
		pair_->receive(&watch_, kWatch, true);
	}

	void send(shim_io *io)
	{
		if (unsent_.empty() && sent_ - known_ < kData)
			push(io->slot, io->at, io->bytes, io);
		else
			unsent_.push_back(io);
	}
	void receive(shim_io *io)
	{
		for (auto early = early_.begin(); early != early_.end(); ++early) {
			if (early->slot != io->slot || early->data.size() != io->bytes)
				continue;
			if (io->bytes)
				std::memcpy(io->at, early->data.data(), io->bytes);
			io->done = true;
			early_.erase(early);
			return;
		}
		expected_.push_back(io);
	}
	void forget(shim_io *io)
	{
		(io->sends ? unsent_ : expected_).remove(io);
	}
	/* Does for a moment what Gloo's thread would have to be woken for. */
	void poll()
	{
		try {
			pair_->handleEvents(EPOLLIN);
		} catch (...) {
			/* The connection is gone, as lost() will say. */
		}
	}
	/* Takes what has come, and sends what that makes room for. */
	void take()
	{
		while (in_[taken_ % kPlaces]->done(false)) {
			Piece *place = in_[taken_ % kPlaces].get();
			Head head;

			std::memcpy(&head, place->ptr, sizeof head);
			known_ = std::max(known_, head.taken);
			if (head.bytes <= kSmallMost)
				deliver(head, static_cast<char *>(place->ptr) + sizeof head);
			place->renew();
			taken_++;
			answer(place);
		}
	}
	/* Until something has come, `until`, or stir() after `woken` was set. */
	void sleep(int64_t until, const std::atomic<bool> &woken)
	{
		in_[taken_ % kPlaces]->sleep(false, until, woken);
	}
	void stir()
	{
		for (auto &place : in_)
			place->stir();
	}
	/*
	 * The connection is gone; what had come before lies there. Gloo tells that to what waits for its turn, not to
	 * what is half done.
	 */
	bool lost()
	{
		return watch_.lost();
	}
	[[noreturn]] void tell_loss()
	{
		watch_.check();
		throw std::logic_error("the connection is gone");
	}
	/* Until all that was sent is at least the kernel's. */
	void flush(int64_t until)
	{
		static const std::atomic<bool> never{ false };

		for (uint64_t i = known_; i < sent_; i++)
			while (!out_[i % kPlaces]->done(true) && !lost() && now() < until)
				out_[i % kPlaces]->sleep(true, until, never);
	}

      private:
	static constexpr size_t kRoom = sizeof(Head) + kSmallMost;

	struct Early { /* came before anybody asked for it */
		uint64_t slot;
		std::vector<char> data;
	};

	void push(uint64_t slot, const char *at, uint64_t bytes, shim_io *io)
	{
		Piece *piece = out_[sent_ % kPlaces].get(); /* its last message was taken */
		const Head head = { slot, taken_, bytes };
		const size_t length = bytes == kNone ? 0 : bytes;

		piece->renew();
		std::memcpy(piece->ptr, &head, sizeof head);
		if (length)
			std::memcpy(static_cast<char *>(piece->ptr) + sizeof head, at, length);
		pair_->send(piece, kSmall, sizeof head + length, true);
		sent_++;
		told_ = taken_;
		if (io)
			io->done = true;
	}
	/* A message was taken out of `place`. What has come counts, even if the answer finds nobody. */
	void answer(Piece *place)
	{
		try {
			pair_->receive(place, kSmall, true);
			for (; !unsent_.empty() && sent_ - known_ < kData; unsent_.pop_front())
				push(unsent_.front()->slot, unsent_.front()->at,
				     unsent_.front()->bytes, unsent_.front());
			if (taken_ - told_ >= kTell)
				push(0, nullptr, kNone, nullptr);
		} catch (...) {
			/* The connection is gone, as lost() will say. */
		}
	}
	void deliver(const Head &head, const char *data)
	{
		for (auto at = expected_.begin(); at != expected_.end(); ++at) {
			if ((*at)->slot != head.slot || (*at)->bytes != head.bytes)
				continue;
			if (head.bytes)
				std::memcpy((*at)->at, data, head.bytes);
			(*at)->done = true;
			expected_.erase(at);
			return;
		}
		early_.push_back({ head.slot, std::vector<char>(data, data + head.bytes) });
	}

	Pair *const pair_;
	Piece watch_;
	const std::unique_ptr<char[]> memory_;
	std::vector<std::unique_ptr<Piece>> in_, out_;
	/* messages sent; how many of them are known to be taken; taken of the peer's; how many of them it was told */
	uint64_t sent_ = 0, known_ = 0, taken_ = 0, told_ = 0;
	std::list<shim_io *> unsent_, expected_;
	std::list<Early> early_;
};

} /* namespace */

struct shim_mesh {
	int rank, nranks;
	bool crowded; /* more ranks than CPUs */
	std::shared_ptr<gloo::transport::Device> device;
	std::shared_ptr<Context> context;
	std::vector<std::unique_ptr<Lane>> lane; /* by peer */

	Pair *pair(int peer)
	{
		return context->to(peer);
	}
	/* From all peers: they may wait for room in order to go on. */
	void take()
	{
		for (auto &l : lane)
			if (l)
				l->take();
	}
};

static int await_large(shim_io *io, int64_t until)
{
	Lane *lane = io->mesh->lane[io->peer].get();

	for (;;) {
		const bool lost = lane->lost(); /* before it is seen what had come by then */

		if (io->piece->done(io->sends))
			return SHIM_DONE;
		if (io->woken)
			return SHIM_WOKEN;
		if (lost)
			lane->tell_loss();
		if (now() >= until)
			return SHIM_PENDING;
		io->piece->sleep(io->sends, until, io->woken);
	}
}

static int await_small(shim_io *io, int64_t until)
{
	Lane *lane = io->mesh->lane[io->peer].get();
	const int64_t polls = std::min(until, now() + kPoll);

	for (;;) {
		const bool lost = lane->lost();
		int64_t t;

		io->mesh->take();
		if (io->done)
			return SHIM_DONE;
		if (io->woken)
			return SHIM_WOKEN;
		if (lost)
			lane->tell_loss();
		t = now();
		if (t >= until)
			return SHIM_PENDING;
		if (t >= polls)
			lane->sleep(until, io->woken);
		else
			lane->poll();
		if (t < polls && io->mesh->crowded)
			sched_yield();
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
		mesh->context = std::make_shared<Context>(device, rank, nranks);
		mesh->crowded = nranks > cpus();
		/* Gloo waits five times as long as it is told for a connection. */
		mesh->context->setTimeout(
			std::max(milliseconds(1), milliseconds(patience / 5 / 1000000)));
		mesh->lane.resize(nranks);
		for (int peer = 0; peer < nranks; peer++) {
			if (peer == rank)
				continue;
			mesh->context->createPair(peer);
			/* at once: a peer that is ready may send before this one is */
			mesh->lane[peer] = std::make_unique<Lane>(mesh->context, peer);
		}
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
	if (!m)
		return;
	try {
		for (auto &lane : m->lane)
			if (lane)
				lane->flush(now() + kFlush);
		m->context->close(); /* before the places go; what was written still arrives */
		delete m;
	} catch (...) {
		/* What is left is closed by the kernel. */
	}
}

static int post(struct shim_mesh *m, int peer, uint64_t slot, bool known, void *at, size_t bytes,
                bool sends, struct shim_io **out, char *why)
{
	try {
		Quiet quiet(false);
		auto io = std::make_unique<shim_io>(m, peer, slot, at, bytes, sends);
		Lane *lane = m->lane[peer].get();

		if (bytes > kSmallMost) {
			io->piece = std::make_unique<Piece>(m->context, at, bytes);
			if (sends)
				m->pair(peer)->send(io->piece.get(), slot, bytes, known);
			else
				m->pair(peer)->receive(io->piece.get(), slot, known);
		} else if (sends) {
			lane->send(io.get());
		} else {
			lane->receive(io.get());
		}
		*out = io.release();
		return 0;
	} catch (...) {
		explain(why);
		return -1;
	}
}

int shim_send(struct shim_mesh *m, int peer, uint64_t slot, int known, const void *src,
              size_t bytes, struct shim_io **out, char *why)
{
	return post(m, peer, slot, known, const_cast<void *>(src), bytes, true, out, why);
}

int shim_recv(struct shim_mesh *m, int peer, uint64_t slot, int known, void *dst, size_t bytes,
              struct shim_io **out, char *why)
{
	return post(m, peer, slot, known, dst, bytes, false, out, why);
}

int shim_wait(struct shim_io *io, int64_t until, char *why)
{
	if (io->done)
		return SHIM_DONE;
	try {
		Quiet quiet(false); /* what has come may let another message go */

		return io->piece ? await_large(io, until) : await_small(io, until);
	} catch (...) {
		explain(why);
		return -1;
	}
}

void shim_wake(struct shim_io *io)
{
	try {
		io->woken = true;
		if (io->piece)
			io->piece->stir();
		else
			io->mesh->lane[io->peer]->stir();
	} catch (...) {
		/* A mutex that cannot be locked: the deadline wakes the waiter. */
	}
}

void shim_free(struct shim_io *io)
{
	try {
		if (!io->piece && !io->done)
			io->mesh->lane[io->peer]->forget(io);
		delete io;
	} catch (...) {
	}
}
