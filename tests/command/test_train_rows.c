/*
 * test_train_rows.c - tessera train and tessera grad on conversations: the same bits on every mesh
 * and after a resume, what is printed, and what is refused.
 */
#include "core/base/status.h"
#include "hf/safetensors.h"
#include "train_command.h"

#include <tessera/tessera.h>

enum { ROWS = 12 };

/* Writes conversations of several lengths; every fourth has no answer. */
static void write_chats(void)
{
	static const char *const names[] = { "Lily", "Tom", "the big dog" };
	char text[8192];
	size_t n = 0;

	for (int i = 0; i < ROWS; i++) {
		const char *name = names[i % 3];

		n += (size_t)snprintf(text + n, sizeof text - n,
		                      "{\"messages\": [{\"role\": \"user\", \"content\": \"Who is "
		                      "%s?\"}",
		                      name);
		for (int k = 0; k <= i % 4 && i % 4 != 3; k++)
			n += (size_t)snprintf(text + n, sizeof text - n,
			                      ", {\"role\": \"assistant\", \"content\": \"%s is %d "
			                      "years old.\"}, {\"role\": \"user\", \"content\": "
			                      "\"And now?\"}",
			                      name, i + k);
		n += (size_t)snprintf(text + n, sizeof text - n, "]}\n");
	}
	scratch_write_text("chats.jsonl", text);
}

#define CHATS "--data chats.jsonl --chat-template zephyr --sequence 48 "
#define STEPS CHATS "--batch 4 --lr 1e-3 --digest "

/* Runs tessera train, and copies the two digests to `out`. */
static void train_on_chats(const char *args, char out[256])
{
	char text[TEXT], *losses;

	ck_assert_msg(!run_train_command(text, format_data_path(""), "", args), "%s: %s", args,
	              text);
	losses = strstr(text, "losses  ");
	ck_assert_msg(losses != NULL, "%s", text);
	ck_assert_msg(strstr(text, "% of ") && strstr(text, " ids are masked\n"), "%s", text);
	snprintf(out, 256, "%.146s", losses);
}

static const char *const rows_of_runs[] = { "", "--separate ", "--loss all --separate " };

/* A run, and one that is saved and resumed on another mesh, have the same bits. */
START_TEST(same_bits_after_a_resume)
{
	static const char *const meshes[][2] = {
		{ "-n 2 --mesh dp", "-n 4 --mesh dp=2,tp=2 --micro-batches 2" },
		{ "-n 2 --backend shm", "-n 2 --mesh pp" },
	};
	const char *rows = rows_of_runs[_i / 2], *const *mesh = meshes[_i % 2];
	bool all = strstr(rows, "all") != NULL;
	char args[1024], want[256], have[256], text[TEXT];

	write_chats();
	command_run(text, TEXT, "rm -rf '%s/out'", scratch);
	snprintf(args, sizeof args, STEPS "%s --steps 5 --micro-batches %d", rows, 1 + !(_i % 2));
	if (all) { /* no row is masked or skipped, and nothing is printed of them */
		ck_assert(!run_train_command(text, format_data_path(""), "", args));
		ck_assert_msg(!strstr(text, "masked") && !strstr(text, "skipped"), "%s", text);
		return;
	}
	train_on_chats(args, want);
	snprintf(args, sizeof args, STEPS "%s --steps 2 --save out %s --micro-batches %d", rows,
	         mesh[0], 1 + !(_i % 2));
	train_on_chats(args, have);
	ck_assert_str_ne(have, want);
	snprintf(args, sizeof args, STEPS "%s --steps 5 --save out --resume out %s", rows, mesh[1]);
	train_on_chats(args, have);
	ck_assert_str_eq(have, want);
	/* other labels are other data */
	snprintf(args, sizeof args, STEPS "%s --loss all --steps 9 --save out --resume out", rows);
	ck_assert_int_eq(run_train_command(text, format_data_path(""), "", args), 1);
	expect_part(text, "was saved from other data");
}
END_TEST

/* The loss of an evaluation is the mean over the labels that count. */
START_TEST(evaluation_counts_labels)
{
	char text[TEXT], args[512];
	double want, have;
	const char *at;

	write_chats();
	snprintf(args, sizeof args,
	         CHATS "--separate --eval-data chats.jsonl --steps 1 --lr 0 --batch 5 --log log");
	ck_assert_msg(!run_train_command(text, format_data_path(""), "", args), "%s", text);
	ck_assert(!command_run(text, TEXT, "cat '%s/log'", scratch));
	at = strstr(text, "\"eval_loss\":");
	ck_assert_msg(at && sscanf(at, "\"eval_loss\":%lf", &have) == 1, "%s", text);
	ck_assert(!command_run(text, TEXT,
	                       "cd '%s' && '%s' grad '%s' " CHATS "--separate --batch 100 "
	                       "2>/dev/null",
	                       scratch, TESSERA, format_data_path("")));
	ck_assert_msg(sscanf(text, "loss %lf", &want) == 1, "%s", text);
	ck_assert_msg(have > want - 1e-5 && have < want + 1e-5, "%g, not %g", have, want);
}
END_TEST

