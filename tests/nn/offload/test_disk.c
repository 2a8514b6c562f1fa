/* Files on disk (nn/offload/disk.h): any ranges, both engines, with and without O_DIRECT. */
#include "../../support/draw.h"
#include "../../support/suite.h"
#include "disk_faults.h"
#include "open_disk.h"

#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static const char *const both_engines[] = { "uring", "threads" };

/* ---- any ranges ------------------------------------------------------------------------------ */

enum { MAX_RANGES = 24, GUARD = 64 };

struct range {
	struct tess_disk_request request;
	char *memory; /* of malloc: guards around the data */
};

struct subject { /* a file, and what it should contain */
	struct tess_disk *disk;
	uint64_t bytes;
	unsigned char *expected;
	struct range range[MAX_RANGES];
	int32_t n;
};

static uint64_t draw_bytes(uint64_t *seed, uint64_t max)
{
	static const uint64_t scale[] = { 4, 600, 5000, 70000, 600000, 2500000 };
	uint64_t n = 1 + draw_below(seed, scale[draw_below(seed, 6)]);

	if (draw_below(seed, 3) == 0)
		n = (n + 4095) / 4096 * 4096;
	return n < max ? n : max;
}

static uint64_t draw_misalignment(uint64_t *seed)
{
	static const uint64_t at[] = { 0, 0, 512, 64, 4, 1, 37, 4095 };

	return at[draw_below(seed, 8)];
}

static void start_range(struct subject *s, uint64_t *seed, uint64_t offset, uint64_t bytes)
{
	struct range *range = &s->range[s->n++];
	uint64_t capacity = (GUARD + 4096 + bytes + GUARD + 4095) / 4096 * 4096 + 4096;
	unsigned char *data;

	range->memory = aligned_alloc(4096, capacity);
	MUST(range->memory);
	memset(range->memory, 0x5a, capacity);
	data = (unsigned char *)range->memory + 4096 + draw_misalignment(seed);
	range->request = (struct tess_disk_request){ .where = "w",
		                                     .what = "weight",
		                                     .bucket = -1,
		                                     .writes = draw_below(seed, 2),
		                                     .data = data,
		                                     .offset = offset,
		                                     .bytes = bytes };
	if (range->request.writes)
		for (uint64_t i = 0; i < bytes; i++)
			s->expected[offset + i] = data[i] = (unsigned char)draw_below(seed, 256);
	ck_assert_int_eq(tess_disk_start(s->disk, &range->request), TESS_OK);
}

/* Starts reads and writes of ranges that do not overlap, and often share a block of the disk. */
static void start_ranges(struct subject *s, uint64_t *seed)
{
	uint64_t at = draw_below(seed, s->bytes);

	for (s->n = 0; s->n < MAX_RANGES && at < s->bytes;) {
		uint64_t bytes = draw_bytes(seed, s->bytes - at);

		start_range(s, seed, at, bytes);
		if (draw_below(seed, 4) == 0)
			tess_disk_test(s->disk);
		at += bytes + (draw_below(seed, 2) ? 0 : draw_below(seed, 9000));
	}
}

static void check_moved_range(const struct subject *s, const struct range *range)
{
	const struct tess_disk_request *r = &range->request;
	const unsigned char *data = r->data;

	ck_assert(tess_disk_is_done(s->disk, r));
	MUST(memcmp(data, s->expected + r->offset, r->bytes) == 0);
	for (int32_t i = 0; i < GUARD; i++)
		MUST(data[-1 - i] == 0x5a && data[r->bytes + (uint64_t)i] == 0x5a);
}

static void wait_for_ranges(struct subject *s, uint64_t *seed)
{
	int32_t first = s->n ? (int32_t)draw_below(seed, (uint64_t)s->n) : 0;

	for (int32_t i = 0; i < s->n; i++) {
		struct range *range = &s->range[(first + i) % s->n];

		ck_assert_msg(!tess_disk_wait(s->disk, &range->request), "%s", tess_error());
		check_moved_range(s, range);
		free(range->memory);
	}
}

static void write_all(struct subject *s)
{
	struct tess_disk_request r = { .where = "w",
		                       .what = "weight",
		                       .bucket = -1,
		                       .writes = true,
		                       .data = s->expected,
		                       .bytes = s->bytes };

	ck_assert_int_eq(tess_disk_start(s->disk, &r), TESS_OK);
	ck_assert_int_eq(tess_disk_wait(s->disk, &r), TESS_OK);
}

static bool open_subject(struct subject *s, const char *engine, uint64_t bytes, uint64_t *seed)
{
	s->bytes = bytes;
	s->disk = open_disk_by(engine, 0, bytes);
	if (!s->disk)
		return false;
	s->expected = malloc(bytes);
	for (uint64_t i = 0; i < bytes; i++)
		s->expected[i] = (unsigned char)draw_below(seed, 256);
	write_all(s);
	return true;
}

static void close_subject(struct subject *s)
{
	tess_disk_close(s->disk);
	free(s->expected);
}

