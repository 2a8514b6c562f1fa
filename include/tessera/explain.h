/*
 * tessera/explain.h - explains a plan: what each rank would hold, compute and send, as data.
 *
 * An explanation starts no rank and reads no weight. Files of weights may be absent; config.json
 * may not. No function here is collective.
 *
 * Example:
 *     static tess_status print_bytes(const char *dir)
 *     {
 *             const struct tess_session_options options = { .size = sizeof options };
 *             struct tess_explanation *e = NULL;
 *             tess_status st = tess_explain(dir, "tp=4", 0, 1, &options, &e);
 *
 *             for (int32_t r = 0; !st && r < e->nranks; r++)
 *                     printf("rank %d: %llu bytes\n", r, (unsigned long long)e->ranks[r]->total);
 *             tess_explanation_free(e);
 *             return st;
 *     }
 */
#ifndef TESSERA_EXPLAIN_H
#define TESSERA_EXPLAIN_H

#include <tessera/session.h>
#include <tessera/style.h>
#include <tessera/train.h>

TESS_BEGIN

/* A parameter as one op uses it. Lists have one entry per mesh dimension. */
struct tess_explained_parameter {
	/* Name of the parameter, such as "model.norm.weight". */
	const char *name;
	/* Styles of the plan. */
	const char *const *styles;
	/* Placements while the op computes. */
	const struct tess_place *places;
	/* Global shape as stored: [ndim] elements. */
	const int64_t *shape;
	/* Element type of the file, or of config.json if the file is absent (default f32). */
	int32_t dtype;
	/* Number of axes. */
	int32_t ndim;
	/* Tied embeddings. 1: a head that reads the table `name` again; 2: a copy of that table,
	 * which a head on another rank along `pp` reads. */
	int32_t tied;
	/* 1: the file is absent, so shape and dtype come from the configuration. */
	int32_t from_config;
};

/* A move of a value along one mesh dimension. */
struct tess_explained_collective {
	/* Module that makes the move. */
	const char *module;
	/* Kind of the call: TESS_ALL_GATHER, ... */
	int32_t kind;
	/* Index of the mesh dimension. */
	int32_t dim;
	/* Index of the record that makes the move. */
	int32_t record;
	int32_t reserved;
	/* Placement before the move. */
	struct tess_place from;
	/* Placement after the move. */
	struct tess_place to;
	/* Bytes of the value, over all ranks. */
	uint64_t bytes;
	/* Maximum number of bytes that one rank sends in a step. */
	uint64_t sent;
	/* That number if rows request all experts equally often: less than `sent` if the bytes
	 * depend on routing, else equal. */
	uint64_t expected;
};

/* A value of the program. */
struct tess_explained_value {
	/* Number of the value; equal in all records. */
	int32_t id;
	int32_t reserved;
	/* Placements, one per mesh dimension. */
	const struct tess_place *places;
};

/* One computation or move of a step. Lists end with NULL. */
struct tess_explained_record {
	/* Module that the record belongs to. */
	const char *module;
	/* Name of the op, such as "linear", or "move". */
	const char *kind;
	/* Name of the move, such as "all_reduce" or "slice"; NULL: a computation. */
	const char *move;
	/* Inputs. */
	const struct tess_explained_value *const *in;
	/* Outputs. */
	const struct tess_explained_value *const *out;
	/* Parameters that the op reads. */
	const struct tess_explained_parameter *const *parameters;
	/* Index of the record whose step on the device also computes this one; -1: none. */
	int32_t fused;
	int32_t reserved;
};

/* What a rank keeps in files: indices of tess_explained_rank.disk_read and .disk_written. */
enum {
	/* Weights. */
	TESS_DISK_WEIGHTS,
	/* Gradients. */
	TESS_DISK_GRADIENTS,
	/* State of the optimizer. */
	TESS_DISK_STATE,
	/* Number of kinds. */
	TESS_DISK_KINDS
};

