#include "netns.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

bool netns_create(const char *name)
{
	char command[1024];

	snprintf(command, sizeof command,
	         "exec 2>/dev/null; n=%s; ip netns add ${n}0 && ip netns add ${n}1 &&"
	         "ip link add ${n}a netns ${n}0 type veth peer name ${n}b netns ${n}1 &&"
	         "ip -n ${n}0 addr add 10.231.7.1/24 dev ${n}a && ip -n ${n}1 addr add "
	         "10.231.7.2/24 dev ${n}b &&"
	         "ip -n ${n}0 link set ${n}a up && ip -n ${n}1 link set ${n}b up &&"
	         "ip -n ${n}0 link set lo up && ip -n ${n}1 link set lo up",
	         name);
	if (!geteuid() && !system(command))
		return true;
	netns_delete(name);
	printf("skipped: two hosts need root, ip and network namespaces\n");
	return false;
}

void netns_delete(const char *name)
{
	char command[128];

	snprintf(command, sizeof command, "exec 2>/dev/null; ip netns del %s0; ip netns del %s1",
	         name, name);
	if (system(command))
		printf("%s0 and %s1 cannot be removed\n", name, name);
}
