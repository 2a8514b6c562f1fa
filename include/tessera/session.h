/*
 * tessera/session.h - runs a checkpoint that a plan partitions: steps over rows of several
 * sequences, and the generation of many sequences at once.
 *
 * Calls that take a session or a sequence are collective unless their comment states otherwise:
 * every rank makes the same calls in the same order. The bits of a sequence depend on the
 * checkpoint, its ids and its sampling only. They do not depend on ranks, threads, backend, plan,
 * or other sequences. If a device samples (docs/devices.md), this holds up to the rounding of
 * probabilities.
 *
 * Example:
 *     static tess_status print_next(struct tess_session *s, const int32_t *ids, int64_t n)
 *     {
 *             struct tess_input in = { NULL, ids, n, 1 };
 *             const float *logits;
 *             tess_status st = tess_sequence_open(s, &in.sequence);
 *
 *             st = st ? st : tess_session_step(s, &in, 1, 0, &logits);
 *             if (!st && logits)
 *                     printf("logit of id 0: %g\n", (double)logits[0]);
 *             tess_sequence_close(in.sequence);
 *             return st;
 *     }
 */
#ifndef TESSERA_SESSION_H
#define TESSERA_SESSION_H

#include <tessera/sampling.h>

TESS_BEGIN

struct tess_mesh;

/* A checkpoint that runs on a mesh. */
struct tess_session;

/* Options of a session. Zeroed except for size: the plan of the model. */
struct tess_session_options {
	/* sizeof(struct tess_session_options). */
	uint32_t size;
	/* Threads per rank; 0: TESSERA_THREADS, or else a share of the CPUs. */
	int32_t threads;
	/* "auto" or NULL, "none", the name of a plan, a file, or JSON: rules, or a strategy
	 * (tessera/strategy.h). */
	const char *plan;
	/* Rules that replace those of the plan: "PATTERN=STYLE" or "DIMENSION:PATTERN=STYLE". Ends
	 * with NULL; NULL: none. */
	const char *const *overrides;
	/* 1: tensors of the files that no module reads cause a warning, not an error. */
	int32_t ignore_unexpected;
	/* Element type of the KV cache: TESS_F32 or TESS_BF16. 0: the device chooses it by the
	 * dtype of the first linear weight. */
	int32_t kv_dtype;
	/* Bytes of KV cache per rank; 0: a share of the free memory. */
	uint64_t kv_memory;
	/* Maximum length of a sequence; 0: that of the checkpoint. */
	int64_t positions;
	/* Format of linear weights in memory: TESS_Q8, TESS_BF12 or TESS_MXFP4; TESS_BF16 widens
	 * those stored in MXFP4; 0: that of the files. */
	int32_t weights;
	/* Element type of linear products: 0 or TESS_F32; TESS_BF16. */
	int32_t math;
	/* Pattern of the modules whose outputs steps keep for tess_session_take_values, as in
	 * plans: "model.layers.*.mlp"; "*" alone: all modules. NULL: none. */
	const char *values;
};
TESS_TIGHT(tess_session_options, values);

/*
 * Opens a Hugging Face directory on a mesh: checks the plan, then reads the shards of this rank.
 * Rules of the plan name dimensions of the mesh. The ranks along dimension `dp` are replicas, for
 * which a plan has no rules. The other dimensions run the model, and each replica has its own
 * sequences. options: NULL, or read during the call. All ranks return the failure of one rank.
 * Close *out before the mesh. Blocks. TESS_EMISMATCH: ranks read different checkpoints.
 */
tess_status tess_session_open(struct tess_mesh *m, const char *dir,
                              const struct tess_session_options *options,
                              struct tess_session **out);

/* Closes a session. NULL is accepted. */
void tess_session_close(struct tess_session *s);

