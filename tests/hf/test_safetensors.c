/* test_safetensors.c - one safetensors file: valid files, violations of every rule, and writing. */
#include "core/base/status.h"
#include "hf/safetensors.h"
#include "tests/support/scratch.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

/* Makes a file of this header and `data` increasing bytes, malloc'ed. *len: its length. */
static unsigned char *make_safetensors(const char *header, size_t data, size_t *len)
{
	size_t size = strlen(header);
	unsigned char *bytes = malloc(8 + size + data);

	ck_assert_ptr_nonnull(bytes);
	for (int i = 0; i < 8; i++)
		bytes[i] = (unsigned char)((uint64_t)size >> 8 * i);
	memcpy(bytes + 8, header, size);
	for (size_t i = 0; i < data; i++)
		bytes[8 + size + i] = (unsigned char)i;
	*len = 8 + size + data;
	return bytes;
}

static const char *write_safetensors(const char *name, const char *header, size_t data)
{
	size_t len;
	unsigned char *bytes = make_safetensors(header, data, &len);
	const char *path = scratch_write(name, bytes, len);

	free(bytes);
	return path;
}

static struct tess_safetensors *open_safetensors(const char *path)
{
	struct tess_safetensors *f = NULL;

	ck_assert_msg(!tess_safetensors_open(path, false, &f), "%s", tess_error());
	return f;
}

static void expect_safetensors_refused(const char *path, const char *where, const char *why)
{
	struct tess_safetensors *f = NULL;

	ck_assert_msg(tess_safetensors_open(path, false, &f) < 0 && !f, "%s: \"%s\" was accepted",
	              path, why);
	ck_assert_msg(!strncmp(tess_error(), path, strlen(path)), "%s", tess_error());
	expect_part(tess_error(), where);
	expect_part(tess_error(), why);
}

#define T(dtype, shape, begin, end) \
	"{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

