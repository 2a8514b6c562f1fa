/*
 * test_train_saves.c - integrity of saves: damage of weights, of the optimizer and of training.json
 * is found on any mesh, and named.
 */
#include "hf/safetensors.h"
#include "api/save.h"
#include "train_command.h"

#include <math.h>

/* Returns the offset of a tensor's data in a file of the scratch directory. */
static long locate_tensor(const char *file, const char *tensor, uint64_t *bytes)
{
	struct tess_safetensors *f;
	const struct tess_slice *s;
	uint64_t header;
	FILE *in = fopen(scratch_format_path(file), "rb");
	long begin;

	ck_assert(in && fread(&header, sizeof header, 1, in) == 1 && !fclose(in));
	ck_assert(!tess_safetensors_open(scratch_format_path(file), true, &f));
	s = tess_safetensors_find(f, tensor);
	ck_assert_msg(s != NULL, "%s", tensor);
	begin = (long)(8 + header + s->begin);
	*bytes = s->bytes;
	tess_safetensors_close(f);
	return begin;
}

/* Flips the lowest bit of byte `at` of a file; -1 and -2: its last ones. */
static void flip_bit(const char *file, long at)
{
	FILE *f = fopen(scratch_format_path(file), "r+b");
	int c;

	ck_assert(f && !fseek(f, at, at < 0 ? SEEK_END : SEEK_SET));
	at = ftell(f);
	c = fgetc(f);
	ck_assert(!fseek(f, at, SEEK_SET) && fputc(c ^ 1, f) != EOF && !fclose(f));
}

static int run_info_command(char text[TEXT], const char *args)
{
	return command_run(text, TEXT, "cd '%s'; '%s' info %s 2>&1", scratch, TESSERA, args);
}

/* ---- checksums ------------------------------------------------------------------------------- */

#define RESUME STEPPED " --steps 3 --resume sums "
static const struct {
	const char *before, *args;
} meshes[] = {
	{ "", "--threads 1" },
	{ "", "-n 4 --backend loopback --mesh dp=2,tp=2 --plan-override 'dp:**=zero3'" },
	{ "", "-n 3 --backend shm --plan tp+sp" },
	{ "", "-n 4 --backend loopback --mesh pp=2,dp=2 --plan-override 'dp:**=zero1'" },
	{ "TESSERA_DEVICE=discrete_exact", "-n 2 --backend loopback --mesh dp=2" },
};
enum { MESHES = sizeof meshes / sizeof *meshes };

/* Flips one bit of a tensor, on every mesh. */
START_TEST(damage_is_named)
{
	static const struct {
		const char *file, *tensor;
		int part; /* part of 2 */
	} damages[] = {
		{ "model.safetensors", "model.embed_tokens.weight", 0 },
		{ "model.safetensors", "model.norm.weight", 2 },
		{ "optimizer.safetensors", "m.model.layers.1.self_attn.k_proj.weight", 1 },
		{ "optimizer.safetensors", "v.model.layers.0.mlp.down_proj.weight", 1 },
	};
	char text[TEXT], file[64], says[256], args[512];
	uint64_t bytes;
	long at;

	train_to_step("--save sums -n 4 --backend loopback --mesh dp=2,tp=2 --plan-override "
	              "'dp:**=zero3'",
	              2);
	for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
		snprintf(file, sizeof file, "sums/step-2/%s", damages[i].file);
		snprintf(says, sizeof says, "%s: tensor %s is damaged: its checksum is ", file,
		         damages[i].tensor);
		at = locate_tensor(file, damages[i].tensor, &bytes);
		at += (long)((bytes - 4) / 8 * 4) * damages[i].part;
		flip_bit(file, at);
		for (int k = (int)i % (THIN > 1 ? 2 : 1); k<MESHES; k += THIN> 1 ? 2 : 1) {
			snprintf(args, sizeof args, RESUME "%s", meshes[k].args);
			ck_assert_msg(train_model(text, format_data_path(""), meshes[k].before,
			                          args) == 1,
			              "%s: %s", args, text);
			expect_part(text, says);
			expect_part(text, "; resume from an earlier save");
		}
		ck_assert_int_eq(run_info_command(text, "sums"), 1);
		ck_assert_int_eq(count_occurrences(text, says), 1);
		ck_assert_int_eq(count_occurrences(text, "tessera info: "), 1);
		expect_part(text, "140 of 141 tensors match\n");
		flip_bit(file, at);
	}
	ck_assert_int_eq(run_info_command(text, "sums"), 0);
	expect_part(text, "141 of 141 tensors match\n");
	for (int k = 0; k < MESHES; k++) {
		snprintf(args, sizeof args, RESUME "%s", meshes[k].args);
		ck_assert_msg(!train_model(text, format_data_path(""), meshes[k].before, args),
		              "%s: %s", args, text);
	}
}
END_TEST

