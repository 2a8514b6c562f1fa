/*
 * A style that copies outputs. Its functions leave another rounding mode, locale and signal mask,
 * and its init() starts a thread. CARELESS_TAKES_SIGNALS: that thread takes the signals of the
 * process.
 */
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <tessera/device.h>
#include <tessera/style.h>
#include <unistd.h>

static const struct tess_host *host;
static sigset_t inherited; /* the mask of the thread */
static atomic_bool running;

static void leave_state_changed(void)
{
	static locale_t locale;
	sigset_t set;

	if (!locale)
		locale = newlocale(LC_ALL_MASK, "C.UTF-8", (locale_t)0);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	setlocale(LC_ALL, "C.UTF-8");
	uselocale(locale);
	fesetround(FE_UPWARD);
}

static void *run_careless_thread(void *arg)
{
	sigset_t none;

	sigemptyset(&none);
	pthread_sigmask(SIG_SETMASK, NULL, &inherited);
	if (getenv("CARELESS_TAKES_SIGNALS"))
		pthread_sigmask(SIG_SETMASK, &none, NULL);
	atomic_store(&running, true);
	while (getenv("CARELESS_TAKES_SIGNALS"))
		usleep(1000);
	return arg;
}

static tess_status start_careless(const struct tess_host *h)
{
	pthread_t thread;

	host = h;
	if (pthread_create(&thread, NULL, run_careless_thread, NULL))
		return h->fail(TESS_ENOMEM, "no thread");
	/* a thread that begins holds the lock of a sanitizer's allocator: no fork before it runs */
	while (!atomic_load(&running))
		usleep(100);
	if (getenv("CARELESS_TAKES_SIGNALS"))
		pthread_detach(thread);
	else
		pthread_join(thread, NULL);
	leave_state_changed();
	return TESS_OK;
}

static tess_status place_careless(const struct tess_site *s, struct tess_io *out)
{
	(void)s, (void)out;
	leave_state_changed();
	return TESS_OK;
}

static tess_status partition_careless(const struct tess_site *s, const struct tess_param *p,
                                      struct tess_param_place *out)
{
	(void)s, (void)p, (void)out;
	leave_state_changed();
	return TESS_OK;
}

/* Fails, unless the thread of init() has left SIGCHLD to the program. */
static tess_status open_careless(const struct tess_site *s, void **state)
{
	(void)s, (void)state;
	leave_state_changed();
	if (getenv("CARELESS_TAKES_SIGNALS") || sigismember(&inherited, SIGCHLD))
		return TESS_OK;
	return host->fail(TESS_EINVAL, "it takes signals");
}

static tess_status copy_careless(const struct tess_view *x, const struct tess_view *y)
{
	for (int64_t i = 0; i < x->shape[0]; i++)
		for (int64_t k = 0; k < x->shape[1]; k++)
			((float *)y->data)[i * y->stride[0] + k] =
				((float *)x->data)[i * x->stride[0] + k];
	leave_state_changed();
	return TESS_OK;
}

static tess_status run_careless(const struct tess_local *at)
{
	return copy_careless(at->in, at->out);
}

static tess_status grad_careless(const struct tess_local *at)
{
	return copy_careless(at->in + 2, at->out);
}

static tess_status output_careless(const struct tess_site *s, int32_t arg, struct tess_tensor **y)
{
	const struct tess_call call = { .size = sizeof call,
		                        .run = run_careless,
		                        .grad = grad_careless };

	(void)arg;
	leave_state_changed();
	return s->host->call(s, &call, y);
}

static const struct tess_style style = { .size = sizeof style,
	                                 .name = "careless",
	                                 .layout = place_careless,
	                                 .partition_param = partition_careless,
	                                 .prepare_output = output_careless,
	                                 .open = open_careless };

TESS_DEFINE_PLUGIN("careless", "1.0", "Apache-2.0", .styles = TESS_LIST(tess_style, &style),
                   .init = start_careless);
