/* options.h - what a program is recorded from. */
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
	int64_t ntokens, nselected; /* rows of a step, and those whose logits are wanted */
	int32_t logits_root; /* the only rank that gets the logits; -1: all; TESS_LOGITS_CUT */
	int64_t positions; /* of a text, at most; 0: any */
	int32_t kv_dtype; /* of the KV cache; 0: as choose_kv_dtype says, else TESS_F32 */
	/* of a device, or NULL: gets the dtype in the files of the first weight that LINEAR uses */
	int32_t (*choose_kv_dtype)(int32_t weights);
	int32_t weights; /* linear ones, in memory; 0: as in the files; TESS_Q8, TESS_BF12 */
	int32_t math; /* of linear products; 0: TESS_F32; TESS_BF16: of bf16 weights */
	bool check; /* after each record, compare ranks and look for NaN and Inf */
	const struct tess_device *device; /* NULL: host memory, and exact sums */
	/* NULL: inference. It is copied; the sum of its lengths is ntokens, and all rows are
	 * selected. The mesh may have dp. */
	const struct tess_training *training;
};

#endif
