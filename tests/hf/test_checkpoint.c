/*
 * test_checkpoint.c - a checkpoint directory, of one file or of parts: accepted ones and refusals.
 */
#include "core/base/status.h"
#include "hf/checkpoint.h"
#include "tests/support/scratch.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { PARTS = 3 };

static void format_part_name(int i, size_t capacity, char *out)
{
	snprintf(out, capacity, "model-%05d-of-%05d.safetensors", i + 1, PARTS);
}

/* Writes the project's checkpoint in three parts; `change` edits the index before it is written. */
static void write_sharded_checkpoint(const char *folder, void (*change)(json_t *map))
{
	json_t *index =
		json_pack("{s:{s:i}, s:{}}", "metadata", "total_size", 1040128, "weight_map");
	json_t *map = json_object_get(index, "weight_map");
	struct tess_slice slices[PARTS][64];
	struct tess_safetensors *f = NULL;
	int32_t n[PARTS] = { 0 };
	char name[64], path[128];

	scratch_make_folder(folder);
	ck_assert_int_eq(tess_safetensors_open(format_data_path("model.safetensors"), false, &f),
	                 TESS_OK);
	for (size_t i = 0; i < tess_safetensors_count(f); i++) {
		const struct tess_slice *s = tess_safetensors_at(f, i);

		slices[i % PARTS][n[i % PARTS]++] = *s;
		format_part_name((int)(i % PARTS), sizeof name, name);
		json_object_set_new(map, s->name, json_string(name));
	}
	for (int i = 0; i < PARTS; i++) {
		format_part_name(i, sizeof name, name);
		snprintf(path, sizeof path, "%s/%s", folder, name);
		ck_assert_msg(!tess_safetensors_write(scratch_format_path(path), n[i], slices[i]),
		              "%s", tess_error());
	}
	tess_safetensors_close(f);
	if (change)
		change(map);
	snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
	ck_assert_int_eq(json_dump_file(index, scratch_format_path(path), 0), 0);
	json_decref(index);
	snprintf(path, sizeof path, "%s/config.json", folder);
	scratch_write_text(path, "{\"model_type\": \"llama\", \"eos_token_id\": 2}");
}

static struct tess_checkpoint *open_checkpoint(const char *dir)
{
	struct tess_checkpoint *c = NULL;

	ck_assert_msg(!tess_checkpoint_open(dir, TESS_CHECKPOINT_WHOLE, &c), "%s", tess_error());
	return c;
}

START_TEST(opens_the_project_checkpoint)
{
	struct tess_checkpoint *c;
	struct tess_source source;
	struct tess_view v;
	char dir[512];

	snprintf(dir, sizeof dir, "%s/", format_data_path(""));
	c = open_checkpoint(dir);
	ck_assert_str_eq(tess_checkpoint_config(c)->type, "llama");
	ck_assert(tess_checkpoint_generation(c)->neos == 2 &&
	          tess_checkpoint_generation(c)->eos[0] == 1);
	ck_assert_uint_eq(tess_checkpoint_count(c), 47);
	ck_assert_str_eq(tess_checkpoint_at(c, 0)->name, "model.embed_tokens.weight");
	ck_assert(tess_checkpoint_dir(c)[strlen(tess_checkpoint_dir(c)) - 1] != '/');
	source = tess_checkpoint_make_source(c);
	ck_assert_int_eq(json_integer_value(json_object_get(source.config, "vocab_size")), 512);
	ck_assert_int_eq(source.find(source.self, "model.layers.0.mlp.down_proj.weight", &v),
	                 TESS_OK);
	ck_assert(v.dtype == TESS_F32 && v.ndim == 2 && v.layout == TESS_ROWS && v.shape[0] == 64 &&
	          v.shape[1] == 172);
	ck_assert(v.stride[0] == 172 && v.stride[1] == 1);
	source.drop(source.self, v.data, 64 * 172 * sizeof(float));
	ck_assert(((float *)v.data)[0] != 0);
	ck_assert_int_eq(source.find(source.self, "model.layers.0.mlp.down.weight", &v),
	                 TESS_ENOENT);
	expect_part(tess_error(),
	            "tensor model.layers.0.mlp.down.weight is not among its 47; the nearest is "
	            "model.layers.0.mlp.down_proj.weight");
	ck_assert_int_eq(source.find(source.self, "wte", &v), TESS_ENOENT);
	ck_assert_int_eq(v.shape[1], 172);
	tess_checkpoint_close(c);
	tess_checkpoint_close(NULL);
}
END_TEST

