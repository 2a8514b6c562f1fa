/*
 * tessera/session.h - a checkpoint, cut by a plan, that runs: steps over rows of several texts, and
 * the generation of many texts at once.
 *
 * Calls that take a session or a sequence are collective unless they say otherwise: every rank
 * makes the same ones in the same order. The bits of a text depend on nothing but the checkpoint,
 * its ids and its sampling: not on ranks, threads, backend, plan, or on what runs beside it. Where
 * a device samples (docs/devices.md), this holds up to the rounding of probabilities.
 */
#ifndef TESSERA_SESSION_H
#define TESSERA_SESSION_H

#include <tessera/sampling.h>

TESS_BEGIN

struct tess_mesh;
struct tess_session;

struct tess_session_options {           /* zeroed but for size: the plan of the model */
	uint32_t size;
	int32_t threads;                /* per rank; 0: TESSERA_THREADS, else a share of the CPUs */
	const char *plan;               /* "auto" or NULL, "none", a plan's name, a file, or JSON */
	/* "PATTERN=STYLE" or "DIMENSION:PATTERN=STYLE" over the plan; NULL, or ends with NULL */
	const char *const *overrides;
	int32_t ignore_unexpected;      /* 1: tensors that no module asks for are a warning only */
	int32_t kv_dtype;               /* of the KV cache: TESS_F32, TESS_BF16; 0: as the device
	                                   prefers beside weights of the first linear's dtype */
	uint64_t kv_memory;             /* bytes of KV cache per rank; 0: of the free memory */
	int64_t positions;              /* of a text, at most; 0: as the checkpoint says */
	int32_t weights;                /* linear ones, in memory: 0: as in the files; TESS_Q8 or
	                                   TESS_BF12 */
	int32_t math;                   /* of linear products: 0 or TESS_F32; TESS_BF16 */
};
TESS_TIGHT(tess_session_options, math);

/*
 * Opens a Hugging Face directory on a mesh: checks the plan, whose rules name dimensions of the
 * mesh, then reads this rank's part of each weight. The ranks along dimension `dp` hold replicas,
 * for which a plan has no rules: the rest of the mesh runs the model, each replica texts of its
 * own. options: NULL, or read during the call. A failure on one rank is returned by all. Close *out
 * before the mesh. TESS_EMISMATCH: ranks read different checkpoints.
 */
tess_status tess_session_open(struct tess_mesh *m, const char *dir,
                              const struct tess_session_options *options,
                              struct tess_session **out);
void tess_session_close(struct tess_session *s);

struct tess_session_info {              /* of this rank; the caller sets size */
	uint32_t size;
	int32_t replica, nreplicas;     /* along dp */
	int32_t reserved;
	int64_t vocabulary;
	int64_t positions;              /* of a text, at most; 0: any */
	int64_t max_tokens;             /* after a prompt, by the checkpoint; 0: it does not say */
	struct tess_sampling sampling;  /* by the checkpoint; else as in Transformers, top_k 50 */
	uint64_t weight_bytes, kv_bytes, step_bytes;    /* allocated */
	/* of the KV cache, on the rank that needs most: held by texts, and at most; UINT64_MAX: no
	 * limit is known */
	uint64_t kv_used_bytes, kv_limit;
	uint64_t mapped_bytes;          /* of weights that are read in the checkpoint's files */
};
TESS_TIGHT(tess_session_info, mapped_bytes);
/* Not collective, never fails. */
void tess_session_get_info(const struct tess_session *s, struct tess_session_info *out);

struct tess_weight_storage {            /* a value: how a rank stores a weight */
	const char *name;               /* "model.norm.weight"; of a tied head: of its table */
	const char *kind;               /* "mapped rows", "panels": docs/architecture.md */
	const char *reason;             /* "stored [in, out]" */
	int32_t dtype, reserved;        /* dtype: in memory */
	uint64_t mapped;                /* bytes that are read in the files, by the ranks of a host
	                                   in the same pages */
	uint64_t bytes;                 /* allocated; of "mapped, then panels": by packing */
};
/*
 * How this rank stores each weight now, into at most `most` of out. Returns the number of weights.
 * Not collective. Names are borrowed from the session, and texts are static.
 */
int32_t tess_session_list_weights(const struct tess_session *s, struct tess_weight_storage *out,
                                  int32_t most);

/*
 * Everything that can be refused without ranks and without reading a weight: directory, mesh text
 * (NULL: "tp") for n ranks, plan, options. Fills in what of *out is known. Not collective.
 */
tess_status tess_session_check(const char *dir, const char *mesh, int32_t n,
                               const struct tess_session_options *options,
                               struct tess_session_info *out);
/* The same for the ids of a prompt: in the vocabulary, not longer than the context, not empty. */
tess_status tess_session_check_prompt(const struct tess_session_info *info, const int32_t *ids,
                                      int64_t n);

struct tess_tokenizer;
/* The checkpoint's tokenizer. Not collective. Opened by the first call. TESS_ENOENT: none. */
tess_status tess_session_get_tokenizer(struct tess_session *s, const struct tess_tokenizer **out);

/* ---- sequences: texts in the KV cache -------------------------------------------------------- */
struct tess_sequence;