/* Bytes that one rank holds. */
struct tess_explained_rank {
	/* Weights. */
	uint64_t weights;
	/* Keys and values of one position of one sequence. */
	uint64_t cache;
	/* Values of one step. */
	uint64_t step;
	/* Gradients; 0 without training. */
	uint64_t gradients;
	/* State of the optimizer: moments, and master weights; 0 without training. */
	uint64_t state;
	/* Sum of the fields above, without the cache: bytes of memory. */
	uint64_t total;
	/* Bytes of the file with offloaded weights and their gradients; without training of the
	 * weights that are read from the checkpoint before each use. 0: there is none. */
	uint64_t weights_disk;
	/* Bytes of the file with the offloaded state of the optimizer; 0: there is none. */
	uint64_t state_disk;
	/* Memory of the optimizer's step for what is in files, which `total` includes; or memory of
	 * the host, next to a device with memory of its own. */
	uint64_t transfer;
	/* Bytes that a step with all of its micro-batches reads from files, by TESS_DISK_....
	 * Without training those of weights, at most; of experts as many as its rows request. */
	uint64_t disk_read[TESS_DISK_KINDS];
	/* Bytes that it writes to files. */
	uint64_t disk_written[TESS_DISK_KINDS];
	/* Next to a device with memory of its own, bytes in memory of the host: offloaded weights
	 * with their gradients, and the state of the optimizer; 0: none. */
	uint64_t weights_host;
	uint64_t state_host;
	/* Bytes that a step copies from there to the device, by TESS_DISK_.... */
	uint64_t host_read[TESS_DISK_KINDS];
	/* Bytes that it copies back. */
	uint64_t host_written[TESS_DISK_KINDS];
};

/* Bytes of the most loaded rank under a plan. */
struct tess_explained_plan {
	/* Bytes that it sends in a step. */
	uint64_t sent;
	/* Bytes of weights; 0: the plan does not exist, or cannot run here. */
	uint64_t weights;
	/* Bytes of the values of a step. */
	uint64_t step;
	/* Total bytes, without the cache. */
	uint64_t total;
};

/* Maximum number of bytes that one rank sends in a step along one mesh dimension. */
struct tess_explained_traffic {
	/* Forward. */
	uint64_t forward;
	/* Backward, including the loss. */
	uint64_t backward;
	/* Recomputation of the forward before the backward. */
	uint64_t repeated;
	/* Sums of gradients over replicas, and weights gathered from the ranks that own them. */
	uint64_t gradients;
};

/* A stage of a pipeline. */
struct tess_explained_stage {
	/* Coordinate along `pp` of the ranks that have it. */
	int32_t rank;
	int32_t reserved;
	/* Number of elements of its parameters, over all ranks. */
	int64_t elements;
	/* Its modules with parameters, and layers as ranges: "model.embed_tokens, model.layers.0-3,
	 * part of model.layers.4". */
	const char *modules;
};

/* Memory that the most loaded rank has and needs, set by tess_explanation_fit. */
struct tess_explained_fit {
	/* Memory of a rank, in bytes. */
	uint64_t memory;
	/* Bytes that the most loaded rank uses; without training with the KV cache of one sequence
	 * of `positions`. The plan fits if this is at most `memory`. */
	uint64_t used;
	/* The first of the most loaded ranks. */
	int32_t rank;
	int32_t reserved;
	/* Length of a sequence. */
	int64_t positions;
	/* Maximum number of sequences of this length that fit. In training those of a micro-batch,
	 * equally many for each replica; else those that generate at once on one replica. 0: none
	 * fits. */
	int64_t sequences;
	/* Without training: the maximum number of sequences of the maximum length, of
	 * tess_explanation.positions; 0: none fits, or there is no maximum. */
	int64_t longest;
};