START_TEST(parts_hold_the_same)
{
	struct tess_checkpoint *whole = open_checkpoint(format_data_path(".")), *parts;

	write_sharded_checkpoint("sharded", NULL);
	parts = open_checkpoint(scratch_format_path("sharded"));
	ck_assert(tess_checkpoint_generation(parts)->neos == 1 &&
	          tess_checkpoint_generation(parts)->eos[0] == 2);
	ck_assert_uint_eq(tess_checkpoint_count(parts), tess_checkpoint_count(whole));
	for (size_t i = 0; i < tess_checkpoint_count(whole); i++) {
		const struct tess_slice *a = tess_checkpoint_at(whole, i),
					*b = tess_checkpoint_at(parts, i);
		struct tess_view v;

		ck_assert_str_eq(a->name, b->name);
		ck_assert_uint_eq(a->bytes, b->bytes);
		ck_assert_mem_eq(a->data, b->data, a->bytes);
		ck_assert_int_eq(tess_checkpoint_find(parts, a->name, &v), TESS_OK);
		ck_assert_ptr_eq(v.data, b->data);
		tess_checkpoint_drop(parts, v.data, b->bytes);
		ck_assert_mem_eq(a->data, b->data, a->bytes);
	}
	tess_checkpoint_close(whole);
	tess_checkpoint_close(parts);
}
END_TEST

static void remove_tensor(json_t *map)
{
	json_object_del(map, "model.norm.weight");
}

static void misplace_tensor(json_t *map)
{
	char name[64];

	format_part_name(0, sizeof name, name);
	if (!strcmp(json_string_value(json_object_get(map, "model.norm.weight")), name))
		format_part_name(1, sizeof name, name);
	json_object_set_new(map, "model.norm.weight", json_string(name));
}

static void add_missing_tensor(json_t *map)
{
	json_object_set_new(map, "lm_head.weight", json_string("model-00001-of-00003.safetensors"));
}

static void name_missing_part(json_t *map)
{
	json_object_set_new(map, "model.norm.weight",
	                    json_string("model-00004-of-00003.safetensors"));
}

static void expect_checkpoint_refused(const char *dir, const char *where, const char *why)
{
	struct tess_checkpoint *c = NULL;

	ck_assert_msg(tess_checkpoint_open(dir, TESS_CHECKPOINT_WHOLE, &c) < 0 && !c,
	              "%s: \"%s\" was accepted", dir, why);
	expect_part(tess_error(), dir);
	expect_part(tess_error(), where);
	expect_part(tess_error(), why);
}

START_TEST(checks_the_weight_map)
{
	static const struct {
		const char *folder;
		void (*change)(json_t *map);
		const char *where, *why;
	} bad[] = {
		{ "misplaced", misplace_tensor, "index.json: weight_map: model.norm.weight",
		  "is not in model-0000" },
		{ "invented", add_missing_tensor, "index.json: weight_map: lm_head.weight",
		  "is not in model-00001" },
		{ "lost", name_missing_part, "model-00004-of-00003.safetensors",
		  "a part that is missing" },
	};
	struct tess_checkpoint *c;
	struct tess_view v;

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		write_sharded_checkpoint(bad[i].folder, bad[i].change);
		expect_checkpoint_refused(scratch_format_path(bad[i].folder), bad[i].where,
		                          bad[i].why);
	}
	/* A tensor missing in the index does not exist. */
	write_sharded_checkpoint("forgotten", remove_tensor);
	c = open_checkpoint(scratch_format_path("forgotten"));
	ck_assert_uint_eq(tess_checkpoint_count(c), 46);
	ck_assert_int_eq(tess_checkpoint_find(c, "model.norm.weight", &v), TESS_ENOENT);
	tess_checkpoint_close(c);
}
END_TEST

