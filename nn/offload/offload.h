/*
 * offload.h - the values of a rank that are in files instead of memory: which, where, and their
 * transfers. Next to a device with memory of its own, the "files" are memory of the host
 * (pinned.h).
 *
 * One file contains weights at rest and their gradients, the other masters and moments. A weight
 * below TESS_OFFLOAD_MIN bytes stays in memory, with its gradient and state. The state of a weight
 * is stored in buckets of TESS_OFFLOAD_BUCKET elements: its master, if that is not the weight
 * itself, then each moment. A program may set other limits.
 */
#ifndef TESS_NN_OFFLOAD_H
#define TESS_NN_OFFLOAD_H

#include "nn/offload/disk.h"
#include "nn/offload/pinned.h"
#include "nn/program/storage.h"

enum { TESS_OFFLOAD_MIN = 64 << 10, TESS_OFFLOAD_BUCKET = 1 << 20 }; /* bytes; elements */

/* Returns the maximum number of elements of a bucket. */
int64_t tess_offload_get_bucket(const struct tess_program *p);
/* Returns the bytes of an array in a file: whole blocks. */
uint64_t tess_offload_pad(uint64_t bytes);

/* Returns the location that an option names: NULL, "host" or a folder. */
int32_t tess_location_parse(const char *option);
/*
 * Checks that a device takes an option that moves values. name: that of the command's option.
 * TESS_ENOTSUP: values are in files, and the device has memory of its own.
 */
tess_status tess_location_check_device(const char *name, const char *option,
                                       const struct tess_device *device);

/*
 * Returns whether a rank's weight at rest, and its gradient, are in a file: fetched before use. In
 * inference these are files of the checkpoint.
 */
bool tess_weight_is_fetched(const struct tess_program *p, const struct tess_weight *w,
                            int32_t rank);
/* Returns whether a rank's moments of a weight, and its master if it has one, are in a file. */
bool tess_weight_has_stored_state(const struct tess_program *p, const struct tess_weight *w,
                                  int32_t rank);

struct tess_stored_weight {
	uint64_t weight, gradient, state; /* offsets in the files */
	int32_t arrays; /* of its state: masters and moments */
	bool trained;
	bool fetched, has_gradient, has_state; /* else the offsets are not used */
	int64_t bucket; /* number of its first bucket */
};

struct tess_offload_layout {
	const struct tess_program *program; /* borrowed */
	int32_t rank, moments;
	bool pinned; /* the files are memory of the host */
	struct tess_stored_weight *weight; /* by index */
	uint64_t bytes[2]; /* of the files: TESS_REST, TESS_STATE */
};

/* Lays out the files of a rank, without opening them; memory in `arena`. TESS_ENOMEM. */
tess_status tess_offload_lay_out(const struct tess_program *p, int32_t rank, int32_t moments,
                                 struct tess_arena *arena, struct tess_offload_layout *out);

/*
 * Returns whether w is trained, and its gradient is stored under its own name. All tied heads of a
 * table have one gradient, that of the first head (nn/backward).
 */
bool tess_offload_has_own_gradient(const struct tess_program *p, const struct tess_weight *w);

struct tess_stored_run { /* adjacent elements in a file */
	int32_t file; /* TESS_REST, TESS_STATE */
	uint64_t offset;
	int64_t n;
	int64_t bucket;
};
/*
 * Finds elements [at, at + n) of what a rank keeps of a weight (`what`: TESS_WEIGHT, ...), or as
 * many of them as are adjacent. Returns false if they are in memory; out->file is then the file of
 * such values.
 */
bool tess_offload_find(const struct tess_offload_layout *s, const struct tess_weight *w,
                       int32_t what, int64_t at, int64_t n, struct tess_stored_run *out);
/* Returns whether the update changes values of a weight that are in files. */
bool tess_offload_has_updated(const struct tess_offload_layout *s, const struct tess_weight *w);
/*
 * Finds elements of such a weight as tess_offload_find does, and returns whether the update moves
 * them: they are in a file, or in memory of the device if the files are memory of the host. It does
 * not use f32 weights, only their masters.
 */
bool tess_offload_is_moved(const struct tess_offload_layout *s, const struct tess_weight *w,
                           int32_t what, int64_t at, int64_t n, struct tess_stored_run *out);

struct tess_offload {
	struct tess_offload_layout layout;
	struct tess_disk *disk[2]; /* by file; NULL: it has no bytes */
	struct tess_pinned *pinned; /* memory of the host in place of files; NULL: none */
	/*
	 * Gets the bytes of transfers that start: [0] read from files, [1] written to them; or
	 * copied to the device, and from it. NULL: they are not counted. Borrowed.
	 */
	uint64_t *moved;
};

/*
 * Opens the files of a layout in the folders of weights and of state, or memory of the host next to
 * `device`. Close it.
 */
tess_status tess_offload_open(const struct tess_offload_layout *layout, const char *const dir[2],
                              const struct tess_pinned_device *device, struct tess_offload *out);
/*
 * Opens queues of their own for the same files, for another thread (tess_disk_open_queue). *out has
 * the layout of `s`, which must outlive it. Close it.
 */
tess_status tess_offload_open_queues(const struct tess_offload *s, struct tess_offload *out);
void tess_offload_close(struct tess_offload *s);
/*
 * Finds elements as tess_offload_find does, and returns their memory of the host. NULL: they are in
 * a file, or in memory of the device.
 */
void *tess_offload_find_pinned(const struct tess_offload *s, const struct tess_weight *w,
                               int32_t what, int64_t at, int64_t *n);

struct tess_transfer { /* adjacent elements on their way between memory and a file */
	const struct tess_weight *weight;
	int32_t what;
	int64_t first, n;
	bool writes;
	void *memory; /* the first element; borrowed until the wait has returned */
	bool on_device; /* the memory is that of the device, and not the host's */
	/*
	 * for experts in inference: f32 [rows, experts of the rank]. An expert that has 0 in all
	 * rows is not read. NULL: all experts are read. Borrowed like the memory
	 */
	const float *routing;
	int64_t rows, row_stride;
	struct tess_disk *disk; /* private, like the following fields */
	const struct tess_pinned *pinned; /* a copy on a lane; NULL: none */
	int32_t lane;
	struct tess_disk_request request;
	/* for a fetcher (nn/weights/fetch.h): the next transfer of its queue, and the result */
	struct tess_transfer *after;
	bool done;
	tess_status status;
	char message[256];
};
/* Starts a transfer; its elements must be adjacent in a file. Does not block for long. */
tess_status tess_offload_start(const struct tess_offload *s, struct tess_transfer *t);
tess_status tess_offload_wait(struct tess_transfer *t);
/* Waits as tess_offload_wait does, or lets later work of the rank's stream wait for a copy. */
tess_status tess_offload_follow(struct tess_transfer *t);
/* Lets transfers progress. s: NULL does nothing. */
void tess_offload_test(const struct tess_offload *s);
/* Moves elements and waits, in as many transfers as there are adjacent runs. */
tess_status tess_offload_move(const struct tess_offload *s, const struct tess_weight *w,
                              int32_t what, int64_t first, int64_t n, bool writes, void *memory);

#endif