/* Lets a rank read another copy of the file than rank 0. */
START_TEST(every_copy_is_compared)
{
	static const char *const dimensions[] = { "dp=2", "tp=2" };
	char text[TEXT];
	uint64_t bytes;

	scratch_make_folder("r0");
	train_to_step("--save r0/saves", 1);
	for (int i = 1; i < 3; i++) {
		command_run(text, TEXT, "cd '%s' && rm -rf r1 && cp -r r0 r1", scratch);
		if (i == 2)
			flip_bit("r1/saves/step-1/model.safetensors",
			         locate_tensor("r1/saves/step-1/model.safetensors",
			                       "model.norm.weight", &bytes));
		for (int k = 0; k < 2; k++) {
			int status = command_run(
				text, TEXT,
				"cd '%s' && '%s' launch -n 2 -- sh -c 'cd r$RANK && exec "
				"\"$@\"' sh '%s' train '%s' --data '" STORIES "' " STEPPED
				" --steps 2 --resume saves --mesh %s 2>&1",
				scratch, TESSERA, TESSERA, format_data_path(""), dimensions[k]);

			ck_assert_msg(status == (i == 2), "%s", text);
			if (status)
				expect_part(text, "saves/step-1/model.safetensors: tensor "
				                  "model.norm.weight is damaged");
		}
	}
}
END_TEST

/* ---- training.json --------------------------------------------------------------------------- */

#define STATE "state/step-2/training.json"

static void write_state(json_t *root)
{
	char path[PATH_MAX];

	snprintf(path, sizeof path, "%s", scratch_format_path("state/step-2"));
	ck_assert(!unlink(scratch_format_path(STATE)));
	json_object_del(root, "checksum");
	ck_assert(!tess_save_write_state(path, root));
	json_decref(root);
}

static json_t *load_state(void)
{
	json_t *root = json_load_file(scratch_format_path(STATE), 0, NULL);

	ck_assert_ptr_nonnull(root);
	return root;
}

/* Checks keys that are missing, of another type, or out of range, with a matching checksum. */
START_TEST(keys_are_checked)
{
	static const struct {
		const char *object, *key, *value, *says; /* value NULL: missing */
	} cases[] = {
		{ "", "step", NULL, "training.json: step: is missing; a whole number is needed" },
		{ "", "step", "null", "step: a whole number is needed, not null" },
		{ "", "step", "\"2\"", "step: a whole number is needed, not text" },
		{ "", "step", "2.5", "step: a whole number is needed, not 2.5" },
		{ "", "step", "-1", "step: a whole number from 0 to 1000000000000 is needed" },
		{ "", "step", "4611686018427387904", "is needed, not 4611686018427387904" },
		{ "", "step", "3", "state/step-2: holds the save of step 3: name it step-3" },
		{ "", "config", "7", "config: text is needed, not 7" },
		{ "", "optimizer", NULL, "optimizer: is missing" },
		{ "", "program", "[]", "program: an object is needed, not a list" },
		{ "", "checksums", NULL, "checksums: is missing; an object is needed" },
		{ "checksums", "model.safetensors", NULL, "has no checksum of model.safetensors" },
		{ "program", "position", NULL, "program: position: is missing" },
		{ "program", "position", "\"8\"", "program: position: a whole number from 2" },
		{ "program", "position", "-1", "position: a whole number from 2 to 2097152" },
		{ "program", "position", "9007199254740993", "position: a whole number from 2" },
		{ "program", "sequences", "0", "sequences: a whole number from 1" },
		{ "program", "data", "{}", "program: data: text is needed" },
		{ "program", "losses", "\"00\"", "was not saved by tessera train" },
		{ "program", "options", NULL, "program: options: is missing" },
		{ "options", "lr", "\"fast\"", "program: lr: a number with a decimal" },
		{ "options", "batch", NULL, "batch: is missing" },
	};
	char text[TEXT];

	train_to_step("--save state --save-every 1", 2);
	command_run(text, TEXT, "cd '%s' && cp " STATE " good", scratch);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		json_t *root = load_state(), *o = root;

		if (*cases[i].object && strcmp(cases[i].object, "options") != 0)
			o = json_object_get(root, cases[i].object);
		else if (*cases[i].object)
			o = json_object_get(json_object_get(root, "program"), "options");
		ck_assert(cases[i].value ? !json_object_set_new(o, cases[i].key,
		                                                json_loads(cases[i].value,
		                                                           JSON_DECODE_ANY, NULL))
		                         : !json_object_del(o, cases[i].key));
		write_state(root);
		ck_assert_msg(train_model(text, format_data_path(""), "",
		                          STEPPED " --steps 3 --resume state --save state") == 1,
		              "%s: %s", cases[i].key, text);
		expect_part(text, cases[i].says);
		command_run(text, TEXT, "cd '%s' && cp good " STATE, scratch);
	}
	/* damage that only the checksum finds, and a save without one */
	command_run(text, TEXT,
	            "cd '%s' && sed -i 's/\"position\": 4/\"position\": 6/; "
	            "s/\"position\": 8/\"position\": 6/' " STATE,
	            scratch);
	expect_failed(STEPPED " --steps 3 --resume state", 1, STATE ": is damaged: its checksum");
	command_run(text, TEXT,
	            "cd '%s' && sed '/checksum/d; s/\"[0-9a-f]*\",*$//' good >" STATE
	            "; echo '{\"format\": 1, \"step\": 2}' >" STATE,
	            scratch);
	expect_failed(STEPPED " --steps 3 --resume state", 1,
	              STATE ": has no checksums: resume it");
	/* other names of the directory */
	command_run(text, TEXT, "cd '%s' && cp good " STATE " && mv state/step-2 state/step-77",
	            scratch);
	expect_failed(STEPPED " --steps 3 --resume state --save state", 1,
	              "state/step-77: holds the save of step 2: name it step-2");
	command_run(text, TEXT, "cd '%s' && mv state/step-77 state/step-002", scratch);
	expect_failed(STEPPED " --steps 3 --resume state/step-002", 1, "holds the save of step 2");
	command_run(text, TEXT, "cd '%s' && mv state/step-002 best", scratch);
	train_to_step("--resume best", 3);
}
END_TEST

