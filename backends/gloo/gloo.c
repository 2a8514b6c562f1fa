/*
 * tess-backend-gloo.so: ranks are processes, on one host or several, that communicate over Gloo's
 * TCP transport.
 *
 * On one host everything is bound to 127.0.0.1. Gloo's connections neither authenticate the peer
 * nor encrypt: between hosts the network itself must be trusted.
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "work.h"

static const struct tess_host *host;

/* ---- which address --------------------------------------------------------------------------- */

/* Describes the host; processes that share a loopback interface get equal texts. */
static void describe_host(char *out, size_t capacity)
{
	char boot[64] = "", net[64] = "";
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
	ssize_t n = readlink("/proc/self/ns/net", net, sizeof net - 1);

	if (f) {
		if (!fgets(boot, sizeof boot, f))
			boot[0] = '\0';
		fclose(f);
	}
	boot[strcspn(boot, "\n")] = '\0';
	net[n > 0 ? n : 0] = '\0';
	snprintf(out, capacity, "%s %s", boot, net);
}

/* Finds the local address of the route to rank 0. Connecting a datagram socket sends nothing. */
static tess_status find_outward_address(const struct tess_group_entry *how, char *out,
                                        size_t capacity)
{
	struct addrinfo hints = { .ai_socktype = SOCK_DGRAM }, *list = NULL;
	char master[256] = "";
	uint64_t len = sizeof master - 1;
	struct sockaddr_storage own;
	socklen_t own_len = sizeof own;
	int fd = -1, found = 0;
	tess_status st = how->store->get(how->store->self, "meeting", how->deadline, master, &len);

	if (st < 0)
		return st;
	if (*master && !getaddrinfo(master, "1", &hints, &list)) {
		fd = socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		found = fd >= 0 && !connect(fd, list->ai_addr, list->ai_addrlen) &&
		        !getsockname(fd, (struct sockaddr *)&own, &own_len) &&
		        !getnameinfo((struct sockaddr *)&own, own_len, out, (socklen_t)capacity,
		                     NULL, 0, NI_NUMERICHOST);
		if (fd >= 0)
			close(fd);
		freeaddrinfo(list);
	}
	if (found && strncmp(out, "127.", 4) && strcmp(out, "::1"))
		return TESS_OK;
	return host->fail(
		TESS_EINVAL,
		"group %s over gloo has ranks on several hosts, and this one does not know the "
		"address by which other hosts reach it (the rendezvous is at %s%s); set "
		"TESSERA_GLOO_ADDRESS",
		how->name, *master ? master : "no address",
		!*master ? ""
		: found  ? ", this host's own loopback"
			 : ", which is not reachable");
}

/* ---- bootstrap ------------------------------------------------------------------------------- */

static tess_status gloo_set_key(const struct group *g, const struct tess_group_entry *how,
                                const char *what, const void *val, size_t len)
{
	char key[256];

	snprintf(key, sizeof key, "%s/gloo/%s/%d", g->name, what, (int)g->rank);
	return how->store->set(how->store->self, key, val, len);
}

/* Gets up to `len` bytes of member `r`, padded with zeros. */
static tess_status gloo_get_key(const struct group *g, const struct tess_group_entry *how,
                                const char *what, int32_t r, void *val, size_t len)
{
	uint64_t capacity = len;
	char key[256];
	tess_status st;

	memset(val, 0, len);
	snprintf(key, sizeof key, "%s/gloo/%s/%d", g->name, what, (int)r);
	st = how->store->get(how->store->self, key, how->deadline, val, &capacity);
	if (st == TESS_ETIMEOUT)
		return host->fail(st, "group %s over gloo: rank %d did not come until the deadline",
		                  g->name, (int)g->world[r]);
	return st;
}

static tess_status choose_address(struct group *g, const struct tess_group_entry *how)
{
	const struct group *parent = how->parent;
	const char *chosen = host->option("gloo_address");
	char own[128], other[128];
	int one_host = 1;
	tess_status st;

	if (parent) {
		memcpy(g->address, parent->address, sizeof g->address);
		return TESS_OK;
	}
	describe_host(own, sizeof own);
	st = gloo_set_key(g, how, "host", own, strlen(own));
	for (int32_t r = 0; r < g->nranks && st == TESS_OK; r++) {
		st = gloo_get_key(g, how, "host", r, other, sizeof other - 1);
		other[sizeof other - 1] = '\0';
		one_host = one_host && !strcmp(own, other);
	}
	if (st < 0)
		return st;
	if (*chosen)
		snprintf(g->address, sizeof g->address, "%s", chosen);
	else if (one_host)
		snprintf(g->address, sizeof g->address, "127.0.0.1");
	else
		return find_outward_address(how, g->address, sizeof g->address);
	return TESS_OK;
}

/* Connects to the peers that this rank calls, or accepts those that call it. */
static tess_status connect_peers(struct group *g, const struct tess_group_entry *how, int calls)
{
	size_t all = (size_t)g->nranks * SHIM_ADDRESS;
	char *theirs = malloc(all), why[SHIM_WHY];
	tess_status st = theirs ? TESS_OK : host->fail(TESS_ENOMEM, "gloo: out of memory");

	for (int32_t r = 0; r < g->nranks && st == TESS_OK; r++) {
		const char *at = theirs + (size_t)g->rank * SHIM_ADDRESS;
		int turn;

		if (r == g->rank)
			continue;
		st = gloo_get_key(g, how, "address", r, theirs, all);
		if (st < 0)
			break;
		turn = shim_calls(g->mesh, r, at, why);
		if (turn == calls)
			turn = shim_connect(g->mesh, r, at, why);
		if (turn < 0)
			st = host->fail(TESS_EPEER,
			                "group %s over gloo: no connection to rank %d: %s", g->name,
			                (int)g->world[r], why);
	}
	free(theirs);
	return st;
}

