#include "meeting.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct card { /* published by each rank for all */
	int32_t version, shares; /* NCCL's version; whether NCCL may share GPUs */
	char host[64], bus[32];
};

static void read_boot_id(char *out, size_t capacity)
{
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

	if (!f || !fgets(out, (int)capacity, f))
		gethostname(out, capacity);
	if (f)
		fclose(f);
	out[strcspn(out, "\n")] = '\0';
}

static tess_status describe_card(struct group *g, int version, struct card *card)
{
	const char *shares = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
	int bad;

	card->version = version;
	card->shares = version >= NCCL_SHARES_GPUS && (!shares || !strcmp(shares, "1"));
	read_boot_id(card->host, sizeof card->host);
	bad = g->calls->device_bus_id(card->bus, sizeof card->bus, g->device);
	return bad ? group_fail_cuda(g, bad, "cuDeviceGetPCIBusId") : TESS_OK;
}

tess_status meeting_get_key(const struct group *g, const struct tess_group_entry *how,
                            const char *what, int32_t r, void *val, uint64_t len)
{
	char key[256];
	tess_status st;

	snprintf(key, sizeof key, "%s/nccl/%s/%d", g->name, what, (int)r);
	st = how->store->get(how->store->self, key, how->deadline, val, &len);
	if (st == TESS_ETIMEOUT)
		return g->host->fail(st,
		                     "group %s over nccl: rank %d did not come until the "
		                     "deadline",
		                     g->name, (int)g->world[r]);
	return st;
}

tess_status meeting_set_key(const struct group *g, const struct tess_group_entry *how,
                            const char *what, const void *val, uint64_t len)
{
	char key[256];

	snprintf(key, sizeof key, "%s/nccl/%s/%d", g->name, what, (int)g->rank);
	return how->store->set(how->store->self, key, val, len);
}

/* Compares the cards. Every rank has the same ones: all ranks refuse, or none. */
static tess_status judge_cards(const struct group *g, const struct card *card, bool *shared)
{
	char first[24], other[24];

	*shared = false;
	for (int32_t r = 0; r < g->nranks; r++) {
		library_format_version(card[0].version, first);
		library_format_version(card[r].version, other);
		if (card[r].version != card[0].version)
			return g->host->fail(
				TESS_ENOTSUP,
				"rank %d has NCCL %s, and rank %d NCCL %s; install one "
				"version for all ranks",
				(int)g->world[0], first, (int)g->world[r], other);
		for (int32_t q = 0; q < r; q++) {
			if (strcmp(card[q].bus, card[r].bus) || strcmp(card[q].host, card[r].host))
				continue;
			*shared = true;
			if (card[q].shares && card[r].shares)
				continue;
			return g->host->fail(
				TESS_ENOTSUP,
				"ranks %d and %d are on one GPU (%s), which NCCL %s does not "
				"allow; use one rank a GPU, or NCCL 2.30 or newer with "
				"NCCL_MULTI_RANK_GPU_ENABLE=1",
				(int)g->world[q], (int)g->world[r], card[r].bus, other);
		}
	}
	return TESS_OK;
}

tess_status meeting_exchange_cards(struct group *g, const struct tess_group_entry *how, int version,
                                   bool *shared)
{
	struct card mine = { 0 }, *all = calloc((size_t)g->nranks, sizeof *all);
	tess_status st = all ? describe_card(g, version, &mine)
	                     : g->host->fail(TESS_ENOMEM, "nccl: out of memory");

	if (!st)
		st = meeting_set_key(g, how, "card", &mine, sizeof mine);
	for (int32_t r = 0; r < g->nranks && !st; r++)
		st = meeting_get_key(g, how, "card", r, &all[r], sizeof *all);
	if (!st)
		st = judge_cards(g, all, shared);
	free(all);
	return st;
}

/* Finds the interface with the address from which this host reaches rank 0. Sends nothing. */
static bool find_outward_interface(const char *meeting, char name[static IF_NAMESIZE])
{
	struct addrinfo hints = { .ai_socktype = SOCK_DGRAM }, *list = NULL;
	struct sockaddr_storage own = { 0 };
	socklen_t len = sizeof own;
	struct ifaddrs *all = NULL;
	bool found = false;
	int fd;

	if (getaddrinfo(meeting, "1", &hints, &list))
		return false;
	fd = socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && !connect(fd, list->ai_addr, list->ai_addrlen) &&
	    !getsockname(fd, (struct sockaddr *)&own, &len) && !getifaddrs(&all))
		for (struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
			size_t at = own.ss_family == AF_INET
			                    ? offsetof(struct sockaddr_in, sin_addr)
			                    : offsetof(struct sockaddr_in6, sin6_addr);
			size_t bytes = own.ss_family == AF_INET ? 4 : 16;

			found = i->ifa_addr && i->ifa_addr->sa_family == own.ss_family &&
			        !memcmp((char *)i->ifa_addr + at, (char *)&own + at, bytes);
			if (found)
				snprintf(name, IF_NAMESIZE, "%s", i->ifa_name);
		}
	if (fd >= 0)
		close(fd);
	freeifaddrs(all);
	freeaddrinfo(list);
	return found;
}

/*
 * Sets variables that the user has not set before the first communicator: NCCL reads the network of
 * its connections once, from the environment. Ranks that share a GPU need a switch, and no NVLS.
 *
 * Other GPUs of the process cannot read memory of the device's stream-ordered pool, hence no direct
 * P2P. Graph registration is off: NCCL requires that registered buffers are at equal offsets of
 * their memory on all ranks, and group_alloc has already registered those.
 */
tess_status meeting_set_environment(const struct tess_group_entry *how, bool shared)
{
	static pthread_mutex_t environment = PTHREAD_MUTEX_INITIALIZER; /* ranks may be threads */
	char meeting[256] = "", name[IF_NAMESIZE] = "lo", value[IF_NAMESIZE + 1];
	uint64_t len = sizeof meeting - 1;
	tess_status st = how->store->get(how->store->self, "meeting", how->deadline, meeting, &len);

	if (st)
		return st;
	pthread_mutex_lock(&environment);
	if (!*meeting || find_outward_interface(meeting, name)) {
		snprintf(value, sizeof value, "=%s", name);
		setenv("NCCL_SOCKET_IFNAME", value, 0);
	}
	setenv("NCCL_P2P_DIRECT_DISABLE", "1", 0);
	setenv("NCCL_GRAPH_REGISTER", "0", 0);
	if (shared) {
		setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
		setenv("NCCL_NVLS_ENABLE", "0", 0);
	}
	pthread_mutex_unlock(&environment);
	return TESS_OK;
}