START_TEST(refuses_bad_headers)
{
	static const struct {
		const char *header;
		size_t data;
		const char *where, *why;
	} bad[] = {
		{ "", 0, "offset 8", "begin with {" },
		{ " {}", 0, "offset 8", "begin with {" },
		{ "[1]", 0, "offset 8", "begin with {" },
		{ "{\"a\":", 0, ":1:", "not valid JSON" },
		{ "{}x", 0, ":1:", "end of file expected" },
		{ "{\"a\":" T("F32", "[1]", "0", "4") ",\"a\":" T("F32", "[1]", "0", "4") "}", 4,
		  "tensor a", "duplicate" },
		{ "{\"a\":" T("F32", "[0]", "0", "0") ",\"b\":" T(
			  "F32", "[0]", "0", "0") ",\"a\":" T("F32", "[0]", "0", "0") "}",
		  0, "tensor a", "duplicate" },
		{ "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__", "duplicate" },
		{ "{\"a\" 1}", 0, ":1:", "':' expected" },
		{ "{\"a\":1 \"b\":1}", 0, "tensor a", "no dtype" },
		{ "{\"a\":" T("F32", "[0]", "0", "0") " \"b\":1}", 0, ":1:", "'}' expected" },
		{ "{\"a\":" T("F32", "[0]", "0", "0") ",}", 0, ":1:", "not valid JSON" },
		{ "{7:1}", 0, ":1:", "string expected" },
		{ "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"I8\"}}", 4, ":1:", "duplicate" },
		{ "{\"\xff\":1}", 0, ":1:", "decode byte 0xff" },
		{ "{\"a\\u0000b\":1}", 0, ":1:", "not valid JSON" },
		{ "{\"a\":" T("F32", "[99999999999999999999]", "0", "4") "}", 4,
		  ":1:", "too big integer" },
		{ "{\"__metadata__\":null,\"__metadata__\":null}", 0, "__metadata__", "duplicate" },
		{ "{\"__metadata__\":7}", 0, "__metadata__", "an object" },
		{ "{\"__metadata__\":{\"format\":7}}", 0, "__metadata__: format",
		  "text is needed" },
		{ "{\"__metadata__\":{\"format\":\"tessera-panels\",\"panels:a\":\"16\"},\"a\":" T(
			  "I8", "[1,1,16]", "0", "16") "}",
		  16, "stores panels, which this version does not read",
		  "convert it again without --panels" },
		{ "{\"\":" T("F32", "[1]", "0", "4") "}", 4, "tensor ", "a name of 0 bytes" },
		{ "{\"a\":7}", 0, "tensor a", "no dtype" },
		{ "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor a", "no dtype" },
		{ "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "tensor a", "no shape" },
		{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "tensor a", "no data_offsets" },
		{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4,
		  "tensor a", "keys other" },
		{ "{\"a\":" T("F31", "[1]", "0", "4") "}", 4, "tensor a",
		  "\"F31\" is not in the format" },
		{ "{\"a\":" T("f32", "[1]", "0", "4") "}", 4, "tensor a",
		  "\"f32\" is not in the format" },
		{ "{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor a",
		  "not in the format" },
		{ "{\"a\":" T("F32", "4", "0", "4") "}", 4, "tensor a", "shape is not a list" },
		{ "{\"a\":" T("F32", "[-1]", "0", "4") "}", 4, "tensor a",
		  "shape[0] is not a whole number" },
		{ "{\"a\":" T("F32", "[1,1.0]", "0", "4") "}", 4, "tensor a",
		  "shape[1] is not a whole number" },
		{ "{\"a\":" T("F32", "[4294967296,4294967296]", "0", "0") "}", 0, "tensor a",
		  "elements overflow" },
		{ "{\"a\":" T("F32", "[4294967296,0,4294967296]", "0", "0") "}", 0, "tensor a",
		  "elements overflow" },
		{ "{\"a\":" T("F32", "[2305843009213693952]", "0", "0") "}", 0, "tensor a",
		  "bytes overflow" },
		{ "{\"a\":" T("F4", "[3]", "0", "1") "}", 1, "tensor a", "not whole bytes" },
		{ "{\"a\":" T("F32", "[1]", "0", "4.0") "}", 4, "tensor a: data_offsets",
		  "a begin and an end" },
		{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4,
		  "tensor a: data_offsets", "an end" },
		{ "{\"a\":" T("F32", "[1]", "-4", "0") "}", 4, "tensor a: data_offsets [-4, 0]",
		  "rise from 0" },
		{ "{\"a\":" T("F32", "[1]", "4", "0") "}", 4, "tensor a: data_offsets [4, 0]",
		  "rise" },
		{ "{\"a\":" T("F32", "[2]", "0", "8") "}", 4, "tensor a: data_offsets [0, 8]",
		  "outside the file" },
		{ "{\"a\":" T("F32", "[1]", "9223372036854775800", "9223372036854775804") "}", 4,
		  "tensor a", "outside" },
		{ "{\"a\":" T("F32", "[2]", "0", "4") "}", 4, "tensor a: data_offsets [0, 4]",
		  "make 8" },
		{ "{\"a\":" T("F32", "[2]", "0", "8") ",\"b\":" T("F32", "[2]", "4", "12") "}", 12,
		  "tensor b: its data begin at 4",
		  "inside those of another tensor, which end at 8" },
		{ "{\"a\":" T("F32", "[2]", "0", "8") ",\"b\":" T("F32", "[2]", "0", "8") "}", 8,
		  "its data begin at 0", "inside" },
		{ "{\"a\":" T("F32", "[1]", "4", "8") "}", 8, "tensor a: its data begin at 4",
		  "after a hole at 0" },
		{ "{\"a\":" T("F32", "[1]", "0", "4") ",\"b\":" T("F32", "[1]", "8", "12") "}", 12,
		  "tensor b", "a hole at 4" },
		{ "{\"a\":" T("F32", "[1]", "0", "4") "}", 5, "offset 66",
		  "1 bytes that belong to no tensor" },
		{ "{}", 1, "offset 10", "belong to no tensor" },
	};

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		expect_safetensors_refused(write_safetensors("bad", bad[i].header, bad[i].data),
		                           bad[i].where, bad[i].why);
}
END_TEST

START_TEST(refuses_bad_files)
{
	enum { LONG = 1025, DEEP = 100 };
	char text[4096], name[LONG + 1];
	unsigned char length[8] = { 0 };

	expect_safetensors_refused(scratch_write("bad", "", 0), "0 bytes", "length of its header");
	expect_safetensors_refused(scratch_write("bad", "\1\0\0\0\0\0\0", 7), "7 bytes",
	                           "length of its header");
	expect_safetensors_refused(scratch_write("bad", "\3\0\0\0\0\0\0\0{}", 10), "offset 0",
	                           "truncated");
	memset(length, 0xff, sizeof length);
	expect_safetensors_refused(scratch_write("bad", length, sizeof length), "offset 0",
	                           "a header of 18446744073709551615 bytes");
	memcpy(length, "\1\xe1\xf5\5\0\0\0", sizeof length);
	expect_safetensors_refused(scratch_write("bad", length, sizeof length), "offset 0",
	                           "100000000 are allowed");
	memset(name, 'n', LONG);
	name[LONG] = 0;
	snprintf(text, sizeof text, "{\"%s\":" T("F32", "[1]", "0", "4") "}", name);
	expect_safetensors_refused(write_safetensors("bad", text, 4), "tensor nnn",
	                           "a name of 1025 bytes");
	strcpy(text, "{\"a\":");
	memset(text + 5, '[', DEEP);
	text[5 + DEEP] = 0;
	expect_safetensors_refused(write_safetensors("bad", text, 0), "nested", "64 levels");
	expect_safetensors_refused(scratch, "", "not a regular file");
	ck_assert_int_eq(mkfifo(scratch_format_path("pipe"), 0600), 0);
	expect_safetensors_refused(scratch_format_path("pipe"), "", "not a regular file");
	expect_safetensors_refused(scratch_format_path("absent"), "", "No such file");
	ck_assert_int_eq(symlink("nowhere", scratch_format_path("dangling")), 0);
	expect_safetensors_refused(scratch_format_path("dangling"), "",
	                           "points to no file (nowhere)");
}
END_TEST

/* Checks that text of a file is quoted without control characters. */
START_TEST(quotes_no_escapes)
{
	expect_safetensors_refused(write_safetensors("bad", "{\"\\u001b[2J\\n\":7}", 0),
	                           "tensor ?[2J?: no dtype", "");
	expect_safetensors_refused(
		write_safetensors("bad", "{\"a\":" T("\\u001b]0;x\\u0007", "[1]", "0", "4") "}", 4),
		"dtype \"?]0;x?\"", "not in the format");
}
END_TEST

/* Cuts the project's checkpoint in its data, its header and its length. */
START_TEST(refuses_truncation)
{
	static const size_t lengths[] = { 1044991, 500000, 6000, 100, 9, 8, 7, 0 };
	FILE *f = fopen(format_data_path("model.safetensors"), "rb");
	unsigned char *bytes = malloc(lengths[0]);

	ck_assert(f && bytes && fread(bytes, 1, lengths[0], f) == lengths[0]);
	fclose(f);
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
		expect_safetensors_refused(scratch_write("cut", bytes, lengths[i]), "",
		                           lengths[i] < 8 ? "length of its header" : "truncated");
	free(bytes);
}
END_TEST

/* Accepts null for no metadata, which some libraries write. */
START_TEST(null_is_no_metadata)
{
	struct tess_safetensors *f = open_safetensors(write_safetensors(
		"null", "{\"__metadata__\":null,\"a\":" T("F32", "[1]", "0", "4") "}", 4));

	ck_assert_uint_eq(tess_safetensors_count(f), 1);
	tess_safetensors_close(f);
}
END_TEST

static void check_project_file(bool copied)
{
	struct tess_safetensors *f = open_safetensors(format_data_path("model.safetensors"));
	const struct tess_slice *s, *before = NULL;
	uint64_t bytes = 0;

	ck_assert_uint_eq(tess_safetensors_count(f), 47);
	for (size_t i = 0; i < tess_safetensors_count(f); i++) {
		s = tess_safetensors_at(f, i);
		ck_assert(!before || strcmp(before->name, s->name) < 0);
		ck_assert_ptr_eq(tess_safetensors_find(f, s->name), s);
		ck_assert_uint_eq((uintptr_t)s->data % sizeof(float), 0);
		ck_assert(!s->data == copied);
		bytes += s->bytes;
		before = s;
	}
	ck_assert_uint_eq(bytes, 260032 * sizeof(float));
	s = tess_safetensors_find(f, "model.layers.4.mlp.up_proj.weight");
	ck_assert_ptr_nonnull(s);
	ck_assert_str_eq(s->type, "F32");
	ck_assert(s->dtype == TESS_F32 && s->ndim == 2 && s->shape[0] == 172 && s->shape[1] == 64);
	ck_assert_uint_eq(s->bytes, 172 * 64 * sizeof(float));
	ck_assert_ptr_null(tess_safetensors_find(f, "model.layers.5.mlp.up_proj.weight"));
	ck_assert_ptr_null(tess_safetensors_find(f, "__metadata__"));
	tess_safetensors_close(f);
}

START_TEST(reads_mapped_or_copied)
{
	struct tess_safetensors *f = NULL;

	check_project_file(false);
	setenv("TESSERA_LOAD", "copy", 1);
	check_project_file(true);
	expect_safetensors_refused(scratch_write("bad", "\3\0\0\0\0\0\0\0{}", 10), "offset 0",
	                           "truncated");
	expect_safetensors_refused(scratch_write("bad", "", 0), "0 bytes", "length of its header");
	setenv("TESSERA_LOAD", "stream", 1);
	ck_assert_int_eq(tess_safetensors_open(format_data_path("model.safetensors"), false, &f),
	                 TESS_EINVAL);
	ck_assert_str_eq(tess_error(), "TESSERA_LOAD=stream: use map or copy");
	unsetenv("TESSERA_LOAD");
}
END_TEST

START_TEST(drops_pages_that_come_back)
{
	struct tess_safetensors *f = open_safetensors(format_data_path("model.safetensors"));
	const struct tess_slice *s = tess_safetensors_find(f, "model.embed_tokens.weight");
	unsigned char *was = malloc(s->bytes);

	ck_assert_ptr_nonnull(was);
	memcpy(was, s->data, s->bytes);
	tess_safetensors_drop(f, s->data, s->bytes);
	ck_assert_mem_eq(was, s->data, s->bytes);
	tess_safetensors_drop(f, was, s->bytes); /* an address outside this file: no effect */
	ck_assert_mem_eq(was, s->data, s->bytes);
	free(was);
	tess_safetensors_close(f);
}
END_TEST

START_TEST(reads_all_types_and_shapes)
{
	static const char shapes[] =
		"{"
		"\"z\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[4,4]},"
		"\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
		"\"y\":{\"dtype\":\"I8\",\"shape\":[3,0],\"data_offsets\":[0,0]},"
		"\"x\":{\"dtype\":\"I8\",\"shape\":[0,9],\"data_offsets\":[4,4]},"
		"\"m\":{\"dtype\":\"I8\",\"shape\":[1,1,1,1,1,1,1,1,1,2],\"data_offsets\":[4,6]}}"
		"     ";
	static const struct {
		const char *type;
		int32_t dtype, bits;
	} types[] = {
		{ "F32", TESS_F32, 32 }, { "BF16", TESS_BF16, 16 }, { "F16", TESS_F16, 16 },
		{ "F64", TESS_F64, 64 }, { "I64", TESS_I64, 64 },   { "I32", TESS_I32, 32 },
		{ "I8", TESS_I8, 8 },    { "U8", TESS_U8, 8 },      { "BOOL", 0, 8 },
		{ "I16", 0, 16 },        { "U16", 0, 16 },          { "U32", 0, 32 },
		{ "U64", 0, 64 },        { "C64", 0, 64 },          { "F8_E4M3", 0, 8 },
		{ "F8_E5M2", 0, 8 },     { "F8_E8M0", 0, 8 },       { "F8_E4M3FNUZ", 0, 8 },
		{ "F8_E5M2FNUZ", 0, 8 }, { "F6_E2M3", 0, 6 },       { "F6_E3M2", 0, 6 },
		{ "F4", 0, 4 },
	};
	struct tess_safetensors *f;
	char header[256];

	for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
		size_t bytes = (size_t)types[i].bits; /* 8 elements */
		const struct tess_slice *s;

		snprintf(header, sizeof header,
		         "{\"a\":{\"dtype\":\"%s\",\"shape\":[2,4],\"data_offsets\":[0,%zu]}}",
		         types[i].type, bytes);
		f = open_safetensors(write_safetensors("good", header, bytes));
		s = tess_safetensors_find(f, "a");
		ck_assert_str_eq(s->type, types[i].type);
		ck_assert(s->dtype == types[i].dtype && s->bytes == bytes &&
		          ((const unsigned char *)s->data)[bytes - 1] == bytes - 1);
		tess_safetensors_close(f);
	}
	/*
	 * No tensor; a scalar; nothing in a tensor, three times at one place; many dimensions;
	 * padding.
	 */
	f = open_safetensors(write_safetensors("good", "{}", 0));
	ck_assert_uint_eq(tess_safetensors_count(f), 0);
	tess_safetensors_close(f);
	f = open_safetensors(write_safetensors("good", shapes, 6));
	ck_assert_uint_eq(tess_safetensors_count(f), 5);
	ck_assert_int_eq(tess_safetensors_find(f, "s")->ndim, 0);
	ck_assert_int_eq(tess_safetensors_find(f, "m")->ndim, 10);
	tess_safetensors_close(f);
}
END_TEST

