/* train_command.h - runs tessera train in the scratch directory, by its command line. */
#ifndef TESS_TESTS_COMMAND_TRAIN_COMMAND_H
#define TESS_TESTS_COMMAND_TRAIN_COMMAND_H

#include "tests/support/command.h"
#include "tests/support/scratch.h"

#include <stdbool.h>

enum { TEXT = 65536 };

#define STORIES SOURCE_ROOT "/data/texts/stories.jsonl"
/* of every compared run */
#if THIN > 1
enum { BATCH = 2, SEQUENCE = 17 };
#define SIZES "--batch 2 --sequence 17"
#else
enum { BATCH = 4, SEQUENCE = 40 };
#define SIZES "--batch 4 --sequence 40"
#endif
#define STEPPED SIZES " --lr 2e-4 --warmup 4 --schedule cosine --weight-decay 0.1"

/* Runs it in the scratch directory; returns the exit status. `text`: its stderr. */
static inline int run_train_command(char text[TEXT], const char *model, const char *before,
                                    const char *args)
{
	return command_run(text, TEXT, "cd '%s' && %s '%s' train '%s' %s 2>&1", scratch, before,
	                   TESSERA, model, args);
}

/* Runs it in the scratch directory on the stories; returns the exit status. `text`: its stderr. */
static inline int train_model(char text[TEXT], const char *model, const char *before,
                              const char *args)
{
	char all[1024];

	snprintf(all, sizeof all, "--data '" STORIES "' %s", args);
	return run_train_command(text, model, before, all);
}

/* Returns whether the scratch directory has the file. */
static inline bool is_there(const char *name)
{
	return !access(scratch_format_path(name), F_OK);
}

static inline void expect_failed(const char *args, int status, const char *part)
{
	char text[TEXT];

	ck_assert_msg(train_model(text, format_data_path(""), "", args) == status, "%s: %s", args,
	              text);
	expect_part(text, part);
	ck_assert_int_eq(count_occurrences(text, part), 1);
}

static inline void train_to_step(const char *args, int steps)
{
	char text[TEXT], all[512];

	snprintf(all, sizeof all, STEPPED " --steps %d %s", steps, args);
	ck_assert_msg(!train_model(text, format_data_path(""), "", all), "%s", text);
}

#endif