/* An explanation. It owns all that it points to, and grows at its end. */
struct tess_explanation {
	/* Name of the model family. */
	const char *model;
	/* Name of the plan. */
	const char *plan;
	/* Rows of a step. */
	int64_t tokens;
	/* Maximum length of a sequence; 0: no limit. */
	int64_t positions;
	/* Number of ranks of the mesh. */
	int32_t nranks;
	/* Number of mesh dimensions; the last dimension varies fastest. */
	int32_t ndims;
	/* Names of the mesh dimensions: [ndims]. */
	const char *const *dim_names;
	/* Sizes of the mesh dimensions: [ndims]. */
	const int32_t *dim_sizes;
	/* Length of `parameters`. */
	int32_t nparameters;
	/* Length of `collectives`. */
	int32_t ncollectives;
	/* Length of `records`. */
	int32_t nrecords;
	/* Number of parameters whose files are absent. */
	int32_t from_config;
	/* Parameters: [nparameters]. */
	const struct tess_explained_parameter *const *parameters;
	/* Collectives in the order of the program: [ncollectives]. */
	const struct tess_explained_collective *const *collectives;
	/* Records in the order of the program: [nrecords]. */
	const struct tess_explained_record *const *records;
	/* Bytes of each rank: [nranks]. */
	const struct tess_explained_rank *const *ranks;
	/* Mesh dimension along which logits stay cut by vocabulary; -1: rank 0 gets full rows. */
	int32_t logits_dim;
	int32_t reserved;
	/* Maximum number of bytes that one rank sends for a greedy id. */
	uint64_t greedy_bytes;
	/* Maximum number of bytes that one rank sends for a requested row of logits. */
	uint64_t row_bytes;
	/* The plan. */
	struct tess_explained_plan total;
	/* The plan "hf", which Transformers ships. */
	struct tess_explained_plan hf;
	/* Sequences of a training step; 0: inference. */
	int64_t sequences;
	/* Traffic of each mesh dimension: [ndims]. */
	const struct tess_explained_traffic *traffic;
	/* The plan without recomputation of modules. */
	struct tess_explained_plan kept;
	/* Element type of the KV cache on TESSERA_DEVICE; 0: the model has no attention. */
	int32_t kv_dtype;
	/* Length of `stages`; 1: there is no pipeline. */
	int32_t nstages;
	/* Stages along `pp`: [nstages]. */
	const struct tess_explained_stage *stages;
	/* Micro-batches of a training step; 0: inference. */
	int64_t micro_batches;
	/* Number of elements of all parameters. Tied embeddings count once. */
	int64_t elements;
	/* Number of elements that a token uses, with as many of the experts as a token requests. */
	int64_t active;
	/* Positions of the KV cache that are shown by default: 2048, or `positions` if that is less
	 * and not 0. */
	int64_t shown_positions;
	/* What was assumed of a TESSERA_DEVICE that is not installed; NULL: nothing. */
	const char *assumed;
	/* Result of tess_explanation_fit; NULL: it was not called. */
	const struct tess_explained_fit *fit;
	/* With a tile, the parameter whose smallest part exceeds it the most: experts and weights
	 * of three axes have no parts; NULL: none. */
	const char *widest;
	/* Bytes that are gathered for it at once; the step of a rank includes them. */
	uint64_t widest_bytes;
	/* Why modules of experts exchange all rows, although their style is for rows that request
	 * an expert of the rank; NULL: none does. */
	const char *all_expert_rows;
};

/*
 * Records and checks the program of a Hugging Face directory under a plan, for steps of `tokens`
 * rows. mesh: "tp=8", "dp=2,tp=4"; one size may be absent if nranks is not 0. options: NULL, or
 * read during the call. The program is that of TESSERA_DEVICE, which this machine may lack if the
 * device `explains`; with kv_dtype 0 the device chooses that. The caller owns *out:
 * tess_explanation_free. TESS_EINVAL: the plan cannot work; the message is that of
 * tess_session_open.
 */
