#include "foreign.h"
#include "gpu.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

struct cuda_table cuda;

#define NAME(call) #call
#define SYMBOL(call) { NAME(call), &cuda.call, 0 },

/* Opens the driver, unless its device file is missing: on Linux, or on Windows' WSL. */
static tess_status open_nvidia_driver(void)
{
	static const char *const names[] = { "libcuda.so.1", NULL };
	static const struct foreign_symbol symbols[] = { CUDA_DRIVER_CALLS(SYMBOL){ 0 } };
	void *driver;
	tess_status st;

	if (cuda.cuInit)
		return TESS_OK;
	if (access("/dev/nvidiactl", F_OK) && access("/dev/dxg", F_OK))
		return cuda_host->fail(TESS_ENOTSUP,
		                       "cuda: this machine has no NVIDIA GPU, or no driver for it: "
		                       "there is no /dev/nvidiactl; use --device cpu");
	st = foreign_open_library(cuda_host, names, &driver);
	return st ? st : foreign_find_symbols(cuda_host, names[0], driver, symbols);
}

/* Opens a library and finds its symbols, once for all ranks that are threads. */
static tess_status load_library(const char *const *names, const struct foreign_symbol *symbols,
                                bool *loaded)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	void *library;
	tess_status st = TESS_OK;

	pthread_mutex_lock(&lock);
	if (!*loaded)
		st = foreign_open_library(cuda_host, names, &library);
	if (!st && !*loaded)
		st = foreign_find_symbols(cuda_host, names[0], library, symbols);
	*loaded = !st;
	pthread_mutex_unlock(&lock);
	return st;
}

/* Opens the driver's own release first: the next one may not run on it. */
static tess_status open_nvidia_blas(void)
{
	static const struct foreign_symbol symbols[] = { CUDA_BLAS_CALLS(SYMBOL){ 0 } };
	static bool loaded;
	char name[2][32];
	const char *names[] = { name[0], name[1], NULL };
	int version = 0, newest = CUDA_VERSION / 1000;

	cuda.cuDriverGetVersion(&version);
	newest = version / 1000 < newest ? version / 1000 : newest;
	snprintf(name[0], sizeof name[0], "libcublasLt.so.%d", newest);
	snprintf(name[1], sizeof name[1], "libcublasLt.so.%d", newest - 1);
	return load_library(names, symbols, &loaded);
}

static tess_status open_nvidia_dnn(void)
{
	static const char *const names[] = { "libcudnn.so.9", NULL };
	static const struct foreign_symbol symbols[] = { CUDA_DNN_CALLS(SYMBOL){ 0 } };
	static bool loaded;

	return load_library(names, symbols, &loaded);
}

const struct cuda_loader cuda_loader = { open_nvidia_driver, open_nvidia_blas, open_nvidia_dnn };
