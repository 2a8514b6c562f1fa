/*
 * A style with one fault: meson.build builds each module of this file with a -D that breaks one
 * thing. All functions write to the file that TESS_CANARY names: no code of a refused plugin may
 * run.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <tessera/model.h>
#include <tessera/style.h>
#include <unistd.h>

#ifndef ABI
#define ABI TESS_ABI
#endif
#ifndef SIZE
#define SIZE sizeof(struct tess_plugin)
#endif
#ifndef PLUGIN_NAME
#define PLUGIN_NAME "abi"
#endif
#ifndef VERSION
#define VERSION "1.0"
#endif
#ifndef LICENSE
#define LICENSE "Apache-2.0"
#endif
#ifndef NEEDS
#define NEEDS TESS_UPTO(tess_host, option)
#endif
#ifndef NEEDS_NN
#define NEEDS_NN 0
#endif
#ifndef STYLE_NAME
#define STYLE_NAME "good"
#endif
#ifndef STYLE_SIZE
#define STYLE_SIZE sizeof(struct tess_style)
#endif
#ifndef LAYOUT
#define LAYOUT good_layout
#endif
#ifndef PARTITION
#define PARTITION good_partition_param
#endif
#ifndef ALIASES
#define ALIASES "good_alias", "good_other"
#endif
#ifndef STYLES
#define STYLES &style
#endif
#ifndef INIT
#define INIT good_init
#endif
#ifndef KEY
#define KEY "abi_good"
#endif
#ifdef UNRESOLVED
void tess_nowhere(void);
#define INIT_MORE tess_nowhere()
#else
#define INIT_MORE (void)0
#endif
#ifndef PRESET
#define PRESET "1"
#endif

static void leave_canary(void)
{
	const char *path = getenv("TESS_CANARY");
	int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;

	if (fd >= 0 && write(fd, "x", 1) == 1)
		close(fd);
}

static tess_status good_layout(const struct tess_site *s, struct tess_io *out)
{
	(void)s;
	leave_canary();
	out->out[0].kind = TESS_REPLICATE;
	return TESS_OK;
}

static tess_status good_partition_param(const struct tess_site *s, const struct tess_param *p,
                                        struct tess_param_place *out)
{
	(void)s, (void)p;
	leave_canary();
	out->use.kind = TESS_REPLICATE;
	return TESS_OK;
}

static tess_status good_init(const struct tess_host *host)
{
	leave_canary();
	INIT_MORE;
	host->log(TESS_DEBUG, "abi", "%s", host->option(KEY));
	return TESS_OK;
}

static tess_status refuse_init(const struct tess_host *host)
{
	leave_canary();
	return host->fail(TESS_ENOTSUP, "no such hardware, %s", "sorry");
}

static tess_status fail_init_silently(const struct tess_host *host)
{
	(void)host;
	leave_canary();
	return TESS_EIO;
}

static tess_status return_positive_status(const struct tess_host *host)
{
	leave_canary();
	host->fail(TESS_EIO, "a sentence that does not count");
	return 7;
}

static const char *const aliases[] = { ALIASES, NULL };
static const struct tess_style style = {
	.size = STYLE_SIZE,
	.name = STYLE_NAME,
	.summary = "for tests",
	.aliases = aliases,
	.layout = LAYOUT,
	.partition_param = PARTITION,
};
static const struct tess_style *const styles[] = { STYLES, NULL };
static const struct tess_option option = { KEY, PRESET, "for tests" };
static const struct tess_option *const options[] = { &option, NULL };

#if defined(NO_DESCRIPTOR)
TESS_EXPORT const int tess_plugin_v2 = 2;
#elif defined(FUNCTION)
TESS_EXPORT void tess_plugin_v1(void);
TESS_EXPORT void tess_plugin_v1(void)
{
	leave_canary();
}
#elif defined(TINY)
TESS_EXPORT const uint32_t tess_plugin_v1 = TESS_ABI;
#elif defined(BORROWED)
/* The descriptor is only in a library that this one needs. */
extern const char tess_abi_dependency;
TESS_EXPORT const char *const tess_borrowed = &tess_abi_dependency;
#else
TESS_PLUGIN = {
	.abi = ABI,
	.size = SIZE,
	.name = PLUGIN_NAME,
	.version = VERSION,
	.license = LICENSE,
	.summary = "for tests",
	.needs = NEEDS,
	.needs_nn = NEEDS_NN,
	.styles = styles,
	.options = options,
	.init = INIT,
#ifndef OLDER
	.quit = leave_canary,
#endif
};
#endif
