/*
 * tess-{style,device,backend}-defective.so: functions that return an invalid status, fail without
 * a sentence, set no value, or make ranks differ. The style's configuration, or DEFECT for a
 * device or backend, selects one.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/device.h>
#include <tessera/group.h>
#include <tessera/style.h>

static const struct tess_place columns = { .kind = TESS_SHARD, .dim = -1 };

/* "layout=7" and "layout=silent" are defects of layout. */
static tess_status get_defect(const char *config, const char *function)
{
	size_t n = strlen(function);

	if (!config || strncmp(config, function, n) || config[n] != '=')
		return TESS_OK;
	return strcmp(config + n + 1, "silent") ? (tess_status)atoi(config + n + 1) : TESS_EIO;
}

static int has_config(const struct tess_site *s, const char *config)
{
	return !strcmp(s->config, config);
}

static tess_status defective_layout(const struct tess_site *s, struct tess_io *io)
{
	if (has_config(s, "nan"))
		io->out[0] = columns;
	return get_defect(s->config, "layout");
}

static tess_status defective_partition_param(const struct tess_site *s, const struct tess_param *p,
                                             struct tess_param_place *place)
{
	place->use.kind = TESS_REPLICATE;
	if (has_config(s, "nan"))
		place->use = (struct tess_place){ .kind = TESS_SHARD, .dim = p->out_dim };
	return get_defect(s->config, "partition");
}

static tess_status defective_open(const struct tess_site *s, void **state)
{
	(void)state;
	return get_defect(s->config, "open");
}

static tess_status defective_prepare_input(const struct tess_site *s, int32_t arg,
                                           struct tess_tensor **x)
{
	(void)arg;
	if (has_config(s, "input=null"))
		*x = NULL;
	return has_config(s, "input=null") ? TESS_OK : get_defect(s->config, "input");
}

/* x times `by`: one element of rank 1 (last row but one, column 2), or all elements. */
static tess_status multiply_elements(const struct tess_local *at, float by, int all)
{
	const struct tess_view *x = at->in, *y = at->out;

	for (int64_t i = 0; i < x->shape[0]; i++)
		for (int64_t k = 0; k < x->shape[1]; k++) {
			int here = all || (at->rank == 1 && i == x->shape[0] - 2 && k == 2);

			((float *)y->data)[i * y->stride[0] + k] =
				((float *)x->data)[i * x->stride[0] + k] * (here ? by : 1);
		}
	return TESS_OK;
}

static tess_status change_one_element(const struct tess_local *at)
{
	return multiply_elements(at, 1.01f, 0);
}

static tess_status make_one_nan(const struct tess_local *at)
{
	return multiply_elements(at, NAN, 0);
}

static tess_status make_all_nan(const struct tess_local *at)
{
	return multiply_elements(at, NAN, 1);
}

/* So small that results are denormal. */
static tess_status make_tiny(const struct tess_local *at)
{
	return multiply_elements(at, 1e-38f, 1);
}

static tess_status return_bad_status(const struct tess_local *at)
{
	(void)at;
	return 7;
}

static tess_status fail_without_sentence(const struct tess_local *at)
{
	(void)at;
	return TESS_EIO;
}

static tess_status defective_prepare_output(const struct tess_site *s, int32_t arg,
                                            struct tess_tensor **y)
{
	struct tess_call call = { .size = sizeof call };

	(void)arg;
	call.run = has_config(s, "drift")         ? change_one_element
	           : has_config(s, "nan")         ? make_one_nan
	           : has_config(s, "nan_all")     ? make_all_nan
	           : has_config(s, "tiny")        ? make_tiny
	           : has_config(s, "call=7")      ? return_bad_status
	           : has_config(s, "call=silent") ? fail_without_sentence
	                                          : NULL;
	if (has_config(s, "output=null"))
		*y = NULL;
	return call.run ? s->host->call(s, &call, y) : TESS_OK;
}