START_TEST(refuses_indices)
{
	static const struct {
		const char *text, *where, *why;
	} bad[] = {
		{ "", "index.json:1:", "not valid JSON" },
		{ "[]", "weight_map", "an object {tensor: file}" },
		{ "{}", "weight_map", "an object {tensor: file}" },
		{ "{\"weight_map\": {}}", "weight_map", "an object {tensor: file}" },
		{ "{\"weight_map\": [\"a\"]}", "weight_map", "an object {tensor: file}" },
		{ "{\"weight_map\": {\"a\": 1}}", "weight_map: a", "the name of a file" },
		{ "{\"weight_map\": {\"a\": \"../x\"}}", "weight_map: a: \"../x\"",
		  "not the plain name" },
		{ "{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "\"/etc/passwd\"",
		  "not the plain name" },
		{ "{\"weight_map\": {\"a\": \"b/c.safetensors\"}}", "\"b/c.safetensors\"",
		  "not the plain name" },
		{ "{\"weight_map\": {\"a\": \"..\"}}", "\"..\"", "not the plain name" },
		{ "{\"weight_map\": {\"a\": \".\"}}", "\".\"", "not the plain name" },
		{ "{\"weight_map\": {\"a\": \"\"}}", "\"\"", "not the plain name" },
		{ "{\"weight_map\": {\"a\": \"x\\u0000.safetensors\"}}",
		  "index.json:1:", "not valid JSON" },
		{ "{\"weight_map\": {\"\": \"x\"}}", "weight_map: ", "a name of 0 bytes" },
		{ "{\"weight_map\": {\"a\": \"x\", \"a\": \"y\"}}", "index.json:1:", "duplicate" },
		{ "{\"weight_map\": {\"a\": \"absent.safetensors\"}}", "absent.safetensors",
		  "a part that is missing" },
		{ "{\"weight_map\": {\"a\": \"config.json\"}}", "config.json: offset 0",
		  "a header of" },
	};

	scratch_make_folder("indexed");
	scratch_write_text("indexed/config.json", "{\"model_type\": \"llama\"}");
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		scratch_write_text("indexed/model.safetensors.index.json", bad[i].text);
		expect_checkpoint_refused(scratch_format_path("indexed"), bad[i].where, bad[i].why);
	}
}
END_TEST

START_TEST(refuses_directories)
{
	expect_checkpoint_refused(scratch_format_path("absent"), "", "No such file");
	ck_assert_ptr_null(strstr(tess_error(), "downloaded"));
	expect_checkpoint_refused("org/Some-Model-7B", "",
	                          "No such file or directory; nothing is downloaded");
	expect_checkpoint_refused(scratch_write_text("file", "{}"), "", "not a file");
	scratch_make_folder("empty");
	expect_checkpoint_refused(scratch_format_path("empty"),
	                          "no config.json is there; the directory of a checkpoint holds",
	                          "model.safetensors.index.json, and tokenizer.json");
	scratch_write_text("empty/config.json", "{\"model_type\": \"llama\"}");
	expect_checkpoint_refused(scratch_format_path("empty"), "neither model.safetensors nor",
	                          "model.safetensors.index.json is there");
	ck_assert(!symlink("nowhere", scratch_format_path("empty/model.safetensors")));
	expect_checkpoint_refused(scratch_format_path("empty"), "/empty/model.safetensors: a link",
	                          "points to no file (nowhere); fetch what it names");
	ck_assert(!unlink(scratch_format_path("empty/model.safetensors")));
	scratch_write_text("empty/some.Q4_K_M.gguf", "GGUF");
	expect_checkpoint_refused(scratch_format_path("empty"), "its weights are GGUF, a format",
	                          "not read; fetch the checkpoint as safetensors");
	scratch_write_text("empty/pytorch_model.bin", "pickle");
	expect_checkpoint_refused(scratch_format_path("empty"), "pytorch_model.bin",
	                          "never read; save them as safetensors");
	scratch_write_text("empty/model.safetensors", "\2\0\0\0\0\0\0");
	expect_checkpoint_refused(scratch_format_path("empty"), "model.safetensors",
	                          "length of its header");
	scratch_write_text("empty/generation_config.json", "{\"eos_token_id\": {}}");
	expect_checkpoint_refused(scratch_format_path("empty"),
	                          "generation_config.json: eos_token_id", "an id is");
}
END_TEST

