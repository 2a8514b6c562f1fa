/* test_chat_command.c - `tessera generate --messages`: what it computes, stops at and refuses. */
#include "tests/support/command.h"
#include "tests/support/scratch.h"

#include <jansson.h>
#include <stdio.h>

/* Runs a shell command in the source folder, with the tool as $T and the scratch as $D. */
static int run_tool(char *out, size_t capacity, const char *command)
{
	return command_run(out, capacity, "cd '%s' && T='%s' D='%s'; { %s; } 2>&1", SOURCE_ROOT,
	                   TESSERA, scratch, command);
}

/* Returns the parsed lines that a command prints, sorted by their index. */
static json_t *run_for_lines(const char *command)
{
	char out[16384];
	int status = run_tool(out, sizeof out, command);
	json_t *list = json_array();

	ck_assert_msg(!status, "%s: %s", command, out);
	for (char *line = out, *end; (end = strchr(line, '\n')); line = end + 1) {
		json_t *o = json_loadb(line, (size_t)(end - line), 0, NULL);
		size_t index = (size_t)json_integer_value(json_object_get(o, "index"));

		ck_assert_msg(o != NULL, "%s: %s", command, out);
		while (json_array_size(list) <= index)
			json_array_append_new(list, json_null());
		json_array_set_new(list, index, o);
	}
	return list;
}

static const json_t *get_line_value(const json_t *lines, size_t i, const char *key)
{
	const json_t *v = json_object_get(json_array_get(lines, i), key);

	ck_assert_msg(v != NULL, "line %zu has no %s", i, key);
	return v;
}

static const char rows_of_chats[] =
	"[{\"role\": \"user\", \"content\": \"Who?\"}]\n"
	"\n"
	"{\"messages\": [{\"role\": \"system\", \"content\": \"A\"}, {\"role\": \"user\", "
	"\"content\": \"B\"}], \"max_tokens\": 2, \"source\": 7}\n";

/* Makes a checkpoint with ChatML, once the default template of Transformers. */
static void make_chat_checkpoint(void)
{
	char out[1024];

	scratch_write_text("chats", rows_of_chats);
	ck_assert_int_eq(run_tool(out, sizeof out,
	                          "cp -r data $D/M && rm $D/M/golden.json && "
	                          "printf '%s' \"{% for message in messages %}{{'<|im_start|>' + "
	                          "message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
	                          "'\\n'}}{% endfor %}{% if add_generation_prompt %}"
	                          "{{ '<|im_start|>assistant\\n' }}{% endif %}\" "
	                          ">$D/M/chat_template.jinja"),
	                 0);
}

/* ---- texts ----------------------------------------------------------------------------------- */

/* The ids are those of the rendered text without the token that begins other texts. */
START_TEST(ids_are_those_of_the_text)
{
	json_t *chats =
		       run_for_lines("$T generate $D/M --messages - --temperature 0 --max-tokens 3 "
	                             "--system C <$D/chats"),
	       *texts = run_for_lines("printf '%s\\n' '{\"prompt\": \"<|im_start|>system\\nC"
	                              "<|im_end|>\\n<|im_start|>user\\nWho?<|im_end|>\\n"
	                              "<|im_start|>assistant\\n\"}' '' '{\"prompt\": "
	                              "\"<|im_start|>system\\nA<|im_end|>\\n<|im_start|>user\\nB"
	                              "<|im_end|>\\n<|im_start|>assistant\\n\"}' | "
	                              "$T generate $D/M --prompts - --max-tokens 0");

	for (size_t i = 0; i < 3; i += 2) {
		json_t *ids = json_copy((json_t *)get_line_value(texts, i, "prompt_ids"));

		ck_assert_int_eq(json_integer_value(json_array_get(ids, 0)), 1);
		json_array_remove(ids, 0);
		ck_assert(json_equal(get_line_value(chats, i, "prompt_ids"), ids));
		ck_assert_uint_eq(json_array_size(get_line_value(chats, i, "ids")), i ? 2 : 3);
		json_decref(ids);
	}
	json_decref(chats);
	json_decref(texts);
}
END_TEST

