/* What files on disk report when the disk fails, and which results of the system they tolerate. */
#include "../../support/suite.h"
#include "disk_faults.h"
#include "open_disk.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>

enum { BLOCKS = 12, FILE_BYTES = BLOCKS * TESS_DISK_BLOCK };

static struct tess_disk *open_disk(const char *engine)
{
	disk_faults_set(&(struct disk_faults){ 0 });
	return open_disk_by(engine, 5, FILE_BYTES);
}

static struct tess_disk_request make_request(bool writes, char *data, uint64_t offset,
                                             uint64_t bytes)
{
	return (struct tess_disk_request){ .where = "layers.3.down",
		                           .what = "second moment",
		                           .bucket = 17,
		                           .writes = writes,
		                           .data = data,
		                           .offset = offset,
		                           .bytes = bytes };
}

static tess_status move_now(struct tess_disk *d, bool writes, char *data, uint64_t offset,
                            uint64_t bytes)
{
	struct tess_disk_request r = make_request(writes, data, offset, bytes);

	ck_assert_int_eq(tess_disk_start(d, &r), TESS_OK);
	return tess_disk_wait(d, &r);
}

static char *make_data(uint64_t bytes, uint32_t seed)
{
	char *data = aligned_alloc(TESS_DISK_ALIGN, bytes);

	ck_assert(data);
	for (uint64_t i = 0; i < bytes; i++)
		data[i] = (char)((i * 2654435761u + seed) >> 13);
	return data;
}

/* ---- failures -------------------------------------------------------------------------------- */

struct failure {
	struct disk_faults faults;
	const char *reason;
};

static void expect_disk_failure(struct tess_disk *d, bool writes, char *data, const char *reason)
{
	ck_assert_int_eq(move_now(d, writes, data, 0, FILE_BYTES), TESS_EIO);
	expect_part(tess_error(), scratch);
	expect_part(tess_error(), writes ? "rank 5 cannot write the second moment of layers.3.down "
	                                   "(bucket 17): "
	                                 : "rank 5 cannot read the second moment of layers.3.down "
	                                   "(bucket 17): ");
	expect_part(tess_error(), " bytes at offset ");
	expect_part(tess_error(), reason);
}

START_TEST(reports_failures)
{
	const struct failure table[] = {
		{ { .at = 4, .calls = 1, .error = EIO }, "Input/output error" },
		{ { .at = 11, .calls = 1, .error = ENOSPC }, "No space left on device" },
		{ { .at = 0, .calls = 1, .error = EINVAL }, "Invalid argument" },
		{ { .at = EVERY_CALL, .error = EAGAIN }, "Resource temporarily unavailable" },
		{ { .at = EVERY_CALL, .error = EINTR }, "Interrupted system call" },
		{ { .at = 8, .calls = 1 }, NULL }, /* 0 bytes */
		{ { .at = EVERY_CALL, .moves = 100 }, NULL }, /* never a block of the disk */
	};
	struct tess_disk *d = open_disk("threads");
	char *data = make_data(FILE_BYTES, 1);

	for (size_t i = 0; i < 2 * (sizeof table / sizeof *table); i++) {
		const struct failure *f = &table[i / 2];
		bool writes = i % 2;
		const char *zero = writes ? "nothing was written" : "the file ends before";

		disk_faults_set(&f->faults);
		expect_disk_failure(d, writes, data, f->reason ? f->reason : zero);
		ck_assert_int_eq(disk_calls_get().under_way, 0);
		disk_faults_set(&(struct disk_faults){ 0 });
		ck_assert_int_eq(move_now(d, writes, data, 0, FILE_BYTES), TESS_OK);
	}
	tess_disk_close(d);
	free(data);
}
END_TEST

START_TEST(names_the_block)
{
	struct tess_disk *d = open_disk("threads");
	char *data = make_data(TESS_DISK_BLOCK, 1);

	disk_faults_set(&(struct disk_faults){ .at = 0, .calls = 1, .error = EIO });
	ck_assert_int_eq(move_now(d, true, data, 3 * TESS_DISK_BLOCK, 8192), TESS_EIO);
	expect_part(tess_error(), "(bucket 17): 8192 bytes at offset 12582912 of its file: ");
	tess_disk_close(d);
	free(data);
}
END_TEST

/* ---- results that are no failures ------------------------------------------------------------ */

START_TEST(continues_after_interruptions_and_short_counts)
{
	const struct disk_faults table[] = {
		{ .at = 0, .calls = 30, .error = EINTR },
		{ .at = 3, .calls = 30, .error = EAGAIN },
		{ .at = 0, .calls = 40, .moves = 300000 },
		{ .at = 2, .calls = 50, .moves = 4097 },
		{ .at = 5, .calls = 20, .moves = 1 },
	};
	struct tess_disk *d = open_disk("threads");
	char *back = make_data(FILE_BYTES, 0);

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		uint64_t skip = i % 2 * 100, bytes = FILE_BYTES - 3 * skip; /* with edges, too */
		char *data = make_data(FILE_BYTES, (uint32_t)i + 1);

		disk_faults_set(&table[i]);
		ck_assert_int_eq(move_now(d, true, data, skip, bytes), TESS_OK);
		disk_faults_set(&table[i]);
		ck_assert_int_eq(move_now(d, false, back, skip, bytes), TESS_OK);
		MUST(memcmp(data, back, bytes) == 0);
		free(data);
	}
	tess_disk_close(d);
	free(back);
}
END_TEST

/* ---- several requests ------------------------------------------------------------------------ */