/* Data of a session on this rank. The caller sets size. */
struct tess_session_info {
	/* sizeof(struct tess_session_info). */
	uint32_t size;
	/* Replica of this rank, along dimension `dp`. */
	int32_t replica;
	/* Number of replicas. */
	int32_t nreplicas;
	int32_t reserved;
	/* Number of ids. */
	int64_t vocabulary;
	/* Maximum length of a sequence; 0: no limit. */
	int64_t positions;
	/* Maximum number of new tokens by the checkpoint; 0: it has none. */
	int64_t max_tokens;
	/* Sampling by the checkpoint; else the defaults of Transformers, with top_k 50. */
	struct tess_sampling sampling;
	/* Bytes allocated for weights. */
	uint64_t weight_bytes;
	/* Bytes allocated for the KV cache. */
	uint64_t kv_bytes;
	/* Bytes allocated for values of a step. */
	uint64_t step_bytes;
	/* Bytes of KV cache that sequences use, on the most loaded rank. */
	uint64_t kv_used_bytes;
	/* Maximum bytes of KV cache on that rank; UINT64_MAX: no known limit. */
	uint64_t kv_limit;
	/* Bytes of weights that are read in place from the files of the checkpoint. */
	uint64_t mapped_bytes;
};
TESS_TIGHT(tess_session_info, mapped_bytes);

/* Fills in *out, up to out->size. Not collective; does not block. */
void tess_session_get_info(const struct tess_session *s, struct tess_session_info *out);

/* The way in which a rank stores a weight. A value; its strings are borrowed. */
struct tess_weight_storage {
	/* Name of the weight, "model.norm.weight"; for tied embeddings, the name of the table. */
	const char *name;
	/* Kind of storage, "mapped rows" or "panels": docs/architecture.md. */
	const char *kind;
	/* Reason for that kind: "stored [in, out]". */
	const char *reason;
	/* Element type in memory. */
	int32_t dtype;
	int32_t reserved;
	/* Bytes that are read in the files; the ranks of a host share these pages. */
	uint64_t mapped;
	/* Allocated bytes; of "mapped, then panels": after packing. */
	uint64_t bytes;
};

/*
 * Lists how this rank stores each weight now: the first `most` of them go to out[]. Returns the
 * number of weights. Names are borrowed from the session, other strings are static. Not collective;
 * does not block.
 */
int32_t tess_session_list_weights(const struct tess_session *s, struct tess_weight_storage *out,
                                  int32_t most);

/*
 * Checks directory, mesh, plan and options without ranks and without reading a weight. mesh: such
 * as "tp=4", for n ranks; NULL: "tp". options: NULL, or read during the call. Fills in the known
 * fields of *out, up to out->size. Not collective. Fails as tess_session_open would.
 */
tess_status tess_session_check(const char *dir, const char *mesh, int32_t n,
                               const struct tess_session_options *options,
                               struct tess_session_info *out);

/*
 * Checks the n ids of a prompt. Not collective; does not block. TESS_EINVAL: the prompt is empty or
 * longer than a sequence may be, or an id is outside the vocabulary.
 */
tess_status tess_session_check_prompt(const struct tess_session_info *info, const int32_t *ids,
                                      int64_t n);

struct tess_tokenizer;

/*
 * Returns the tokenizer of the checkpoint, which the first call opens. *out is borrowed from the
 * session. Not collective. TESS_ENOENT: the checkpoint has none.
 */
tess_status tess_session_get_tokenizer(struct tess_session *s, const struct tess_tokenizer **out);

/* ---- sequences in the KV cache --------------------------------------------------------------- */

/* A running sequence of ids, on one of the replicas. */
struct tess_sequence;

/* Opens an empty sequence. Close *out before the session. */
tess_status tess_sequence_open(struct tess_session *s, struct tess_sequence **out);

/* Closes a sequence and frees its pages. NULL is accepted. */
void tess_sequence_close(struct tess_sequence *q);

/* Returns the ids so far, and their number in *n. Borrowed until the sequence grows. Not
 * collective. */