/* Checks headers of 61 to 68 bytes, with an odd-sized tensor first: the data are not moved. */
START_TEST(copies_nothing)
{
	struct tess_safetensors *f;
	char header[256] =
		"{\"b\":" T("I8", "[3]", "0", "3") ",\"a\":" T("F64", "[2]", "3", "19") "}";
	const struct tess_slice *s;
	char part[14];

	for (int pad = 0; pad < 8; pad++, strcat(header, " ")) {
		const char *a, *b;

		f = open_safetensors(write_safetensors("good", header, 19));
		a = tess_safetensors_find(f, "a")->data;
		b = tess_safetensors_find(f, "b")->data;
		ck_assert_ptr_eq(a, b + 3);
		for (char i = 0; i < 19; i++)
			ck_assert_int_eq(b[(int)i], i);
		tess_safetensors_close(f);
	}
	setenv("TESSERA_LOAD", "copy", 1);
	f = open_safetensors(scratch_format_path("good"));
	s = tess_safetensors_find(f, "a");
	ck_assert_int_eq(tess_safetensors_read(f, s, 2, 14, part), TESS_OK);
	for (char i = 0; i < 14; i++)
		ck_assert_int_eq(part[(int)i], 3 + 2 + i);
	ck_assert_int_eq(tess_safetensors_read(f, s, 3, 14, part), TESS_EBUG);
	ck_assert_int_eq(tess_safetensors_read(f, s, 17, 0, part), TESS_EBUG);
	/* a file that was truncated meanwhile gives an error, not a signal */
	ck_assert(!truncate(scratch_format_path("good"), 8 + (off_t)strlen(header) - 1 + 18));
	ck_assert_int_eq(tess_safetensors_read(f, s, 2, 14, part), TESS_EIO);
	ck_assert_ptr_nonnull(strstr(tess_error(), "good: ended after"));
	tess_safetensors_close(f);
	unsetenv("TESSERA_LOAD");
}
END_TEST

