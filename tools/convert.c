/* convert.c - `tessera convert`: writes a checkpoint in another dtype, or in other files. */
#include "tool.h"

#include "api/convert.h"
#include "core/base/status.h"
#include "core/world/world.h"

#include <getopt.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <tessera/names.h>
#include <tessera/util/clock.h>
#include <unistd.h>

enum { SHOWN_EVERY = 100000000 }; /* ns between two progress lines */

struct convert_command {
	const char *model, *out;
	struct tess_convert_options options;
	int32_t ranks;
	bool show;
	atomic_ullong done;
	_Atomic int64_t shown;
};

static volatile sig_atomic_t stopped_by;

static void handle_stop(int sig)
{
	stopped_by = sig;
	if (sig != SIGHUP) /* a closing terminal may send it more than once */
		signal(sig, SIG_DFL); /* a second one ends the process */
}

static tess_status count_progress(void *self, uint64_t bytes, uint64_t all)
{
	struct convert_command *a = self;
	unsigned long long done = atomic_fetch_add(&a->done, bytes) + bytes;
	int64_t now = tess_now(), last = atomic_load(&a->shown);

	if (stopped_by)
		return tess_fail(TESS_EABORTED, "stopped by signal %d (%s); %s is not written",
		                 (int)stopped_by, strsignal(stopped_by), a->out);
	if (a->show && now - last >= SHOWN_EVERY &&
	    atomic_compare_exchange_strong(&a->shown, &last, now))
		fprintf(stderr, "\r\033[K  %.1f of %.1f MB", (double)done / 1e6, (double)all / 1e6);
	return TESS_OK;
}

static const char *get_dtype_name(int32_t dtype)
{
	return dtype == TESS_F64 ? NULL : tess_dtype_name(dtype);
}

#define AT(member) TESS_TOOL_AT(struct convert_command, member)

static const struct tess_tool_option convert_options[] = {
	{ "n", "N", "number of ranks, each of which writes its share (default: 1)", AT(ranks),
	  .lo = 1, .hi = 1024, .local = true },
	{ "dtype", NULL, "dtype of all weights, rounded to nearest (default: each tensor's)",
	  AT(options.dtype), .lo = TESS_F32, .hi = TESS_F16, .get_name = get_dtype_name },
	{ "max-shard-size", "SIZE",
	  "bytes of tensors in a file, as in 512MB or 1GiB (default: 5GB)",
	  AT(options.file_bytes) },
	{ 0 },
};

static tess_status parse_convert_options(int argc, char **argv, struct convert_command *a)
{
	const struct tess_tool_section sections[] = { { "Options", convert_options, .to = a },
		                                      { 0 } };
	tess_status st = tess_tool_parse_options(argc, argv, &tess_tool_convert, false, sections);

	if (!st && optind + 2 != argc)
		st = tess_fail(TESS_EINVAL, "give MODEL, a checkpoint directory, and OUT, the "
		                            "directory to be made; see --help");
	if (st)
		return st;
	a->model = argv[optind];
	a->out = argv[optind + 1];
	return TESS_OK;
}

static tess_status run_convert_rank(struct tess_world *w, void *arg)
{
	const struct convert_command *a = arg;

	return tess_convert(w, a->model, a->out, &a->options);
}

/* Runs on threads; a TESSERA_BACKEND for processes does not apply to them. */
static tess_status run_on_threads(struct convert_command *a)
{
	int32_t n = a->ranks ? a->ranks : 1;
	tess_status st = TESS_OK;

	if (tess_world_check_threads())
		st = tess_option_set("backend", "auto");
	return st ? st : tess_world_spawn_threads(n, run_convert_rank, a);
}

static tess_status run_convert(struct convert_command *a)
{
	bool launched;
	tess_status st = tess_tool_is_launched(&launched);

	if (st)
		return st;
	if (launched)
		return tess_tool_join_job(a->ranks, run_convert_rank, a);
	a->show = isatty(STDERR_FILENO);
	st = tess_convert_check(a->model, a->out, &a->options);
	if (!st)
		st = run_on_threads(a);
	if (a->show)
		fprintf(stderr, "\r\033[K");
	return st;
}

static int execute_convert(int argc, char **argv)
{
	struct convert_command a = { .options = { .file_bytes = 5000000000 } };
	tess_status st = parse_convert_options(argc, argv, &a);
	bool usage = st < 0;

	a.options.progress = count_progress;
	a.options.self = &a;
	signal(SIGXFSZ, SIG_IGN); /* a file size limit is reported like a full disk */
	if (signal(SIGINT, handle_stop) == SIG_IGN)
		signal(SIGINT, SIG_IGN);
	signal(SIGTERM, handle_stop);
	if (signal(SIGHUP, handle_stop) == SIG_IGN) /* nohup */
		signal(SIGHUP, SIG_IGN);
	if (!st)
		st = run_convert(&a);
	if (st < 0)
		tess_tool_print_error("convert");
	if (st < 0 && stopped_by)
		return 128 + stopped_by;
	return st < 0 ? usage ? 2 : 1 : 0;
}

const struct tess_tool_command tess_tool_convert = {
	"convert",
	"write a checkpoint in another dtype, or in files of another size",
	"MODEL OUT [options]",
	"Writes the checkpoint directory MODEL to the directory OUT, which must not exist or be\n"
	"empty: weights in another dtype, in files of another size, and all other files of it.\n"
	"OUT is complete or absent. Transformers and safetensors read it.\n",
	"  tessera convert llama llama-bf16 --dtype bf16 -n 4\n"
	"  tessera convert data small --max-shard-size 500KB\n",
	execute_convert,
};
