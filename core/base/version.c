#include <tessera/tessera.h>

const char *tess_version(void)
{
	return TESS_VERSION;
}