START_TEST(reads_headers_alone)
{
	const char *path = format_data_path("model.safetensors");
	struct tess_safetensors *all, *f = NULL;
	char byte;

	setenv("TESSERA_LOAD", "copy", 1);
	all = open_safetensors(path);
	ck_assert_msg(!tess_safetensors_open(path, true, &f), "%s", tess_error());
	unsetenv("TESSERA_LOAD");
	ck_assert_int_eq(tess_safetensors_read(f, tess_safetensors_at(f, 0), 0, 1, &byte),
	                 TESS_EBUG);
	ck_assert_uint_eq(tess_safetensors_count(f), tess_safetensors_count(all));
	for (size_t i = 0; i < tess_safetensors_count(f); i++) {
		const struct tess_slice *a = tess_safetensors_at(all, i),
					*b = tess_safetensors_at(f, i);

		ck_assert_str_eq(a->name, b->name);
		ck_assert(a->ndim == b->ndim && a->bytes == b->bytes && a->begin == b->begin);
		ck_assert_ptr_null(b->data);
	}
	tess_safetensors_close(all);
	tess_safetensors_close(f);
	/* and checks them like a complete read, including the end of the data */
	f = NULL;
	ck_assert_int_eq(
		tess_safetensors_open(scratch_write("bad", "\3\0\0\0\0\0\0\0{}", 10), true, &f),
		TESS_EINVAL);
	ck_assert_int_eq(tess_safetensors_open(scratch_write("bad", "\3", 1), true, &f),
	                 TESS_EINVAL);
	ck_assert_int_eq(
		tess_safetensors_open(
			write_safetensors("bad", "{\"a\":" T("F32", "[1]", "0", "4") "}", 3), true,
			&f),
		TESS_EINVAL);
	ck_assert_ptr_null(f);
}
END_TEST

