/* The kernels; nvcc makes one fat binary of them, and tests compile them as C. */
#include "port.h"

#include "rows.cuh"

#include "multiply.cuh"

#include "attention.cuh"

#include "tensor.cuh"

#include "tiles.cuh"

#include "experts.cuh"