/* Writes the sequences of the data, and their labels, as a file for --ids-file. */
static void write_data_batch(int64_t n)
{
	const struct tess_dataset_options options = { .size = sizeof options,
		                                      .sequence = 48,
		                                      .vocabulary = 512,
		                                      .tokenizer = format_data_path(""),
		                                      .chat_template = "zephyr" };
	const char *file = scratch_format_path("chats.jsonl");
	int64_t wide[2][8 * 48], shape[2] = { n, 48 }, length;
	const struct tess_slice slices[2] = {
		{ .name = "ids", .dtype = TESS_I64, .ndim = 2, .shape = shape, .data = wide[0] },
		{ .name = "labels", .dtype = TESS_I64, .ndim = 2, .shape = shape, .data = wide[1] },
	};
	struct tess_dataset *d = NULL;
	int32_t ids[48], labels[48];

	ck_assert_msg(!tess_dataset_open(&file, 1, &options, &d), "%s", tess_error());
	for (int64_t i = 0; i < n; i++) {
		ck_assert(!tess_dataset_read_labels(d, i, ids, labels, &length));
		ck_assert_int_eq(length, 48);
		for (int k = 0; k < 48; k++) {
			wide[0][48 * i + k] = ids[k];
			wide[1][48 * i + k] = labels[k];
		}
	}
	tess_dataset_close(d);
	ck_assert(!tess_safetensors_write(scratch_format_path("batch.safetensors"), 2, slices));
}

/* grad has the bits of the same ids and labels from a file, on every mesh. */
START_TEST(gradients_of_data)
{
	static const char *const ways[] = { CHATS "--batch 5 -n 2 --mesh dp",
		                            CHATS "--batch 5 --micro-batches 1 -n 3 --backend shm",
		                            "--ids-file batch.safetensors --mesh dp=2,tp=2" };
	char want[TEXT], text[TEXT];

	write_chats();
	write_data_batch(5);
	for (int i = -1; i < 3; i++) {
		ck_assert_msg(!command_run(i < 0 ? want : text, TEXT,
		                           "cd '%s' && '%s' grad '%s' %s 2>&1 | grep -v rows",
		                           scratch, TESSERA, format_data_path(""),
		                           i < 0 ? "--ids-file batch.safetensors" : ways[i]),
		              "%s", text);
		if (i >= 0)
			ck_assert_str_eq(text, want);
	}
	expect_part(want, "digest  ");
}
END_TEST

static const struct {
	const char *command, *args, *part;
	int status;
} refusals[] = {
	{ "grad", "", "give --ids-file FILE or --data FILE; see --help", 2 },
	{ "grad", "--ids-file a --data b", "give --ids-file FILE or --data FILE, not both", 2 },
	{ "grad", "--data mixed.jsonl",
	  "mixed.jsonl: line 2: a row with \"prompt\" and \"completion\", after rows with \"text\"",
	  1 },
	{ "train", "--data keys.jsonl", "keys.jsonl: line 1: an object with a \"text\", with", 1 },
	{ "train", "--data chats.jsonl", "chats.jsonl: line 1: ", 1 },
	{ "train", "--data role.jsonl --chat-template zephyr",
	  "role.jsonl: line 1: message 1: ", 1 },
	{ "train", "--data keys.jsonl --loss some", "some", 2 },
	{ "grad", CHATS "--micro-batches 20 --batch 30", "--micro-batches 20: the data has ", 1 },
};

START_TEST(refused)
{
	char text[TEXT];

	write_chats();
	scratch_write_text("mixed.jsonl", "{\"text\": \"Once\"}\n{\"prompt\": \"a\", "
	                                  "\"completion\": \"b\"}\n");
	scratch_write_text("keys.jsonl", "{\"texts\": \"Once\"}\n");
	scratch_write_text("role.jsonl", "[{\"role\": \"dog\", \"content\": \"Once\"}]\n");
	ck_assert_msg(command_run(text, TEXT, "cd '%s' && '%s' %s '%s' %s 2>&1", scratch, TESSERA,
	                          refusals[_i].command, format_data_path(""),
	                          refusals[_i].args) == refusals[_i].status,
	              "%s: %s", refusals[_i].args, text);
	expect_part(text, refusals[_i].part);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("train_rows", 120, &r);
	int failed;

	scratch_make();
	tcase_add_loop_test(t, same_bits_after_a_resume, 0, 5);
	tcase_add_test(t, evaluation_counts_labels);
	tcase_add_test(t, gradients_of_data);
	tcase_add_loop_test(t, refused, 0, sizeof refusals / sizeof *refusals);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}
