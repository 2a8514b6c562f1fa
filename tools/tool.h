/* tool.h - the subcommands of `tessera`, one file each. */
#ifndef TESS_TOOLS_TOOL_H
#define TESS_TOOLS_TOOL_H

#include <stdbool.h>
#include <stdio.h>
#include <tessera/tessera.h>

/* Each gets its arguments with argv[0], and returns the exit status: 0; 1: failure; 2: usage. */
int tess_tool_generate(int argc, char **argv);
int tess_tool_train(int argc, char **argv);
int tess_tool_explain(int argc, char **argv);
int tess_tool_convert(int argc, char **argv);
int tess_tool_grad(int argc, char **argv);
int tess_tool_perplexity(int argc, char **argv);
int tess_tool_launch(int argc, char **argv);
int tess_tool_bench(int argc, char **argv);
int tess_tool_conform(int argc, char **argv);
int tess_tool_info(int argc, char **argv);

/* The value `text` of the argument `name`: a whole number, lo to hi. */
tess_status tess_tool_parse_integer(const char *name, const char *text, int64_t lo, int64_t hi,
                                    int64_t *out);

/* A number from lo to hi. */
tess_status tess_tool_parse_real(const char *name, const char *text, double lo, double hi,
                                 double *out);

/* Functions `parse` of options: a whole number from 0 on, into *(int64_t *)to; */
tess_status tess_tool_parse_seed(const char *name, const char *text, void *to);
/* an option of the library, as --backend. */
tess_status tess_tool_set_option(const char *name, const char *text, void *to);

/*
 * Bytes, into *(uint64_t *)to: "512M" and "512MiB" are 512 * 2^20, "512MB" is 512 * 10^6. A `parse`
 * of an option.
 */
tess_status tess_tool_parse_size(const char *name, const char *text, void *to);

/* The bytes of the byte order mark that a text, ended by 0, begins with; 0: it has none. */
size_t tess_tool_measure_mark(const char *text);

/* Parses one line of JSON with the limits of core/base/json.h. */
struct json_t;
tess_status tess_tool_parse_line(const char *text, size_t len, struct json_t **out);

struct tess_tool_option {
	const char *name; /* "json" for --json, "n" for -n */
	/* what it sets, by one of these; a text is argv's, and only a flag takes no value */
	bool *flag;
	const char **text;
	int32_t *number; /* from lo to hi; where get_name is set the one that has the name */
	int32_t lo, hi;
	const char *(*get_name)(int32_t number);
	tess_status (*parse)(const char *name, const char *text, void *to); /* name: "--json" */
	void *to;
	bool local; /* the ranks of a job may differ in it: an output, threads, an address */
};

/*
 * Reads the options of the command argv[0], and --help and -h; optind becomes the index of the
 * first argument. The table has at most 60 options and ends with {0}. program: the first argument
 * ends the options. TESS_PENDING: help was printed.
 */
tess_status tess_tool_parse_options(int argc, char **argv, const char *help, bool program,
                                    const struct tess_tool_option *table);

/*
 * Collective. Fails on all ranks unless they have the same command and options, but for `local`
 * ones. The message contains the option, two ranks and both values.
 */
tess_status tess_tool_compare_options(struct tess_world *w);

/* Adds to the error of this thread, about ranks, that -n is not the number of tokens. */
tess_status tess_tool_explain_ranks(tess_status st);
/* Returns what a command with this table has in place of another project's option; or NULL. */
const char *tess_tool_find_familiar_option(const struct tess_tool_option *table, const char *word);
/* Returns what there is in place of a command of another project; NULL: unknown. */
const char *tess_tool_find_familiar_command(const char *word);

/*
 * From now on the first SIGINT (Ctrl-C), SIGTERM or SIGHUP is only noted, for this process to end
 * its work in order; a second SIGINT or SIGTERM ends the process. A signal that the launcher of the
 * ranks passes on counts as the same one. notice: a line for stderr at the first signal, after a
 * newline, which only a terminal gets; NULL: none.
 */
void tess_tool_catch_interrupt(const char *notice);
/* Names the directory, borrowed, in which the second signal removes what of a save is written. */
void tess_tool_remove_parts(const char *dir);
bool tess_tool_is_interrupted(void);
/* Returns true once after SIGUSR1 to this process, or to the launcher of its ranks. */
bool tess_tool_take_save_request(void);
/* Returns 128 plus the first signal that was noted, the exit status of the command; 0: none. */
int tess_tool_get_interrupt_status(void);

enum { TESS_TOOL_OVERRIDES = 256 };
struct tess_tool_overrides { /* of an option that may be repeated; the list ends with NULL */
	const char *text[TESS_TOOL_OVERRIDES + 1];
	int32_t n;
};
/* The function `parse` of such an option; to: a struct tess_tool_overrides. */
tess_status tess_tool_parse_override(const char *name, const char *text, void *to);

/* Of --kv: "auto", "f32" or "bf16", into *(int32_t *)to as tess_session_options has it. */
tess_status tess_tool_parse_kv(const char *name, const char *text, void *to);
/* Of --weights: "file", "q8" or "bf12", into *(int32_t *)to as tess_session_options has it. */
tess_status tess_tool_parse_weights(const char *name, const char *text, void *to);

struct tess_tool_session { /* what opens a session, from the options of commands that do */
	const char *model, *mesh, *plan;
	struct tess_tool_overrides overrides;
	int32_t ranks, threads, kv_dtype, math, weights, positions;
	uint64_t kv_memory; /* bytes; 0: of the free memory */
	bool ignore_unexpected;
};
/*
 * Reads those options, the command's own and one MODEL, as tess_tool_parse_options does. The table
 * has at most 40 options.
 */
