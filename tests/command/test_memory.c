/*
 * test_memory.c - memory of `tessera generate`: nothing is held twice. From the first byte read to
 * the last token, all its processes together hold at most the model, and for each rank its KV
 * cache, its step and 32 MiB. Memory is Pss: a page mapped several times counts once. The
 * checkpoint is random, with tied embeddings or a head of its own; its data may begin at an odd
 * address, or be in panels.
 */
#include "tests/support/suite.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	HIDDEN = 1024,
	HEADS = 16,
	KV_HEADS = 4,
	FFN = 4096,
	VOCAB = 32000,
	LAYERS = 7,
	KV = HIDDEN / HEADS * KV_HEADS
};
enum { MIB = 1 << 20, RANK_EXTRA = 32 * MIB };

#define DIR BUILD_DIR "/memory-checkpoint"

/* ---- the checkpoint -------------------------------------------------------------------------- */

struct tensor_shape {
	const char *name;
	int64_t rows, cols;
};

static const struct tensor_shape layer_tensors[] = {
	{ "input_layernorm", HIDDEN, 0 },       { "self_attn.q_proj", HIDDEN, HIDDEN },
	{ "self_attn.k_proj", KV, HIDDEN },     { "self_attn.v_proj", KV, HIDDEN },
	{ "self_attn.o_proj", HIDDEN, HIDDEN }, { "post_attention_layernorm", HIDDEN, 0 },
	{ "mlp.gate_proj", FFN, HIDDEN },       { "mlp.up_proj", FFN, HIDDEN },
	{ "mlp.down_proj", HIDDEN, FFN },       { 0 }
};
static const struct tensor_shape top_tensors[] = { { "model.embed_tokens", VOCAB, HIDDEN },
	                                           { "model.norm", HIDDEN, 0 },
	                                           { "lm_head", VOCAB, HIDDEN },
	                                           { 0 } };

static int64_t compute_tensor_bytes(const struct tensor_shape *t)
{
	return 2 * t->rows * (t->cols ? t->cols : 1);
}

static int64_t compute_model_bytes(bool tied)
{
	int64_t n = 0;

	for (const struct tensor_shape *t = layer_tensors; t->name; t++)
		n += LAYERS * compute_tensor_bytes(t);
	for (const struct tensor_shape *t = top_tensors; t->name; t++)
		n += tied && !strcmp(t->name, "lm_head") ? 0 : compute_tensor_bytes(t);
	return n;
}

static void write_header_entry(FILE *header, const char *prefix, const struct tensor_shape *t,
                               int64_t *at)
{
	fprintf(header, "%s\"%s%s.weight\":{\"dtype\":\"BF16\",\"shape\":[%lld", *at ? "," : "",
	        prefix, t->name, (long long)t->rows);
	if (t->cols)
		fprintf(header, ",%lld", (long long)t->cols);
	fprintf(header, "],\"data_offsets\":[%lld,%lld]}", (long long)*at,
	        (long long)(*at + compute_tensor_bytes(t)));
	*at += compute_tensor_bytes(t);
}

static int64_t write_checkpoint_header(FILE *f, size_t odd)
{
	char *text, prefix[32];
	size_t len;
	uint64_t size;
	int64_t at = 0;
	FILE *header = open_memstream(&text, &len);

	fputc('{', header);
	for (const struct tensor_shape *t = top_tensors; t->name; t++)
		write_header_entry(header, "", t, &at);
	for (int i = 0; i < LAYERS; i++) {
		snprintf(prefix, sizeof prefix, "model.layers.%d.", i);
		for (const struct tensor_shape *t = layer_tensors; t->name; t++)
			write_header_entry(header, prefix, t, &at);
	}
	fprintf(header, "}");
	while (fflush(header), len % 8 != odd)
		fputc(' ', header);
	fclose(header);
	size = len;
	fwrite(&size, 1, sizeof size, f); /* little-endian machines only */
	fwrite(text, 1, len, f);
	free(text);
	return at;
}