START_TEST(keeps_the_first_failure)
{
	struct tess_disk *d = open_disk("threads");
	char *data = make_data(FILE_BYTES, 1);
	struct tess_disk_request r = make_request(true, data, 0, FILE_BYTES);

	disk_faults_set(&(struct disk_faults){
		.at = 0, .calls = 1, .error = ENOSPC, .delay_ms = 100, .late_error = EIO });
	ck_assert_int_eq(tess_disk_start(d, &r), TESS_OK);
	for (int32_t i = 0; i < 2; i++) {
		ck_assert_int_eq(tess_disk_wait(d, &r), TESS_EIO);
		expect_part(tess_error(), "No space left on device");
	}
	tess_disk_close(d);
	free(data);
}
END_TEST

START_TEST(continues_other_requests_after_a_failure)
{
	struct tess_disk *d = open_disk("threads");
	char *data = make_data(FILE_BYTES, 1);
	struct tess_disk_request bad = make_request(true, data, 0, 10 * TESS_DISK_BLOCK);
	struct tess_disk_request good = make_request(true, data + 10 * TESS_DISK_BLOCK,
	                                             10 * TESS_DISK_BLOCK, 2 * TESS_DISK_BLOCK);

	disk_faults_set(&(struct disk_faults){ .at = 0, .calls = 2, .error = EIO, .delay_ms = 50 });
	ck_assert_int_eq(tess_disk_start(d, &bad), TESS_OK);
	ck_assert_int_eq(tess_disk_start(d, &good), TESS_OK);
	ck_assert_int_eq(tess_disk_wait(d, &bad), TESS_EIO);
	ck_assert_int_eq(tess_disk_wait(d, &good), TESS_OK);
	tess_disk_close(d);
	free(data);
}
END_TEST

START_TEST(leaves_memory_alone_after_a_failure)
{
	enum { MANY = TESS_DISK_DEPTH + 4, BYTES = MANY * TESS_DISK_BLOCK };
	struct tess_disk *d = open_disk_by("threads", 5, BYTES);
	char *data = make_data(BYTES, 1);

	disk_faults_set(
		&(struct disk_faults){ .at = 0, .calls = 1, .error = EIO, .delay_ms = 100 });
	ck_assert_int_eq(move_now(d, false, data, 0, BYTES), TESS_EIO);
	ck_assert_int_eq(disk_calls_get().under_way, 0);
	ck_assert_int_lt(disk_calls_get().n, MANY); /* no more are started */
	free(data);
	tess_disk_close(d);
}
END_TEST

static void close_under_way(const char *engine)
{
	struct tess_disk *d = open_disk(engine);
	char *data = make_data(FILE_BYTES, 1);
	struct tess_disk_request r[2] = {
		make_request(false, data, 0, FILE_BYTES / 2),
		make_request(false, data + FILE_BYTES / 2, FILE_BYTES / 2 - 100, FILE_BYTES / 2),
	};

	if (d)
		ck_assert_int_eq(move_now(d, true, data, 0, FILE_BYTES), TESS_OK);
	disk_faults_set(&(struct disk_faults){ .delay_ms = 20 });
	for (int32_t i = 0; i < 2 && d; i++)
		ck_assert_int_eq(tess_disk_start(d, &r[i]), TESS_OK);
	tess_disk_close(d);
	ck_assert_int_eq(disk_calls_get().under_way, 0);
	memset(data, 0x5a, FILE_BYTES);
	poll(NULL, 0, 50);
	for (uint64_t i = 0; i < FILE_BYTES; i++)
		MUST(data[i] == 0x5a);
	free(data);
}

START_TEST(closes_with_requests_under_way)
{
	close_under_way("uring");
	close_under_way("threads");
}
END_TEST

/* ---- real failures, also by io_uring --------------------------------------------------------- */

/* Shortens the open file in the scratch folder, which has no name. */
static void shorten_file(off_t bytes)
{
	char link[64], target[512];
	int32_t found = 0;

	for (int fd = 3; fd < 64; fd++) {
		ssize_t n;

		snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
		n = readlink(link, target, sizeof target - 1);
		if (n < 0)
			continue;
		target[n] = '\0';
		if (!strncmp(target, scratch, strlen(scratch))) {
			found++;
			ck_assert_int_eq(ftruncate(fd, bytes), 0);
		}
	}
	ck_assert_int_eq(found, 1);
}

static void expect_real_failures(const char *engine)
{
	struct tess_disk *d = open_disk(engine);
	char *data = make_data(FILE_BYTES, 1);
	struct rlimit limit, small;

	if (!d) {
		free(data);
		return;
	}
	shorten_file(FILE_BYTES - 4096 - 700);
	expect_disk_failure(d, false, data, "the file ends before");
	ck_assert_int_eq(move_now(d, false, data, 0, FILE_BYTES - 8192), TESS_OK);
	ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
	signal(SIGXFSZ, SIG_IGN);
	small = (struct rlimit){ .rlim_cur = FILE_BYTES / 2 + 4096, .rlim_max = limit.rlim_max };
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
	expect_disk_failure(d, true, data, strerror(EFBIG));
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
	ck_assert_int_eq(move_now(d, true, data, 0, FILE_BYTES), TESS_OK);
	tess_disk_close(d);
	free(data);
}

START_TEST(reports_a_short_file_and_a_limit)
{
	expect_real_failures("uring");
	expect_real_failures("threads");
}
END_TEST

SCRATCH_MAIN("disk_failures", reports_failures, names_the_block,
             continues_after_interruptions_and_short_counts, keeps_the_first_failure,
             continues_other_requests_after_a_failure, leaves_memory_alone_after_a_failure,
             closes_with_requests_under_way, reports_a_short_file_and_a_limit)