/* Replaces the state by a FIFO without a writer, which would block another run for ever. */
START_TEST(a_pipe_is_no_state)
{
	char text[TEXT];

	train_to_step("--save pipe", 1);
	command_run(text, TEXT, "cd '%s/pipe/step-1' && rm training.json && mkfifo training.json",
	            scratch);
	expect_failed(STEPPED " --steps 2 --resume pipe --save pipe", 1,
	              "pipe/step-1/training.json: not a regular file");
	ck_assert_int_eq(run_info_command(text, "pipe"), 1);
	expect_part(text, "training.json: not a regular file");
}
END_TEST

/* ---- moments --------------------------------------------------------------------------------- */

START_TEST(moments_are_checked)
{
	static const struct {
		const char *tensor;
		float value;
		bool impossible;
	} cases[] = { { "v.model.norm.weight", NAN, true },
		      { "v.model.norm.weight", -1, true },
		      { "v.model.layers.0.mlp.up_proj.weight", INFINITY, true },
		      { "m.model.norm.weight", NAN, true },
		      { "m.model.layers.0.mlp.up_proj.weight", -INFINITY, true },
		      { "m.model.layers.0.mlp.up_proj.weight", -1, false } };
	char text[TEXT], says[128];
	uint64_t bytes;

	train_to_step("--save moments", 1);
	command_run(text, TEXT, "cd '%s' && cp moments/step-1/optimizer.safetensors optimizer",
	            scratch);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const char *file = "moments/step-1/optimizer.safetensors";
		long at = locate_tensor(file, cases[i].tensor, &bytes);
		FILE *f = fopen(scratch_format_path(file), "r+b");

		ck_assert(f && !fseek(f, at + 8, SEEK_SET) &&
		          fwrite(&cases[i].value, 4, 1, f) == 1 && !fclose(f));
		snprintf(says, sizeof says, "%s: tensor %s%s", file, cases[i].tensor,
		         cases[i].impossible ? ": a moment is not finite, or is a negative square"
		                             : " is damaged");
		expect_failed(STEPPED " --steps 2 --resume moments -n 2 --backend loopback", 1,
		              says);
		command_run(text, TEXT, "cd '%s' && cp optimizer %s", scratch, file);
	}
}
END_TEST