const int32_t *tess_sequence_ids(const struct tess_sequence *q, int64_t *n);

/* The next ids of a sequence in a step. A value; borrowed for the call. */
struct tess_input {
	/* Sequence that the ids are appended to. */
	struct tess_sequence *sequence;
	/* Ids: [n]. */
	const int32_t *ids;
	/* Number of ids; 0: computes ids that earlier calls appended. */
	int64_t n;
	/* Number of rows of logits: of no id (0), the last (1), or all of them (n). */
	int64_t nselected;
};

/*
 * Appends ids to several sequences and computes them in one step. A sequence may occur once.
 * *logits: f32 [sum of nselected, vocabulary] in the order of the inputs, borrowed until the next
 * call. Rank `root` of the replica gets them (-1: all of its ranks); others get NULL. Inputs of
 * sequences of another replica are skipped, with their rows. Blocks. TESS_EINVAL: an id is outside
 * the vocabulary, or a sequence would be too long. TESS_ENOMEM: no pages are left.
 */
tess_status tess_session_step(struct tess_session *s, const struct tess_input *inputs, int32_t n,
                              int32_t root, const float **logits);

/* Writes n rows of logits as safetensors: "logits", f32 [n, vocabulary]. Not collective. */
tess_status tess_logits_save(const char *path, const float *logits, int64_t n, int64_t vocabulary);

/* Checks that a file can be written at `path`; a file there stays unchanged. Not collective. */
tess_status tess_logits_check_writable(const char *path);

/* ---- generation ------------------------------------------------------------------------------ */

struct tess_chat;

/* Flags of a request. */
enum { TESS_ALL_LOGITS = 1, TESS_TOKEN_LOGITS = 2 };

/*
 * A request: a prompt, as text or ids, and how to continue it. Zeroed except for size: an empty
 * prompt, continued as the checkpoint specifies. Borrowed for the call, with all that it points to.
 */
struct tess_request {
	/* sizeof(struct tess_request). */
	uint32_t size;
	/* TESS_ALL_LOGITS: the logits of every position go to on_logits. TESS_TOKEN_LOGITS: those
	 * of each new id go to on_token. 0: no logits. */
	int32_t flags;
	/* Prompt as UTF-8; NULL: `ids`. A new sequence gets the special ids of the tokenizer; one
	 * that continues does not. */
	const char *text;
	/* Bytes of text. */
	uint64_t ntext;
	/* Prompt as ids: [nids]. */
	const int32_t *ids;
	/* Number of ids. */
	int64_t nids;
	/* Sequence to continue, as in a chat; NULL: a new one. */
	struct tess_sequence *sequence;
	/* Sampling; NULL: that of the checkpoint. */
	const struct tess_sampling *sampling;
	/* Ids that end the sequence: [nstop]. NULL: those of the checkpoint. */
	const int32_t *stop;
	/* Number of stop ids. */
	int64_t nstop;
	/* Maximum number of new tokens. 0: that of the checkpoint, or else 256; negative: none;
	 * INT64_MAX: as many as fit. */
	int64_t max_tokens;
	/* Template that rendered `text` (tess_chat_render); NULL: none. The text has its special
	 * tokens, so none are added. The token that ends a turn also ends the sequence, if the
	 * tokenizer has it and `stop` is NULL. */
	const struct tess_chat *chat;
	/* Texts that end the sequence, UTF-8 of 1 to 65536 bytes: [nstop_texts]. The text of the
	 * request is cut before the first one that is complete; of those that are complete at one
	 * byte, before the longest. Its ids include all of that text. A special token has no text:
	 * a stop text that spells one ends the sequence at its id. */
	const char *const *stop_texts;
	/* Number of stop texts, at most 256; they require a tokenizer. */
	int64_t nstop_texts;
};
TESS_TIGHT(tess_request, nstop_texts);

