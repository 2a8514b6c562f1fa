/*
 * tess-{style,device,backend}-defective.so: functions that return what is no status, fail without a sentence,
 * leave no value, or let ranks differ. A style's configuration says which, DEFECT to a device or backend.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/device.h>
#include <tessera/group.h>
#include <tessera/style.h>

static const struct tess_place columns = { .kind = TESS_SHARD, .dim = -1 };

/* "layout=7" and "layout=silent" are defects of layout. */
static tess_status defect(const char *config, const char *function)
{
	size_t n = strlen(function);

	if (!config || strncmp(config, function, n) || config[n] != '=')
		return TESS_OK;
	return strcmp(config + n + 1, "silent") ? (tess_status)atoi(config + n + 1) : TESS_EIO;
}

static int is(const struct tess_site *s, const char *config)
{
	return !strcmp(s->config, config);
}

static tess_status layout(const struct tess_site *s, struct tess_io *io)
{
	if (is(s, "nan"))
		io->out[0] = columns;
	return defect(s->config, "layout");
}

static tess_status partition_param(const struct tess_site *s, const struct tess_param *p,
                                   struct tess_param_place *home)
{
	home->use.kind = TESS_REPLICATE;
	if (is(s, "nan"))
		home->use = (struct tess_place){ .kind = TESS_SHARD, .dim = p->out_dim };
	return defect(s->config, "partition");
}

static tess_status open_state(const struct tess_site *s, void **state)
{
	(void)state;
	return defect(s->config, "open");
}

static tess_status prepare_input(const struct tess_site *s, int32_t arg, struct tess_tensor **x)
{
	(void)arg;
	if (is(s, "input=null"))
		*x = NULL;
	return is(s, "input=null") ? TESS_OK : defect(s->config, "input");
}

/* x times `by`: one element of rank 1, of the last but one row and column 2; or everything. */
static tess_status change(const struct tess_local *at, float by, int all)
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

static tess_status drift(const struct tess_local *at)
{
	return change(at, 1.01f, 0);
}

static tess_status make_nan(const struct tess_local *at)
{
	return change(at, NAN, 0);
}

static tess_status make_all_nan(const struct tess_local *at)
{
	return change(at, NAN, 1);
}

/* So small that what is computed from it is denormal. */
static tess_status make_tiny(const struct tess_local *at)
{
	return change(at, 1e-38f, 1);
}

static tess_status return_odd(const struct tess_local *at)
{
	(void)at;
	return 7;
}

static tess_status fail_silently(const struct tess_local *at)
{
	(void)at;
	return TESS_EIO;
}

static tess_status prepare_output(const struct tess_site *s, int32_t arg, struct tess_tensor **y)
{
	struct tess_call call = { .size = sizeof call };

	(void)arg;
	call.run = is(s, "drift")         ? drift
	           : is(s, "nan")         ? make_nan
	           : is(s, "nan_all")     ? make_all_nan
	           : is(s, "tiny")        ? make_tiny
	           : is(s, "call=7")      ? return_odd
	           : is(s, "call=silent") ? fail_silently
	                                  : NULL;
	if (is(s, "output=null"))
		*y = NULL;
	return call.run ? s->host->call(s, &call, y) : TESS_OK;
}

static const struct tess_style style = { .size = sizeof style,
	                                 .name = "defective",
	                                 .layout = layout,
	                                 .partition_param = partition_param,
	                                 .prepare_input = prepare_input,
	                                 .prepare_output = prepare_output,
	                                 .open = open_state };
static const struct tess_style *const styles[] = { &style, NULL };

/* ---- a device and a backend that fail when they are opened ------------------------------------------- */

static int32_t count(void)
{
	return 1;
}

static tess_status device_open(int32_t index, int32_t nthreads, void **self)
{
	(void)index, (void)nthreads, (void)self;
	return defect(getenv("DEFECT"), "open");
}

static tess_status op(void *self, const struct tess_op *o)
{
	(void)self, (void)o;
	return TESS_ENOTSUP;
}

static tess_status op_supports(const struct tess_op *o)
{
	(void)o;
	return TESS_ENOTSUP;
}

static tess_status device_alloc(void *self, uint64_t bytes, void **out)
{
	(void)self, (void)bytes, (void)out;
	return TESS_ENOMEM;
}

static void device_free(void *self, void *p)
{
	(void)self, (void)p;
}

static tess_status pack(void *self, const struct tess_view *rows, struct tess_view *panels)
{
	(void)self, (void)rows, (void)panels;
	return TESS_ENOTSUP;
}

static tess_status copy(void *self, void *dst, const void *src, uint64_t bytes, void *stream)
{
	(void)self, (void)dst, (void)src, (void)bytes, (void)stream;
	return TESS_ENOTSUP;
}

static tess_status sync_stream(void *self, void *stream)
{
	(void)self, (void)stream;
	return TESS_OK;
}

static void close_any(void *self)
{
	(void)self;
}

static const struct tess_device device = { .size = sizeof device,
	                                   .mem = TESS_HOST,
	                                   .name = "defective",
	                                   .count = count,
	                                   .supports = op_supports,
	                                   .open = device_open,
	                                   .alloc = device_alloc,
	                                   .free = device_free,
	                                   .run = op,
	                                   .pack = pack,
	                                   .copy = copy,
	                                   .sync = sync_stream,
	                                   .close = close_any };
static const struct tess_device *const devices[] = { &device, NULL };

static tess_status supports(const struct tess_coll *c, int32_t nranks)
{
	(void)c, (void)nranks;
	return TESS_OK;
}

static tess_status group_open(const struct tess_join *how, void **self)
{
	*self = (void *)how->name;
	return defect(getenv("DEFECT"), "open");
}

static tess_status start(void *self, const struct tess_coll *c, void **work)
{
	(void)self, (void)c;
	*work = self;
	return defect(getenv("DEFECT"), "start");
}

static tess_status test(void *self, void *work)
{
	(void)self, (void)work;
	return defect(getenv("DEFECT"), "test");
}

static tess_status wait_for(void *self, void *work, int64_t deadline)
{
	(void)self, (void)work, (void)deadline;
	return defect(getenv("DEFECT"), "wait");
}

static void release(void *self, void *work)
{
	(void)self, (void)work;
}

static const struct tess_backend backend = { .size = sizeof backend,
	                                     .name = "defective",
	                                     .threads = 1,
	                                     .supports = supports,
	                                     .open = group_open,
	                                     .start = start,
	                                     .test = test,
	                                     .wait = wait_for,
	                                     .release = release,
	                                     .close = close_any,
	                                     .abort = close_any };
static const struct tess_backend *const backends[] = { &backend, NULL };

TESS_PLUGIN = { .abi = TESS_ABI,
	        .size = sizeof(struct tess_plugin),
	        .name = "defective",
	        .version = "1.0",
	        .license = "Apache-2.0",
	        .summary = "for tests",
	        .backends = backends,
	        .devices = devices,
	        .styles = styles };
