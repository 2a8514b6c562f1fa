/*
 * kernels.cu - includes all kernels; nvcc compiles them to one fat binary, and tests compile them
 * as C.
 */
#include "port.h"

#include "rows.cuh"

#include "norms.cuh"

#include "sample.cuh"

#include "multiply.cuh"

#include "attention.cuh"

#include "rope.cuh"

#include "attention_spans.cuh"

#include "attention_rows.cuh"

#include "attention_tiles.cuh"

#include "attention_tensor.cuh"

#include "attention_wgmma.cuh"

#include "attention_runs.cuh"

#include "training.cuh"

#include "optimizer.cuh"

#include "attention_d.cuh"

#include "attention_dnn.cuh"

#include "experts.cuh"

#include "groups.cuh"

#include "multiply_tensor.cuh"

#include "groups_tensor.cuh"

#include "experts_d.cuh"
