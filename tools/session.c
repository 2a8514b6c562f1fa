/* session.c - the options of commands that open a session on ranks. */
#include "tool.h"

#include <getopt.h>
#include <string.h>

/* 0: it is neither. */
static int32_t find_float_dtype(const char *text)
{
	return !strcmp(text, "f32") ? TESS_F32 : !strcmp(text, "bf16") ? TESS_BF16 : 0;
}

static tess_status parse_math(const char *name, const char *text, void *to)
{
	int32_t dtype = *(int32_t *)to = find_float_dtype(text);

	return dtype ? TESS_OK : tess_fail(TESS_EINVAL, "%s %s: use f32 or bf16", name, text);
}

tess_status tess_tool_parse_kv(const char *name, const char *text, void *to)
{
	int32_t dtype = *(int32_t *)to = find_float_dtype(text);

	return dtype || !strcmp(text, "auto")
	               ? TESS_OK
	               : tess_fail(TESS_EINVAL, "%s %s: use auto, f32 or bf16", name, text);
}

tess_status tess_tool_parse_weights(const char *name, const char *text, void *to)
{
	int32_t dtype = !strcmp(text, "q8") ? TESS_Q8 : !strcmp(text, "bf12") ? TESS_BF12 : 0;

	*(int32_t *)to = dtype;
	return dtype || !strcmp(text, "file")
	               ? TESS_OK
	               : tess_fail(TESS_EINVAL, "%s %s: use file, q8 or bf12", name, text);
}

tess_status tess_tool_parse_session(int argc, char **argv, const char *help,
                                    const struct tess_tool_option *table,
                                    struct tess_tool_session *s)
{
	struct tess_tool_option all[60] = {
		{ "n", .number = &s->ranks, .lo = 1, .hi = 1024, .local = true },
		{ "mesh", .text = &s->mesh },
		{ "backend", .parse = tess_tool_set_option, .local = true },
		{ "device", .parse = tess_tool_set_option, .local = true },
		{ "threads", .number = &s->threads, .lo = 1, .hi = 1024, .local = true },
		{ "plan", .text = &s->plan },
		{ "plan-override", .parse = tess_tool_parse_override, .to = &s->overrides },
		{ "ignore-unexpected", .flag = &s->ignore_unexpected },
		{ "positions", .number = &s->positions, .lo = 1, .hi = 1 << 30 },
		{ "kv", .parse = tess_tool_parse_kv, .to = &s->kv_dtype },
		{ "math", .parse = parse_math, .to = &s->math },
		{ "weights", .parse = tess_tool_parse_weights, .to = &s->weights },
		{ "kv-memory", .parse = tess_tool_parse_size, .to = &s->kv_memory },
	};
	size_t n = 0;
	tess_status st;

	while (all[n].name)
		n++;
	for (size_t i = 0; table[i].name; i++)
		all[n++] = table[i];
	st = tess_tool_parse_options(argc, argv, help, false, all);
	if (!st && optind + 1 != argc)
		st = tess_fail(TESS_EINVAL, "%s",
		               optind < argc
		                       ? "give one MODEL: a checkpoint directory"
		                       : "no MODEL is given, a checkpoint directory; see --help");
	if (!st)
		s->model = argv[optind];
	return st;
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
		st = tess_fail(TESS_EINVAL,
		               "--positions %d: the checkpoint was made for %lld positions",
		               (int)s->positions, (long long)out->positions);
	return st;
}
