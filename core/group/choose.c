/* choose.c - chooses the backend of a world, with a reason. */
#include "core/group/choose.h"

#include "core/base/option.h"
#include "core/base/status.h"
#include "core/registry/plugin_call.h"
#include "core/registry/registry.h"
#include "core/rendezvous/failure.h"

#include <stdio.h>
#include <string.h>

static const char *describe_ranks(int32_t size, bool threads, bool hosts)
{
	return size == 1 ? "one rank"
	       : threads ? "ranks that are threads of one process"
	       : hosts   ? "ranks on several hosts"
	                 : "ranks that share this host";
}

static bool can_join_ranks(const struct tess_backend *b, int32_t size, bool threads, bool hosts)
{
	if (threads || size == 1)
		return b->threads || size == 1;
	if (hosts)
		return !b->reach || b->reach == TESS_REACH_HOSTS;
	return b->reach != TESS_REACH_PROCESS;
}

static bool moves_memory(const struct tess_backend *b, int32_t mem)
{
	return mem == TESS_HOST && !b->mem_kinds ? true : b->mem_kinds >> mem & 1;
}

/* Asks a backend of a device's memory whether it is usable: it may need libraries. */
static tess_status ask_backend(const struct tess_backend *b, int32_t size, int32_t mem)
{
	const struct tess_coll c = { .size = sizeof c,
		                     .kind = TESS_ALL_REDUCE,
		                     .dtype = TESS_F32,
		                     .op = TESS_SUM,
		                     .mem = mem,
		                     .count = 1 };

	return mem == TESS_HOST ? TESS_OK : TESS_PLUGIN_CALL(b, NULL, supports, &c, size);
}

/* Chooses the first name of the list that can be opened, moves the memory and joins the ranks. */
static tess_status choose_from_list(const char *list, int32_t size, bool threads, bool hosts,
                                    int32_t mem, struct tess_choice *c)
{
	const char *ranks = describe_ranks(size, threads, hosts);
	char name[128], refused[448] = "";

	for (const char *at = list + strspn(list, ", "); *at; at += strspn(at, ", ")) {
		size_t len = strcspn(at, ", ");
		tess_status st;

		snprintf(name, sizeof name, "%.*s", (int)len, at);
		at += len;
		st = tess_plugin_find_backend(name, &c->backend);
		if (!st && (!moves_memory(c->backend, mem) ||
		            !can_join_ranks(c->backend, size, threads, hosts)))
			continue;
		if (!st)
			st = ask_backend(c->backend, size, mem);
		if (!st) {
			snprintf(c->why, sizeof c->why,
			         "%s: the first of TESSERA_BACKENDS that joins them%s%s", ranks,
			         *refused ? "; " : "", refused);
			return TESS_OK;
		}
		if (st == TESS_ENOMEM)
			return st;
		c->second = true;
		snprintf(refused, sizeof refused, "%s cannot be used: %s", name,
		         st == TESS_ENOENT ? "it is not installed" : tess_error());
	}
	return tess_fail(TESS_ENOENT, "TESSERA_BACKENDS=%s has no backend that joins %s%s%s", list,
	                 ranks, *refused ? "; " : "", refused);
}

tess_status tess_backend_choose_for_memory(const char *name, int32_t mem, int32_t size,
                                           bool threads, bool hosts, struct tess_choice *out)
{
	struct tess_choice c = { .why = "TESSERA_BACKEND names it", .named = true };
	tess_status st;

	if (!strcmp(name, "auto")) {
		c.named = false;
		st = choose_from_list(tess_option_get("backends"), size, threads, hosts, mem, &c);
	} else {
		st = tess_plugin_find_backend(name, &c.backend);
		c.named = !st && !moves_memory(c.backend, TESS_HOST);
		if (!st && !moves_memory(c.backend, mem))
			st = tess_fail(TESS_ENOENT, "%s does not move this memory", name);
		else if (!st)
			st = ask_backend(c.backend, size, mem);
	}
	*out = c;
	return st;
}

/* ---- a backend that is named ----------------------------------------------------------------- */

/* Adds the backends that join these ranks to this thread's message. */
static tess_status add_usable_backends(tess_status st, int32_t size, bool threads, bool hosts)
{
	const char *list = tess_option_get("backends");
	char why[TESS_SENTENCE], names[256] = "auto", name[128];
	const struct tess_backend *b;
	size_t n = strlen(names);

	snprintf(why, sizeof why, "%s", tess_error());
	for (const char *at = list + strspn(list, ", "); *at; at += strspn(at, ", ")) {
		size_t len = strcspn(at, ", ");

		snprintf(name, sizeof name, "%.*s", (int)len, at);
		at += len;
		if (!tess_plugin_find_backend(name, &b) && moves_memory(b, TESS_HOST) &&
		    can_join_ranks(b, size, threads, hosts) &&
		    (!threads || b->reach == TESS_REACH_PROCESS) && n < sizeof names)
			n += (size_t)snprintf(names + n, sizeof names - n, ", %s", name);
	}
	return tess_fail(st, "%.1200s; backends that work here: %s", why, names);
}

/* Fails unless the device that computes has memory that `b` moves. */
static tess_status check_device_memory(const struct tess_backend *b)
{
	const struct tess_device *device;
	char name[TESS_DEVICE_NAME];
	tess_status st = tess_options_declare();
	int32_t index;

	if (!st)
		st = tess_device_name_parse(tess_option_get("device"), name, &index);
	if (!st)
		st = tess_plugin_find_device(name, &device);
	if (st || moves_memory(b, device->mem))
		return st;
	return tess_fail(TESS_EINVAL,
	                 "the backend %s does not move memory of device %s; use a device whose "
	                 "memory it moves (TESSERA_DEVICE, --device), or another backend",
	                 b->name, name);
}

tess_status tess_backend_check_device(const char *name, int32_t size, bool threads, bool hosts)
{
	const struct tess_backend *b;
	tess_status st;

	if (size == 1 || !strcmp(name, "auto") || tess_plugin_find_backend(name, &b) ||
	    moves_memory(b, TESS_HOST))
		return TESS_OK;
	st = check_device_memory(b);
	return st ? add_usable_backends(st, size, threads, hosts) : TESS_OK;
}

tess_status tess_backend_choose(const char *name, int32_t size, bool threads, bool hosts,
                                struct tess_choice *out)
{
	struct tess_choice c = { .why = "TESSERA_BACKEND names it" };
	bool listed = !strcmp(name, "auto");
	tess_status st = listed ? TESS_OK : tess_plugin_find_backend(name, &c.backend);

	if (st && size > 1)
		return add_usable_backends(st, size, threads, hosts);
	if (!st && (listed || !moves_memory(c.backend, TESS_HOST)))
		st = choose_from_list(tess_option_get("backends"), size, threads, hosts, TESS_HOST,
		                      &c);
	if (!st && threads && !c.backend->threads)
		st = tess_fail(
			TESS_EINVAL,
			"the ranks of backend %s are processes, not threads; start the program "
			"with tessera launch, or use TESSERA_BACKEND=auto",
			c.backend->name);
	if (!st && hosts && !can_join_ranks(c.backend, size, false, true))
		st = tess_fail(TESS_EINVAL,
		               "the ranks are on several hosts, and those of %s share one; use "
		               "TESSERA_BACKEND=auto",
		               name);
	if (!st)
		*out = c;
	return st;
}