/* Writes weights of either sign near 0.01: bf16, four at a time. */
static void write_random_weights(FILE *f, int64_t bytes)
{
	static uint64_t some[1 << 15];
	uint64_t r = 1;

	for (int64_t left = bytes; left > 0; left -= (int64_t)sizeof some) {
		for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
			r ^= r << 13;
			r ^= r >> 7;
			r ^= r << 17;
			some[i] = (r & 0x807f807f807f807f) | 0x3c003c003c003c00;
		}
		fwrite(some, 1, left < (int64_t)sizeof some ? (size_t)left : sizeof some, f);
	}
}

static void write_checkpoint_config(bool tied)
{
	FILE *f = fopen(DIR "/config.json", "w");

	ck_assert(f != NULL);
	fprintf(f,
	        "{\"model_type\":\"llama\",\"hidden_size\":%d,\"num_attention_heads\":%d,"
	        "\"num_key_value_heads\":%d,"
	        "\"intermediate_size\":%d,\"num_hidden_layers\":%d,\"vocab_size\":%d,"
	        "\"hidden_act\":\"silu\","
	        "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"max_position_embeddings\":2048,"
	        "\"tie_word_embeddings\":%s}\n",
	        HIDDEN, HEADS, KV_HEADS, FFN, LAYERS, VOCAB, tied ? "true" : "false");
	ck_assert(!fclose(f));
}

static void write_model_file(size_t odd)
{
	FILE *f = fopen(DIR "/model.safetensors", "w");

	ck_assert(f != NULL);
	write_random_weights(f, write_checkpoint_header(f, odd));
	ck_assert_msg(!fclose(f), "%s: %s", DIR, strerror(errno));
}

static void make_large_checkpoint(void)
{
	ck_assert(!mkdir(DIR, 0777) || errno == EEXIST);
	write_model_file(0);
}

static void remove_large_checkpoint(void)
{
	remove(DIR "/model.safetensors");
	remove(DIR "/config.json");
	remove(DIR);
}

/* ---- memory of processes --------------------------------------------------------------------- */

static int64_t read_pss(int pid)
{
	char path[64], line[256];
	long long kib = 0;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/smaps_rollup", pid);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof line, f) && sscanf(line, "Pss: %lld kB", &kib) != 1)
		;
	if (f)
		fclose(f);
	return 1024 * kib;
}

/* Returns the Pss of a process and all its descendants; adds their number to *processes. */
static int64_t sum_pss_of_tree(int pid, int *processes)
{
	char path[64];
	int64_t sum = read_pss(pid);
	int child;
	FILE *f;

	++*processes;
	snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, pid);
	f = fopen(path, "r");
	while (f && fscanf(f, "%d", &child) == 1)
		sum += sum_pss_of_tree(child, processes);
	if (f)
		fclose(f);
	return sum;
}

/* ---- runs ------------------------------------------------------------------------------------ */

struct memory_peaks {
	int64_t loading, running;
	int processes, samples;
};

static struct memory_peaks watch_memory(pid_t pid, int out)
{
	struct memory_peaks seen = { 0 };
	struct pollfd p = { .fd = out, .events = POLLIN };
	bool running = false;
	char text[4096];
	int64_t now, *peak;
	int n;

	for (;;) {
		if (poll(&p, 1, 20)) {
			if (read(out, text, sizeof text) <= 0)
				return seen;
			running = true;
		}
		n = 0;
		now = sum_pss_of_tree(pid, &n);
		peak = running ? &seen.running : &seen.loading;
		*peak = now > *peak ? now : *peak;
		seen.processes = n > seen.processes ? n : seen.processes;
		seen.samples += running;
	}
}

/*
 * Returns the bytes of KV caches and steps of all ranks, by --stats; and the digest. Weights are
 * reported once, in memory or in the files, regardless of packing until the end.
 */
