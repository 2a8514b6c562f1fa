/* tables.c - checks and copies a plugin's tables as data; runs no code of the plugin. */
#include "core/registry/file.h"

#include "core/base/status.h"

#include <string.h>
#include <tessera/tessera.h>

enum { TABLE_NAME_MAX = 64, TABLE_SIZE_MAX = 1 << 16, REQUIRED_MAX = 12 };
enum { MEM_OWN = 32 }; /* the first kind of memory that a plugin may define */

/* The first fields of all tables; a style and a model then have a list of names. */
struct table_head {
	uint32_t size;
	int32_t word;
	const char *name, *summary;
	const char *const *aliases;
};

#define HEAD(type) \
	TESS_ASSERT(offsetof(struct type, name) == offsetof(struct table_head, name) && \
	                    offsetof(struct type, summary) == \
	                            offsetof(struct table_head, summary), \
	            #type)
HEAD(tess_backend);
HEAD(tess_device);
HEAD(tess_style);
HEAD(tess_model);
TESS_ASSERT(offsetof(struct tess_style, aliases) == offsetof(struct table_head, aliases),
            "aliases");
TESS_ASSERT(offsetof(struct tess_model, types) == offsetof(struct table_head, aliases), "types");

#define OP(type, field) .name = #field, .at = offsetof(struct type, field)

static const struct plugin_kind {
	uint64_t list; /* offset in struct tess_plugin */
	uint32_t size; /* size of our table */
	bool has_aliases; /* aliases or types */
	struct required_op {
		const char *name;
		uint64_t at;
	} required[REQUIRED_MAX]; /* in the order of the table */
} kinds[TESS_PLUGIN_KINDS] = {
	[TESS_BACKENDS] = {
		offsetof(struct tess_plugin, backends), sizeof(struct tess_backend), false,
		{ { OP(tess_backend, supports) }, { OP(tess_backend, open) },
		  { OP(tess_backend, start) }, { OP(tess_backend, test) },
		  { OP(tess_backend, wait) }, { OP(tess_backend, release) },
		  { OP(tess_backend, close) } },
	},
	[TESS_DEVICES] = {
		offsetof(struct tess_plugin, devices), sizeof(struct tess_device), false,
		{ { OP(tess_device, count) }, { OP(tess_device, supports) },
		  { OP(tess_device, open) }, { OP(tess_device, alloc) }, { OP(tess_device, free) },
		  { OP(tess_device, run) },
		  { OP(tess_device, pack) }, { OP(tess_device, copy) }, { OP(tess_device, sync) },
		  { OP(tess_device, close) } },
	},
	[TESS_STYLES] = {
		offsetof(struct tess_plugin, styles), sizeof(struct tess_style), true,
		{ { OP(tess_style, layout) }, { OP(tess_style, partition_param) } },
	},
	[TESS_MODELS] = {
		offsetof(struct tess_plugin, models), sizeof(struct tess_model), true,
		{ { OP(tess_model, types) }, { OP(tess_model, forward) } },
	},
};

const char *const tess_plugin_kind_names[TESS_PLUGIN_KINDS] = { "backend", "device", "style",
	                                                        "model" };

bool tess_name_valid(const char *name, const char *more)
{
	size_t n = strnlen(name, TABLE_NAME_MAX + 1);

	for (size_t i = 0; i < n; i++)
		if (!(name[i] >= 'a' && name[i] <= 'z') && !(name[i] >= '0' && name[i] <= '9') &&
		    !(name[i] == '_') && !strchr(more, name[i]))
			return false;
	return n > 0 && n <= TABLE_NAME_MAX;
}

/* Copies the fields common to both sizes and zeroes the rest: older and newer tables fit. */
static void copy_table(void *dst, uint32_t dst_size, const void *src, uint32_t src_size)
{
	memset(dst, 0, dst_size);
	memcpy(dst, src, src_size < dst_size ? src_size : dst_size);
	memcpy(dst, &dst_size, sizeof dst_size);
}

static bool is_missing_op(const void *table, uint32_t size, uint64_t at)
{
	void *p = NULL;

	if (at + sizeof p <= size)
		memcpy(&p, (const char *)table + at, sizeof p);
	return !p;
}

/* Returns whether a device wraps another one; it then needs no other function, and no memory. */
static bool is_device_wrapper(const struct tess_file *f, const struct table_head *table)
{
	return f->kind == TESS_DEVICES &&
	       !is_missing_op(table, table->size, offsetof(struct tess_device, wrap));
}

static tess_status check_kind_of_memory(const struct table_head *table)
{
	int mem = table->word; /* tess_device.mem */

	if (mem == TESS_HOST || mem == TESS_CUDA || (mem >= MEM_OWN && mem <= TESS_MEM_MAX))
		return TESS_OK;
	return tess_fail(TESS_EABI, "device %s: memory of kind %d; use %d, %d or %d to %d",
	                 table->name, mem, TESS_HOST, TESS_CUDA, MEM_OWN, TESS_MEM_MAX);
}

/* Checks that a file offers a name once. */
static tess_status check_unique(const struct tess_file *f, const char *name)
{
	bool twice = false;

	for (size_t i = 0; i < f->noffers; i++) {
		const char *const *more = f->offers[i].aliases;

		twice |= f->kind != TESS_MODELS && !strcmp(f->offers[i].name, name);
		for (; more && *more; more++)
			twice |= !strcmp(*more, name);
	}
	if (twice)
		return tess_fail(TESS_EINVAL, "it offers the %s %s twice",
		                 tess_plugin_kind_names[f->kind], name);
	return TESS_OK;
}

/* Checks the aliases of a style or the types of a model. */
static tess_status check_aliases(const struct tess_file *f, const struct tess_offer *offer)
{
	const char *const *more = offer->aliases;
	bool model = f->kind == TESS_MODELS;
	tess_status st = TESS_OK;

	if (model && !*more)
		return tess_fail(TESS_EINVAL, "model %s has no model_type", offer->name);
	for (; more && *more && !st; more++) {
		if (!tess_name_valid(*more, model ? "-.ABCDEFGHIJKLMNOPQRSTUVWXYZ" : ""))
			return tess_fail(TESS_EINVAL, "%s %s: \"%.80s\" is not %s",
			                 tess_plugin_kind_names[f->kind], offer->name, *more,
			                 model ? "[A-Za-z0-9_.-]+" : "[a-z0-9_]+");
		st = check_unique(f, *more);
	}
	return st;
}

static tess_status check_offer_names(const struct tess_file *f, const struct tess_offer *offer)
{
	const char *kind = tess_plugin_kind_names[f->kind];
	tess_status st = TESS_OK;

	if (f->dir && f->kind <= TESS_DEVICES && strcmp(offer->name, f->stem) != 0)
		return tess_fail(
			TESS_EINVAL,
			"it offers the %s %s, which cannot be found in this file; name the "
			"file tess-%s-%s.so",
			kind, offer->name, kind, offer->name);
	if (f->kind != TESS_MODELS)
		st = check_unique(f, offer->name);
	return st ? st : check_aliases(f, offer);
}

/* Checks one table: size, name, required operations; a copy becomes the next offer of `f`. */
static tess_status check_offer(struct tess_file *f, struct tess_registry *r,
                               const struct table_head *table)
{
	const struct plugin_kind *k = &kinds[f->kind];
	const char *kind = tess_plugin_kind_names[f->kind];
	bool wraps = is_device_wrapper(f, table);
	struct tess_offer offer;
	const struct required_op *op;
	tess_status st;
	void *copy;

	if (table->size < offsetof(struct table_head, aliases) || table->size > TABLE_SIZE_MAX)
		return tess_fail(TESS_EABI, "a struct tess_%s of %u bytes; this Tessera has %u",
		                 kind, table->size, k->size);
	if (!table->name || !tess_name_valid(table->name, ""))
		return tess_fail(TESS_EINVAL, "the name of a %s, \"%.80s\", is not [a-z0-9_]+",
		                 kind, table->name ? table->name : "");
	for (op = k->required; op->name && !wraps; op++)
		if (is_missing_op(table, table->size, op->at))
			return tess_fail(TESS_EABI, "%s %s lacks %s, which is required", kind,
			                 table->name, op->name);
	st = f->kind == TESS_DEVICES && !wraps ? check_kind_of_memory(table) : TESS_OK;
	if (st)
		return st;
	copy = tess_arena_alloc(&r->arena, k->size);
	if (!copy)
		return TESS_ENOMEM;
	copy_table(copy, k->size, table, table->size);
	offer = (struct tess_offer){
		.name = table->name,
		.summary = table->summary ? table->summary : "",
		.aliases = k->has_aliases ? ((struct table_head *)copy)->aliases : NULL,
		.table = copy,
	};
	st = check_offer_names(f, &offer);
	if (!st)
		f->offers[f->noffers++] = offer;
	return st;
}

static tess_status check_needs(const struct tess_plugin *p, const struct tess_host *host)
{
	static const char *const text =
		"it needs a newer Tessera: %llu bytes of %s, and this one has %llu";

	if (p->needs > host->size)
		return tess_fail(TESS_EABI, text, (unsigned long long)p->needs, "struct tess_host",
		                 (unsigned long long)host->size);
	if (p->needs_nn > sizeof(struct tess_nn))
		return tess_fail(TESS_EABI, text, (unsigned long long)p->needs_nn, "struct tess_nn",
		                 (unsigned long long)sizeof(struct tess_nn));
	return TESS_OK;
}

/* Checks the descriptor, whose symbol has `size` bytes. */
static tess_status check_descriptor(struct tess_file *f, const struct tess_plugin *descriptor,
                                    uint64_t size)
{
	const uint32_t min_size = TESS_UPTO(tess_plugin, models);

	if (size < TESS_UPTO(tess_plugin, size))
		return tess_fail(TESS_EABI,
		                 "tess_plugin_v2 is a symbol of %llu bytes; use TESS_DEFINE_PLUGIN",
		                 (unsigned long long)size);
	f->abi = descriptor->abi;
	if (descriptor->abi != TESS_ABI)
		return tess_fail(
			TESS_EABI,
			"built for plugin ABI %u, and this is ABI %u (Tessera %s); rebuild it with "
			"this version's headers: cc -shared -fPIC -fvisibility=hidden "
			"$(pkg-config --cflags tessera) -o FILE SOURCE; docs/abi.md lists the "
			"changes",
			descriptor->abi, (unsigned)TESS_ABI, tess_version());
	if (descriptor->size < min_size || descriptor->size > size ||
	    descriptor->size > TABLE_SIZE_MAX)
		return tess_fail(
			TESS_EABI,
			"its descriptor has size %u; its symbol has %llu bytes, and ABI %u "
			"requires at least %u",
			descriptor->size, (unsigned long long)size, (unsigned)TESS_ABI, min_size);
	return TESS_OK;
}

static tess_status check_strings(const struct tess_plugin *p)
{
	if (!tess_name_valid(p->name, ""))
		return tess_fail(TESS_EINVAL, "the plugin's name, \"%.80s\", is not [a-z0-9_]+",
		                 p->name);
	if (!*p->version)
		return tess_fail(TESS_EINVAL, "plugin %s has no version", p->name);
	if (!*p->license)
		return tess_fail(TESS_EINVAL, "plugin %s has no license", p->name);
	return TESS_OK;
}

/* Copies the descriptor with its strings: a refused plugin is unmapped. */
static tess_status copy_descriptor(struct tess_plugin *p, struct tess_arena *a,
                                   const struct tess_plugin *descriptor)
{
	const char **strings[] = { &p->name, &p->version, &p->license, &p->summary };
	bool complete = true;

	memset(p, 0, sizeof *p);
	memcpy(p, descriptor, descriptor->size < sizeof *p ? descriptor->size : sizeof *p);
	for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
		const char *string = *strings[i] ? *strings[i] : "";

		*strings[i] = tess_arena_copy(a, string, strlen(string));
		complete &= *strings[i] != NULL;
	}
	return complete ? TESS_OK : TESS_ENOMEM;
}

