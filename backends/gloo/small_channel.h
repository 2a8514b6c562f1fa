/*
 * small_channel.h - messages over Gloo's TCP transport; C++, and a part of shim.cc.
 *
 * A message of Gloo waits until the receiver has announced its place. Small messages do not wait:
 * each rank posts a few places for messages of every peer at the start, and a message is sent at
 * once, preceded by its slot. The small channel of the peer delivers it.
 */
#ifndef GLOO_SMALL_CHANNEL_H
#define GLOO_SMALL_CHANNEL_H

#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/tcp/unbound_buffer.h>

#include <tessera/util/clock.h>

#include "shim.h"

namespace tcp = gloo::transport::tcp;

namespace shim
{

/* Never sent on; a receive posted here completes with an error when the peer disconnects. */
constexpr uint64_t kWatch = uint64_t(SHIM_SLOTS) + 1;
constexpr uint64_t kSmall = kWatch + 1; /* the slot of all small messages */
/* Maximum bytes for which one more copy at each end takes less time than a round trip. */
constexpr size_t kSmallMost = 64 * 1024;
/*
 * A rank has kPlaces for small messages of a peer. It acknowledges messages with each of its own,
 * or with a separate one when kTell are not acknowledged. With kData unacknowledged messages, only
 * acknowledgements are sent. At most kData / kTell + 1 of these are under way, and have a place.
 */
constexpr uint64_t kPlaces = 8, kData = 5, kTell = 3;
static_assert(kData + kData / kTell + 1 < kPlaces, "a message could find no place");

constexpr int64_t kLook = 20 * 1000000; /* ns between checks of a connection */
/* ns for which a wait polls the sockets itself; sleeping costs the wake-ups of two threads */
constexpr int64_t kPoll = 100 * 1000;
/* maximum ns that closing waits for the kernel to take sent data */
constexpr int64_t kFlush = 1000000000;

/* A buffer that Gloo reads or writes, one message at a time. */
class Piece final : public tcp::UnboundBuffer
{
      public:
	using tcp::UnboundBuffer::UnboundBuffer;

	bool is_done(bool sent)
	{
		std::lock_guard<std::mutex> lock(m_);

		return has_completed(sent);
	}
	/* Returns whether the connection is lost; completed transfers remain valid. */
	bool is_lost()
	{
		std::lock_guard<std::mutex> lock(m_);

		return ex_ != nullptr;
	}
	/* Sleeps until the transfer is done, `until`, or wake_waiters() after `woken` was set. */
	void sleep_until(bool sent, int64_t until, const std::atomic<bool> &woken)
	{
		std::unique_lock<std::mutex> lock(m_);
		const int64_t left = std::min(until - tess_now(), kLook);

		if (!has_completed(sent) && !ex_ && !woken && left > 0)
			(sent ? sendCv_ : recvCv_).wait_for(lock, std::chrono::nanoseconds(left));
	}
	void wake_waiters()
	{
		std::lock_guard<std::mutex> lock(m_);

		sendCv_.notify_all();
		recvCv_.notify_all();
	}
	void throw_if_lost()
	{
		std::lock_guard<std::mutex> lock(m_);

		throwIfException();
	}
	/* Resets the counts before the next use. */
	void reset_counts()
	{
		std::lock_guard<std::mutex> lock(m_);

		sendCompletions_ = recvCompletions_ = 0;
	}
	gloo::WeakNonOwningPtr<tcp::UnboundBuffer> weak_pointer() const
	{
		return getWeakNonOwningPtr();
	}

      private:
	bool has_completed(bool sent)
	{
		return (sent ? sendCompletions_ : recvCompletions_) > 0;
	}
};

/* The ranks of a mesh, with connections of class Pair. */
class Context final : public tcp::Context
{
      public:
	using tcp::Context::Context;

	std::unique_ptr<gloo::transport::Pair> &createPair(int peer) override;
	class Pair *pair_to(int peer);
	/* Uses a place that `peer` has announced, if any; the lock of the pair is held. */
	bool has_place(uint64_t slot, int peer)
	{
		Mutator mutator(*this, slot, peer);

		return mutator.shiftRemotePendingRecv();
	}
	void close_pairs()
	{
		for (auto &pair : pairs_)
			pair.reset();
	}
};

/*
 * A connection of Gloo in which only the receiver announces places, and only unknown ones. (Gloo's
 * sender announces as well, for receives from any rank.)
 */
class Pair final : public tcp::Pair
{
      public:
	using tcp::Pair::Pair;

	/* Posts a place for a message, in order in its slot. Known: also before connecting. */
	void expect_message(Piece *p, uint64_t slot, bool known)
	{
		std::lock_guard<std::mutex> lock(m_);

		throwIfException();
		localPendingRecv_[slot].emplace_back(p->weak_pointer(), 0, p->size);
		if (!known)
			sendNotifyRecvReady(slot, p->size);
	}
	void send_buffer(Piece *p, uint64_t slot, size_t bytes, bool known)
	{
		std::lock_guard<std::mutex> lock(m_);

		throwIfException();
		if (known || static_cast<Context *>(context_)->has_place(slot, rank_))
			sendUnboundBuffer(p->weak_pointer(), slot, 0, bytes);
		else
			localPendingSend_[slot].emplace_back(p->weak_pointer(), 0, bytes);
	}
};

inline std::unique_ptr<gloo::transport::Pair> &Context::createPair(int peer)
{
	pairs_[peer] = std::make_unique<Pair>(this, device_.get(), peer, getTimeout());
	return pairs_[peer];
}

inline Pair *Context::pair_to(int peer)
{
	return static_cast<Pair *>(pairs_[peer].get());
}

/* The header of a small message. */
struct MessageHead {
	uint64_t slot,
		taken; /* taken: number of the receiver's messages that the sender has taken */
	uint64_t bytes; /* payload bytes; kNone: an acknowledgement only */
};
constexpr uint64_t kNone = UINT64_MAX;

} /* namespace shim */

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
	bool done = false; /* small messages */
	std::atomic<bool> woken{ false };
	std::unique_ptr<shim::Piece> piece; /* large messages */
};