/* Reasons why a request ends: limit of tokens, stop id, callback, failure, stop text. */
enum {
	TESS_FINISH_LENGTH = 1,
	TESS_FINISH_STOP,
	TESS_FINISH_INTERRUPT,
	TESS_FINISH_FAILED,
	TESS_FINISH_TEXT
};

/* Result of a request. Borrowed for the call of on_end. */
struct tess_result {
	/* sizeof(struct tess_result) in the running library. */
	uint32_t size;
	/* TESS_FINISH_LENGTH, ... */
	int32_t finish;
	/* Status of a request that failed; else TESS_OK. */
	tess_status status;
	int32_t reserved;
	/* Message of a request that failed; else NULL. */
	const char *sentence;
	/* Ids of the prompt, without earlier ids of a sequence that continues: [nprompt]. */
	const int32_t *prompt;
	/* Number of ids of the prompt. */
	int64_t nprompt;
	/* Number of new ids, including one that ends the sequence. */
	int64_t ntokens;
	/* Seconds to the first new id. */
	double prefill;
	/* Seconds from the first new id to the end. */
	double decode;
};
TESS_TIGHT(tess_result, decode);

/* Results of a callback: continue; end this request, with its next id; end all requests. */
enum { TESS_GO_ON, TESS_END_ONE, TESS_END_ALL };

/*
 * Options and callbacks of a generation. Callbacks may be NULL. They run on rank 0 of the replica
 * that runs request i, and their arguments are borrowed for the call. They return TESS_GO_ON,
 * TESS_END_ONE, TESS_END_ALL, or a failure with a message, which fails all ranks. Any other result
 * is a failure that names the callback. A callback must not close the session, its mesh, the world
 * or a sequence of the session: the call has no effect, and generation fails.
 */
struct tess_generation {
	/* sizeof(struct tess_generation). */
	uint32_t size;
	/* Maximum number of requests at once; 0: as many as the KV cache has room for. */
	int32_t batch;
	/* Maximum rows of prompts in a step; 0: 512, cuda 2048. */
	int64_t chunk;
	/* First argument of the callbacks. */
	void *self;
	/* Receives each new id. logits: [vocabulary] with TESS_TOKEN_LOGITS, else NULL. text: the n
	 * bytes that the id completes. These are complete characters, often none; without a
	 * tokenizer NULL, 0. All bytes of a request are what decoding its ids adds to the text, up
	 * to a stop text: what may be a part of one is held back. */
	int (*on_token)(void *self, int64_t i, int32_t id, const float *logits, const char *text,
	                uint64_t n);
	/* Receives logits [n, vocabulary] of the next n positions, with TESS_ALL_LOGITS. */
	int (*on_logits)(void *self, int64_t i, const float *logits, int64_t n);
	/* Receives the end of request i. text: the n last bytes, which were held back. */
	int (*on_end)(void *self, int64_t i, const struct tess_result *r, const char *text,
	              uint64_t n);
	/* Called after each step. */
	int (*on_step)(void *self);
};
TESS_TIGHT(tess_generation, on_step);

/*
 * Runs the n requests of rank 0 of the mesh; requests of other ranks are not read. They start in
 * their order, and as many run at once as memory allows. Replicas get requests by their lengths.
 * how: read during the call. Blocks until all requests have ended. TESS_EINVAL: n is negative, or
 * requests is NULL.
 *
 * A request that cannot run ends by itself with TESS_FINISH_FAILED:
 *  - its prompt is longer than the context, or has an id outside the vocabulary;
 *  - a count is negative, or lacks its list;
 *  - a stop text is empty or not UTF-8, or the checkpoint has no tokenizer;
 *  - its pages do not fit;
 *  - its logits are not finite.
 */
tess_status tess_session_generate(struct tess_session *s,
                                  const struct tess_request *const *requests, int64_t n,
                                  const struct tess_generation *how);

TESS_END
#endif