/*
 * Checks files that are pointers of git-lfs, or dangling links, each with the file that is read
 * before it.
 */
START_TEST(names_stand_ins)
{
	static const char pointer[] =
		"version https://git-lfs.github.com/spec/v1\n"
		"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5"
		"e2ca24d17e2393\nsize 12345\n";
	static const char *const files[] = { "config.json", "generation_config.json",
		                             "model.safetensors.index.json", "part",
		                             "model.safetensors" };
	static const char *const texts[] = { "{\"model_type\": \"llama\"}", "{}",
		                             "{\"weight_map\": {\"a\": \"part\"}}" };
	enum { FILES = sizeof files / sizeof *files, TEXTS = sizeof texts / sizeof *texts };
	char folder[64], path[160];

	for (int i = 0; i < 2 * FILES; i++) {
		const char *name = files[i / 2];

		snprintf(folder, sizeof folder, "stand-in-%d", i);
		scratch_make_folder(folder);
		for (int k = 0; k < i / 2 && k < TEXTS; k++) {
			snprintf(path, sizeof path, "%s/%s", folder, files[k]);
			scratch_write_text(path, texts[k]);
		}
		if (!strcmp(name, "model.safetensors"))
			unlink(scratch_format_path(path)); /* the index */
		snprintf(path, sizeof path, "%s/%s", folder, name);
		if (i % 2)
			ck_assert(!symlink("../../blobs/0123", scratch_format_path(path)));
		else
			scratch_write_text(path, pointer);
		snprintf(path, sizeof path, "/%s: %s", name,
		         i % 2 ? "a link that points to no file (../../blobs/0123)"
		               : "is a pointer of git-lfs");
		expect_checkpoint_refused(scratch_format_path(folder), path,
		                          i % 2 ? "fetch what it names" : "`git lfs pull`");
	}
	ck_assert(!symlink("gone", scratch_format_path("dangling")));
	expect_checkpoint_refused(scratch_format_path("dangling"), "a link that points to no file",
	                          "(gone)");
}
END_TEST

START_TEST(names_adapters)
{
	scratch_make_folder("adapter");
	scratch_write_text("adapter/adapter_config.json",
	                   "{\"peft_type\": \"LORA\", \"base_model_name_or_path\": \"org/base\"}");
	scratch_write_text("adapter/adapter_model.safetensors", "");
	expect_checkpoint_refused(scratch_format_path("adapter"),
	                          "is an adapter (LORA) of the model org/base, not a model",
	                          "merge_and_unload()");
	scratch_write_text("adapter/adapter_config.json", "{}");
	scratch_write_text("adapter/config.json", "{\"model_type\": \"llama\"}");
	expect_checkpoint_refused(scratch_format_path("adapter"),
	                          "is an adapter of the model that it was trained on", "merge");
}
END_TEST

