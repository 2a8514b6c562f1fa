/*
 * fuzz.h - a target, which accepts any bytes and returns 0; MUST() checks properties of all inputs.
 */
#ifndef TESS_TESTS_FUZZ_FUZZ_H
#define TESS_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

#define MUST(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			abort(); \
		} \
	} while (0)

#endif
