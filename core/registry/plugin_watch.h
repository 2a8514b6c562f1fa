/*
 * plugin_watch.h - finds calls of plugins that do not return. The watcher looks at every interval;
 * only time between looks counts, so a stopped process is not taken for a slow plugin.
 *
 * A call of a plugin has the time of a collective, TESSERA_TIMEOUT, and one that gets a deadline
 * has until then. A second, or a tenth of the timeout, is added: failures that are found by other
 * means come first.
 */
#ifndef TESS_REGISTRY_PLUGIN_WATCH_H
#define TESS_REGISTRY_PLUGIN_WATCH_H

#include "core/registry/plugin_frame.h"

struct tess_plugin_stay { /* a call of a plugin that has not returned */
	uint64_t call; /* differs from that of every other call of the thread */
	int64_t stayed; /* ns in the call, as far as it was watched */
	bool waits; /* the function waits for others until its deadline */
	bool slow; /* for messages: a quarter of the time, or the deadline, has passed */
	bool overdue; /* its time has passed */
	int64_t overdue_for; /* ns since then */
	char text[TESS_PLUGIN_TEXT]; /* "layout() of style mine (FILE) at MODULE" */
};

/* Time between two looks, ns, for a timeout of a call, ns. */
int64_t tess_plugin_watch_interval(int64_t timeout);

enum tess_plugin_threads {
	TESS_NO_RANK, /* threads that are no ranks */
	TESS_PROCESS_RANK, /* those of the rank that is this process */
	TESS_NOT_WAITING /* all, but those in functions that wait until a deadline */
};
/* Looks at these threads. Returns the longest call of a plugin in which one is; false: none. */
bool tess_plugin_watch(enum tess_plugin_threads which, int64_t timeout,
                       struct tess_plugin_stay *out);
/* Looks at the threads of a rank of `job`; NULL: of the rank that is this process. */
bool tess_plugin_watch_rank(const void *job, int32_t rank, int64_t timeout,
                            struct tess_plugin_stay *out);

/* What was reported of a rank. {0}: nothing. */
struct tess_plugin_report {
	uint64_t call; /* 0: none */
	bool overdue;
};

/*
 * Looks at a rank. True: its state has changed, and is to be reported: a call is slow or overdue,
 * or has returned (out->text is "").
 */
bool tess_plugin_report_due(struct tess_plugin_report *r, const void *job, int32_t rank,
                            int64_t timeout, struct tess_plugin_stay *out);

#endif
