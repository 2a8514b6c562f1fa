/* options.c - lists the options of the library, without those of plugins. */
#include "core/base/option.h"
#include "core/registry/registry.h"
#include "core/world/world.h"
#include "hf/safetensors.h"
#include "nn/offload/disk_engine.h"
#include "nn/run/options.h"
#include "nn/weights/device.h"
#include "nn/weights/weights.h"

tess_status tess_options_declare(void)
{
	static const struct {
		const char *owner;
		const struct tess_option *table;
	} tables[] = {
		{ "core/registry/search.c", tess_registry_options },
		{ "world", tess_world_options },
		{ "nn/weights/device.c", tess_device_options },
		{ "nn/run/options.c", tess_run_options },
		{ "nn/weights/decide.c", tess_weights_options },
		{ "nn/offload/disk_engine.c", tess_disk_options },
		{ "hf/safetensors.c", tess_load_options },
	};
	tess_status st = TESS_OK;

	for (size_t i = 0; i < sizeof tables / sizeof *tables && !st; i++)
		st = tess_option_add(tables[i].owner, tables[i].table);
	return st;
}