static int64_t parse_stated_bytes(FILE *err, int ranks, int64_t model, char digest[65])
{
	double weights, mapped, cache, step, sum = 0, all_weights = 0;
	char line[1024], all[8192] = "";
	int n = 0, rank;

	rewind(err);
	while (fgets(line, sizeof line, err)) {
		strncat(all, line, sizeof all - strlen(all) - 1);
		if (sscanf(line, "rank %d %lf MiB weights %lf MiB KV cache %lf MiB step (%lf",
		           &rank, &weights, &cache, &step, &mapped) == 5) {
			sum += cache + step;
			all_weights += weights + mapped;
			n++;
		}
		sscanf(line, "digest %64s", digest);
	}
	ck_assert_msg(n == ranks, "%d of %d ranks print what they hold: %s", n, ranks, all);
	ck_assert_msg(all_weights * MIB > 0.99 * (double)model &&
	                      all_weights * MIB < 1.05 * (double)model,
	              "%.1f MiB of weights of %.1f: %s", all_weights, (double)model / MIB, all);
	return (int64_t)(sum * MIB);
}

static void check_memory(bool tied, int ranks, const char *backend, char digest[65])
{
	int64_t model = compute_model_bytes(tied), limit;
	FILE *err = tmpfile();
	char n[8];
	struct memory_peaks seen;
	int out[2], status;
	pid_t pid;

	ck_assert(model >= 256 * MIB && err && !pipe(out));
	snprintf(n, sizeof n, "%d", ranks);
	pid = fork();
	if (!pid) {
		dup2(out[1], STDOUT_FILENO);
		dup2(fileno(err), STDERR_FILENO);
		close(out[0]);
		close(out[1]);
		execl(TESSERA, TESSERA, "generate", DIR, "-n", n, "--backend", backend, "--threads",
		      "1", "--ids", "1,2,3,4,5,6,7,8", "--max-tokens", "12", "--temperature", "0",
		      "--stats", "--digest", (char *)NULL);
		_exit(127);
	}
	close(out[1]);
	seen = watch_memory(pid, out[0]);
	close(out[0]);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	limit = model + parse_stated_bytes(err, ranks, model, digest) + ranks * (int64_t)RANK_EXTRA;
	fclose(err);
	printf("%s, %d rank%s, %-8s  model %.1f MiB, at most %.1f while loading, "
	       "%.1f while decoding; allowed %.1f\n",
	       tied ? "tied  " : "untied", ranks, ranks > 1 ? "s" : " ", backend,
	       (double)model / MIB, (double)seen.loading / MIB, (double)seen.running / MIB,
	       (double)limit / MIB);
	fflush(stdout);
	ck_assert_int_eq(status, 0);
	ck_assert_int_ge(seen.samples, 2);
	if (!strcmp(backend, "loopback"))
		ck_assert_int_eq(seen.processes, 1);
	else
		ck_assert_int_gt(seen.processes, ranks);
	ck_assert_msg(seen.running > model / 2,
	              "less than half of the model: smaps are not read right");
	ck_assert_int_le(seen.running, limit);
	ck_assert_int_le(seen.loading, limit);
}

/* Returns the digest of one rank, by `tied`, which is checked once. */
static const char *get_first_digest(bool tied)
{
	static char first[2][65];

	if (!*first[tied])
		check_memory(tied, 1, "loopback", first[tied]);
	return first[tied];
}

START_TEST(nothing_twice)
{
	static const char *const backends[] = { "loopback", "shm", "gloo" };
	char digest[65] = "";

	write_checkpoint_config(_i);
	for (int b = 0; b < (HAVE_GLOO ? 3 : 2); b++) {
		check_memory(_i, 4, backends[b], digest);
		ck_assert_str_eq(digest, get_first_digest(_i));
	}
}
END_TEST

/*
 * Checks that weights that are read are not held twice either: each rank holds only its own part.
 */