static const char *const ways_to_answer[] = { "-n 2 --backend loopback", "-n 2 --backend shm",
	                                      "-n 2 --backend shm --mesh dp=2", "-n 1 --batch 1" };

#define ANSWER(ranks) \
	"$T generate $D/M " ranks " --messages $D/chats --temperature 0.7 --seed 3 --max-tokens 9"

START_TEST(ranks_answer_alike)
{
	char command[1024];
	json_t *one = run_for_lines(ANSWER("-n 1")), *other;

	snprintf(command, sizeof command, ANSWER("%s"), ways_to_answer[_i]);
	other = run_for_lines(command);
	for (size_t i = 0; i < 3; i += 2) {
		ck_assert(
			json_equal(get_line_value(one, i, "ids"), get_line_value(other, i, "ids")));
		ck_assert(json_equal(get_line_value(one, i, "digest"),
		                     get_line_value(other, i, "digest")));
	}
	json_decref(one);
	json_decref(other);
}
END_TEST

/* ---- the end of a turn ----------------------------------------------------------------------- */

/* With llama2 a turn ends at eos_token of the tokenizer, here a full stop. */
#define ENDS_AT_STOP \
	"cp -r $D/M $D/E%d && sed -i 's,\"</s>\",\".\",' $D/E%d/tokenizer_config.json && " \
	"printf '[{\"role\": \"user\", \"content\": \"Once\"}]' | $T generate $D/E%d " \
	"--chat-template llama2 --messages - --temperature 0 --max-tokens 40 %s"

static json_t *answer_until_stop(int i, const char *option)
{
	char command[1024];

	snprintf(command, sizeof command, ENDS_AT_STOP, i, i, i, option);
	return run_for_lines(command);
}

START_TEST(answer_ends_with_its_turn)
{
	json_t *ended = answer_until_stop(1, ""), *all = answer_until_stop(2, "--ignore-eos");
	const json_t *ids = get_line_value(ended, 0, "ids");
	size_t n = json_array_size(ids);
	int64_t stop = json_integer_value(json_array_get(ids, n - 1));

	ck_assert_str_eq(json_string_value(get_line_value(ended, 0, "finish_reason")), "eos");
	ck_assert_str_eq(json_string_value(get_line_value(all, 0, "finish_reason")), "length");
	ck_assert_uint_lt(n, 40);
	for (size_t i = 0; i < n; i++) {
		const json_t *id = json_array_get(ids, i);

		ck_assert(json_equal(id, json_array_get(get_line_value(all, 0, "ids"), i)));
		ck_assert_msg((json_integer_value(id) == stop) == (i == n - 1), "id %zu", i);
	}
	json_decref(ended);
	json_decref(all);
}
END_TEST

