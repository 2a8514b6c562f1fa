/* explain_device.c - the device for which a plan is explained, which this machine may lack. */
#include "api/explaining.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "nn/weights/device.h"

#include <string.h>

static int32_t prefer_weights_dtype(int32_t weights)
{
	return weights == TESS_BF16 ? TESS_BF16 : TESS_F32;
}

/* Stands for the device cuda where its plugin is not installed: a build without CUDA. */
static const struct tess_device absent_cuda = {
	.size = sizeof absent_cuda,
	.mem = TESS_CUDA,
	.name = "cuda",
	.layout = TESS_ROWS,
	.kv_dtype = prefer_weights_dtype,
};

static bool is_cuda(const char *text)
{
	return !strncmp(text, absent_cuda.name, strlen(absent_cuda.name)) &&
	       (!text[4] || text[4] == ':');
}

/* Assumes something instead of a device that cannot be found. */
static tess_status assume_device(struct explanation *x, tess_status st)
{
	if (st == TESS_ENOENT && is_cuda(tess_option_get("device"))) {
		x->model.device = &absent_cuda;
		x->e.assumed = "device cuda is not installed here: no steps are fused, and rows of "
			       "training are f32";
		return TESS_OK;
	}
	if (x->model.kv_dtype) {
		x->e.assumed = "the device cannot be used here: values are those of cpu";
		return TESS_OK;
	}
	return x->training ? st
	                   : tess_fail(st, "%s, or without that device say --kv f32 or bf16",
	                               tess_error());
}

tess_status tess_explaining_find_device(struct explanation *x)
{
	tess_status st = tess_device_inspect(&x->model.device);

	return st ? assume_device(x, st) : TESS_OK;
}
