#include "nn/run/options.h"

#include "core/base/option.h"
#include "core/base/status.h"
#include "nn/run/run.h"
#include "nn/weights/weights.h"

#include <string.h>

const struct tess_option tess_run_options[] = {
	{ "threads", "0", "compute threads per rank; 0: the rank's share of the available CPUs" },
	{ "check", "0",
	  "1: compare all bytes of weights, and after each module the values that must be "
	  "equal on all ranks; find NaN and Inf" },
	{ "offload_min", "65536",
	  "minimum bytes of a rank's part of a weight, or of its state, that offloading moves to "
	  "files" },
	{ "offload_bucket", "1048576",
	  "elements of the optimizer's state in files that are read, changed and written at once; "
	  "generation reads weights ahead in parts of 32 times as many bytes" },
	{ "graphs", "calls",
	  "steps of few rows as device graphs: calls (including group calls, if the backend "
	  "can), ops, or none" },
	{ NULL, NULL, NULL },
};

static tess_status read_graphs_option(int32_t *graphs)
{
	static const char *const names[] = { [TESS_GRAPHS_NONE] = "none",
		                             [TESS_GRAPHS_OPS] = "ops",
		                             [TESS_GRAPHS_CALLS] = "calls" };
	const char *text = tess_option_get("graphs");

	for (*graphs = TESS_GRAPHS_CALLS; *graphs >= 0; --*graphs)
		if (!strcmp(text, names[*graphs]))
			return TESS_OK;
	return tess_fail(TESS_EINVAL, "TESSERA_GRAPHS=%s: use calls, ops or none", text);
}

tess_status tess_run_read_options(bool *check, int32_t *graphs)
{
	int64_t value = 0;
	tess_status st = tess_option_add("nn/run/options.c", tess_run_options);

	if (!st)
		st = tess_option_get_int("check", 0, 1, &value);
	*check = value;
	return st ? st : read_graphs_option(graphs);
}

tess_status tess_run_read_offload(uint64_t *min, uint64_t *bucket)
{
	int64_t bytes = 0, elements = 0;
	tess_status st = tess_option_add("nn/run/options.c", tess_run_options);

	if (!st)
		st = tess_option_get_int("offload_min", 1, INT64_MAX, &bytes);
	if (!st)
		st = tess_option_get_int("offload_bucket", 1, 1 << 28, &elements);
	*min = (uint64_t)bytes;
	*bucket = (uint64_t)elements;
	return st;
}

tess_status tess_run_check_options(int32_t threads, int32_t weights)
{
	const struct tess_device *device;
	int32_t index, graphs;
	int64_t n;
	bool answer;
	tess_status st = tess_run_read_options(&answer, &graphs);

	if (!st)
		st = tess_device_read_threads(threads, &n);
	if (!st)
		st = tess_device_find(&device, &index);
	if (!st)
		st = tess_weights_read_layout(device, &answer);
	return st ? st : tess_device_check_weights(device, weights);
}
