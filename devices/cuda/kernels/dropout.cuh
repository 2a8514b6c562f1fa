/* dropout.cuh - chooses the elements that a dropout keeps: DROPOUT, and weights of attention. */
#ifdef __CUDACC__
#define inline __device__ __forceinline__
#include <tessera/util/random.h>
#undef inline
#else
#include <tessera/util/random.h>
#endif

/* Draws the random words of elements [4 * group, 4 * group + 4) of a row of a site. */
DEVICE void draw_words(const struct drop_args *d, int64_t position, int64_t slot, int64_t site,
                       int64_t group, uint32_t word[4])
{
	word[0] = (uint32_t)group;
	word[1] = (uint32_t)position;
	word[2] = (uint32_t)d->step[2] + (uint32_t)slot;
	word[3] = (uint32_t)site;
	tess_philox((uint32_t)d->step[0], (uint32_t)d->step[1], word);
}

/*
 * Returns the factor of an element with this word; 0 if the element is dropped, even if non-finite.
 */
DEVICE float choose_factor(const struct drop_args *d, uint32_t word)
{
	return word < d->below ? 0.0f : d->scale;
}