/* Moves ranges of two files at the same time. */
static void move_random_ranges(const char *engine, bool direct)
{
	static struct subject s[2];
	uint64_t seed = 1;

	disk_faults_set(&(struct disk_faults){ .no_direct = !direct });
	if (!open_subject(&s[0], engine, 5000001, &seed))
		return;
	ck_assert(open_subject(&s[1], engine, 300000, &seed));
	for (int32_t round = 0; round < 200 / THIN; round++) {
		start_ranges(&s[0], &seed);
		start_ranges(&s[1], &seed);
		wait_for_ranges(&s[1], &seed);
		wait_for_ranges(&s[0], &seed);
	}
	close_subject(&s[0]);
	close_subject(&s[1]);
}

START_TEST(moves_random_ranges)
{
	for (int32_t i = 0; i < 4; i++)
		move_random_ranges(both_engines[i / 2], i % 2 == 0);
}
END_TEST

/* ---- the fast way ---------------------------------------------------------------------------- */

START_TEST(copies_no_aligned_data)
{
	enum { BLOCKS = 20, BYTES = BLOCKS * TESS_DISK_BLOCK + 3 * TESS_DISK_ALIGN };
	struct tess_disk *d = open_disk_by("threads", 0, BYTES);
	struct tess_disk_request r = { .where = "w", .what = "weight", .bucket = -1 };
	struct disk_calls calls;
	char *data;

	r.data = data = aligned_alloc(TESS_DISK_ALIGN, BYTES);
	r.bytes = BYTES;
	memset(data, 1, BYTES);
	disk_faults_set(&(struct disk_faults){ .delay_ms = 50 });
	for (int32_t i = 0; i < 2; i++) {
		r.writes = i == 0;
		disk_calls_watch(data, data + BYTES);
		ck_assert_int_eq(tess_disk_start(d, &r), TESS_OK);
		ck_assert_int_eq(tess_disk_wait(d, &r), TESS_OK);
		calls = disk_calls_get();
		ck_assert_int_eq(calls.outside, 0);
		ck_assert_int_eq(calls.n, BLOCKS + 1);
		ck_assert_int_eq(calls.max_bytes, TESS_DISK_BLOCK);
		ck_assert_int_le(calls.max_under_way, TESS_DISK_THREADS);
		ck_assert_int_gt(calls.max_under_way, TESS_DISK_THREADS / 2);
	}
	tess_disk_close(d);
	free(data);
}
END_TEST

START_TEST(starts_without_blocking)
{
	struct tess_disk *d = open_disk_by("threads", 0, TESS_DISK_BLOCK);
	struct tess_disk_request r = { .where = "w", .what = "weight", .bucket = -1 };

	r.data = aligned_alloc(TESS_DISK_ALIGN, TESS_DISK_BLOCK);
	r.bytes = TESS_DISK_BLOCK;
	disk_faults_set(&(struct disk_faults){ .delay_ms = 200 });
	ck_assert_int_eq(tess_disk_start(d, &r), TESS_OK);
	ck_assert(!tess_disk_is_done(d, &r));
	while (!tess_disk_is_done(d, &r))
		tess_disk_test(d);
	ck_assert_int_eq(tess_disk_wait(d, &r), TESS_OK);
	ck_assert_int_eq(disk_calls_get().n, 1);
	r.bytes = 0;
	ck_assert_int_eq(tess_disk_start(d, &r), TESS_OK);
	ck_assert(tess_disk_is_done(d, &r));
	tess_disk_close(d);
	free(r.data);
}
END_TEST

/* ---- files ----------------------------------------------------------------------------------- */

