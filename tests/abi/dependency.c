/* A library that a plugin needs, and that has a descriptor itself. */
#include <tessera/style.h>

TESS_EXPORT extern const char tess_abi_dependency;
const char tess_abi_dependency = 1;

TESS_PLUGIN = {
	.abi = TESS_ABI,
	.size = sizeof(struct tess_plugin),
	.name = "dependency",
	.version = "1.0",
	.license = "Apache-2.0",
};