START_TEST(info_names_the_template)
{
	char out[4096];

	ck_assert_int_eq(run_tool(out, sizeof out, "$T info data"), 0);
	ck_assert_msg(!strstr(out, "  chat  "), "%s", out);
	ck_assert_int_eq(run_tool(out, sizeof out, "$T info $D/M"), 0);
	expect_part(out, "  chat        chatml\n");
	ck_assert_int_eq(run_tool(out, sizeof out,
	                          "cp -r $D/M $D/I && echo '{{ 1 }}' >$D/I/chat_template.jinja && "
	                          "$T info --json $D/I"),
	                 0);
	expect_part(out, "\"chat_template\": \"unknown\"");
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

static const struct {
	const char *command;
	int status;
	const char *part;
} refusals[] = {
	{ "printf '[]' | $T generate data --messages -", 1,
	  "generate: --messages without --chat-template NAME: data: the checkpoint has no chat" },
	{ "printf '[]' | $T generate data --messages -", 1, "by its name: chatml, qwen2, " },
	{ "printf '[]' | $T generate data --messages - --chat-template chat", 1,
	  "--chat-template: no chat template is named \"chat\"; use one of chatml, " },
	{ "cp -r $D/M $D/U && echo '{{ 1 }}' >$D/U/chat_template.jinja && "
	  "printf '[]' | $T generate $D/U --messages -",
	  1, "/U/chat_template.jinja: the chat template (SHA-256 " },
	{ "$T generate data --system a", 2, "--system: applies to conversations; give --messages" },
	{ "$T generate data --chat-template a", 2, "--chat-template: applies to conversations" },
	{ "$T generate data --messages /nonexistent", 2, "--messages /nonexistent: No such file" },
	{ "$T generate data --prompt a --messages /dev/null", 2, "--messages: contains all" },
	{ "$T generate data --messages /dev/null --ids 1", 2, "--messages: contains all prompts" },
	{ "$T generate data --messages /dev/null --logits x", 2, "--ids, not --messages" },
	{ "printf '\\n{\"a\": 1}' | $T generate $D/M --messages -", 1,
	  "--messages: line 2: a row is a list of messages, or an object with such a list" },
	{ "printf '[{\"role\": \"user\", \"content\": \"a\"}' >$D/f; "
	  "$T generate $D/M --messages $D/f",
	  1, "/f: line 1: " },
	{ "printf '[{\"role\": \"system\", \"content\": \"a\"}]' | "
	  "$T generate data --chat-template gemma --messages -",
	  1, "line 1: message 1: the template gemma has no role \"system\"" },
	{ "printf '{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"top_p\": 2}' | "
	  "$T generate $D/M --messages -",
	  1, "line 1: \"top_p\" must be a number from 0 to 1" },
};
enum { REFUSALS = sizeof refusals / sizeof *refusals };

START_TEST(bad_chats_are_refused)
{
	char out[8192];
	int status = run_tool(out, sizeof out, refusals[_i].command);

	ck_assert_msg(status == refusals[_i].status, "status %d: %s", status, out);
	expect_part(out, refusals[_i].part);
	ck_assert_msg(!strstr(out, "launch: "), "%s", out);
}
END_TEST

static const char *const ways_with_bad_lines[] = { "", "-n 2 --backend shm",
	                                           "-n 2 --backend shm --mesh dp=2" };

/* One bad line fails alone, with its number in the message and in the object. */
START_TEST(bad_lines_fail_alone)
{
	char command[1024], out[16384];

	snprintf(command, sizeof command,
	         "printf '%%s\\n' '[{\"role\": \"tool\", \"content\": \"a\"}]' '[{\"role\": "
	         "\"user\", \"content\": \"a\"}]' 'oops' | $T generate $D/M %s --messages - "
	         "--max-tokens 1; echo status $?",
	         ways_with_bad_lines[_i]);
	ck_assert_int_eq(run_tool(out, sizeof out, command), 0);
	expect_part(out, "--messages: line 1: message 1: no role \"tool\" is rendered");
	expect_part(out, "--messages: line 3: '[' or '{' expected near 'oops'");
	expect_part(out, "{\"index\":0,\"error\":\"message 1: no role");
	expect_part(out, "{\"index\":2,\"error\":\"'[' or '{' expected");
	expect_part(out, "\"finish_reason\":\"length\"");
	expect_part(out, "status 1\n");
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *c = suite_begin("chat_command", 120, &r);
	int failed;

	scratch_make();
	make_chat_checkpoint();
	tcase_add_test(c, ids_are_those_of_the_text);
	tcase_add_loop_test(c, ranks_answer_alike, 0, 4);
	tcase_add_test(c, answer_ends_with_its_turn);
	tcase_add_test(c, info_names_the_template);
	tcase_add_loop_test(c, bad_chats_are_refused, 0, REFUSALS);
	tcase_add_loop_test(c, bad_lines_fail_alone, 0, 3);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}
