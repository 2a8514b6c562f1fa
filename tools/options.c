/* options.c - the tables of options that the library reads. */
#include "tool.h"

#include "core/base/option.h"
#include "core/group/world.h"
#include "core/registry/registry.h"
#include "hf/safetensors.h"
#include "nn/runner.h"
#include "nn/weights.h"

tess_status tess_tool_declare_options(void)
{
	static const struct {
		const char *owner;
		const struct tess_option *table;
	} tables[] = {
		{ "core/registry/search.c", tess_registry_options },
		{ "world", tess_world_options },
		{ "nn/device.c", tess_device_options },
		{ "nn/runner.c", tess_runner_options },
		{ "nn/weights.c", tess_weights_options },
		{ "hf/safetensors.c", tess_load_options },
	};
	tess_status st = TESS_OK;

	for (size_t i = 0; i < sizeof tables / sizeof *tables && !st; i++)
		st = tess_option_add(tables[i].owner, tables[i].table);
	return st;
}

void tess_tool_check_environment(void)
{
	tess_option_check_environment(tess_registry_may_declare);
}