/* Returns the peak so far, in KiB. */
static long get_peak_memory(void)
{
	struct rusage used;

	ck_assert_int_eq(getrusage(RUSAGE_SELF, &used), 0);
	return used.ru_maxrss;
}

/* Opens many empty tensors: memory is proportional to their names. */
START_TEST(many_tensors_cost_little)
{
	enum { MANY = 300000, EACH = 300 };
	struct tess_safetensors *f;
	FILE *out = fopen(scratch_format_path("many"), "wb");
	uint64_t len;
	long before;

	ck_assert_ptr_nonnull(out);
	fprintf(out, "12345678{");
	for (int i = 0; i < MANY; i++)
		fprintf(out, "%s\"t%d\":" T("F32", "[0]", "0", "0"), i ? "," : "", i);
	fprintf(out, "}");
	len = (uint64_t)ftell(out) - sizeof len;
	rewind(out);
	fwrite(&len, 1, sizeof len, out); /* little-endian machines only */
	ck_assert_int_eq(fclose(out), 0);
	before = get_peak_memory();
	(void)before; /* unused with ASan */
	f = open_safetensors(scratch_format_path("many"));
#ifndef __SANITIZE_ADDRESS__ /* ASan keeps freed memory */
	ck_assert_int_lt(get_peak_memory() - before, MANY / 1024 * EACH);
#endif
	ck_assert_uint_eq(tess_safetensors_count(f), MANY);
	ck_assert_ptr_nonnull(tess_safetensors_find(f, "t299999"));
	tess_safetensors_close(f);
}
END_TEST

