/* tool.h - the subcommands of `tessera`, and what they share. */
#ifndef TESS_TOOLS_TOOL_H
#define TESS_TOOLS_TOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <tessera/tessera.h>

/* A subcommand: what --help and its manual page contain, and the function that runs it. */
struct tess_tool_command {
	const char *name, *summary; /* summary: one line in the list of commands */
	const char *usage; /* the arguments; more than one line where the command has variants */
	const char *about; /* paragraphs, wrapped */
	const char *examples; /* lines, indented */
	/* Runs with argv[0] the name; returns the exit status: 0; 1: failure; 2: wrong usage. */
	int (*run)(int argc, char **argv);
};
extern const struct tess_tool_command tess_tool_generate, tess_tool_train, tess_tool_plan,
	tess_tool_explain, tess_tool_convert, tess_tool_grad, tess_tool_perplexity,
	tess_tool_launch, tess_tool_bench, tess_tool_conform, tess_tool_info, tess_tool_compare,
	tess_tool_new;

/*
 * Starts a thread that ends the command, with a message and status 1, if a call of a plugin takes
 * longer than TESSERA_TIMEOUT (plugin_watch.h), or continues for seconds after Ctrl-C. Without
 * memory or descriptors there is none. Stop it before a fork.
 */
void tess_tool_start_watchdog(const char *command);
void tess_tool_stop_watchdog(void); /* none: nothing */

/* Parses a whole number from lo to hi; `name` is the argument in the message. */
tess_status tess_tool_parse_integer(const char *name, const char *text, int64_t lo, int64_t hi,
                                    int64_t *out);
/* Parses a number from lo to hi. */
tess_status tess_tool_parse_real(const char *name, const char *text, double lo, double hi,
                                 double *out);
/* Parses a number of bytes: 512M, 4G, 5GB. */
tess_status tess_tool_parse_size(const char *name, const char *text, uint64_t *out);
/*
 * Parses the memory of a device, as vendors write it, as a `parse` of --memory: 80G and 80GB are
 * 80 * 10^9 bytes, 24GiB 24 * 2^30. Sets a uint64_t.
 */
tess_status tess_tool_parse_memory(const char *name, const char *text, void *to);
/* Sets the library option of this name, as a `parse` of --backend; text NULL: to 1. */
tess_status tess_tool_set_option(const char *name, const char *text, void *to);

/* The bytes of the byte order mark that a text, ended by 0, begins with; 0: it has none. */
size_t tess_tool_measure_mark(const char *text);

/* Parses one line of JSON with the limits of core/base/json.h. */
struct json_t;
tess_status tess_tool_parse_line(const char *text, size_t len, struct json_t **out);

enum { TESS_TOOL_LIST_MAX = 256 };
struct tess_tool_list { /* the values of a repeatable option; ends with NULL */
	const char *text[TESS_TOOL_LIST_MAX + 1];
	int32_t n;
};

enum tess_tool_field { /* the type of what an option sets */
	               TESS_TOOL_OTHER,
	               TESS_TOOL_FLAG,
	               TESS_TOOL_TEXT, /* borrows from argv */
	               TESS_TOOL_INTEGER, /* from lo to hi */
	               TESS_TOOL_REAL, /* from lo to hi */
	               TESS_TOOL_SIZE, /* bytes: 512M or 512MiB: 512 * 2^20, 512MB: 512 * 10^6 */
	               TESS_TOOL_SEED, /* a whole number from 0 */
	               TESS_TOOL_LIST,
};

/* Sets `field` and `at` of an option: the member of the struct that the option sets. */
#define TESS_TOOL_AT(type, member) \
	.at = offsetof(type, member),                                                              \
	.field = _Generic(((type *)0)->member,                                                     \
		bool: TESS_TOOL_FLAG,                                                              \
		const char *: TESS_TOOL_TEXT,                                                      \
		int32_t: TESS_TOOL_INTEGER,                                                        \
		double: TESS_TOOL_REAL,                                                            \
		uint64_t: TESS_TOOL_SIZE,                                                          \
		int64_t: TESS_TOOL_SEED,                                                           \
		struct tess_tool_list: TESS_TOOL_LIST,                                             \
		default: TESS_TOOL_OTHER)

/*
 * An option. Reading, --help, the manual page and completion follow from this row. --help adds the
 * default, if the value before reading is from lo to hi.
 */
