#include "nn/program/agree.h"

#include "core/base/status.h"
#include "core/world/group.h"
#include "core/world/world.h"

#include <stdio.h>
#include <stdlib.h>

enum { SENTENCE = 1024 };

tess_status tess_group_agree_status(struct tess_group *g, tess_status st, const char *where)
{
	int32_t n = tess_group_size(g), first = 0, *all = calloc((size_t)n, sizeof *all);
	char sentence[SENTENCE];
	tess_status came;

	if (!all)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", where);
	snprintf(sentence, sizeof sentence, "%s", st ? tess_error() : "");
	came = tess_all_gather(g, &st, all, 1, TESS_I32, where);
	while (!came && first < n && !all[first])
		first++;
	st = came || first == n ? TESS_OK : all[first];
	free(all);
	if (st)
		came = tess_broadcast(g, sentence, SENTENCE, TESS_I8, first, where);
	if (came)
		return came;
	return st ? tess_group_fail_agreed(g, first, st, sentence) : TESS_OK;
}

tess_status tess_group_post_stage_failure(struct tess_group *g, const struct tess_program *p,
                                          tess_status st)
{
	char sentence[SENTENCE];

	if (!st || p->pipeline_along < 0)
		return st;
	snprintf(sentence, sizeof sentence, "%s", tess_error());
	return tess_world_post_failure(g->world, st, sentence);
}