START_TEST(writes_what_it_reads)
{
	static const int64_t shape[] = { 3, 2 }, odd[] = { 3 }, none[] = { 0 },
			     absurd[] = { INT64_MAX, 3 };
	static const float x[] = { 1, 2, 3, 4, 5, 6 };
	static const int64_t ids[] = { 7, 8, 9 };
	const struct tess_slice slices[] = {
		{ .name = "byte", .dtype = TESS_U8, .ndim = 1, .shape = odd, .data = "abc" },
		{ .name = "caf\xc3\xa9 \"x\"",
		  .dtype = TESS_F32,
		  .ndim = 2,
		  .shape = shape,
		  .data = x },
		{ .name = "half", .dtype = TESS_BF16, .ndim = 1, .shape = odd, .data = x },
		{ .name = "ids", .dtype = TESS_I64, .ndim = 1, .shape = odd, .data = ids },
		{ .name = "none", .dtype = TESS_F16, .ndim = 1, .shape = none },
		{ .name = "one", .dtype = TESS_F32, .data = x },
	};
	const struct tess_slice bad[] = {
		{ .name = "a", .dtype = 99, .ndim = 1, .shape = odd, .data = x },
		{ .name = "a", .dtype = TESS_F32, .ndim = 2, .shape = absurd, .data = x },
		{ .name = "\xff", .dtype = TESS_F32, .data = x },
		{ .name = "twice", .dtype = TESS_F32, .data = x },
		{ .name = "twice", .dtype = TESS_F32, .data = x },
	};
	const char *path = scratch_format_path("written"), *folder;
	struct tess_safetensors *f;
	struct stat about;

	for (int round = 0; round < 2; round++) /* an older file, too */
		ck_assert_msg(!tess_safetensors_write(path, 6, slices), "%s", tess_error());
	f = open_safetensors(path);
	ck_assert_uint_eq(tess_safetensors_count(f), 6);
	for (int i = 0; i < 6; i++) {
		const struct tess_slice *s = tess_safetensors_find(f, slices[i].name);

		ck_assert_ptr_nonnull(s);
		ck_assert(s->dtype == slices[i].dtype && s->ndim == slices[i].ndim);
		for (int d = 0; d < s->ndim; d++)
			ck_assert_int_eq(s->shape[d], slices[i].shape[d]);
		if (s->bytes)
			ck_assert_mem_eq(s->data, slices[i].data, s->bytes);
	}
	tess_safetensors_close(f);
	ck_assert_int_eq(stat(path, &about), 0);
	ck_assert_uint_eq(about.st_mode & 0600, 0600);
	ck_assert_int_eq(tess_safetensors_write(scratch_format_path("unwritten"), 1, &bad[0]),
	                 TESS_EINVAL);
	expect_part(tess_error(), "tensor a: dtype 99");
	ck_assert_int_eq(tess_safetensors_write(scratch_format_path("unwritten"), 1, &bad[1]),
	                 TESS_EINVAL);
	expect_part(tess_error(), "overflow");
	ck_assert_int_eq(tess_safetensors_write(scratch_format_path("unwritten"), 1, &bad[2]),
	                 TESS_EINVAL);
	ck_assert_int_eq(tess_safetensors_write(scratch_format_path("unwritten"), 2, &bad[3]),
	                 TESS_EINVAL);
	ck_assert_int_ne(access(scratch_format_path("unwritten"), F_OK), 0);
	ck_assert_int_eq(tess_safetensors_write(scratch_format_path("absent/x"), 1, &slices[1]),
	                 TESS_EIO);
	scratch_make_folder("folder");
	folder = scratch_format_path("folder");
	ck_assert_int_eq(tess_safetensors_write(folder, 1, &slices[1]), TESS_EINVAL);
	expect_part(tess_error(), "not a regular file");
}
END_TEST