struct tess_tool_option {
	const char *name; /* "json" for --json, "n" for -n */
	/*
	 * The value as --help shows it. Completion offers the lower-case words of a|b, and
	 * completes FILE, DIR and BACKEND. NULL: the names of get_name, else there is none.
	 */
	const char *value;
	const char *help; /* a phrase; NULL: a hidden option */
	size_t at;
	enum tess_tool_field field;
	double lo, hi;
	const char *(*get_name)(int32_t number); /* NULL for a gap in lo to hi */
	/* Reads the value instead; name: "--json"; text: NULL for an option without one. */
	tess_status (*parse)(const char *name, const char *text, void *to);
	bool local; /* the ranks of a job may differ in it: an output, threads, an address */
};

struct tess_tool_section { /* a section of a command's options */
	const char *title; /* "": continues the section before */
	const struct tess_tool_option *options; /* ends with {0} */
	void *to; /* the struct that the options set */
	bool shown_only; /* in --help; the options are of another variant of the command */
};

/*
 * Reads the options of a command, and --help and -h; optind becomes the index of the first
 * argument. The sections end with {0} and have at most 60 options. program: the first argument
 * ends the options. Returns TESS_PENDING if help was printed.
 */
tess_status tess_tool_parse_options(int argc, char **argv, const struct tess_tool_command *c,
                                    bool program, const struct tess_tool_section *sections);
/* Reads the options and one argument: MODEL. */
tess_status tess_tool_parse_model(int argc, char **argv, const struct tess_tool_command *c,
                                  const struct tess_tool_section *sections, const char **model);
/* Finds the number of an option with get_name whose name is `text`. name: "--json". */
tess_status tess_tool_parse_name(const struct tess_tool_option *o, const char *name,
                                 const char *text, int32_t *out);
/* Returns the names of an option with get_name, joined by `separator`, the last one by `last`. */
const char *tess_tool_join_names(const struct tess_tool_option *o, const char *separator,
                                 const char *last, char out[static 256]);
void tess_tool_print_help(const struct tess_tool_command *c,
                          const struct tess_tool_section *sections);

/*
 * Collective. Fails on all ranks unless they have the same command and the same options that are
 * not `local`. The message contains the option, two ranks and both values.
 */
tess_status tess_tool_compare_options(struct tess_world *w);

/* Adds a pair to the options that ranks compare; all ranks need equal ones. */
tess_status tess_tool_add_compared(const char *name, const char *value);

/* Appends to the error of this thread that -n is the number of ranks, not of tokens. */
tess_status tess_tool_explain_ranks(tess_status st);
/*
 * Returns a hint for another project's option; NULL: unknown. ours: the option that the command
 * must have for the hint; NULL: none.
 */
const char *tess_tool_find_familiar_option(const char *word, const char **ours);
/* Returns a hint for a command of another project; NULL: unknown. */
const char *tess_tool_find_familiar_command(const char *word);

/*
 * Catches SIGINT (Ctrl-C), SIGTERM and SIGHUP: the first one is noted, so that the process ends its
 * work in order; a second SIGINT or SIGTERM ends the process. A signal that the launcher passes on
 * is not counted twice. notice: a line for stderr at the first signal, preceded by a newline on a
 * terminal; NULL: none.
 */
void tess_tool_catch_interrupt(const char *notice);
/* Sets the directory, borrowed, in which the second signal removes the incomplete save. */
void tess_tool_remove_parts(const char *dir);
bool tess_tool_is_interrupted(void);

/* Returns whether the end of the interrupted work saves something. */
bool tess_tool_saves(void);

/* Ends the process at once: with a status, or by the signal that has interrupted it. */
_Noreturn void tess_tool_end(int status);
_Noreturn void tess_tool_end_by_interrupt(void);
/* Returns true once after SIGUSR1 to this process, or to the launcher of its ranks. */
bool tess_tool_take_save_request(void);
/* Returns the exit status after a noted signal, 128 plus its number; 0: none was noted. */
int tess_tool_get_interrupt_status(void);

struct tess_tool_session { /* the input of a session or a trainer, from the options below */
	const char *model, *mesh, *plan;
	const struct tess_strategy *strategy; /* of tess_tool_take_strategy; NULL: --plan is none */
	struct tess_tool_list overrides;
	int32_t ranks, threads, kv_dtype, math, weights, positions;
	uint64_t kv_memory; /* bytes; 0: derived from the free memory */
	bool ignore_unexpected, offload;
};
struct tess_tool_data { /* how files of data for training are read */
	int32_t sequence, loss, id_bytes; /* sequence 0: by the checkpoint */
	bool separate, quiet; /* quiet: prints nothing */
	const char *chat_template;
};
/* Options that set a struct tess_tool_data. */
extern const struct tess_tool_option tess_tool_data_options[];
/* Returns the maximum ids of a sequence: a->sequence, or `positions` (0: no limit) up to 1024. */
int32_t tess_tool_choose_sequence(const struct tess_tool_data *a, int64_t positions);
/* Opens files of data, and prints the share of masked ids. Messages name file and line. */
tess_status tess_tool_open_data(const struct tess_tool_data *a, const char *model,
                                int64_t vocabulary, const struct tess_tool_list *files,
                                struct tess_dataset **out);

