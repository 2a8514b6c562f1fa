/* machines.c - the table of embedded machine files. */
#include "nn/cost/machines.h"

#include <stddef.h>
#include <string.h>

/* data/machines/FILE.json, by machines.S; the others are of other systems, to compare with */
#define EACH_OTHER(DO) \
	DO(a100_megatron, "a100-megatron") \
	DO(h100_megatron, "h100-megatron") \
	DO(h100_nanotron, "h100-nanotron")
#define EACH_MACHINE(DO) DO(a100, "a100") DO(h100, "h100") DO(h200, "h200")
#define DECLARE(symbol, file) \
	extern const char tess_machine_##symbol[], tess_machine_##symbol##_end[];
EACH_MACHINE(DECLARE)
EACH_OTHER(DECLARE)
#define ENTRY(symbol, file) { file, tess_machine_##symbol, tess_machine_##symbol##_end },
static const struct tess_machine_file files[] = { EACH_MACHINE(ENTRY) EACH_OTHER(ENTRY) };

const struct tess_machine_file *tess_machine_find_file(const char *name)
{
	for (size_t i = 0; i < sizeof files / sizeof *files; i++)
		if (!strcmp(files[i].name, name))
			return &files[i];
	return NULL;
}

const char *tess_machine_list_files(void)
{
#define NAME(symbol, file) file ", "
	return EACH_MACHINE(NAME) EACH_OTHER(NAME);
}
