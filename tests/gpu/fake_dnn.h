/* fake_dnn.h - the fake of cuDNN in the table of the CUDA device; part of fake_cuda.c. */
#ifndef TESS_TESTS_GPU_FAKE_DNN_H
#define TESS_TESTS_GPU_FAKE_DNN_H

#include <stdbool.h>
#include <stddef.h>

/* Sets the calls of cuDNN in `cuda`. */
void fake_dnn_fill_table(void);

/* fake_cuda.c: whether FAKE_CUDA_FAILS names the call; whether all bytes are in GPU memory. */
bool fake_cuda_fails(const char *call);
bool fake_cuda_has_bytes(const void *p, size_t bytes);

#endif
