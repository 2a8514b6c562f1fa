/* options.c - access to the options of the library. */
#include "tool.h"

#include "core/base/option.h"
#include "core/registry/registry.h"
#include "core/world/world.h"
#include "hf/safetensors.h"
#include "nn/generate/runner.h"
#include "nn/weights/weights.h"

tess_status tess_tool_declare_options(void)
{
	return tess_options_declare();
}

void tess_tool_check_environment(void)
{
	tess_option_check_environment(tess_registry_may_declare);
}