/* An empty text, on one of the replicas. Close *out before the session. */
tess_status tess_sequence_open(struct tess_session *s, struct tess_sequence **out);
/* Frees its pages. NULL: nothing. */
void tess_sequence_close(struct tess_sequence *q);
/* Its ids so far, and how many; borrowed until it grows. Not collective. */
const int32_t *tess_sequence_ids(const struct tess_sequence *q, int64_t *n);

struct tess_input {                     /* a value: the next ids of a text, in a step */
	struct tess_sequence *sequence;
	const int32_t *ids;
	int64_t n;
	int64_t nselected;              /* logits of the last 0, 1 or n ids */
};

/*
 * Appends ids to several texts and computes them in one step; a text may occur once. *logits: f32
 * [sum of nselected, vocabulary] in the order of the inputs, on rank `root` of the replica (-1: on
 * all of its ranks), else NULL; borrowed until the next call. Inputs of texts of another replica
 * are skipped, their rows too. TESS_EINVAL: an id outside the vocabulary, a text that is too long;
 * TESS_ENOMEM: no pages.
 */
tess_status tess_session_step(struct tess_session *s, const struct tess_input *inputs, int32_t n,
                              int32_t root, const float **logits);

/* Writes n rows of logits as safetensors: "logits", f32 [n, vocabulary]. Not collective. */
tess_status tess_logits_save(const char *path, const float *logits, int64_t n, int64_t vocabulary);
/* Fails if no file can be written at `path`, which is left as it is. */
tess_status tess_logits_check_writable(const char *path);

/* ---- generation ------------------------------------------------------------------------------ */

enum { TESS_ALL_LOGITS = 1, TESS_TOKEN_LOGITS = 2 };

struct tess_request {                   /* zeroed but for size: the empty text, by the checkpoint */
	uint32_t size;
	int32_t flags;                  /* TESS_ALL_LOGITS: those of every position to on_logits;
	                                   TESS_TOKEN_LOGITS: those of each id to on_token */
	const char *text;               /* UTF-8, ntext bytes; or ids. A text that begins gets the
	                                   tokenizer's special ids, one that goes on does not */
	uint64_t ntext;
	const int32_t *ids;
	int64_t nids;
	struct tess_sequence *sequence; /* goes on with this text, as in a chat; NULL: a new one */
	const struct tess_sampling *sampling;   /* NULL: by the checkpoint */
	const int32_t *stop;            /* ids that end the text; NULL: by the checkpoint */
	int64_t nstop;
	/* 0: by the checkpoint, else 256; negative: none; INT64_MAX: as many as fit */
	int64_t max_tokens;
};
TESS_TIGHT(tess_request, max_tokens);

enum { TESS_FINISH_LENGTH = 1, TESS_FINISH_STOP, TESS_FINISH_INTERRUPT, TESS_FINISH_FAILED };

struct tess_result {
	uint32_t size;
	int32_t finish;
	tess_status status;             /* TESS_FINISH_FAILED: why */
	int32_t reserved;
	const char *sentence;           /* the same in words, else NULL */
	const int32_t *prompt;          /* its ids, those of a text before them left out */
	int64_t nprompt, ntokens;       /* ids: given; chosen, one that ends the text included */
	double prefill, decode;         /* seconds to the first id, and from there to the end */
};
TESS_TIGHT(tess_result, decode);

/*
 * Called on rank 0 of the replica that runs request i; each may be NULL. They return TESS_GO_ON,
 * TESS_END_ONE (this request, with its next id), TESS_END_ALL, or a failure, which fails all ranks;
 * another value, or a failure without a message, is a failure that names the callback. A callback
 * must not close the session, a sequence of it, its mesh or the world: that is not done, and
 * generation fails.
 */
enum { TESS_GO_ON, TESS_END_ONE, TESS_END_ALL };
struct tess_generation {
	uint32_t size;
	int32_t batch;                  /* requests at once; 0: what the KV cache has room for */
	int64_t chunk;                  /* rows of prompts in a step; 0: 512, cuda 2048 */
	void *self;
	/* Each chosen id, with TESS_TOKEN_LOGITS its logits [vocabulary] (else NULL), and the
	 * bytes that it completes: whole characters, often none; without a tokenizer NULL, 0.
	 * Together they are what decoding adds to the text of the ids before them. */
	int (*on_token)(void *self, int64_t i, int32_t id, const float *logits, const char *text,
	                uint64_t n);
	int (*on_logits)(void *self, int64_t i, const float *logits, int64_t n);
	/* The end of request i; `text`: bytes that were held back. */
	int (*on_end)(void *self, int64_t i, const struct tess_result *r, const char *text,
	              uint64_t n);
	int (*on_step)(void *self);     /* after each step */
};
TESS_TIGHT(tess_generation, on_step);

/*
 * Runs the n requests of rank 0 of the mesh (the other ranks' are not read), at once as far as
 * memory allows, starting them in their order; over replicas they are dealt by their lengths. A
 * request that cannot run ends alone with TESS_FINISH_FAILED: its prompt is longer than the
 * context, or has an id outside the vocabulary; a count is negative or lacks its list; its pages do
 * not fit; its logits are not finite. TESS_EINVAL: n is negative, or requests is NULL. Blocking.
 */
tess_status tess_session_generate(struct tess_session *s,
                                  const struct tess_request *const *requests, int64_t n,
                                  const struct tess_generation *how);

TESS_END
#endif
