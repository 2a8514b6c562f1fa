/* spawn.h - runs a function on ranks that are threads. */
#ifndef TESS_TESTS_SUPPORT_SPAWN_H
#define TESS_TESTS_SUPPORT_SPAWN_H

#include "core/base/status.h"
#include "core/world/world.h"

#include <check.h>
#include <stdlib.h>
#include <tessera/tessera.h>

/* Runs fn on n ranks; fails the test unless all succeed. */
static inline void spawn_ranks(int32_t n, tess_status (*fn)(struct tess_world *, void *), void *arg)
{
	ck_assert_msg(!tess_world_spawn_threads(n, fn, arg), "%d ranks: %s", n, tess_error());
}

/* Returns TESS_EBUG from a function of a rank unless the condition is true. */
#define HOLDS(condition) \
	do { \
		if (!(condition)) \
			return tess_fail_in(TESS_EBUG, "line %d: %s", __LINE__, #condition); \
	} while (0)

/* Selects a backend, which may be one of minimal.c's. */
static inline void use_minimal_backend(const char *name)
{
	ck_assert_int_eq(setenv("TESSERA_PLUGIN_PATH", getenv("MINIMAL_DIR"), 1), 0);
	ck_assert_int_eq(setenv("TESSERA_BACKEND", name, 1), 0);
}

#endif