static void make_snapshot(const char *model, const char *revision)
{
	char path[256];

	snprintf(path, sizeof path, "%s", model);
	mkdir(scratch_format_path(path), 0700);
	snprintf(path, sizeof path, "%s/snapshots", model);
	mkdir(scratch_format_path(path), 0700);
	snprintf(path, sizeof path, "%s/snapshots/%s", model, revision);
	scratch_make_folder(path);
	snprintf(path, sizeof path, "%s/snapshots/%s/config.json", model, revision);
	scratch_write_text(path, "{\"model_type\": \"llama\"}");
}

/* Opens the root of a hub's cache, a model in it, and any other parent of a checkpoint. */
START_TEST(names_the_checkpoint_below)
{
	static const char cache[] = "is the cache of a hub; name the directory of the checkpoint, ";

	scratch_make_folder("home");
	scratch_make_folder("home/hub");
	scratch_make_folder("home/hub/models--org--empty");
	expect_checkpoint_refused(scratch_format_path("home"),
	                          "no config.json is there, nor in a "
	                          "snapshot of this cache",
	                          "the directory of a checkpoint holds");
	make_snapshot("home/hub/models--org--b", "0123abc");
	for (int i = 0; i < 3; i++) {
		static const char *const dirs[] = { "home", "home/hub", "home/hub/models--org--b" };

		expect_checkpoint_refused(scratch_format_path(dirs[i]), cache, "checkpoint, /");
		expect_part(tess_error(),
		            scratch_format_path("home/hub/models--org--b/snapshots/0123abc"));
	}
	make_snapshot("home/hub/models--org--b", "0000abc");
	expect_checkpoint_refused(scratch_format_path("home/hub/models--org--b"), cache,
	                          "for example ");
	expect_part(tess_error(), "/snapshots/0000abc");
	scratch_make_folder("home/hub/models--org--b/refs");
	scratch_write_text("home/hub/models--org--b/refs/main", "0123abc\n");
	expect_checkpoint_refused(scratch_format_path("home"), cache, "/snapshots/0123abc");
	expect_checkpoint_refused(scratch_format_path("home/hub/models--org--b/snapshots"),
	                          "no config.json is there; name the directory of the checkpoint, "
	                          "for example ",
	                          "/snapshots/0000abc");
}
END_TEST

/* Writes a checkpoint of these tensors, in one file, into a new folder, and opens it. */
static struct tess_checkpoint *open_new_checkpoint(const char *folder, int32_t n,
                                                   const struct tess_slice *slices)
{
	char path[64];

	scratch_make_folder(folder);
	snprintf(path, sizeof path, "%s/config.json", folder);
	scratch_write_text(path, "{\"model_type\": \"llama\"}");
	snprintf(path, sizeof path, "%s/model.safetensors", folder);
	ck_assert_int_eq(tess_safetensors_write(scratch_format_path(path), n, slices), TESS_OK);
	return open_checkpoint(scratch_format_path(folder));
}

/* Refuses weights with an unsupported dtype or number of dimensions. */
START_TEST(refuses_weights)
{
	static const int64_t shape[] = { 1, 1, 1, 1, 1, 1, 1, 1, 1 };
	const struct tess_slice slices[] = {
		{ .name = "i8", .dtype = TESS_I8, .ndim = 1, .shape = shape, .data = "a" },
		{ .name = "deep", .dtype = TESS_BF16, .ndim = 9, .shape = shape, .data = "ab" },
		{ .name = "flat", .dtype = TESS_F16, .ndim = 8, .shape = shape, .data = "ab" },
	};
	struct tess_checkpoint *c = open_new_checkpoint("odd", 3, slices);
	struct tess_view v = { .ndim = 99 };

	ck_assert_int_eq(tess_checkpoint_find(c, "i8", &v), TESS_ENOTSUP);
	expect_part(
		tess_error(),
		"tensor i8: its weights are I8, which is not computed with; use a checkpoint whose "
		"weights are F32, BF16 or F16, or dequantize this one");
	ck_assert_int_eq(tess_checkpoint_find(c, "deep", &v), TESS_ENOTSUP);
	expect_part(tess_error(), "tensor deep: 9 dimensions; at most 8");
	ck_assert_int_eq(v.ndim, 99);
	ck_assert_int_eq(tess_checkpoint_find(c, "flat", &v), TESS_OK);
	ck_assert_int_eq(v.dtype, TESS_F16);
	tess_checkpoint_close(c);
}
END_TEST

