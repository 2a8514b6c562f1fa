/*
 * memory.h - a header that Debian's package of Gloo leaves out although its headers of the TCP
 * transport include it. Only what they need: libgloo takes each of the three pointers for one
 * std::shared_ptr or std::weak_ptr, and nothing here makes one from another.
 */
#ifndef GLOO_MISSING_MEMORY_H
#define GLOO_MISSING_MEMORY_H

#include <memory>

namespace gloo
{

template <typename T> class NonOwningPtr final
{
	std::shared_ptr<T> at_;
};

template <typename T> class ShareableNonOwningPtr final
{
	std::shared_ptr<T> at_;

      public:
	const std::shared_ptr<T> &at() const
	{
		return at_;
	}
};

template <typename T> class WeakNonOwningPtr final
{
	std::weak_ptr<T> at_;

      public:
	WeakNonOwningPtr() = default;
	explicit WeakNonOwningPtr(const ShareableNonOwningPtr<T> &shared) : at_(shared.at())
	{
	}
};

} /* namespace gloo */

#endif