tess_status tess_tool_parse_session(int argc, char **argv, const char *help,
                                    const struct tess_tool_option *table,
                                    struct tess_tool_session *s);
/* What tess_session_open takes; borrows from `s`. */
/* The name of the dtype of linear products. */
const char *tess_tool_get_math(const struct tess_tool_session *s);
struct tess_session_options tess_tool_get_session_options(const struct tess_tool_session *s);
/*
 * Refuses what all ranks would, before one starts and before a weight is read; where -n is not
 * given, sets it to the ranks of the mesh. out: as tess_session_check.
 */
tess_status tess_tool_check_session(struct tess_tool_session *s, struct tess_session_info *out);

/* Prints `what` and `arg`, and refers to --help. Returns the exit status. */
int tess_tool_fail_usage(const char *command, const char *what, const char *arg);

/*
 * Makes stdout a stream that waits where a non-blocking pipe is full, instead of losing text.
 * Before anything is written; false: no memory.
 */
bool tess_tool_replace_stdout(void);
/*
 * Flushes stdout; false: it, or a write before, has failed. The command goes on without output, so
 * that its ranks leave the job in order, and tess_tool_finish_output, called last, says why and
 * gives the exit status: `status`, or 1.
 */
bool tess_tool_flush_output(void);
/*
 * Opens a stream whose text, ended by 0, is in *text after each write; the caller frees it after
 * fclose(). Unlike that of open_memstream(), it has ferror() set once memory was short.
 */
FILE *tess_tool_open_memory(char **text, size_t *len);
/* Prints whole lines at once, though other ranks print too; false as above. */
bool tess_tool_print_lines(const char *text, size_t n);
int tess_tool_finish_output(const char *command, int status);
/*
 * In a rank: from now on a reader that goes away ends the output, not the process, for which the
 * other ranks wait. Where the command has shared a descriptor, rank 0 reports the failure through
 * it, and the command prints it.
 */
void tess_tool_open_output(void);
tess_status tess_tool_share_output(int *fd);
int tess_tool_receive_output_error(int fd); /* closes it; returns a status that a rank shared */
/*
 * Returns whether memory for a JSON value was missing, as tess_json_lacked_memory(). Then
 * tess_tool_finish_output() fails, so the calls that build a value need no check, one by one.
 */
bool tess_tool_lacked_json_memory(void);
/* In a rank that ends in order: gives its command the exit status; returns that of the process. */
int tess_tool_share_status(int status);
/* Prints tess_error(); a sentence of all ranks that share a descriptor only once. */
void tess_tool_print_error(const char *command);

/*
 * Whether both are one regular file or directory, by whatever names; of files that are not there,
 * whether they would be. Devices and pipes are not compared.
 */
bool tess_tool_is_same_path(const char *a, const char *b);
struct tess_tool_output {
	const char *option, *path; /* "--log" and its value; path NULL: not given */
};
enum { TESS_TOOL_OUTPUTS_MAX = 8, TESS_TOOL_INPUT_LISTS = 3 };
struct tess_tool_inputs { /* what a command reads; NULL: none */
	const char *model, *plan; /* a checkpoint; a plan, which may be a file */
	const char *save, *resume; /* directories of saves, or a save */
	const char *const *files[TESS_TOOL_INPUT_LISTS]; /* lists that end with NULL */
};
/*
 * Refuses outputs, a list that ends with {0}, that are an input, a file of the checkpoint or of a
 * save, have the name of a save, or are one file; by the files they name, links too. The file of
 * the backend trace is one more output. Every command that reads files calls it before it writes.
 */
tess_status tess_tool_check_outputs(const struct tess_tool_output *outputs,
                                    const struct tess_tool_inputs *in);

/* Returns the steps of a save; INT64_MAX: it cannot be read, and loading it fails. */
int64_t tess_tool_read_saved_steps(const char *save);

/* Fails as each of `n` ranks that are processes would: for its options or its backend. */
tess_status tess_tool_check_job(int32_t n);
/* Whether the ranks of a command with -n are its threads: one rank, or a backend of threads. */
bool tess_tool_has_threads(int32_t n);
/* Whether this process is a rank of a job that tessera launch, torchrun, mpirun or srun started. */
tess_status tess_tool_is_launched(bool *out);
/* The directory of --flight; NULL: not given. */
tess_status tess_tool_set_flight(const char *dir, bool launched);
/*
 * Whatever all of n ranks would refuse of training steps of `sequences` of `length` ids (0: a
 * default), before a rank starts and before a weight is read. mesh: NULL is "tp".
 */
tess_status tess_tool_check_training(const char *model, const char *mesh, int32_t n,
                                     int64_t sequences, int64_t length,
                                     const struct tess_trainer_options *options);
/* Runs run(world, arg) as a rank of a job that was launched. n: the value of -n, or 0. */
tess_status tess_tool_join_job(int32_t n, tess_status (*run)(struct tess_world *w, void *arg),
                               void *arg);
/*
 * Runs it on n ranks: threads, else processes that run this same command, with argv as main got it,
 * and join the job. What all of them would refuse is refused first. exit_status: that of the
 * processes; threads leave it.
 */
tess_status tess_tool_run_ranks(int32_t n, char **argv,
                                tess_status (*run)(struct tess_world *w, void *arg), void *arg,
                                int *exit_status);
/* The same on processes, which are started again after a failure, up to `restarts` times. */
tess_status tess_tool_run_processes(int32_t n, int32_t restarts, char **argv, int *exit_status);

/* Warns of TESSERA_* variables that no option has; once the plugins of a run are loaded. */
void tess_tool_check_environment(void);
/* Declares every option of the library, for lists of options and warnings about misspelt ones. */
tess_status tess_tool_declare_options(void);

#endif