/* Checks that a save that cannot be resumed does not replace resumable ones. */
START_TEST(impossible_moments_warn)
{
	const float large = 1e22f;
	char text[TEXT], model[PATH_MAX];
	uint64_t bytes;
	long at;
	FILE *f;

	train_to_step("--save huge", 1);
	command_run(text, TEXT, "cd '%s' && cp -r huge/step-1 large", scratch);
	at = locate_tensor("large/model.safetensors", "model.norm.weight", &bytes);
	f = fopen(scratch_format_path("large/model.safetensors"), "r+b");
	ck_assert(f && !fseek(f, at, SEEK_SET));
	for (uint64_t i = 0; i < bytes; i += sizeof large)
		ck_assert(fwrite(&large, sizeof large, 1, f) == 1);
	ck_assert(!fclose(f));
	snprintf(model, sizeof model, "%s", scratch_format_path("large"));
	ck_assert_msg(!train_model(text, model, "",
	                           SIZES " --steps 2 --clip 0 --lr 1e-30 --save odd --save-every 1 "
	                                 "--keep 1 -n 2 --backend loopback"),
	              "%s", text);
	expect_part(text, "odd/step-2: ");
	expect_part(text, "are not finite, or are negative squares, the first in tensor v.");
	ck_assert(is_there("odd/step-1") && is_there("odd/step-2"));
	ck_assert_int_eq(train_model(text, model, "", SIZES " --steps 3 --resume odd"), 1);
	expect_part(text, "a moment is not finite");
}
END_TEST

/* ---- tessera info ---------------------------------------------------------------------------- */

START_TEST(info_finds_damage)
{
	static const struct {
		const char *damage, *says;
	} cases[] = {
		{ "truncate -s -1 model.safetensors", "model.safetensors: " },
		{ "truncate -s 100 optimizer.safetensors", "it is truncated" },
		{ "printf 'x' | dd of=model.safetensors bs=1 seek=8 conv=notrunc",
		  "model.safetensors: offset 8: the header does not begin with {" },
		{ "rm model.safetensors", "neither model.safetensors nor " },
		{ "rm optimizer.safetensors", "optimizer.safetensors: No such file" },
		{ "rm training.json", "it has no training.json" },
		{ "sed -i 's/\"step\": 1,/\"step\": 2,/' training.json",
		  "training.json: is damaged" },
		{ "sed -i 's/\"num_hidden_layers\": /\"num_hidden_layers\": 1/' config.json",
		  "config.json: differs from the saved one" },
		{ "rm config.json", "no config.json is there" },
	};
	char text[TEXT];

	train_to_step("--save seen --save-every 1", 2);
	ck_assert_int_eq(run_info_command(text, "seen"), 0);
	expect_part(text,
	            "seen/step-2\n  save        step 2, optimizer adamw\n  family      llama\n"
	            "  parameters  260032\n  dtype       F32: 260032 parameters\n");
	expect_part(text, "seen/step-1\n  save        step 1, optimizer adamw\n");
	ck_assert_int_eq(run_info_command(text, "seen/step-2 --json"), 0);
	expect_part(text, "\"damaged\": 0");
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		ck_assert(!command_run(
			text, TEXT,
			"cd '%s' && rm -rf copy && cp -r seen/step-1 copy && cd copy && "
			"%s 2>/dev/null",
			scratch, cases[i].damage));
		ck_assert_msg(run_info_command(text, "copy") == 1, "%s: %s", cases[i].damage, text);
		expect_part(text, cases[i].says);
	}
	/* checkpoints with a missing part, and files that are no checkpoint */
	ck_assert(!command_run(text, TEXT,
	                       "cd '%s' && '%s' convert '%s' parts --max-shard-size 300K", scratch,
	                       TESSERA, format_data_path("")));
	ck_assert_int_eq(run_info_command(text, "parts"), 0);
	expect_part(text, "parameters  260032\n");
	command_run(text, TEXT, "cd '%s/parts' && rm model-00002-*", scratch);
	ck_assert_int_eq(run_info_command(text, "parts"), 1);
	expect_part(text, "weight_map names a part that is missing: ");
	ck_assert_int_eq(run_info_command(text, "none"), 1);
	expect_part(text, "tessera info: none: No such file");
	ck_assert_int_eq(run_info_command(text, "parts seen"), 2);
	expect_part(text, "unexpected argument \"seen\"");
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("train_saves", 120, &r);
	int failed;

	scratch_make();
	tcase_add_test(t, damage_is_named);
	tcase_add_test(t, every_copy_is_compared);
	tcase_add_test(t, keys_are_checked);
	tcase_add_test(t, a_pipe_is_no_state);
	tcase_add_test(t, moments_are_checked);
	tcase_add_test(t, impossible_moments_warn);
	tcase_add_test(t, info_finds_damage);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}
