#include "nn/record/task.h"

#include "core/base/status.h"

#include <fnmatch.h>

static const char *const architectures[] = { "*Classification", "*QuestionAnswering",
	                                     "*MultipleChoice", "*RewardModel", NULL };
static const char *const heads[] = { "score.*", "classifier.*", "qa_outputs.*", NULL };

static const char *match_any(const char *const *patterns, const char *name)
{
	for (; name && *patterns; patterns++)
		if (!fnmatch(*patterns, name, 0))
			return name;
	return NULL;
}

const char *tess_source_find_classifier(const struct tess_source *source)
{
	const json_t *list = json_object_get(source->config, "architectures");
	const char *found = match_any(architectures, json_string_value(json_array_get(list, 0)));

	for (size_t i = 0; i < source->count && !found; i++)
		found = match_any(heads, source->at(source->self, i));
	return found;
}

tess_status tess_source_fail_classifier(const struct tess_source *source, const char *shows)
{
	return tess_fail(
		TESS_ENOTSUP,
		"%s: is a classifier (%.200s), not a language model: it gives no logits of "
		"tokens; name a checkpoint with such a head (...ForCausalLM)",
		source->name, shows);
}
