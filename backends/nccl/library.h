/*
 * library.h - NCCL and the CUDA driver, as tables of function pointers that are filled at run time:
 * this plugin links no library of NVIDIA and is built without its headers.
 *
 * All declarations are part of the stable ABIs of NCCL and the driver; tests/nccl compares them
 * with nccl.h if it is installed.
 */
#ifndef NCCL_LIBRARY_H
#define NCCL_LIBRARY_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <tessera/plugin.h>

/* from ncclResult_t; newer versions have more */
enum { NCCL_SUCCESS = 0, NCCL_CUDA_ERROR = 1, NCCL_SYSTEM_ERROR = 2, NCCL_INVALID_USAGE = 5 };
enum { NCCL_REMOTE_ERROR = 6, NCCL_IN_PROGRESS = 7, NCCL_TIMEOUT = 8 };
/* from ncclDataType_t */
enum { NCCL_I8 = 0, NCCL_U8 = 1, NCCL_I32 = 2, NCCL_I64 = 4, NCCL_F16 = 6, NCCL_F32 = 7 };
enum { NCCL_F64 = 8, NCCL_BF16 = 9 };
/* from ncclRedOp_t */
enum { NCCL_SUM = 0, NCCL_PROD = 1, NCCL_MAX = 2, NCCL_MIN = 3 };
enum { NCCL_UNSET = INT_MIN };
#define NCCL_MAGIC 0xcafebeefu

enum {
	NCCL_OLDEST = 21800, /* ncclCommSplit */
	NCCL_SHARES_GPUS = 23000 /* several ranks on a GPU */
};

struct nccl_id { /* ncclUniqueId */
	char bytes[128];
};

struct nccl_config { /* ncclConfig_t of 2.18; newer versions read it by its size */
	size_t size;
	unsigned int magic, version;
	int blocking, cga_cluster, min_ctas, max_ctas;
	const char *net;
	int split_share;
};

enum { CUDA_SUCCESS = 0, CUDA_NOT_READY = 600, CUDA_NO_TIMING = 2 };

/*
 * Handles (communicators, streams, events, contexts) are opaque pointers; results are 0 on success.
 */
struct nccl_calls {
	int (*get_version)(int *version);
	int (*get_unique_id)(struct nccl_id *id);
	int (*comm_init)(void **comm, int nranks, struct nccl_id id, int rank,
	                 struct nccl_config *config);
	int (*comm_split)(void *comm, int colour, int key, void **out, struct nccl_config *config);
	int (*comm_finalize)(void *comm);
	int (*comm_destroy)(void *comm);
	int (*comm_abort)(void *comm);
	int (*get_async_error)(void *comm, int *result);
	const char *(*get_error_string)(int result);
	const char *(*get_last_error)(void *comm);
	int (*group_start)(void);
	int (*group_end)(void);
	int (*all_reduce)(const void *src, void *dst, size_t n, int dtype, int op, void *comm,
	                  void *stream);
	int (*reduce)(const void *src, void *dst, size_t n, int dtype, int op, int root, void *comm,
	              void *stream);
	int (*broadcast)(const void *src, void *dst, size_t n, int dtype, int root, void *comm,
	                 void *stream);
	int (*all_gather)(const void *src, void *dst, size_t n, int dtype, void *comm,
	                  void *stream);
	int (*reduce_scatter)(const void *src, void *dst, size_t n, int dtype, int op, void *comm,
	                      void *stream);
	int (*send)(const void *src, size_t n, int dtype, int peer, void *comm, void *stream);
	int (*recv)(void *dst, size_t n, int dtype, int peer, void *comm, void *stream);
	/* NULL if NCCL is too old */
	int (*mem_alloc)(void **out, size_t bytes);
	int (*mem_free)(void *p);
	int (*comm_register)(void *comm, void *p, size_t bytes, void **handle);
	int (*comm_deregister)(void *comm, void *handle);

	int (*cuda_init)(unsigned int flags);
	int (*cuda_get_error)(int result, const char **text);
	int (*device_count)(int *n);
	int (*device_get)(int *device, int index);
	int (*device_bus_id)(char *text, int len, int device);
	int (*context_retain)(void **context, int device);
	int (*context_release)(int device);
	int (*context_push)(void *context);
	int (*context_pop)(void **context);
	int (*event_create)(void **event, unsigned int flags);
	int (*event_destroy)(void *event);
	int (*event_record)(void *event, void *stream);
	int (*event_query)(void *event);
	int (*stream_wait)(void *stream, void *event, unsigned int flags);
	int (*cuda_alloc)(unsigned long long *p, size_t bytes);
	int (*cuda_free)(unsigned long long p);
	int (*alloc_async)(unsigned long long *p, size_t bytes, void *stream);
	int (*free_async)(unsigned long long p, void *stream);
	int (*copy_async)(unsigned long long dst, unsigned long long src, size_t bytes,
	                  void *stream);
};

/*
 * Opens the libraries on the first call. *version: NCCL's version, as 22809. Returns TESS_ENOTSUP
 * if one is missing or too old; the message names it.
 */
tess_status library_get_calls(const struct tess_host *host, const struct nccl_calls **out,
                              int *version);

/* Formats a version as "2.28.9". */
void library_format_version(int version, char text[static 24]);

#endif
