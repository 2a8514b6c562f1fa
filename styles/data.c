/*
 * tess-style-data.so: data parallel. The ranks along the dimension compute with full parameters on
 * different sequences. The styles differ in the elements of a parameter that each rank keeps.
 */
#include <string.h>
#include <tessera/style.h>

/* Sets the location of an item of the configuration. Returns false for another item. */
static int read_item(const char *item, size_t len, const char *key, int32_t *location)
{
	static const char *const names[] = {
		[TESS_LOCATION_HOST] = "host", [TESS_LOCATION_DISK] = "disk"
	};
	size_t n = strlen(key);

	if (len != n + 5 || strncmp(item, key, n) || item[n] != '=')
		return 0;
	for (int32_t i = TESS_LOCATION_HOST; i <= TESS_LOCATION_DISK; i++)
		if (!strncmp(item + n + 1, names[i], 4)) {
			*location = i;
			return 1;
		}
	return 0;
}

/* Reads a configuration: state=disk, weights=disk, or both with a comma; or host. */
static tess_status read_locations(const struct tess_site *s, int32_t *weights, int32_t *state)
{
	*weights = *state = TESS_LOCATION_DEVICE;
	for (const char *at = s->config; *at;) {
		size_t len = strcspn(at, ",");

		if (!read_item(at, len, "state", state) && !read_item(at, len, "weights", weights))
			return s->host->fail(TESS_EINVAL,
			                     "%s: %s takes state=disk, state=host, weights=disk or "
			                     "weights=host, or two with a comma, not \"%s\"",
			                     s->module, s->style, s->config);
		at += len + (at[len] == ',' && at[len + 1]);
	}
	return TESS_OK;
}

/* Leaves the values of a module in place. */
static tess_status layout_data(const struct tess_site *s, struct tess_io *out)
{
	int32_t weights, state;
	tess_status st = read_locations(s, &weights, &state);

	(void)out;
	if (st)
		return st;
	if (!s->data)
		return s->host->fail(TESS_EINVAL,
		                     "%s: %s is for ranks that train on different sequences; use "
		                     "it along mesh dimension dp, in training",
		                     s->module, s->style);
	return TESS_OK;
}

static tess_status partition_ddp(const struct tess_site *s, const struct tess_param *p,
                                 struct tess_param_place *out)
{
	tess_status st = read_locations(s, &out->rest.location, &out->state.location);

	return st ? st : tess_param_replicate(s, p, out);
}

static tess_status partition_zero1(const struct tess_site *s, const struct tess_param *p,
                                   struct tess_param_place *out)
{
	out->state = (struct tess_storage){ .kind = TESS_SHARD };
	return partition_ddp(s, p, out);
}

static tess_status partition_zero3(const struct tess_site *s, const struct tess_param *p,
                                   struct tess_param_place *out)
{
	out->rest = (struct tess_storage){ .kind = TESS_SHARD };
	return partition_zero1(s, p, out);
}

static const struct tess_style ddp = {
	.size = sizeof ddp,
	.name = "ddp",
	.summary = "replicated, also between steps",
	.layout = layout_data,
	.partition_param = partition_ddp,
};
static const struct tess_style zero1 = {
	.size = sizeof zero1,
	.name = "zero1",
	.summary = "gradients and optimizer state cut by elements",
	/* a gradient is reduced once, to the rank that keeps the share: stage 1 includes stage 2 */
	.aliases = (const char *const[]){ "zero2", NULL },
	.layout = layout_data,
	.partition_param = partition_zero1,
};
static const struct tess_style zero3 = {
	.size = sizeof zero3,
	.name = "zero3",
	.summary = "parameters too, gathered before use",
	.aliases = (const char *const[]){ "fsdp", NULL },
	.layout = layout_data,
	.partition_param = partition_zero3,
};

TESS_DEFINE_PLUGIN("data", "1.0", "Apache-2.0", .summary = "data parallel, with ZeRO",
                   .styles = TESS_LIST(tess_style, &ddp, &zero1, &zero3));