static int32_t count_folder_entries(const char *folder)
{
	DIR *dir = opendir(folder);
	int32_t n = 0;

	ck_assert(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

START_TEST(leaves_no_name)
{
	for (int32_t i = 0; i < 2; i++) {
		struct tess_disk *d;

		disk_faults_set(&(struct disk_faults){ .no_tmpfile = i });
		d = open_disk_by("threads", 0, 1000);
		ck_assert_int_eq(count_folder_entries(scratch), 2); /* . and .. */
		tess_disk_close(d);
	}
}
END_TEST

static void open_buffered(void)
{
	for (int32_t rank = 0; rank < 2; rank++)
		tess_disk_close(open_disk_by("threads", rank, 1000));
}

/* Checks that a queue reads what another one has written, also once that is closed. */
START_TEST(has_several_queues)
{
	for (int32_t i = 0; i < 2; i++) {
		struct tess_disk *d = open_disk_by(both_engines[i], 2, 100000), *queue;
		struct tess_disk_request r = {
			.where = "w", .what = "weight", .bucket = -1, .offset = 777, .bytes = 50000
		};
		char *data = malloc(r.bytes), *read = malloc(r.bytes);

		MUST(data && read);
		for (uint64_t k = 0; k < r.bytes; k++)
			data[k] = (char)(k * 7 + k / 256);
		if (d) {
			ck_assert_int_eq(tess_disk_open_queue(d, &queue), TESS_OK);
			r.writes = true;
			r.data = data;
			ck_assert_int_eq(tess_disk_start(d, &r), TESS_OK);
			ck_assert_int_eq(tess_disk_wait(d, &r), TESS_OK);
			tess_disk_close(d);
			r.writes = false;
			r.data = read;
			ck_assert_int_eq(tess_disk_start(queue, &r), TESS_OK);
			ck_assert_int_eq(tess_disk_wait(queue, &r), TESS_OK);
			ck_assert(!memcmp(data, read, r.bytes));
			r.offset = UINT64_C(1) << 40;
			ck_assert_int_eq(tess_disk_start(queue, &r), TESS_EBUG);
			expect_part(tess_error(), "not in the file of rank 2");
			tess_disk_close(queue);
		}
		free(data);
		free(read);
	}
}
END_TEST

START_TEST(warns_without_direct_io)
{
	char text[1000];

	disk_faults_set(&(struct disk_faults){ .no_direct = true });
	capture_stderr(open_buffered, text, sizeof text);
	ck_assert_int_eq(count_occurrences(text, "no direct I/O"), 1);
	expect_part(text, scratch);
}
END_TEST

static void refuse_open(const char *folder, uint64_t bytes, tess_status why, const char *part)
{
	struct tess_disk *d = NULL;

	ck_assert_int_eq(tess_disk_open(folder, 3, bytes, &d), why);
	ck_assert(!d);
	expect_part(tess_error(), folder);
	expect_part(tess_error(), "rank 3");
	expect_part(tess_error(), part);
}

START_TEST(refuses_folders)
{
	const char *file = scratch_write_text("file", "");

	refuse_open(scratch_format_path("missing"), 1, TESS_EIO, strerror(ENOENT));
	refuse_open(file, 1, TESS_EIO, strerror(ENOTDIR));
	unlink(file);
	scratch_make_folder("read_only");
	ck_assert_int_eq(chmod(scratch_format_path("read_only"), 0555), 0);
	ck_assert_int_eq(chmod(scratch, 0755), 0);
	ck_assert(geteuid() != 0 || seteuid(65534) == 0);
	refuse_open(scratch_format_path("read_only"), 1, TESS_EIO, strerror(EACCES));
	ck_assert(getuid() != 0 || seteuid(0) == 0);
	rmdir(scratch_format_path("read_only"));
}
END_TEST

START_TEST(refuses_what_does_not_fit)
{
	disk_faults_set(&(struct disk_faults){ .fallocate_error = ENOSPC });
	refuse_open(scratch, 1234567, TESS_ENOMEM, "needs a file of 1236992 bytes");
	expect_part(tess_error(), "bytes are free: No space left on device");
	ck_assert(!strstr(tess_error(), " 0 bytes are free"));
	disk_faults_set(&(struct disk_faults){ 0 });
	refuse_open(scratch, UINT64_C(1) << 62, TESS_ENOMEM, strerror(EFBIG));
}
END_TEST

START_TEST(refuses_ranges_outside)
{
	struct tess_disk *d = open_disk_by("threads", 0, 1000);
	struct tess_disk_request r = { .where = "w", .what = "weight", .bucket = -1, .bytes = 1 };

	r.offset = UINT64_C(1) << 20;
	ck_assert_int_eq(tess_disk_start(d, &r), TESS_EBUG);
	expect_part(tess_error(), "1 bytes at offset 1048576 are not in the file");
	r.bytes = UINT64_MAX;
	ck_assert_int_eq(tess_disk_start(d, &r), TESS_EBUG);
	tess_disk_close(d);
}
END_TEST

/* ---- the engine ------------------------------------------------------------------------------ */

static tess_status try_engine(const char *name)
{
	struct tess_disk *d = NULL;
	tess_status st;

	ck_assert_int_eq(tess_option_add("test", tess_disk_options), TESS_OK);
	ck_assert_int_eq(tess_option_set("disk_io", name), TESS_OK);
	st = tess_disk_open(scratch, 0, 1, &d);
	tess_disk_close(d);
	return st;
}

/* Lets io_uring_setup fail in this process from now on, as in a container. */
static void forbid_uring(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = sizeof filter / sizeof *filter, .filter = filter };

	ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	ck_assert_int_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

START_TEST(uses_threads_without_uring)
{
	bool built;

	ck_assert_int_eq(try_engine("threads"), TESS_OK);
	ck_assert_int_eq(try_engine("auto"), TESS_OK);
	ck_assert_int_eq(try_engine("aio"), TESS_EINVAL);
	expect_part(tess_error(), "TESSERA_DISK_IO=aio: this build has no such engine; use auto");
	forbid_uring();
	built = try_engine("uring") == TESS_ENOTSUP;
	expect_part(tess_error(), built ? strerror(EPERM) : "no such engine");
	ck_assert_int_eq(try_engine("auto"), TESS_OK);
}
END_TEST

SCRATCH_MAIN("disk", moves_random_ranges, copies_no_aligned_data, starts_without_blocking,
             leaves_no_name, has_several_queues, warns_without_direct_io, refuses_folders,
             refuses_what_does_not_fit, refuses_ranges_outside, uses_threads_without_uring)
