/* machines.c - the table of embedded machine files. */
#include "nn/cost/machines.h"

#include <stddef.h>
#include <string.h>

/* data/machines/NAME.json, by machines.S */
#define EACH_MACHINE(DO) DO(a100) DO(h100) DO(h200)
#define DECLARE(name) extern const char tess_machine_##name[], tess_machine_##name##_end[];
EACH_MACHINE(DECLARE)
#define ENTRY(name) { #name, tess_machine_##name, tess_machine_##name##_end },
static const struct tess_machine_file files[] = { EACH_MACHINE(ENTRY) };

const struct tess_machine_file *tess_machine_find_file(const char *name)
{
	for (size_t i = 0; i < sizeof files / sizeof *files; i++)
		if (!strcmp(files[i].name, name))
			return &files[i];
	return NULL;
}

const char *tess_machine_list_files(void)
{
#define NAME(name) #name ", "
	return EACH_MACHINE(NAME);
}
