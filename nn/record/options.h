/* options.h - the input of a recording. */
#ifndef TESS_NN_RECORD_OPTIONS_H
#define TESS_NN_RECORD_OPTIONS_H

#include "nn/program/plan.h"
#include "nn/program/program.h"
#include "nn/program/source.h"

struct tess_record_options {
	const struct tess_model *model;
	const struct tess_plan *plan;
	const struct tess_source *source; /* config, and shapes and dtypes of the parameters */
	struct tess_mesh_shape mesh;
	int64_t ntokens, nselected; /* rows of a step, and rows with logits */
	int32_t logits_root; /* the only rank with the logits; -1: all; TESS_LOGITS_CUT */
	int64_t positions; /* maximum length of a sequence; 0: unlimited */
	int32_t kv_dtype; /* dtype of the KV cache; 0: as the device prefers, else TESS_F32 */
	int32_t weights; /* dtype of linear weights in memory; 0: as stored; or of panels */
	/* dtype of linear products; 0: TESS_F32; TESS_BF16: in inference for bf16 weights */
	int32_t math;
	int32_t rest_location; /* of weights between uses: TESS_LOCATION_... */
	uint64_t offload_min, offload_bucket; /* as in struct tess_program */
	uint64_t tile; /* maximum bytes of a weight that is gathered or fetched at once; 0: any */
	const char *values; /* pattern of modules whose outputs are kept; NULL: none (values.h) */
	bool check; /* after each record, compare ranks and detect non-finite values */
	const struct tess_device *device; /* NULL: host memory, and exact sums */
	/* training: the stages of each rank along pp; NULL: one stage a rank. Borrowed */
	const struct tess_pipeline *pipeline;
	/* NULL: inference. Copied. The sum of its lengths is ntokens, and all rows are selected.
	 * The mesh may have dp. */
	const struct tess_training *training;
};

#endif