/* Checks that the file left by a killed process with this id does not interfere, and stays. */
START_TEST(writes_beside_what_was_left)
{
	const struct tess_slice one = { .name = "one", .dtype = TESS_F32, .data = "abcd" };
	struct tess_safetensors *f;
	char name[64];

	snprintf(name, sizeof name, "again.%ld-0.part", (long)getpid());
	scratch_write_text(name, "half");
	ck_assert_msg(!tess_safetensors_write(scratch_format_path("again"), 1, &one), "%s",
	              tess_error());
	f = open_safetensors(scratch_format_path("again"));
	ck_assert_mem_eq(tess_safetensors_find(f, "one")->data, "abcd", 4);
	tess_safetensors_close(f);
	ck_assert_int_eq(access(scratch_format_path(name), F_OK), 0);
	snprintf(name, sizeof name, "again.%ld-1.part", (long)getpid());
	ck_assert_int_ne(access(scratch_format_path(name), F_OK), 0);
}
END_TEST

/*
 * Writes through links: a link stays, its target is written, and no part of a file is left at
 * either place.
 */
START_TEST(writes_behind_links)
{
	const struct tess_slice one = { .name = "one", .dtype = TESS_F32, .data = "abcd" };
	struct tess_safetensors *f;
	struct stat about;

	scratch_make_folder("far");
	scratch_make_folder("near");
	scratch_write_text("far/old", "old");
	ck_assert(!symlink("../far/old", scratch_format_path("near/link")));
	ck_assert(!symlink("link", scratch_format_path("near/second")));
	ck_assert_msg(!tess_safetensors_check_writable(scratch_format_path("near/second")) &&
	                      !tess_safetensors_write(scratch_format_path("near/second"), 1, &one),
	              "%s", tess_error());
	f = open_safetensors(scratch_format_path("far/old"));
	ck_assert_mem_eq(tess_safetensors_find(f, "one")->data, "abcd", 4);
	tess_safetensors_close(f);
	ck_assert(!lstat(scratch_format_path("near/link"), &about) && S_ISLNK(about.st_mode));
	ck_assert(!lstat(scratch_format_path("near/second"), &about) && S_ISLNK(about.st_mode));
	ck_assert(!unlink(scratch_format_path("near/second")) &&
	          !unlink(scratch_format_path("far/old")));
	ck_assert_int_eq(tess_safetensors_write(scratch_format_path("near/link"), 1, &one),
	                 TESS_EIO);
	expect_part(tess_error(), "near/link: a link whose target cannot be resolved: No such");
	ck_assert(!mkfifo(scratch_format_path("far/pipe"), 0600));
	ck_assert(!unlink(scratch_format_path("near/link")) &&
	          !symlink("../far/pipe", scratch_format_path("near/link")));
	ck_assert_int_eq(tess_safetensors_check_writable(scratch_format_path("near/link")),
	                 TESS_EINVAL);
	expect_part(tess_error(), "near/link: not a regular file");
	ck_assert(!unlink(scratch_format_path("near/link")) &&
	          !unlink(scratch_format_path("far/pipe")));
	ck_assert(!rmdir(scratch_format_path("near")) && !rmdir(scratch_format_path("far")));
}
END_TEST

SCRATCH_MAIN("safetensors", refuses_bad_headers, refuses_bad_files, quotes_no_escapes,
             refuses_truncation, null_is_no_metadata, reads_mapped_or_copied,
             drops_pages_that_come_back, reads_all_types_and_shapes, copies_nothing,
             reads_headers_alone, many_tensors_cost_little, writes_what_it_reads,
             writes_beside_what_was_left, writes_behind_links)