/* Options that set a struct tess_tool_session. */
extern const struct tess_tool_option tess_tool_mesh_options[]; /* -n, --mesh, --device */
extern const struct tess_tool_option tess_tool_job_options[]; /* --backend, --threads */
extern const struct tess_tool_option tess_tool_plan_options[];
extern const struct tess_tool_option tess_tool_memory_options[]; /* --positions, --kv, --weights */
extern const struct tess_tool_option tess_tool_compute_options[]; /* --kv-memory, ... */
extern const struct tess_tool_option tess_tool_math_options[]; /* --math */
/*
 * Reads the strategy of --plan, if that is one: without --mesh, takes its mesh, which must have the
 * ranks of -n or of the job. Without stages in the mesh, the strategy has no schedule. Ranks
 * compare the strategy with their options.
 */
tess_status tess_tool_take_strategy(struct tess_tool_session *s);
/* Counts the ranks along pp of --mesh for n ranks; 0: those of the mesh. */
tess_status tess_tool_count_pipeline_ranks(const char *mesh, int32_t n, int32_t *out);
/* Checks that micro-batches, of an option or of the strategy, divide the batch. */
tess_status tess_tool_check_batch(const struct tess_tool_session *s, int32_t batch, int32_t micro);
/* Returns the value of --weights. */
const char *tess_tool_get_weights(const struct tess_tool_session *s);
/* Returns the value of --math. */
const char *tess_tool_get_math(const struct tess_tool_session *s);
/* Returns what tess_session_open takes; borrows from `s`. */
struct tess_session_options tess_tool_get_session_options(const struct tess_tool_session *s);
/*
 * Checks what all ranks would refuse, before ranks start and weights are read. Without -n, sets
 * `ranks` to those of the mesh. out: as for tess_session_check.
 */
tess_status tess_tool_check_session(struct tess_tool_session *s, struct tess_session_info *out);

/* Prints `what` and `arg` with a reference to --help. Returns the exit status. */
int tess_tool_fail_usage(const char *command, const char *what, const char *arg);

/*
 * Replaces stdout by a stream that waits for a full non-blocking pipe instead of losing text. Call
 * it before any output. Returns false if memory is exhausted.
 */
bool tess_tool_replace_stdout(void);
/*
 * Flushes stdout. Returns false if this or an earlier write has failed: the command continues
 * without output, so that its ranks leave the job in order. tess_tool_finish_output, called last,
 * prints the reason and returns the exit status: `status`, or 1.
 */
bool tess_tool_flush_output(void);
/*
 * Opens a stream that stores its text, ended by 0, in *text after each write; the caller frees it
 * after fclose(). Unlike open_memstream(), it sets ferror() when memory is exhausted.
 */
FILE *tess_tool_open_memory(char **text, size_t *len);
/* Prints complete lines atomically with respect to other ranks; false: as above. */
bool tess_tool_print_lines(const char *text, size_t n);
int tess_tool_finish_output(const char *command, int status);
/*
 * In a rank: a disconnected reader ends the output, not the process, because other ranks wait for
 * it. If the command has shared a descriptor, rank 0 reports the failure through it, for the
 * command to print.
 */
void tess_tool_open_output(void);
tess_status tess_tool_share_output(int *fd);
int tess_tool_receive_output_error(int fd); /* closes it; returns a status that a rank shared */
/*
 * Returns whether an allocation for a JSON value has failed, as tess_json_lacked_memory(). Then
 * tess_tool_finish_output() fails, so calls that build values need no checks of their own.
 */
bool tess_tool_lacked_json_memory(void);
/* In a rank that ends in order: passes the exit status to its command; returns the rank's own. */
int tess_tool_share_status(int status);
/* Prints tess_error(). Ranks that share a descriptor print equal messages once. */
void tess_tool_print_error(const char *command);

/*
 * Returns whether both paths name one regular file or directory; for missing files, whether they
 * would. Devices and pipes are never the same.
 */