tess_status tess_file_check_descriptor(struct tess_file *f, struct tess_registry *r,
                                       const struct tess_plugin *descriptor, uint64_t size)
{
	tess_status st = check_descriptor(f, descriptor, size);

	if (!st)
		st = copy_descriptor(&f->plugin, &r->arena, descriptor);
	if (!st)
		st = check_strings(&f->plugin);
	return st ? st : check_needs(&f->plugin, &r->host);
}

/* Returns the list of tables of a kind, or NULL. */
static const struct table_head *const *get_tables(const struct tess_plugin *p, int32_t kind)
{
	const struct table_head *const *list;

	memcpy(&list, (const char *)p + kinds[kind].list, sizeof list);
	return list && *list ? list : NULL;
}

bool tess_plugin_offers(const struct tess_plugin *p, int32_t kind)
{
	return get_tables(p, kind);
}

tess_status tess_file_check_offers(struct tess_file *f, struct tess_registry *r)
{
	const struct table_head *const *list = get_tables(&f->plugin, f->kind);
	tess_status st = TESS_OK;
	size_t n = 0;

	while (list && list[n])
		n++;
	if (!n)
		return tess_fail(TESS_EINVAL, "it offers no %s, as its file name requires",
		                 tess_plugin_kind_names[f->kind]);
	f->offers = TESS_NEW(&r->arena, struct tess_offer, n);
	if (!f->offers)
		return TESS_ENOMEM;
	for (size_t i = 0; i < n && !st; i++)
		st = check_offer(f, r, list[i]);
	if (st)
		f->noffers = 0;
	return st;
}
