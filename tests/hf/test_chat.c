/*
 * test_chat.c - chat templates: texts of Transformers to the byte, recognition, refusals.
 * tests/data/chats/make.py makes the goldens.
 */
#include "core/base/status.h"
#include "hf/chat/source.h"
#include "tests/support/scratch.h"

#include <jansson.h>
#include <tessera/chat.h>

enum { NAMES_MAX = 256 };

static json_t *load_golden(const char *name)
{
	const char *folder = getenv("CHATS_DIR");
	json_error_t why;
	char path[2048];
	json_t *root;

	snprintf(path, sizeof path, "%s/%s.json", folder ? folder : "tests/data/chats", name);
	root = json_load_file(path, JSON_ALLOW_NUL, &why);
	ck_assert_msg(root != NULL, "%s: %s", path, why.text);
	return root;
}

/* Writes a folder with a tokenizer_config.json, and returns its path until the next call. */
static const char *write_chat_config(const char *folder, json_t *config)
{
	static char path[1280];
	char *text = json_dumps(config, 0), name[256];

	mkdir(scratch_format_path(folder), 0700);
	snprintf(name, sizeof name, "%s/tokenizer_config.json", folder);
	scratch_write_text(name, text);
	free(text);
	json_decref(config);
	snprintf(path, sizeof path, "%s", scratch_format_path(folder));
	return path;
}

static json_t *make_chat_message(const json_t *pair)
{
	const json_t *content = json_array_get(pair, 1), *part;
	json_t *list = json_is_array(content) ? json_array() : json_copy((json_t *)content);
	size_t i;

	if (json_is_array(content))
		json_array_foreach(content, i, part)
			json_array_append_new(
				list, json_pack("{s:s, s:O}", "type", "text", "text", part));
	return json_pack("{s:O, s:o}", "role", json_array_get(pair, 0), "content", list);
}

static char *make_row(const json_t *conversation)
{
	json_t *list = json_array();
	const json_t *pair;
	char *row;
	size_t i;

	json_array_foreach(json_object_get(conversation, "messages"), i, pair)
		json_array_append_new(list, make_chat_message(pair));
	row = json_dumps(list, 0);
	json_decref(list);
	return row;
}

/* ---- goldens --------------------------------------------------------------------------------- */

static void check_text(const char *where, const json_t *head, const json_t *tail,
                       const struct tess_chat_text *text)
{
	size_t n = json_string_length(head), m = json_string_length(tail);

	ck_assert_msg(text->ntext == n + m && !memcmp(text->text, json_string_value(head), n) &&
	                      !memcmp(text->text + n, json_string_value(tail), m),
	              "%s: expected:\n%s%s\nrendered:\n%s", where, json_string_value(head),
	              json_string_value(tail), text->text);
}

static void check_answers(const char *where, const json_t *ranges,
                          const struct tess_chat_text *text)
{
	const json_t *range;
	size_t i;

	ck_assert_msg(json_array_size(ranges) == (size_t)text->nanswers, "%s: %d answers", where,
	              (int)text->nanswers);
	json_array_foreach(ranges, i, range) {
		ck_assert_msg(json_integer_value(json_array_get(range, 0)) ==
		                              (json_int_t)text->answers[i].begin &&
		                      json_integer_value(json_array_get(range, 1)) ==
		                              (json_int_t)text->answers[i].end,
		              "%s: answer %d is [%d, %d)", where, (int)i,
		              (int)text->answers[i].begin, (int)text->answers[i].end);
	}
}

/* Compares one text; null: it is refused. */
static void check_golden(const struct tess_chat *c, const char *where, const char *row,
                         int32_t flags, const json_t *head, const json_t *golden)
{
	const struct tess_chat_options options = { .size = sizeof options,
		                                   .flags = flags,
		                                   .date = "2026-03-07" };
	const json_t *tail = json_is_array(golden) ? json_array_get(golden, 0) : golden;
	struct tess_chat_text text = { 0 };
	tess_status st = tess_chat_render_row(c, row, strlen(row), &options, &text);

	if (json_is_null(golden)) {
		ck_assert_msg(st == TESS_EINVAL, "%s: rendered, not refused:\n%s", where,
		              text.text);
		ck_assert_msg(strstr(tess_error(), "message ") != NULL, "%s: %s", where,
		              tess_error());
		return;
	}
	ck_assert_msg(!st, "%s: %s", where, tess_error());
	check_text(where, head, tail, &text);
	if (json_is_array(golden))
		check_answers(where, json_array_get(golden, 1), &text);
	tess_chat_text_free(&text);
}

