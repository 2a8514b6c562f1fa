/*
 * tess-style-prepare.so: moves the inputs or outputs of a module; cuts no parameter.
 *
 *   prepare_input:in=replicate
 *   prepare_output:out=shard(0)
 *   prepare_input_output:in=replicate,out=shard(0)
 *
 * `in` and `out` are the first argument, in1 .. in3 and out1 .. out3 the next ones. A placement is
 * replicate, shard(DIM), partial, or asis; a negative DIM counts from the end.
 */
#include <stdlib.h>
#include <string.h>
#include <tessera/style.h>

enum { IN = 1, OUT = 2 };

/* Parses "shard(-1)" at *at and advances *at; 0: not a placement. */
static int parse_place(const char **at, struct tess_place *out)
{
	static const struct {
		const char *name;
		int32_t kind;
	} words[] = {
		{ "replicate", TESS_REPLICATE },
		{ "partial", TESS_PARTIAL },
		{ "asis", TESS_ASIS },
	};
	char *end;
	long dim;

	for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
		if (!strncmp(*at, words[i].name, strlen(words[i].name))) {
			*at += strlen(words[i].name);
			*out = (struct tess_place){ .kind = words[i].kind };
			return 1;
		}
	}
	if (strncmp(*at, "shard(", 6))
		return 0;
	dim = strtol(*at + 6, &end, 10);
	if (end == *at + 6 || *end != ')' || dim < -TESS_DIMS || dim >= TESS_DIMS)
		return 0;
	*at = end + 1;
	*out = (struct tess_place){ .kind = TESS_SHARD, .dim = (int32_t)dim };
	return 1;
}

/* Parses "in=replicate,out=shard(0)", limited to `sides`; 0: invalid. */
static int parse_placements(const char *at, int sides, struct tess_io *io)
{
	for (;; at++) {
		struct tess_place *side;

		if ((sides & IN) && !strncmp(at, "in", 2)) {
			side = io->in;
			at += 2;
		} else if ((sides & OUT) && !strncmp(at, "out", 3)) {
			side = io->out;
			at += 3;
		} else {
			return 0;
		}
		if (*at >= '0' && *at < '0' + TESS_NARGS)
			side += *at++ - '0';
		if (*at++ != '=' || !parse_place(&at, side))
			return 0;
		if (*at != ',')
			return !*at;
	}
}

static tess_status set_prepare_layout(const struct tess_site *s, int sides, const char *example,
                                      struct tess_io *out)
{
	struct tess_io io = { 0 };

	if (!parse_placements(s->config, sides, &io))
		return s->host->fail(
			TESS_EINVAL,
			"%s: %s takes placements (replicate, shard(DIM), partial, asis), "
			"as in %s:%s, not \"%s\"",
			s->module, s->style, s->style, example, s->config);
	*out = io;
	return TESS_OK;
}

static tess_status layout_prepare_input(const struct tess_site *s, struct tess_io *out)
{
	return set_prepare_layout(s, IN, "in=replicate", out);
}

static tess_status layout_prepare_output(const struct tess_site *s, struct tess_io *out)
{
	return set_prepare_layout(s, OUT, "out=shard(0)", out);
}

static tess_status layout_prepare_both(const struct tess_site *s, struct tess_io *out)
{
	return set_prepare_layout(s, IN | OUT, "in=replicate,out=shard(0)", out);
}

static tess_status set_preset_layout(const struct tess_site *s, const char *config,
                                     struct tess_io *out)
{
	tess_status st = tess_site_refuse_config(s);

	if (st)
		return st;
	parse_placements(config, IN | OUT, out);
	return TESS_OK;
}

static tess_status layout_allgather(const struct tess_site *s, struct tess_io *out)
{
	return set_preset_layout(s, "in=replicate", out);
}

static tess_status layout_allgather_split(const struct tess_site *s, struct tess_io *out)
{
	return set_preset_layout(s, "in=replicate,out=shard(0)", out);
}

static const struct tess_style prepare_input = {
	.size = sizeof prepare_input,
	.name = "prepare_input",
	.summary = "moves the input (:in=replicate)",
	.layout = layout_prepare_input,
	.partition_param = tess_param_replicate,
};
static const struct tess_style prepare_output = {
	.size = sizeof prepare_output,
	.name = "prepare_output",
	.summary = "moves the output (:out=shard(0))",
	.layout = layout_prepare_output,
	.partition_param = tess_param_replicate,
};
static const struct tess_style prepare_input_output = {
	.size = sizeof prepare_input_output,
	.name = "prepare_input_output",
	.summary = "moves input and output",
	.layout = layout_prepare_both,
	.partition_param = tess_param_replicate,
};
static const struct tess_style module_allgather = {
	.size = sizeof module_allgather,
	.name = "module_allgather",
	.summary = "prepare_input:in=replicate",
	.aliases = (const char *const[]){ "module_allgather_hidden_states", NULL },
	.layout = layout_allgather,
	.partition_param = tess_param_replicate,
};
static const struct tess_style module_allgather_split = {
	.size = sizeof module_allgather_split,
	.name = "module_allgather_split",
	.summary = "prepare_input_output:in=replicate,out=shard(0)",
	.layout = layout_allgather_split,
	.partition_param = tess_param_replicate,
};

TESS_DEFINE_PLUGIN("prepare", "1.0", "Apache-2.0", .summary = "placements of inputs and outputs",
                   .styles = TESS_LIST(tess_style, &prepare_input, &prepare_output,
                                       &prepare_input_output, &module_allgather,
                                       &module_allgather_split));