/* Opens a file without tensors; with UBSan this also checks that no search gets a null pointer. */
START_TEST(no_tensors)
{
	struct tess_checkpoint *c = open_new_checkpoint("none", 0, NULL);
	struct tess_view v;

	ck_assert_int_eq(tess_checkpoint_find(c, "a", &v), TESS_ENOENT);
	expect_part(tess_error(), "tensor a is not among its 0");
	tess_checkpoint_close(c);
}
END_TEST

/* Refuses an index that leaves out a tensor of a part. */
START_TEST(index_leaves_out)
{
	const struct tess_slice slices[] = {
		{ .name = "left", .dtype = TESS_F32, .data = "abcd" },
		{ .name = "listed", .dtype = TESS_F32, .data = "abcd" },
	};
	struct tess_checkpoint *c = open_new_checkpoint("leaves", 2, slices);
	struct tess_view v;

	tess_checkpoint_close(c);
	ck_assert(!rename(scratch_format_path("leaves/model.safetensors"),
	                  scratch_format_path("leaves/part.safetensors")));
	scratch_write_text("leaves/model.safetensors.index.json",
	                   "{\"weight_map\": {\"listed\": \"part.safetensors\"}}");
	c = open_checkpoint(scratch_format_path("leaves"));
	ck_assert_int_eq(tess_checkpoint_find(c, "listed", &v), TESS_OK);
	ck_assert_int_eq(tess_checkpoint_find(c, "left", &v), TESS_ENOENT);
	expect_part(tess_error(),
	            "leaves/model.safetensors.index.json does not list tensor left, which ");
	expect_part(tess_error(), "leaves/part.safetensors holds; list it there, or fetch");
	tess_checkpoint_close(c);
}
END_TEST

START_TEST(opens_headers)
{
	struct tess_checkpoint *c = NULL;
	struct tess_view v;
	float read[63];

	setenv("TESSERA_LOAD", "copy", 1);
	ck_assert_int_eq(tess_checkpoint_open(format_data_path("."), TESS_CHECKPOINT_HEADERS, &c),
	                 TESS_OK);
	ck_assert_int_eq(tess_checkpoint_find(c, "model.embed_tokens.weight", &v), TESS_OK);
	ck_assert(!v.data && v.shape[0] == 512 && v.shape[1] == 64 && v.dtype == TESS_F32);
	ck_assert_int_lt(tess_checkpoint_read(c, "model.embed_tokens.weight", 0, 4, read), 0);
	tess_checkpoint_close(c);
	c = open_checkpoint(format_data_path("."));
	ck_assert_int_eq(tess_checkpoint_find(c, "model.norm.weight", &v), TESS_OK);
	ck_assert(!v.data && v.shape[0] == 64);
	ck_assert_int_eq(tess_checkpoint_read(c, "model.norm.weight", 4, sizeof read, read), 0);
	tess_checkpoint_close(c);
	unsetenv("TESSERA_LOAD");
	c = open_checkpoint(format_data_path("."));
	ck_assert_int_eq(tess_checkpoint_find(c, "model.norm.weight", &v), TESS_OK);
	ck_assert(!memcmp((float *)v.data + 1, read, sizeof read));
	tess_checkpoint_close(c);
}
END_TEST

SCRATCH_MAIN("checkpoint", opens_the_project_checkpoint, parts_hold_the_same, checks_the_weight_map,
             refuses_indices, refuses_directories, names_stand_ins, names_adapters,
             names_the_checkpoint_below, refuses_weights, no_tensors, index_leaves_out,
             opens_headers)