static void check_form(const char *name, const json_t *conversations)
{
	static const char *const keys[] = { "text", "prompt", "training" };
	json_t *golden = load_golden(name), *conversation;
	const char *dir = write_chat_config(
		name, json_pack("{s:O, s:{s:O}}", "bos_token", json_object_get(golden, "bos"),
	                        "eos_token", "content", json_object_get(golden, "eos")));
	struct tess_chat *c = NULL;
	size_t i;

	ck_assert_msg(!tess_chat_open(dir, name, &c), "%s", tess_error());
	ck_assert_str_eq(tess_chat_get_name(c), name);
	json_array_foreach(conversations, i, conversation) {
		char *row = make_row(conversation), where[128];

		for (int k = 0; k < 3; k++) {
			const json_t *list = json_object_get(golden, keys[k]);
			const json_t *expected = json_array_get(list, i);

			if (!list || (k == 2 && json_is_null(expected)))
				continue; /* without an answer at its end it is not in the golden */
			snprintf(where, sizeof where, "%s, %s, %s", name, keys[k],
			         json_string_value(json_object_get(conversation, "name")));
			check_golden(c, where, row, k, json_object_get(golden, "head"), expected);
		}
		free(row);
	}
	tess_chat_close(c);
	json_decref(golden);
}

START_TEST(texts_are_those_of_transformers)
{
	const char *names[NAMES_MAX];
	int32_t n = tess_chat_list_names(names, NAMES_MAX);
	json_t *conversations = load_golden("conversations");

	ck_assert_int_gt(n, 40);
	for (int32_t i = 0; i < n; i++)
		check_form(names[i], conversations);
	json_decref(conversations);
}
END_TEST

/* Without a template of trl for training: each answer ends with the token that ends a turn. */
START_TEST(answers_end_with_their_token)
{
	static const char row[] = "[{\"role\": \"user\", \"content\": \"1 + 1\"},"
				  " {\"role\": \"assistant\", \"content\": \"2\"},"
				  " {\"role\": \"user\", \"content\": \"2 + 2\"},"
				  " {\"role\": \"assistant\", \"content\": \"4\"}]";
	const struct tess_chat_options options = { .size = sizeof options,
		                                   .flags = TESS_CHAT_TRAINING };
	const char *names[NAMES_MAX];
	int32_t n = tess_chat_list_names(names, NAMES_MAX);
	const char *dir = write_chat_config(
		"ends", json_pack("{s:s, s:s}", "bos_token", "<B>", "eos_token", "<E>"));

	for (int32_t i = 0; i < n; i++) {
		struct tess_chat_text text = { 0 };
		struct tess_chat *c = NULL;

		ck_assert_msg(!tess_chat_open(dir, names[i], &c), "%s", tess_error());
		ck_assert_msg(!tess_chat_render_row(c, row, strlen(row), &options, &text), "%s: %s",
		              names[i], tess_error());
		ck_assert_msg(text.nanswers == 2, "%s: %d answers", names[i], (int)text.nanswers);
		for (int k = 0; k < 2; k++) {
			char answer[256] = "";
			const struct tess_chat_range *r = &text.answers[k];

			ck_assert_uint_lt(r->end - r->begin, sizeof answer);
			memcpy(answer, text.text + r->begin, r->end - r->begin);
			expect_part(answer, k ? "4" : "2");
			if (strcmp(names[i], "glm4") != 0 && strcmp(names[i], "gpt-oss") != 0)
				expect_part(answer, tess_chat_get_end(c));
		}
		tess_chat_text_free(&text);
		tess_chat_close(c);
	}
}
END_TEST

/* ---- recognition ----------------------------------------------------------------------------- */

/* The template that Transformers had as its default. */
static const char chatml[] =
	"{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
	"message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"
	"{{ '<|im_start|>assistant\\n' }}{% endif %}";

static void expect_recognised(const char *dir, const char *name)
{
	struct tess_chat *c = NULL;

	ck_assert_msg(!tess_chat_open(dir, NULL, &c), "%s", tess_error());
	ck_assert_str_eq(tess_chat_get_name(c), name);
	ck_assert_str_eq(tess_chat_get_end(c), "<|im_end|>");
	tess_chat_close(c);
}