namespace shim
{

/* Small messages to and from a peer. Only wake_sleepers() may be called from any thread. */
class SmallChannel
{
      public:
	SmallChannel(const std::shared_ptr<Context> &context, int peer)
	    : pair_(context->pair_to(peer)), watch_(context, nullptr, 0),
	      memory_(new char[2 * kPlaces * kRoom]) /* which is not touched before it is used */
	{
		for (size_t i = 0; i < 2 * kPlaces; i++)
			(i < kPlaces ? in_ : out_)
				.push_back(std::make_unique<Piece>(
					context, memory_.get() + i * kRoom, kRoom));
		for (auto &place : in_)
			pair_->expect_message(place.get(), kSmall, true);
		pair_->expect_message(&watch_, kWatch, true);
	}

	void send_small(shim_io *io)
	{
		if (unsent_.empty() && sent_ - known_ < kData)
			push_message(io->slot, io->at, io->bytes, io);
		else
			unsent_.push_back(io);
	}
	void receive_small(shim_io *io)
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
	void forget_message(shim_io *io)
	{
		(io->sends ? unsent_ : expected_).remove(io);
	}
	/* Polls the sockets in place of Gloo's thread, which would have to be woken. */
	void poll_pair()
	{
		try {
			pair_->handleEvents(EPOLLIN);
		} catch (...) {
			/* The connection is gone, as has_lost_peer() returns. */
		}
	}
	/* Takes arrived messages, and sends those that waited for acknowledgements. */
	void take_arrived()
	{
		while (in_[taken_ % kPlaces]->is_done(false)) {
			Piece *place = in_[taken_ % kPlaces].get();
			MessageHead head;

			std::memcpy(&head, place->ptr, sizeof head);
			known_ = std::max(known_, head.taken);
			if (head.bytes <= kSmallMost)
				deliver_message(head,
				                static_cast<char *>(place->ptr) + sizeof head);
			place->reset_counts();
			taken_++;
			answer_place(place);
		}
	}
	/* Sleeps until a message arrives, `until`, or wake_sleepers() after `woken` was set. */
	void sleep_until_arrival(int64_t until, const std::atomic<bool> &woken)
	{
		in_[taken_ % kPlaces]->sleep_until(false, until, woken);
	}
	void wake_sleepers()
	{
		for (auto &place : in_)
			place->wake_waiters();
	}
	/*
	 * Returns whether the connection is lost; earlier messages can be read. Gloo reports this
	 * to queued transfers, not to one in progress.
	 */
	bool has_lost_peer()
	{
		return watch_.is_lost();
	}
	[[noreturn]] void tell_loss()
	{
		watch_.throw_if_lost();
		throw std::logic_error("the connection is gone");
	}
	/* Waits until the kernel has taken all sent data. */
	void flush_sent(int64_t until)
	{
		static const std::atomic<bool> never{ false };

		for (uint64_t i = known_; i < sent_; i++)
			while (!out_[i % kPlaces]->is_done(true) && !has_lost_peer() &&
			       tess_now() < until)
				out_[i % kPlaces]->sleep_until(true, until, never);
	}

      private:
	static constexpr size_t kRoom = sizeof(MessageHead) + kSmallMost;

	struct EarlyMessage { /* arrived before its receive was posted */
		uint64_t slot;
		std::vector<char> data;
	};

	void push_message(uint64_t slot, const char *at, uint64_t bytes, shim_io *io)
	{
		Piece *piece = out_[sent_ % kPlaces].get(); /* its last message was taken */
		const MessageHead head = { slot, taken_, bytes };
		const size_t length = bytes == kNone ? 0 : bytes;

		piece->reset_counts();
		std::memcpy(piece->ptr, &head, sizeof head);
		if (length)
			std::memcpy(static_cast<char *>(piece->ptr) + sizeof head, at, length);
		pair_->send_buffer(piece, kSmall, sizeof head + length, true);
		sent_++;
		told_ = taken_;
		if (io)
			io->done = true;
	}
	/* Counts a message taken out of `place`, even if no answer can be sent. */
	void answer_place(Piece *place)
	{
		try {
			pair_->expect_message(place, kSmall, true);
			for (; !unsent_.empty() && sent_ - known_ < kData; unsent_.pop_front())
				push_message(unsent_.front()->slot, unsent_.front()->at,
				             unsent_.front()->bytes, unsent_.front());
			if (taken_ - told_ >= kTell)
				push_message(0, nullptr, kNone, nullptr);
		} catch (...) {
			/* The connection is gone, as has_lost_peer() returns. */
		}
	}
	void deliver_message(const MessageHead &head, const char *data)
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
	/* messages sent, acknowledged by the peer, taken from the peer, acknowledged to it */
	uint64_t sent_ = 0, known_ = 0, taken_ = 0, told_ = 0;
	std::list<shim_io *> unsent_, expected_;
	std::list<EarlyMessage> early_;
};

} /* namespace shim */

#endif