/*
 * Connects all ranks. Every rank publishes its addresses, calls its share of the peers, and
 * publishes that. A rank that answers waits for this in the store, which detects deadlines and dead
 * ranks; Gloo does not.
 */
static tess_status connect_mesh(struct group *g, const struct tess_group_entry *how)
{
	size_t all = (size_t)g->nranks * SHIM_ADDRESS;
	const struct group *parent = how->parent;
	char *mine = calloc(1, all), why[SHIM_WHY], word[8];
	int bad = 0;
	tess_status st;

	if (!mine)
		return host->fail(TESS_ENOMEM, "gloo: out of memory");
	bad = shim_open(g->address, g->rank, g->nranks, how->deadline - tess_now(),
	                parent ? parent->mesh : NULL, &g->mesh, why);
	for (int32_t r = 0; r < g->nranks && !bad; r++)
		if (r != g->rank)
			bad = shim_address(g->mesh, r, mine + (size_t)r * SHIM_ADDRESS, why);
	if (bad)
		st = host->fail(TESS_EIO, "group %s over gloo: cannot listen on %s: %s", g->name,
		                g->address, why);
	else
		st = gloo_set_key(g, how, "address", mine, all);
	free(mine);
	if (st == TESS_OK)
		st = connect_peers(g, how, 1);
	if (st == TESS_OK)
		st = gloo_set_key(g, how, "called", "yes", 3);
	for (int32_t r = 0; r < g->nranks && st == TESS_OK; r++)
		st = gloo_get_key(g, how, "called", r, word, sizeof word);
	if (st == TESS_OK)
		st = connect_peers(g, how, 0);
	return st;
}

/* ---- the table ------------------------------------------------------------------------------- */

static tess_status gloo_supports_call(const struct tess_coll *c, int32_t nranks)
{
	char fault[128];

	(void)nranks;
	if (tess_coll_find_fault(c, fault, sizeof fault))
		return host->fail(TESS_ENOTSUP, "gloo: %s", fault);
	return TESS_OK;
}

static void gloo_close_group(void *self)
{
	struct group *g = self;

	if (!g)
		return;
	gloo_work_clear(g);
	shim_close(g->mesh);
	pthread_mutex_destroy(&g->lock);
	free(g->sent);
	free(g->received);
	free(g->world);
	free(g->name);
	free(g);
}

/* Waits for all ranks: one that left at once could break the connection of a slower one. */
static tess_status await_all_open(struct group *g, const struct tess_group_entry *how)
{
	struct tess_coll c = {
		.size = sizeof c,
		.kind = TESS_BARRIER,
		.deadline = how->deadline,
		.where = "open",
	};
	void *w;
	tess_status st = gloo_work_start(g, &c, &w);

	if (st < 0)
		return st;
	st = gloo_work_run(g, w, how->deadline);
	gloo_work_release(g, w);
	return st;
}

static tess_status gloo_open_group(const struct tess_group_entry *how, void **self)
{
	size_t n = (size_t)how->nranks;
	struct group *g = calloc(1, sizeof *g);
	tess_status st = TESS_OK;

	if (!g)
		return host->fail(TESS_ENOMEM, "gloo: out of memory");
	pthread_mutex_init(&g->lock, NULL);
	g->host = host;
	g->rank = how->rank;
	g->nranks = how->nranks;
	g->name = strdup(how->name);
	g->world = malloc(n * sizeof *g->world);
	g->sent = calloc(n, sizeof *g->sent);
	g->received = calloc(n, sizeof *g->received);
	if (!g->name || !g->world || !g->sent || !g->received)
		st = host->fail(TESS_ENOMEM, "gloo: out of memory");
	for (size_t r = 0; r < n && st == TESS_OK; r++)
		g->world[r] = how->world ? how->world[r] : (int32_t)r;
	if (n > 1) {
		if (st == TESS_OK)
			st = choose_address(g, how);
		if (st == TESS_OK)
			st = connect_mesh(g, how);
		if (st == TESS_OK)
			st = await_all_open(g, how);
	}
	if (st < 0) {
		gloo_close_group(g);
		return st;
	}
	*self = g;
	return TESS_OK;
}

static tess_status gloo_test_call(void *self, void *work)
{
	return gloo_work_run(self, work, 0);
}

static tess_status gloo_init_plugin(const struct tess_host *h)
{
	host = h;
	return TESS_OK;
}

static const struct tess_backend gloo = {
	.size = sizeof gloo,
	.threads = 1,
	.name = "gloo",
	.summary = "processes on one host or several, over TCP (libgloo)",
	.supports = gloo_supports_call,
	.open = gloo_open_group,
	.start = gloo_work_start,
	.test = gloo_test_call,
	.wait = gloo_work_run,
	.release = gloo_work_release,
	.close = gloo_close_group,
	.abort = gloo_work_abort,
	.exact = 1,
	.reach = TESS_REACH_HOSTS,
	.mem_kinds = 1 << TESS_HOST,
};

static const struct tess_option address = {
	"gloo_address", "",
	"numeric address of this host for other hosts; default: 127.0.0.1 on one host, "
	"else the one that reaches MASTER_ADDR"
};

TESS_DEFINE_PLUGIN("gloo", "1.0", "Apache-2.0", .summary = "communication over libgloo",
                   .backends = TESS_LIST(tess_backend, &gloo),
                   .options = TESS_LIST(tess_option, &address), .init = gloo_init_plugin);
