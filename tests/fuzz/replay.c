/*
 * replay.c - runs a target on its corpus: each file of a directory, from memory of exactly its
 * size.
 */
#include "fuzz.h"

#include <dirent.h>

static int replay_file(const char *folder, const char *name)
{
	char path[4096];
	uint8_t *bytes;
	long len;
	FILE *f;

	snprintf(path, sizeof path, "%s/%s", folder, name);
	f = fopen(path, "rb");
	MUST(f && !fseek(f, 0, SEEK_END));
	len = ftell(f);
	rewind(f);
	bytes = malloc(len > 0 ? (size_t)len : 1);
	MUST(bytes && len >= 0 && fread(bytes, 1, (size_t)len, f) == (size_t)len);
	fclose(f);
	MUST(!LLVMFuzzerTestOneInput(bytes, (size_t)len));
	free(bytes);
	return 1;
}

int main(int argc, char **argv)
{
	DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
	struct dirent *entry;
	int count = 0;

	MUST(folder);
	while ((entry = readdir(folder)))
		if (entry->d_name[0] != '.')
			count += replay_file(argv[1], entry->d_name);
	closedir(folder);
	printf("%d inputs\n", count);
	return count ? EXIT_SUCCESS : EXIT_FAILURE;
}
