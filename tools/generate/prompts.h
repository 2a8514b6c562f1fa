/* prompts.h - the prompts of `tessera generate`, from arguments, files and stdin. */
#ifndef TESS_TOOLS_PROMPTS_H
#define TESS_TOOLS_PROMPTS_H

#include <stdbool.h>
#include <tessera/tessera.h>

struct prompt {
	char *text; /* `len` bytes, or NULL */
	size_t len;
	int32_t *ids; /* instead of text */
	int64_t nids, index; /* index: its number, or line of the file, from 0 */
	char *error; /* reason why the line cannot be run */
	char *row; /* a line of --messages, until it is rendered: `nrow` bytes; or NULL */
	size_t nrow;
	const char *file; /* source of the text, borrowed; NULL: not a file */
	/* options of this prompt; NAN or -1: those of the command */
	double temperature, top_p, min_p, penalty;
	int64_t top_k, seed, max_tokens;
	char **stop; /* texts that end it */
	int64_t nstop; /* -1: those of the command */
};

struct prompts {
	struct prompt *list;
	int64_t n;
	bool lines; /* from --prompts or --messages: results are lines of JSON */
	bool chats; /* from --messages */
	const char *file; /* source of these lines, borrowed; "-": stdin */
};

/* Each function adds to `p`; free it with prompts_free, also after a failure. */
tess_status prompts_add_text(struct prompts *p, const char *text, size_t len);
/* Adds the bytes of a file; "-": stdin, which later processes can read again. */
tess_status prompts_add_file(struct prompts *p, const char *path);
/* Returns whether stdin is a pipe or a file, the default prompt. */
bool prompts_are_on_stdin(void);
/* Adds stdin like prompts_add_file("-"); prints a notice after 5 s of waiting. */
tess_status prompts_add_stdin(struct prompts *p);
/* Adds ids, as "1,2,3". */
tess_status prompts_add_ids(struct prompts *p, const char *text);
/*
 * Adds a prompt per line, a JSON object: "prompt" or "ids", optionally sampling, "max_tokens" and
 * "stop". A bad line becomes a prompt with an error; empty lines are skipped.
 */
tess_status prompts_add_lines(struct prompts *p, const char *path);
/*
 * Adds a conversation per line: a list of messages, or an object with one at "messages", optionally
 * sampling and "max_tokens". prompts_render gives the texts.
 */
tess_status prompts_add_messages(struct prompts *p, const char *path);
/*
 * Renders the conversations by the chat template `chat`, up to the beginning of an answer. A
 * conversation that cannot be rendered becomes a prompt with an error. system: the system message
 * of conversations without one, or NULL.
 */
tess_status prompts_render(struct prompts *p, const struct tess_chat *chat, const char *system);
/* Returns the option that read the lines, "--prompts" or "--messages". */
const char *prompts_get_option(const struct prompts *p);
void prompts_free(struct prompts *p);

#endif