START_TEST(template_is_recognised)
{
	const char *dir = write_chat_config("text", json_pack("{s:s}", "chat_template", chatml));
	char text[512];

	expect_recognised(dir, "chatml");
	snprintf(text, sizeof text, "%s\r\n", chatml);
	write_chat_config("text", json_pack("{s:s}", "chat_template", text));
	expect_recognised(dir, "chatml");
	write_chat_config("text", json_pack("{s:[{s:s, s:s}, {s:s, s:s}]}", "chat_template", "name",
	                                    "tool_use", "template", "{{ 1 }}", "name", "default",
	                                    "template", chatml));
	expect_recognised(dir, "chatml");
	write_chat_config("text", json_pack("{s:s}", "chat_template", "{{ 1 }}"));
	scratch_write_text("text/chat_template.jinja", chatml);
	expect_recognised(dir, "chatml");
}
END_TEST

START_TEST(all_hashes_are_recognised)
{
	const char *names[NAMES_MAX];
	int32_t n = tess_chat_list_names(names, NAMES_MAX);

	for (int32_t i = 0; i < n; i++) {
		const struct tess_chat_form *form = tess_chat_find_form(names[i]);
		json_t *golden = load_golden(names[i]), *hash;
		size_t k;

		json_array_foreach(json_object_get(golden, "sha256"), k, hash)
			ck_assert_msg(form->sha256[k] &&
			                      !strcmp(form->sha256[k], json_string_value(hash)),
			              "%s: %s is not known", names[i], json_string_value(hash));
		ck_assert_ptr_null(form->sha256[k]);
		json_decref(golden);
	}
}
END_TEST

static void expect_not_opened(const char *dir, const char *name, tess_status why, const char *part)
{
	struct tess_chat *c = NULL;

	ck_assert_int_eq(tess_chat_open(dir, name, &c), why);
	ck_assert_ptr_null(c);
	expect_part(tess_error(), part);
}