tess_status tess_explain(const char *dir, const char *mesh, int32_t nranks, int64_t tokens,
                         const struct tess_session_options *options, struct tess_explanation **out);

/*
 * Explains a step of `tokens` rows of an open session: its plan, its mesh and its options. So a
 * program can count the collectives of a module. One rank may call it alone. The caller owns *out,
 * and frees it by tess_explanation_free before the session is closed.
 */
tess_status tess_session_explain(const struct tess_session *s, int64_t tokens,
                                 struct tess_explanation **out);

/*
 * Explains steps of training. A micro-batch has `sequences` sequences of `length` tokens, which
 * mesh dimension `dp` distributes to replicas. All but the memory is of one of
 * options->micro_batches of them. length 0: 1024, or the context length of the checkpoint if that
 * is smaller. options: NULL, or read during the call. The caller owns *out:
 * tess_explanation_free. TESS_EINVAL: the plan cannot work.
 */
tess_status tess_explain_training(const char *dir, const char *mesh, int32_t nranks,
                                  int64_t sequences, int64_t length,
                                  const struct tess_trainer_options *options,
                                  struct tess_explanation **out);

/*
 * Returns the bytes of the shard of parameter i on `rank`, and writes its shape to shape[ndim]
 * unless that is NULL. A head that reads the table again has 0 bytes: the table has them. Returns
 * 0 and writes no shape if the parameter or the rank does not exist.
 */
uint64_t tess_explanation_shard(const struct tess_explanation *e, int32_t i, int32_t rank,
                                int64_t *shape);

/*
 * Lists the ranges [begin, end) of `axis` of parameter i that `rank` holds, in order: the first
 * `most` of them go to range[]. Returns the number of ranges: one for each part of a fused
 * dimension. Returns 0 if the parameter, the rank or the axis does not exist.
 */
int64_t tess_explanation_list_ranges(const struct tess_explanation *e, int32_t i, int32_t rank,
                                     int32_t axis, int64_t (*range)[2], int64_t most);

/*
 * Finds whether ranks with `memory` bytes each can run the plan, and how many sequences fit, and
 * sets e->fit. Programs of other numbers of sequences are recorded for this. positions: length of a
 * sequence without training; 0: 2048, or the maximum length of a sequence if that is smaller. An
 * explanation of a session must be made and measured before the session is closed. TESS_EINVAL:
 * memory is 0, or positions negative.
 */
tess_status tess_explanation_fit(struct tess_explanation *e, uint64_t memory, int64_t positions);

/*
 * Lists how `rank` would store each parameter on TESSERA_DEVICE, as in tess_explain:
 * out[e->nparameters]. Files are assumed to exist and to be aligned.
 */
tess_status tess_explanation_list_weights(const struct tess_explanation *e, int32_t rank,
                                          struct tess_weight_storage *out);

/*
 * Forms of tess_explanation_format: tables, the records, how ranks store each weight, a JSON object
 * without or with its records, and a picture.
 */
enum {
	TESS_EXPLAIN_TEXT,
	TESS_EXPLAIN_PROGRAM,
	TESS_EXPLAIN_STORAGE,
	TESS_EXPLAIN_JSON,
	TESS_EXPLAIN_JSON_PROGRAM,
	TESS_EXPLAIN_SVG
};

/*
 * Formats an explanation as `tessera explain` prints it. form: TESS_EXPLAIN_TEXT, ... dir: the name
 * of the checkpoint in headings. positions: positions of the KV cache whose bytes are printed; 0:
 * 2048, or the maximum length of a sequence if that is smaller. TESS_EXPLAIN_STORAGE is for
 * TESSERA_DEVICE. The texts have rounded bytes, those of JSON are exact. The caller frees *text.
 */
tess_status tess_explanation_format(const struct tess_explanation *e, int32_t form, const char *dir,
                                    int64_t positions, char **text);

/* Frees an explanation. NULL is accepted. */
void tess_explanation_free(struct tess_explanation *e);

TESS_END
#endif
