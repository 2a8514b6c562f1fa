/* machines.h - the machine files of the box: data/machines, embedded. */
#ifndef TESS_NN_COST_MACHINES_H
#define TESS_NN_COST_MACHINES_H

struct tess_machine_file {
	const char *name, *text, *end; /* not terminated */
};

/* Returns a file by its name: "h100"; NULL: there is none. */
const struct tess_machine_file *tess_machine_find_file(const char *name);
/* Returns the names, with a comma after each: "a100, h100, ". */
const char *tess_machine_list_files(void);

#endif