bool tess_tool_is_same_path(const char *a, const char *b);
struct tess_tool_output {
	const char *option, *path; /* "--log" and its value; path NULL: not given */
};
enum { TESS_TOOL_OUTPUTS_MAX = 8, TESS_TOOL_INPUT_LISTS = 3 };
struct tess_tool_inputs { /* paths that a command reads; NULL: none */
	const char *model, *plan; /* a checkpoint; a plan: a name, a file or text */
	const char *save, *resume; /* directories of saves, or a save */
	const char *const *files[TESS_TOOL_INPUT_LISTS]; /* lists that end with NULL */
};
/*
 * Refuses an output (the list ends with {0}) that is an input, a file of the checkpoint or of a
 * save, named like a save, or the same file as another output. Links are followed. The file of the
 * backend trace is one more output. Every command that reads files calls this before it writes.
 */
tess_status tess_tool_check_outputs(const struct tess_tool_output *outputs,
                                    const struct tess_tool_inputs *in);

/* Returns the steps of a save; INT64_MAX if it cannot be read: loading it fails later. */
int64_t tess_tool_read_saved_steps(const char *save);
/* Returns the dtype of products of a save of tessera train; TESS_F32 if it has none. */
int32_t tess_tool_read_saved_math(const char *save);

/* Fails if each of `n` processes would fail for its options or its backend. */
tess_status tess_tool_check_job(int32_t n);
/* Returns whether the ranks of -n are threads: one rank, or a backend of threads. */
bool tess_tool_has_threads(int32_t n);
/* Sets *out if tessera launch, torchrun, mpirun or srun started this process as a rank. */
tess_status tess_tool_is_launched(bool *out);
/* Sets the directory of --flight; NULL: not given. */
tess_status tess_tool_set_flight(const char *dir, bool launched);
/*
 * Checks what all n ranks would refuse of training steps with `sequences` of `length` ids (0: a
 * default), before ranks start and weights are read. mesh: NULL is "tp".
 */
tess_status tess_tool_check_training(const char *model, const char *mesh, int32_t n,
                                     int64_t sequences, int64_t length,
                                     const struct tess_trainer_options *options);
/* Does what tess_explain_training does, without the warnings that ranks print. */
tess_status tess_tool_explain_training(const char *model, const char *mesh, int32_t n,
                                       int64_t sequences, int64_t length,
                                       const struct tess_trainer_options *options,
                                       struct tess_explanation **out);

/* ---- tile.c: --tile auto --------------------------------------------------------------------- */

#define TESS_TOOL_TILE_AUTO UINT64_MAX
/* Parses "auto" or a number of bytes, as a `parse` of --tile. Sets a uint64_t. */
tess_status tess_tool_parse_tile(const char *name, const char *text, void *to);
/* Refuses --tile auto without --memory, which is 0. */
tess_status tess_tool_check_tile(uint64_t tile, uint64_t memory);
struct tess_tool_tiling { /* a step, as tess_explain_training takes it */
	const char *model, *mesh; /* mesh: NULL is "tp" */
	int32_t ranks;
	int64_t sequences, length;
	struct tess_trainer_options options; /* tile: set, 0 if the step fits without tiles */
	uint64_t memory; /* bytes of a rank */
	uint64_t used; /* set: bytes of the fullest rank; if at most memory, the step fits */
	int32_t rank; /* set: the first of the fullest ranks */
};
/*
 * Finds the largest tile with which a step fits in the memory of each rank; if none does, the one
 * that needs the least. Explains about ten steps. The result depends on *t, the checkpoint and
 * TESSERA_* alone.
 */
tess_status tess_tool_find_tile(struct tess_tool_tiling *t);

/* Runs run(world, arg) as one rank of a launched job. n: the value of -n, or 0. */
tess_status tess_tool_join_job(int32_t n, tess_status (*run)(struct tess_world *w, void *arg),
                               void *arg);
/*
 * Runs run(world, arg) on n ranks: on threads, or in processes that run this command with the argv
 * of main and join the job. Checks first what all ranks would refuse. exit_status: set by processes
 * only.
 */
tess_status tess_tool_run_ranks(int32_t n, char **argv,
                                tess_status (*run)(struct tess_world *w, void *arg), void *arg,
                                int *exit_status);
/* Runs this command in n processes, and restarts them after a failure up to `restarts` times. */
tess_status tess_tool_run_processes(int32_t n, int32_t restarts, char **argv, int *exit_status);

/* Warns of TESSERA_* variables without an option. Call it when the plugins are loaded. */
void tess_tool_check_environment(void);
/* Declares every option of the library, so that it is listed and misspelt ones are found. */
tess_status tess_tool_declare_options(void);

#endif