START_TEST(nothing_twice_copied)
{
	static const char *const backends[] = { "loopback", "shm" };
	const char *first;
	char digest[65] = "";

	write_checkpoint_config(false);
	first = get_first_digest(false);
	setenv("TESSERA_LOAD", "copy", 1);
	for (int i = 0; i < 2; i++) {
		check_memory(false, 4, backends[i], digest);
		ck_assert_str_eq(digest, first);
	}
	unsetenv("TESSERA_LOAD");
}
END_TEST

/* Checks that data at an odd address are not held twice either, and give equal bits. */
START_TEST(nothing_twice_unaligned)
{
	static const char *const backends[] = { "loopback", "shm" };
	char digest[65] = "";

	write_checkpoint_config(false);
	write_model_file(5);
	for (int i = 0; i < 2; i++) {
		check_memory(false, 2, backends[i], digest);
		ck_assert_str_eq(digest, get_first_digest(false));
	}
}
END_TEST

/* ---- offloaded weights ----------------------------------------------------------------------- */

/* Returns what rank 0 announces to hold, and what all KV caches have; in bytes. */
static int64_t parse_announced_bytes(FILE *err, int ranks, char digest[65])
{
	double weights, cache, announced = 0, caches = 0;
	char line[1024];
	int rank;

	rewind(err);
	while (fgets(line, sizeof line, err)) {
		sscanf(line, "tessera generate: rank 0 holds at most %lf MiB", &announced);
		if (sscanf(line, "rank %d %lf MiB weights %lf MiB KV cache", &rank, &weights,
		           &cache) == 3)
			caches += cache;
		sscanf(line, "digest %64s", digest);
	}
	ck_assert(announced > 0 && caches > 0);
	return (int64_t)((ranks * announced + caches) * MIB);
}

START_TEST(offloaded_weights_stay_in_files)
{
	int ranks = _i ? 4 : 1, out[2], status;
	int64_t model = compute_model_bytes(false), limit;
	FILE *err = tmpfile();
	char digest[65] = "", n[8];
	struct memory_peaks seen;
	pid_t pid;

	write_checkpoint_config(false);
	snprintf(n, sizeof n, "%d", ranks);
	ck_assert(err && !pipe(out));
	pid = fork();
	if (!pid) {
		dup2(out[1], STDOUT_FILENO);
		dup2(fileno(err), STDERR_FILENO);
		close(out[0]);
		close(out[1]);
		execl(TESSERA, TESSERA, "generate", DIR, "-n", n, "--backend", "loopback",
		      "--threads", "1", "--ids", "1,2,3,4,5,6,7,8", "--max-tokens", "12",
		      "--temperature", "0", "--prefill-chunk", "8", "--stats", "--digest",
		      "--offload-weights", (char *)NULL);
		_exit(127);
	}
	close(out[1]);
	seen = watch_memory(pid, out[0]);
	close(out[0]);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	limit = parse_announced_bytes(err, ranks, digest);
	fclose(err);
	printf("offloaded, %d ranks  model %.1f MiB, announced %.1f, at most %.1f and %.1f\n",
	       ranks, (double)model / MIB, (double)limit / MIB, (double)seen.loading / MIB,
	       (double)seen.running / MIB);
	fflush(stdout);
	ck_assert_str_eq(digest, get_first_digest(false));
	limit += limit / 20 + RANK_EXTRA;
	ck_assert_int_lt(limit, model);
	ck_assert_int_le(seen.running, limit);
	ck_assert_int_le(seen.loading, limit);
}
END_TEST

int main(void)
{
	TCase *t;
	SRunner *r;

	if (SANITIZED) {
		printf("skipped: sanitizers have memory of their own\n");
		return 77;
	}
	t = suite_begin("memory", 120, &r);
	tcase_add_unchecked_fixture(t, make_large_checkpoint, remove_large_checkpoint);
	tcase_add_loop_test(t, nothing_twice, 0, 2);
	tcase_add_test(t, nothing_twice_copied);
	tcase_add_loop_test(t, offloaded_weights_stay_in_files, 0, 2);
	tcase_add_test(t, nothing_twice_unaligned);
	srunner_set_fork_status(r, CK_NOFORK);
	return suite_end(r);
}
