/*
 * test_checksum.c - the shares of a checksum: combined by XOR, they are the CRC-32 of all bytes,
 * for any distribution of ranges.
 */
#include "hf/checksum.h"
#include "tests/support/suite.h"

#include <stdlib.h>

enum { BYTES = 5000, RANKS = 5 };

/* Returns the CRC-32, bit by bit. */
static uint32_t sum_bits(const unsigned char *bytes, size_t n)
{
	uint32_t sum = ~UINT32_C(0);

	for (size_t i = 0; i < n; i++) {
		sum ^= bytes[i];
		for (int k = 0; k < 8; k++)
			sum = sum >> 1 ^ (sum & 1 ? 0xedb88320u : 0);
	}
	return ~sum;
}

START_TEST(shares_combine)
{
	unsigned char bytes[BYTES];

	srand(1);
	for (int i = 0; i < BYTES; i++)
		bytes[i] = (unsigned char)(rand() >> 7);
	for (int trial = 0; trial < 200; trial++) {
		struct tess_checksum share[RANKS] = { 0 };
		int length = trial ? 1 + rand() % BYTES : 0, ranks = 1 + rand() % RANKS, n;
		uint32_t sum = 0;

		for (int at = 0; at < length; at += n) {
			/* ranges of one size, like rows that are cut by columns, and others */
			n = trial % 2 ? 64 : 1 + rand() % 300;
			n = n < length - at ? n : length - at;
			tess_checksum_add(&share[trial % 2 ? at / 64 % ranks : rand() % ranks],
			                  (uint64_t)at, bytes + at, (uint64_t)n);
		}
		for (int r = 0; r < ranks; r++)
			sum ^= tess_checksum_end(&share[r], (uint64_t)length);
		ck_assert_uint_eq(sum, sum_bits(bytes, (size_t)length));
	}
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("checksum", 10, &r);

	tcase_add_test(t, shares_combine);
	return suite_end(r);
}