START_TEST(other_templates_are_refused)
{
	const char *dir = write_chat_config("other", json_object());

	expect_not_opened(dir, NULL, TESS_ENOENT, "no chat template");
	expect_not_opened(dir, NULL, TESS_ENOENT, "chatml, qwen2, ");
	expect_not_opened(dir, "chat", TESS_EINVAL, "no chat template is named \"chat\"");
	expect_not_opened(dir, "chat", TESS_EINVAL, "zephyr");
	write_chat_config("other", json_pack("{s:s}", "chat_template", "{{ messages }}"));
	expect_not_opened(dir, NULL, TESS_ENOTSUP, "other/tokenizer_config.json: the chat");
	expect_not_opened(dir, NULL, TESS_ENOTSUP, "zephyr");
	write_chat_config("other", json_pack("{s:[{s:s}]}", "chat_template", "name", "rag"));
	expect_not_opened(dir, NULL, TESS_EINVAL, "the name \"default\"");
	write_chat_config("other", json_pack("{s:i}", "chat_template", 1));
	expect_not_opened(dir, NULL, TESS_EINVAL, "chat_template: a text");
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

static struct tess_chat *open_form(const char *name)
{
	const char *dir = write_chat_config(
		"form", json_pack("{s:s, s:s}", "bos_token", "<s>", "eos_token", "</s>"));
	struct tess_chat *c = NULL;

	ck_assert_msg(!tess_chat_open(dir, name, &c), "%s", tess_error());
	return c;
}

START_TEST(bad_rows_are_refused)
{
	static const char *const rows[][3] = {
		{ "gemma", "[{\"role\": \"system\", \"content\": \"a\"}]",
		  "message 1: the template"
		  " gemma has no role" },
		{ "gemma",
		  "[{\"role\": \"user\", \"content\": \"a\"},"
		  " {\"role\": \"user\", \"content\": \"b\"}]",
		  "message 2: role \"user\" follows itself" },
		{ "gemma", "[{\"role\": \"assistant\", \"content\": \"a\"}]",
		  "\"assistant\" begins" },
		{ "chatml", "[{\"role\": \"tool\", \"content\": \"a\"}]",
		  "message 1: no role \"tool\" is rendered" },
		{ "chatml", "[{\"role\": \"user\", \"content\": null}]", "must be text" },
		{ "chatml", "[{\"role\": \"user\", \"content\": 1}]", "must be text" },
		{ "chatml", "[{\"role\": \"user\"}]", "message 1: an object with \"role\"" },
		{ "chatml", "[\"a\"]", "message 1: an object with \"role\"" },
		{ "chatml", "[{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]",
		  "takes only text" },
		{ "gemma3", "[{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]",
		  "a part that is no text" },
		{ "gemma3", "[{\"role\": \"system\", \"content\": []}]", "one part" },
		{ "chatml", "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [1]}]",
		  "\"tool_calls\" is not rendered" },
		{ "chatml",
		  "{\"messages\": [{\"role\": \"user\", \"content\": \"\"}],"
		  " \"tools\": [{}]}",
		  "\"tools\" is not rendered" },
		{ "chatml", "{\"text\": \"a\"}", "list of messages" },
		{ "chatml", "{\"messages\": \"a\"}", "list of messages" },
		{ "chatml", "[]", "without messages" },
		{ "chatml", "1", "expected near '1'" },
		{ "chatml", "[{\"role\"", "" },
		{ "gpt-oss",
		  "[{\"role\": \"assistant\", \"content\": "
		  "\"<|channel|>final<|message|>a\"}]",
		  "message 1: the content has" },
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct tess_chat *c = open_form(rows[i][0]);
		struct tess_chat_text text = { 0 };
		tess_status st =
			tess_chat_render_row(c, rows[i][1], strlen(rows[i][1]), NULL, &text);

		ck_assert_msg(st == TESS_EINVAL, "%s: accepted: %s", rows[i][1], text.text);
		ck_assert_ptr_null(text.text);
		expect_part(tess_error(), rows[i][2]);
		tess_chat_close(c);
	}
}
END_TEST

/* ---- options --------------------------------------------------------------------------------- */

static void expect_text(const struct tess_chat *c, const char *row, const char *system,
                        const char *date, const char *expected)
{
	const struct tess_chat_options options = { .size = sizeof options,
		                                   .system = system,
		                                   .date = date };
	struct tess_chat_text text = { 0 };

	ck_assert_msg(!tess_chat_render_row(c, row, strlen(row), &options, &text), "%s",
	              tess_error());
	expect_part(text.text, expected);
	ck_assert_msg(!system || strstr(expected, system) || !strstr(text.text, system), "%s",
	              text.text);
	tess_chat_text_free(&text);
}

/* The template of Llama 4 strips a system message only if it is the first message. */
START_TEST(only_the_first_system_message_is_stripped)
{
	static const char row[] = "[{\"role\": \"system\", \"content\": \" a \"},"
				  " {\"role\": \"user\", \"content\": \" b \"},"
				  " {\"role\": \"system\", \"content\": \" c \"}]";
	struct tess_chat *c = open_form("llama4");

	expect_text(c, row, NULL, NULL,
	            "<|header_start|>system<|header_end|>\n\na<|eot|>"
	            "<|header_start|>user<|header_end|>\n\n b <|eot|>"
	            "<|header_start|>system<|header_end|>\n\n c <|eot|>");
	tess_chat_close(c);
}
END_TEST

START_TEST(options_apply)
{
	static const char bare[] = "[{\"role\": \"user\", \"content\": \"Hi\", \"name\": \"me\"}]";
	static const char own[] = "{\"id\": 1, \"messages\": [{\"role\": \"system\", \"content\": "
				  "\"Own.\"}, {\"role\": \"user\", \"content\": \"Hi\"}]}";
	struct tess_chat *c = open_form("chatml");
	struct tess_chat_text text = { 0 };
	struct tess_chat_options options = { .size = sizeof options, .system = "Added." };

	expect_text(c, bare, "Added.", NULL, "<|im_start|>system\nAdded.<|im_end|>\n<|im_start|>u");
	expect_text(c, own, "Added.", NULL, "<|im_start|>system\nOwn.<|im_end|>\n<|im_start|>user");
	tess_chat_close(c);

	c = open_form("gemma");
	ck_assert_int_eq(tess_chat_render_row(c, bare, strlen(bare), &options, &text), TESS_EINVAL);
	expect_part(tess_error(), "the added system message: the template gemma has no role");
	tess_chat_close(c);

	c = open_form("llama3.2");
	expect_text(c, bare, NULL, "2024-02-29", "Today Date: 29 Feb 2024\n");
	expect_text(c, bare, NULL, NULL, "Today Date: ");
	options = (struct tess_chat_options){ .size = sizeof options, .date = "2024-2-9" };
	ck_assert_int_eq(tess_chat_render_row(c, bare, strlen(bare), &options, &text), TESS_EINVAL);
	expect_part(tess_error(), "a date is as 2026-11-28");
	tess_chat_close(c);
}
END_TEST

SCRATCH_MAIN("chat", texts_are_those_of_transformers, answers_end_with_their_token,
             template_is_recognised, all_hashes_are_recognised, other_templates_are_refused,
             bad_rows_are_refused, only_the_first_system_message_is_stripped, options_apply)