static const struct tess_style style = { .size = sizeof style,
	                                 .name = "defective",
	                                 .layout = defective_layout,
	                                 .partition_param = defective_partition_param,
	                                 .prepare_input = defective_prepare_input,
	                                 .prepare_output = defective_prepare_output,
	                                 .open = defective_open };

/* ---- a device and a backend that fail when they are opened ----------------------------------- */

static int32_t defective_device_count(void)
{
	return 1;
}

static tess_status defective_device_open(int32_t index, int32_t nthreads, void **self)
{
	(void)index, (void)nthreads, (void)self;
	return get_defect(getenv("DEFECT"), "open");
}

static tess_status defective_device_run(void *self, const struct tess_op *o)
{
	(void)self, (void)o;
	return TESS_ENOTSUP;
}

static tess_status defective_device_supports(const struct tess_op *o)
{
	(void)o;
	return TESS_ENOTSUP;
}

static tess_status defective_device_alloc(void *self, uint64_t bytes, void **out)
{
	(void)self, (void)bytes, (void)out;
	return TESS_ENOMEM;
}

static void defective_device_free(void *self, void *p)
{
	(void)self, (void)p;
}

static tess_status defective_device_pack(void *self, const struct tess_view *rows,
                                         struct tess_view *panels)
{
	(void)self, (void)rows, (void)panels;
	return TESS_ENOTSUP;
}

static tess_status defective_device_copy(void *self, void *dst, const void *src, uint64_t bytes,
                                         void *stream)
{
	(void)self, (void)dst, (void)src, (void)bytes, (void)stream;
	return TESS_ENOTSUP;
}

static tess_status defective_device_sync(void *self, void *stream)
{
	(void)self, (void)stream;
	return TESS_OK;
}

static void defective_close(void *self)
{
	(void)self;
}

static const struct tess_device device = { .size = sizeof device,
	                                   .mem = TESS_HOST,
	                                   .name = "defective",
	                                   .count = defective_device_count,
	                                   .supports = defective_device_supports,
	                                   .open = defective_device_open,
	                                   .alloc = defective_device_alloc,
	                                   .free = defective_device_free,
	                                   .run = defective_device_run,
	                                   .pack = defective_device_pack,
	                                   .copy = defective_device_copy,
	                                   .sync = defective_device_sync,
	                                   .close = defective_close };

static tess_status defective_supports(const struct tess_coll *c, int32_t nranks)
{
	(void)c, (void)nranks;
	return TESS_OK;
}

static tess_status defective_backend_open(const struct tess_join *how, void **self)
{
	*self = (void *)how->name;
	return get_defect(getenv("DEFECT"), "open");
}

static tess_status defective_start(void *self, const struct tess_coll *c, void **work)
{
	(void)self, (void)c;
	*work = self;
	return get_defect(getenv("DEFECT"), "start");
}

static tess_status defective_test(void *self, void *work)
{
	(void)self, (void)work;
	return get_defect(getenv("DEFECT"), "test");
}

static tess_status defective_wait(void *self, void *work, int64_t deadline)
{
	(void)self, (void)work, (void)deadline;
	return get_defect(getenv("DEFECT"), "wait");
}

static void defective_release(void *self, void *work)
{
	(void)self, (void)work;
}

static const struct tess_backend backend = { .size = sizeof backend,
	                                     .name = "defective",
	                                     .threads = 1,
	                                     .supports = defective_supports,
	                                     .open = defective_backend_open,
	                                     .start = defective_start,
	                                     .test = defective_test,
	                                     .wait = defective_wait,
	                                     .release = defective_release,
	                                     .close = defective_close,
	                                     .abort = defective_close };

TESS_DEFINE_PLUGIN("defective", "1.0", "Apache-2.0", .summary = "for tests",
                   .backends = TESS_LIST(tess_backend, &backend),
                   .devices = TESS_LIST(tess_device, &device),
                   .styles = TESS_LIST(tess_style, &style));
