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

/* The last initializer of a member holds: -D changes members of the tables below. */
#pragma GCC diagnostic ignored "-Woverride-init"
#ifndef FIELDS
#define FIELDS .summary = "for tests"
#endif
#ifndef STYLE_FIELDS
#define STYLE_FIELDS .summary = "for tests"
#endif
#ifndef OPTION_FIELDS
#define OPTION_FIELDS
#endif
#ifndef ALIASES
#define ALIASES "good_alias", "good_other"
#endif
#ifndef STYLES
#define STYLES &style
#endif

void tess_nowhere(void);

static const struct tess_option option = {
	.key = "abi_good", .preset = "1", .help = "for tests", OPTION_FIELDS
};
static const struct tess_option *const options[] = { &option, NULL };

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
#ifdef UNRESOLVED
	tess_nowhere();
#endif
	host->log(TESS_DEBUG, "abi", "%s", host->option(option.key));
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
	.size = sizeof style,
	.name = "good",
	.aliases = aliases,
	.layout = good_layout,
	.partition_param = good_partition_param,
	STYLE_FIELDS,
};
static const struct tess_style *const styles[] = { STYLES, NULL };

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
	.abi = TESS_ABI,
	.size = sizeof(struct tess_plugin),
	.name = "abi",
	.version = "1.0",
	.license = "Apache-2.0",
	.needs = TESS_UPTO(tess_host, option),
	.styles = styles,
	.options = options,
	.init = good_init,
#ifndef OLDER
	.quit = leave_canary,
#endif
	FIELDS,
};
#endif
