/* launch.c - launches a kernel on the stream of an op. */
#include "gpu.h"

const struct tess_host *cuda_host;

tess_status cuda_fail_call(const char *where, const char *call, CUresult why)
{
	const char *name = NULL, *text = NULL;

	cuda.cuGetErrorName(why, &name);
	cuda.cuGetErrorString(why, &text);
	return cuda_host->fail(why == CUDA_ERROR_OUT_OF_MEMORY ? TESS_ENOMEM : TESS_EDEVICE,
	                       "%s%scuda: %s: %s (%s)", where ? where : "", where ? ": " : "", call,
	                       text ? text : "unknown error", name ? name : "no name");
}

tess_status op_launch(struct gpu *g, const struct tess_op *op, struct launch l)
{
	void *arguments[] = { (void *)(uintptr_t)l.args };
	CUlaunchAttribute attributes[2];
	CUlaunchConfig how = { .gridDimX = (unsigned)l.blocks[0],
		               .gridDimY = (unsigned)l.blocks[1],
		               .gridDimZ = (unsigned)l.blocks[2],
		               .blockDimX = (unsigned)l.threads,
		               .blockDimY = 1,
		               .blockDimZ = 1,
		               .sharedMemBytes = (unsigned)l.shared,
		               .hStream = op->stream,
		               .attrs = attributes };

	if (g->starts_early)
		attributes[how.numAttrs++] = (CUlaunchAttribute){
			.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
			.value.programmaticStreamSerializationAllowed = 1
		};
	if (l.cluster)
		attributes[how.numAttrs++] =
			(CUlaunchAttribute){ .id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
			                     .value.clusterDim = { 1, (unsigned)l.cluster, 1 } };
	for (int i = 0; i < 3; i++)
		if (!l.blocks[i])
			return TESS_OK;
	return CUDA_CALL(op->where, cuLaunchKernelEx, &how, g->kernel[l.kernel], arguments, NULL);
}

tess_status op_launch_rows(struct gpu *g, const struct tess_op *op, int32_t kernel, int64_t rows,
                           int64_t columns, const void *args)
{
	return op_launch(g, op,
	                 (struct launch){ .kernel = kernel,
	                                  .blocks = { tess_up(columns, MAP_THREADS),
	                                              rows < GRID_MAX ? rows : GRID_MAX, 1 },
	                                  .threads = MAP_THREADS,
	                                  .args = args });
}

tess_status op_round_rows(struct gpu *g, const struct tess_op *op, const float *x, int64_t pitch,
                          int64_t rows, int64_t columns, void *y, int64_t y_pitch)
{
	struct cast_args a = { .x = x,
		               .y = y,
		               .x_stride = { pitch, 1 },
		               .y_pitch = y_pitch,
		               .rows = rows,
		               .columns = columns,
		               .dtype = TESS_F32,
		               .wide = is_row_aligned(x, pitch, sizeof(float)) };

	return op_launch_rows(g, op, KERNEL_round_rows, rows, tess_up(columns, 4), &a);
}
