/* session.c - the options that commands with a session or a trainer share. */
#include "tool.h"

#include "core/base/json.h"
#include "core/base/status.h"
#include "core/rendezvous/rank_env.h"
#include "core/world/mesh_shape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/names.h>

static struct tess_strategy *strategy; /* of --plan; the options of the command borrow from it */

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
	{ "plan", "auto|none|tp|tp+sp|ep|ep+sp|hf|FILE|JSON",
	  "style of each module: a plan of the model, rules {\"PATTERN\": \"STYLE\"}, or a "
	  "strategy with its mesh; none: replicate everything (default: auto, the model's first "
	  "plan)",
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
	{ "offload-weights", NULL,
	  "read large weights from the checkpoint before each use, not into memory", AT(offload) },
	{ 0 },
};

/* Reads the dtype of products; the error of f16 contains the reason. */
static tess_status parse_math(const char *name, const char *text, void *to)
{
	if (!strcmp(text, "f16"))
		return tess_fail(TESS_EINVAL,
		                 "%s f16: must be f32 or bf16; f16 has too small a range: "
		                 "gradients below 6e-8 would be 0, and values above 65504 infinite",
		                 name);
	return tess_tool_parse_name(tess_tool_math_options, name, text, to);
}

const struct tess_tool_option tess_tool_math_options[] = {
	{ "math", NULL, "dtype of linear products; bf16 rounds their inputs (default: f32)",
	  AT(math), .lo = TESS_F32, .hi = TESS_BF16, .get_name = get_float_name,
	  .parse = parse_math },
	{ 0 },
};

tess_status tess_tool_count_pipeline_ranks(const char *mesh, int32_t n, int32_t *out)
{
	struct tess_mesh_shape shape;
	tess_status st = tess_mesh_shape_parse(mesh ? mesh : "tp", n, &shape);
	int32_t pp = st ? -1 : tess_mesh_shape_find(&shape, "pp", 2);

	if (!st)
		*out = pp < 0 ? 1 : shape.dim[pp].size;
	return st;
}

/* Takes the mesh of the strategy, unless --mesh is given. n: the number of ranks; 0: any. */
static tess_status take_mesh(struct tess_tool_session *s, int32_t n)
{
	tess_status st = TESS_OK;

	if (s->mesh || !strategy->mesh)
		return TESS_OK;
	if (n)
		st = tess_strategy_check_ranks(strategy, n);
	if (st)
		return s->ranks ? tess_fail_in(st, "-n %d", (int)n) : st;
	s->mesh = strategy->mesh;
	return TESS_OK;
}

/* Adds each key of the strategy to the options that ranks compare. */
static tess_status compare_strategy(void)
{
	char *text = NULL, name[64];
	json_t *root = NULL;
	tess_status st = tess_strategy_format(strategy, &text);

	if (!st)
		st = tess_json_parse("strategy", text, strlen(text), &root);
	for (void *it = json_object_iter(root); it && !st; it = json_object_iter_next(root, it)) {
		const json_t *value = json_object_iter_value(it);
		char *dump = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);

		snprintf(name, sizeof name, "%s of the strategy", json_object_iter_key(it));
		if (!dump)
			st = tess_fail(TESS_ENOMEM, "%s: out of memory", name);
		else if (strcmp(json_object_iter_key(it), "predicted") != 0)
			st = tess_tool_add_compared(
				name, json_is_string(value) ? json_string_value(value) : dump);
		free(dump);
	}
	json_decref(root);
	free(text);
	return st;
}

tess_status tess_tool_take_strategy(struct tess_tool_session *s)
{
	struct tess_rank_env env;
	int32_t n = s->ranks, stages;
	tess_status st = tess_strategy_read(s->plan, &strategy);

	if (st || !strategy)
		return st;
	st = tess_rank_env_read(&env);
	if (!st && !n && !env.alone)
		n = env.size;
	if (!st)
		st = take_mesh(s, n);
	if (!st && !tess_tool_count_pipeline_ranks(s->mesh, n, &stages) && stages == 1)
		strategy->pipeline_schedule = NULL;
	s->strategy = strategy;
	return st ? st : compare_strategy();
}

tess_status tess_tool_check_batch(const struct tess_tool_session *s, int32_t batch, int32_t micro)
{
	bool taken = s->strategy && s->strategy->micro_batches == micro;

	if (batch % micro == 0)
		return TESS_OK;
	return tess_fail(TESS_EINVAL,
	                 "--batch %d: cannot be cut into %d micro-batches of as many sequences%s%s",
	                 (int)batch, (int)micro, taken ? ", as in " : "",
	                 taken ? s->strategy->name : "");
}

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
		                              .math = s->math,
		                              .offload_weights = s->offload };
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
