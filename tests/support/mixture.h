/* mixture.h - a model with one mixture of experts, and its checkpoint in several forms. */
#ifndef TESS_TESTS_SUPPORT_MIXTURE_H
#define TESS_TESTS_SUPPORT_MIXTURE_H

#include "core/base/status.h"
#include "suite.h"
#include "tests/reference/lockstep.h"

enum { VOCABULARY = 17, FILES_MAX = 1024, NAME_MAX_BYTES = 96 };

struct mixture_shape {
	int64_t hidden, ffn, experts;
	struct tess_route route;
	int32_t flags; /* TESS_IN_OUT */
};

/* The shape of the model and its checkpoint; set it before either is used. */
extern const struct mixture_shape *mixture;
enum { MIXTURES = 4 };
extern const struct mixture_shape mixtures[MIXTURES];
extern const struct tess_model mixture_model;

struct stored_file {
	char name[NAME_MAX_BYTES];
	int32_t ndim;
	int64_t shape[3];
	float *data;
};

struct store {
	struct stored_file file[FILES_MAX];
	size_t n;
	uint64_t bytes_read;
	int64_t finds;
	char read_names[4096]; /* names that were read, once each */
};

/* Makes a checkpoint; stacked: all experts in one file; else each in files of its own. */
struct store *store_make(bool stacked);
void store_free(struct store *s);
struct tess_source store_make_source(struct store *s);
/* Returns the file, or NULL. */
struct stored_file *store_find(const struct store *s, const char *name);

/* Returns element (e, out, in) of gate_up (1) or down (2), whatever file contains it. */
float mixture_get_element(int which, int64_t e, int64_t out, int64_t in);

static inline tess_status mixture_record(struct store *s, const char *plan, const char *mesh,
                                         int64_t rows, struct tess_program **out)
{
	struct tess_source source = store_make_source(s);
	struct lockstep how = { &mixture_model, &source, plan, 1, NULL, rows, true, mesh };

	return lockstep_record(&how, out);
}

static inline void mixture_expect_refused(struct store *s, const char *plan, const char *mesh,
                                          const char *says)
{
	struct tess_program *p;

	ck_assert(mixture_record(s, plan, mesh, 4, &p) < 0);
	expect_part(tess_error(), says);
}

/* One rule of a plan. */
#define R(pattern, style) "\"" pattern "\":\"" style "\""
#define EXPERT(dim, up, down, module) \
	R(dim "mlp.experts.gate_up_proj", up) \
	"," R(dim "mlp.experts.down_proj", down) "," R(dim "mlp.experts", module)
#define BY_EXPERT(dim, module) EXPERT(dim, "grouped_gemm", "grouped_gemm", module)
#define INSIDE(dim, module) EXPERT(dim, "packed_colwise", "rowwise", module)
#define TOKENS(dim) R(dim "table", "vocab_reduce_scatter") "," R(dim "mlp", "module_allgather")

#endif
