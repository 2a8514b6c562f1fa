/* data.c - options of data for training, and what the commands print about it. */
#include "tool.h"

#include <stdio.h>
#include <tessera/dataset.h>

enum { SEQUENCE = 1024 }; /* maximum ids of a sequence without --sequence */

#define AT(member) TESS_TOOL_AT(struct tess_tool_data, member)

static const char *get_id_name(int32_t bytes)
{
	return bytes == 2 ? "u16" : bytes == 4 ? "u32" : NULL;
}

static const char *get_loss_name(int32_t loss)
{
	return loss == TESS_LOSS_ALL ? "all" : "auto";
}

const struct tess_tool_option tess_tool_data_options[] = {
	{ "sequence", "N", "ids of a sequence (default: 1024, or the checkpoint's maximum length)",
	  AT(sequence), .lo = 2, .hi = 1 << 30 },
	{ "separate", NULL, "make each row, or text between blank lines, a sequence of its own",
	  AT(separate) },
	{ "loss", NULL, "ids on which loss counts: of completions and answers, or all", AT(loss),
	  .lo = TESS_LOSS_AUTO, .hi = TESS_LOSS_ALL, .get_name = get_loss_name },
	{ "chat-template", "NAME", "chat template of messages (default: the checkpoint's)",
	  AT(chat_template) },
	{ "token-dtype", NULL, "type of packed ids (default: by header, name and vocabulary)",
	  AT(id_bytes), .lo = 2, .hi = 4, .get_name = get_id_name },
	{ 0 },
};

int32_t tess_tool_choose_sequence(const struct tess_tool_data *a, int64_t positions)
{
	if (a->sequence)
		return a->sequence;
	return positions && positions < SEQUENCE ? (int32_t)positions : SEQUENCE;
}

/* Prints the number of skipped rows and the share of masked ids, if there are any. */
static void print_labels(const char *file, int32_t nfiles, const struct tess_dataset *d)
{
	struct tess_dataset_labels l = { .size = sizeof l };

	tess_dataset_count_labels(d, &l);
	if (!l.masked && !l.skipped)
		return;
	fprintf(stderr, "%s%s: %lld rows", file, nfiles > 1 ? " and others" : "",
	        (long long)l.rows);
	if (l.skipped)
		fprintf(stderr, ", %lld skipped: loss counts on none of their ids",
		        (long long)l.skipped);
	if (l.masked)
		fprintf(stderr, "; %.1f%% of %lld ids are masked",
		        100 - 100 * (double)l.counted / (double)(l.ids ? l.ids : 1),
		        (long long)l.ids);
	fprintf(stderr, "\n");
}

tess_status tess_tool_open_data(const struct tess_tool_data *a, const char *model,
                                int64_t vocabulary, const struct tess_tool_list *files,
                                struct tess_dataset **out)
{
	const struct tess_dataset_options options = { .size = sizeof options,
		                                      .id_bytes = a->id_bytes,
		                                      .separate = a->separate,
		                                      .sequence = a->sequence,
		                                      .vocabulary = vocabulary,
		                                      .tokenizer = model,
		                                      .chat_template = a->chat_template,
		                                      .loss = a->loss };
	tess_status st = tess_dataset_open(files->text, files->n, &options, out);

	if (!st && !a->quiet)
		print_labels(files->text[0], files->n, *out);
	return st;
}
