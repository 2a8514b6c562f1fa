/* session.c - the options that commands with a session or a trainer share. */
#include "tool.h"

#include <tessera/names.h>

#define AT(member) TESS_TOOL_AT(struct tess_tool_session, member)

static const char *get_float_name(int32_t dtype)
{
	return dtype == TESS_F64 ? NULL : dtype ? tess_dtype_name(dtype) : "auto";
}

static const char *get_weights_name(int32_t dtype)
{
	return dtype >= TESS_Q8 || dtype == TESS_BF16 ? tess_dtype_name(dtype)
	       : dtype                                ? NULL
	                                              : "file";
}

const struct tess_tool_option tess_tool_mesh_options[] = {
	{ "n", "N", "number of ranks (default: the mesh's or the job's, else 1)", AT(ranks),
	  .lo = 1, .hi = 1024, .local = true },
	{ "mesh", "MESH",
	  "named dimensions of the ranks, as dp=2,tp=4; dp: replicas, pp: stages (default: tp)",
	  AT(mesh) },
	{ "device", "NAME[:INDEX]",
	  "compute device: cpu, cuda or WRAPPER:NAME (default: TESSERA_DEVICE, else cpu)",
	  .parse = tess_tool_set_option, .local = true },
	{ 0 },
};

const struct tess_tool_option tess_tool_job_options[] = {
	{ "backend", "auto|BACKEND",
	  "backend: loopback, shm, gloo, ... (default: TESSERA_BACKEND, else auto)",
	  .parse = tess_tool_set_option, .local = true },
	{ "threads", "N", "compute threads per rank (default: CPUs / ranks)", AT(threads), .lo = 1,
	  .hi = 1024, .local = true },
	{ 0 },
};

const struct tess_tool_option tess_tool_plan_options[] = {
	{ "plan", "auto|none|tp|tp+sp|ep|hf|FILE|JSON",
	  "style of each module: a plan of the model, or rules {\"PATTERN\": \"STYLE\"}; none: "
	  "replicate everything (default: auto, the model's first plan)",
	  AT(plan) },
	{ "plan-override", "[DIMENSION:]PATTERN=STYLE",
	  "add a rule that overrides the plan; repeatable (default DIMENSION: tp)", AT(overrides) },
	{ "ignore-unexpected", NULL, "skip tensors that no module uses, with a warning",
	  AT(ignore_unexpected) },
	{ 0 },
};

const struct tess_tool_option tess_tool_memory_options[] = {
	{ "positions", "N", "maximum length of a sequence (default: the checkpoint's maximum)",
	  AT(positions), .lo = 1, .hi = 1 << 30 },
	{ "kv", NULL, "dtype of keys and values in the cache; auto: chosen by the device",
	  AT(kv_dtype), .hi = TESS_BF16, .get_name = get_float_name },
	{ "weights", NULL,
	  "linear weights in memory: as stored, 8-bit (q8), 4-bit (mxfp4), 12-bit without loss "
	  "(bf12), or stored mxfp4 widened (bf16)",
	  AT(weights), .hi = TESS_MXFP4, .get_name = get_weights_name },
	{ 0 },
};

const struct tess_tool_option tess_tool_compute_options[] = {
	{ "kv-memory", "SIZE", "KV cache per rank, as in 512M or 4G (default: free memory)",
	  AT(kv_memory) },
	{ "math", NULL, "dtype of linear products; bf16 rounds their inputs (default: f32)",
	  AT(math), .lo = TESS_F32, .hi = TESS_BF16, .get_name = get_float_name },
	{ 0 },
};

const char *tess_tool_get_weights(const struct tess_tool_session *s)
{
	return get_weights_name(s->weights);
}

const char *tess_tool_get_math(const struct tess_tool_session *s)
{
	return s->math == TESS_BF16 ? "bf16" : "f32";
}

struct tess_session_options tess_tool_get_session_options(const struct tess_tool_session *s)
{
	return (struct tess_session_options){ .size = sizeof(struct tess_session_options),
		                              .threads = s->threads,
		                              .plan = s->plan,
		                              .overrides = s->overrides.text,
		                              .ignore_unexpected = s->ignore_unexpected,
		                              .kv_dtype = s->kv_dtype,
		                              .kv_memory = s->kv_memory,
		                              .positions = s->positions,
		                              .weights = s->weights,
		                              .math = s->math };
}

tess_status tess_tool_check_session(struct tess_tool_session *s, struct tess_session_info *out)
{
	struct tess_session_options options = tess_tool_get_session_options(s);
	tess_status st = s->ranks ? TESS_OK : tess_mesh_count_ranks(s->mesh, &s->ranks);

	if (!st)
		st = tess_session_check(s->model, s->mesh, s->ranks, &options, out);
	if (!st && out->positions && s->positions > out->positions)
		st = tess_fail(
			TESS_EINVAL,
			"--positions %d: must be at most %lld, the checkpoint's maximum length",
			(int)s->positions, (long long)out->positions);
	return st;
}
