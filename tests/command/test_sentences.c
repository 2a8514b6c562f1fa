/*
 * test_sentences.c - messages of failed commands: one message for one mistake, on any number of
 * ranks; unwritable output is an error, and a slow reader loses nothing.
 */
#include "tests/support/command.h"
#include "tests/support/suite.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct sentence {
	const char *command; /* a shell command; $T is tessera, $GONE a pipe without a reader */
	int status, lines; /* lines: maximum on stderr */
	const char *says; /* in the first line of stderr; "": empty */
};

/* Runs in a folder $D of its own with M, a copy of the checkpoint, and P, a plan. */
#define IN_FOLDER(command) \
	"D=$(mktemp -d); mkdir $D/M; cp data/*.json data/*.safetensors $D/M; echo " \
	"'{\"model.layers.*.mlp.up_proj\":\"colwise\"}' >$D/P; (" command \
	"); s=$?; rm -r $D; exit $s"
#define TRAIN "$T train $D/M --data data/texts/stories.jsonl --steps 1 --batch 2 --sequence 16 "

static const struct sentence once[] = {
	{ IN_FOLDER("$T generate $D/M --prompt a --logits $D/M/model.safetensors"), 1, 1,
	  "/M/model.safetensors: is in " },
	{ IN_FOLDER("ln $D/M/config.json $D/h; $T explain $D/M --svg $D/h"), 1, 1, "/h: is in " },
	{ IN_FOLDER("ln -s M/tokenizer.json $D/h; " TRAIN "--log $D/h"), 1, 1, "/h: is in " },
	{ IN_FOLDER("$T explain $D/M --plan $D/P --svg $D/P"), 1, 1, "inputs are not overwritten" },
	{ IN_FOLDER("$T generate $D/M --plan $D/P --prompt a --logits $D/P"), 1, 1,
	  "inputs are not overwritten" },
	{ IN_FOLDER("$T generate $D/M --prompt-file $D/P --logits $D/P"), 1, 1,
	  "inputs are not overwritten" },
	{ IN_FOLDER("$T generate $D/M --logits $D/P <$D/P"), 1, 1, "inputs are not overwritten" },
	{ IN_FOLDER(TRAIN "--plan $D/P --curve $D/P"), 1, 1, "inputs are not overwritten" },
	{ IN_FOLDER("ln -s P $D/h; $T grad $D/M --ids-file $D/P --out $D/h"), 1, 1,
	  "inputs are not overwritten" },
	{ IN_FOLDER(TRAIN "--save $D/S --log $D/S/step-2"), 1, 1, "is a save of " },
	{ IN_FOLDER(TRAIN "--save $D/S 2>/dev/null; " TRAIN
	                  "--resume $D/S --steps 2 --log $D/S/step-1/model.safetensors"),
	  1, 1, "or a file in one; name another file" },
	{ IN_FOLDER("touch $D/l; ln -s l $D/h; " TRAIN "--log $D/l --curve $D/h"), 1, 1,
	  "are one file; name two" },
	{ IN_FOLDER("TESSERA_TRACE_FILE=$D/M/model.safetensors $T generate $D/M -n 2 --backend "
	            "trace:loopback --prompt a"),
	  1, 1, "TESSERA_TRACE_FILE " },
	{ "$T generate data --prompt a --flight data/config.json", 1, 1, "is no directory" },
	{ "$T generate data -n 3 --backend gluu --prompt a", 1, 1, "backend gluu: not found: " },
	{ "TESSERA_THREADS=abc $T generate data -n 3 --backend shm --prompt a", 1, 1,
	  "TESSERA_THREADS=abc" },
	{ "TESSERA_DEVICE=gpu $T generate data -n 3 --backend shm --prompt a", 1, 1,
	  "device gpu: not found" },
	{ "TESSERA_DEVICE=cpu:1 $T train data --data data/texts/stories.jsonl -n 3 --backend shm",
	  1, 1, "device cpu:1: this machine has 1, numbered from 0" },
	{ "DISCRETE_LACKS=squares TESSERA_DEVICE=discrete $T train data "
	  "--data data/texts/stories.jsonl -n 2 --backend shm",
	  1, 1, "device discrete does not train: it has no ops of training; use TESSERA_DEV" },
	{ "DISCRETE_LACKS=norm_d TESSERA_DEVICE=discrete $T train data "
	  "--data data/texts/stories.jsonl -n 2 --backend loopback",
	  1, 1, "model.norm: discrete: no such kernel" },
	{ "$T train data --data data/texts/stories.jsonl -n 2 --backend shm --weight-decay -1", 2,
	  1, "--weight-decay -1: must be a number" },
	{ "TESSERA_DEVICE=cpu:1 $T generate data -n 3 --backend shm --prompt a", 1, 1,
	  "device cpu:1: this machine has 1, numbered from 0" },
	{ "TESSERA_DEVICE=cpu:1st $T generate data -n 3 --backend shm --prompt a", 1, 1,
	  "device cpu:1st: cpu does not wrap another device; use cpu, or cpu:INDEX" },
	{ "TESSERA_CPU=sse9 $T generate data -n 3 --backend shm --prompt a", 1, 1,
	  "TESSERA_CPU=sse9: not an instruction set" },
	{ "TESSERA_LAYOUT=odd $T generate data -n 3 --backend shm --prompt a", 1, 1,
	  "TESSERA_LAYOUT=odd" },
	{ "TESSERA_TIMEOUT=soon $T generate data -n 3 --backend shm --prompt a", 1, 1,
	  "TESSERA_TIMEOUT=soon" },
	{ "TESSERA_TIMEOUT=6 PMI_SIZE=4 PMI_RANK=0 $T generate data --prompt a", 1, 2,
	  "waiting for the other ranks of this job: PMI_RANK=0 and PMI_SIZE=4 make this process "
	  "rank 0 of 4; to run it alone: env -u PMI_RANK -u PMI_SIZE COMMAND" },
	{ "TESSERA_TIMEOUT=1 RANK=1 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 "
	  "$T generate data --prompt a",
	  1, 1,
	  "by the deadline of rank 1; RANK=1 and WORLD_SIZE=2 make this process rank 1 of 2; to "
	  "run it alone: env -u RANK -u WORLD_SIZE -u OMPI_COMM_WORLD_RANK -u "
	  "OMPI_COMM_WORLD_SIZE COMMAND" },
	{ "TESSERA_REDUCE=odd $T generate data -n 3 --backend shm --prompt a", 1, 1,
	  "TESSERA_REDUCE=odd" },
	{ "$T generate data -n 3 --backend shm --prompt \"$(printf 'a\\377')\"", 1, 1,
	  "the prompt: the text is not UTF-8 at its byte 1" },
	{ "$T generate data -n 3 --backend shm --ids 1,512", 1, 1,
	  "id 512 at position 1 is outside the vocabulary" },
	{ "$T generate data -n 3 --backend shm --prompt-file data/tokenizer.json", 1, 1,
	  "a text has at most 512 positions" },
	{ "XDG_RUNTIME_DIR=/nonexistent $T generate data -n 2 --backend shm --prompt a "
	  "--max-tokens 1",
	  0, 1, "XDG_RUNTIME_DIR=/nonexistent is no directory; ranks meet in /tmp" },
	{ "ulimit -n 10; $T generate data -n 2 --backend shm --prompt a", 1, 1,
	  "Too many open files; the limit is 10 open files (RLIMIT_NOFILE): raise it with ulimit "
	  "-n" },
#if THIN == 1 /* a sanitizer requires more address space */
	{ "ulimit -s 8192; ulimit -v 3000000; $T generate data --threads 1024 --prompt a", 1, 1,
	  "cpu: 1024 threads could not be started: Resource temporarily unavailable; use fewer; "
	  "the limit is 3072000000 bytes of address space (RLIMIT_AS): raise it with ulimit -v" },
#endif
	{ "ulimit -l 0; $T generate data -n 2 --backend shm --prompt a --max-tokens 1", 0, 0, "" },
	{ "TESSERA_PLUGIN_PATH=odd $T generate data -n 3 --backend shm --prompt a --max-tokens 1",
	  0, 1, "\"odd\" is ignored" },
	{ "$T bench comm -n 3 --backend gluu", 1, 1, "backend gluu: not found: " },
	{ "$T launch -n 3 --backend gluu -- true", 1, 1, "backend gluu: not found: " },
	{ "$T launch -n 3 --timeout soon -- true", 1, 1, "TESSERA_TIMEOUT=soon" },
	{ "$T generate data --logits /nowhere/x.st", 1, 1, "generate: /nowhere/x.st: cannot be " },
	{ "$T generate data -n 3 --backend shm --logits data", 1, 1, "data: not a regular file" },
	{ "TESSERA_LOG=verbose $T info", 2, 1, "\"verbose\" is not a level; use error, warn" },
	{ "TESSERA_LOG=warn,shm=loud $T generate data", 2, 1, "\"loud\" is not a level" },
	{ "$T explain data --positions 513", 2, 1, "--positions 513: must be at most 512" },
	{ "$T explain tests/data/goldens/gpt2 --positions 81", 2, 1,
	  "--positions 81: must be at most 80" },
	{ "$T generate tests/data/goldens/gpt2 -n 2 --ids $(seq -s, 81)", 1, 1,
	  "the prompt has 81 ids, and a text has at most 80 positions" },
	{ "$T generate data --positions 4 --ids 1,2,3,4,5", 1, 1,
	  "the prompt has 5 ids, and a text has at most 4 positions" },
	{ "$T generate data --positions 513 --ids 1", 1, 1,
	  "--positions 513: must be at most 512" },
	{ "$T generate data -n 3 --mesh dp=2,tp=2", 1, 1, "does not fit a job of 3 ranks" },
	{ "$T explain data -n 3 --mesh dp=2,tp=2", 1, 1, "does not fit a job of 3 ranks" },
	{ "$T generate data --mesh tp=2,tp=2", 1, 1, "has two dimensions tp" },
	{ "$T explain data --mesh a=100,b=100", 1, 1, "\"a=100,b=100\" has more than 1024 ranks" },
	{ "$T explain data --mesh dp,tp", 1, 1, "leaves out the sizes of dp and tp" },
	{ "$T explain data -n 2 --plan-override model.norm=first_dim", 1, 1,
	  "model.norm.weight: style first_dim cuts it, but every rank norms whole rows" },
	{ "$T explain data -n 2 --plan-override model.norm=first_dim:zero", 1, 1,
	  "a placement of kind 2 with dim 0 and reserved 1; what is not used must be 0" },
	{ "$T generate data --mesh tp=2,xp=2", 1, 1, "no rule for mesh dimension xp" },
	{ "$T generate data --mesh dp=2 --plan-override xp:lm_head=colwise", 1, 1,
	  "is for mesh dimension xp, and the program runs on tp=1" },
	{ "$T generate data --nosuch", 2, 1, "generate: no such option: --nosuch; see" },
	{ "$T generate data --seed -1", 2, 1,
	  "generate: --seed -1: must be a whole number from 0 to 9223372036854775807; no value "
	  "means a random seed: use --seed $RANDOM for another result each time" },
	{ "$T generate data --log info", 2, 1,
	  "generate: no such option: --log; did you mean --logits? See tessera generate --help" },
	{ "$T generate data -ngl 3 --prompt a", 2, 1, "no such option: -ngl; use --device cuda" },
	{ "$T generate data --max_new_tokens=3", 2, 1,
	  "no such option: --max_new_tokens=3; use --max-tokens N" },
	{ "$T generate data --repeat-penalty 3", 2, 1, "use --repetition-penalty X" },
	{ "$T generate data --ctx-size 3", 2, 1, "use --kv-memory SIZE" },
	{ "$T generate data --tp 2", 2, 1, "use -n N, or --mesh tp=N" },
	{ "$T train data --tensor-parallel-size 2", 2, 1, "use -n N, or --mesh tp=N" },
	{ "$T generate data --stream", 2, 1, "no such option: --stream; text is printed as it is" },
	{ "$T generate data --system x", 2, 1, "--system: applies to conversations; give" },
	{ "$T train data --epochs 2", 2, 1, "use --steps N" },
	{ "$T train data --learning-rate 2", 2, 1, "use --lr X" },
	{ "$T generate data --learning-rate 2", 2, 1, "no such option: --learning-rate; see " },
	{ "$T chat data", 2, 1, "no command \"chat\"; generate --messages FILE" },
	{ "$T serve data", 2, 1, "no command \"serve\"; generate --prompts - reads prompts" },
	{ "$T generate data -n 600 --prompt a", 1, 1,
	  "use 1 to 32 (\"model.embed_tokens\": \"embedding_rowwise\" of tp); -n is the number of "
	  "ranks, --max-tokens that of tokens" },
	{ "$T generate data -n 6000", 2, 1, "1 to 1024; -n is the number of ranks, --max-tokens" },
	{ "$T generate data --plan-override '*.down_proj=rowwise'", 1, 1,
	  "(nearest: model.norm); did you mean **.down_proj?" },
	{ "$T generate data --max=3", 2, 1, "no such option: --max; did you mean --max-tokens?" },
	{ "$T generate data --pro", 2, 1, "no such option: --pro" },
	{ "$T generate data --plan", 2, 1, "generate: this option needs a value: --plan" },
	{ "$T generate ", 2, 1, "no MODEL is given" },
	{ "$T generate nowhere", 1, 1, "nowhere" },
	{ "$T generate data -n 0", 2, 1, "-n 0" },
	{ "$T generate data -n 9", 1, 1, "heads: 8 units cannot be cut for 9 ranks; use 1 to 8" },
	{ "$T generate data --backend glooo", 1, 1, "did you mean gloo" },
	{ "$T generate data -n 2 --backend glooo", 1, 1,
	  "did you mean gloo?; backends that work here: auto, shm" },
	/* a backend that is named is never replaced */
	{ "$T generate data -n 2 --backend nccl", 1, 1,
	  "nccl does not move memory of device cpu; use a device whose memory it moves" },
	{ "TESSERA_BACKEND=trace:nccl $T perplexity data -n 2 --text README.md", 1, 1,
	  "another backend; backends that work here: auto, shm" },
	{ "$T launch -n 2 --backend nccl -- $T generate data", 1, 4, "nccl does not move memory" },
	{ "$T generate data --backend nccl --max-tokens 1", 0, 0, "" },
	/* ranks of convert are threads, which move no bytes to each other */
	{ IN_FOLDER("TESSERA_BACKEND=shm $T convert data $D/C -n 2"), 0, 0, "" },
	{ "$T generate data --ids 1,x", 2, 1, "--ids 1,x" },
	{ "$T generate data --ids 2147483648", 2, 1,
	  "--ids 2147483648: ids are numbers from 0 to 2147483647, separated by commas" },
	{ "printf '{\"ids\": [2147483648]}' | $T generate data --prompts -", 1, 1,
	  "--prompts: line 1: \"ids\" must be a list of numbers from 0 to 2147483647" },
	{ "printf '{\"ids\": [1], \"prompt\": \"a\"}' | $T generate data --prompts -", 1, 1,
	  "--prompts: line 1: a line is an object with \"prompt\" or \"ids\", not both" },
	{ "$T generate data --prompts tests/data/odd_prompts.jsonl", 1, 9,
	  "generate: --prompts tests/data/odd_prompts.jsonl: line 2: '[' or '{' expected" },
	{ "printf '\\357\\273\\277{\"ids\": [1], \"max_tokens\": 1}' | "
	  "$T generate data --prompts -",
	  0, 0, "" },
	{ "$T generate data -n 2 --backend shm --prompt-file data/model.safetensors", 1, 1,
	  "generate: --prompt-file data/model.safetensors: the text is not UTF-8 at its byte " },
	{ "$T generate data -n 2 --backend shm --max-tokens 1 --prompt a "
	  "--prompt-file data/model.safetensors",
	  1, 1,
	  "generate: --prompt-file data/model.safetensors: the prompt: the text is not UTF-8" },
	{ "$T generate tests/data/goldens/llama-odd --prompt a", 1, 1,
	  "llama-odd/tokenizer.json: No such file or directory; a prompt of text needs it: give "
	  "ids with --ids" },
	{ "$T generate data --prompt a --prompts data/x", 2, 1, "--prompts: contains all prompts" },
	{ "$T generate data --prompts /nonexistent", 2, 1, "--prompts /nonexistent: No such file" },
	{ "$T generate data --prompt a --prompt b --logits x", 2, 1,
	  "generate: --logits: requires one prompt, and 2 are given; run the command for each" },
	{ "$T generate data --prompts tests/data/prompts.jsonl --logits x", 2, 1,
	  "generate: --logits: requires one prompt; give --prompt, --prompt-file or --ids, not" },
	{ "$T generate data --logits ''", 2, 1, "generate: --logits: the file name is empty" },
	{ "$T generate data --batch 0", 2, 1, "--batch 0: must be a whole number from 1" },
	{ "$T generate data --kv f16", 2, 1, "--kv f16: must be auto, f32 or bf16" },
	{ "$T generate data --weights q4", 2, 1,
	  "--weights q4: must be file, bf16, q8, bf12 or mxfp4" },
	{ "$T generate data --ids 1 --weights bf12", 1, 1,
	  "no linear weight is bf16, which 12-bit" },
	{ "$T generate data --math f16", 2, 1, "--math f16: must be f32 or bf16" },
	{ "$T generate data --math bf16", 1, 1,
	  "layers.0.self_attn.q_proj.weight is f32: --math bf16 multiplies weights in bf16" },
	{ "$T generate tests/data/goldens/llama-bf16 --weights q8 --math bf16", 1, 1,
	  "layers.0.self_attn.q_proj.weight is q8: --math bf16" },
	{ "$T generate tests/data/goldens/llama-bf16 --weights mxfp4 --math bf16", 1, 1,
	  "bf16, without --weights mxfp4" },
	{ "$T generate tests/data/goldens/gpt_oss-mxfp4 --math bf16", 1, 1,
	  "experts.gate_up_proj is mxfp4: --math bf16 multiplies weights in bf16; use --math f32, "
	  "or --weights bf16, which widens it" },
	{ "$T train tests/data/goldens/gpt_oss-mxfp4 --data data/texts/stories.jsonl -n 2", 1, 1,
	  "experts.gate_up_proj: it is stored in MXFP4, whose values training cannot change; use a "
	  "checkpoint of tessera convert --dtype bf16" },
	{ "$T generate data --weights bf16", 1, 1, "no weight is stored in MXFP4, which bf16" },
	{ "$T explain data --math bf16", 2, 1,
	  "explain: --math is of a step of training; add --train" },
	{ "$T explain data --pipeline-schedule 1f1b --mesh pp=2", 2, 1,
	  "--timeline and --timeline-times are of a step of training; add --train" },
	{ "$T explain data --train --json --timeline-times x --mesh pp=2", 2, 1,
	  "--timeline-times adds to the tables; leave out --json, --program and --storage" },
	{ "$T explain data --memory 80Q", 2, 1, "--memory 80Q: must be a size, as in 512M" },
	{ "$T explain data --train --pipeline-schedule gpipe", 1, 1,
	  "--pipeline-schedule gpipe: the mesh has no stages; use --mesh pp=N" },
	{ "$T explain data --train --mesh pp=2 --pipeline-schedule 2f2b", 1, 1,
	  "pipeline schedule 2f2b: must be gpipe, 1f1b, interleaved:V, looped-bfs:V, zb-h1, zb-v" },
	{ "$T explain data --train --mesh pp=2 --micro-batches 3", 1, 1,
	  "--batch 8: cannot be cut into 3 micro-batches of as many sequences" },
	{ "$T train data --data data/config.json --pipeline-schedule zb-v", 1, 1,
	  "pipeline schedule zb-v: the mesh has no stages; use --mesh pp=N" },
	{ "$T train data --data data/config.json --mesh pp=2 --pipeline-schedule interleaved:9", 1,
	  1, "model llama: 5 numbered modules cannot be cut for 18 stages along pp; use 1 to 5" },
	{ "$T train data --data x -n 4 --plan '{\"plan\":\"tp\",\"mesh\":\"dp=2,tp=4\"}'", 2, 1,
	  "-n 4: the strategy is for the mesh dp=2,tp=4 of 8 ranks, not for 4; use 8 ranks, or "
	  "another mesh, as in --mesh tp=4" },
	{ "$T train data --data x --plan '{\"plan\":\"tp\",\"micro_batches\":3}'", 2, 1,
	  "--batch 8: cannot be cut into 3 micro-batches of as many sequences, as in the " },
	{ IN_FOLDER("echo '{\"plan\":\"tp\",}' >$D/s.json; $T generate $D/M --plan $D/s.json"), 2,
	  1, "/s.json:1:14: not valid JSON: string or '}' expected near '}'; JSON has no comma" },
	{ IN_FOLDER("cd $D && echo '{\"plan\":\"tp\"}' >s; $T explain M --plan s"), 1, 1,
	  "s: is a strategy, by its key \"plan\"; name its file with a directory, as ./s" },
	{ "$T train data --data x --schedule 1f1b", 2, 1,
	  "--schedule 1f1b: must be constant or cosine, of the learning rate; the schedule of a "
	  "pipeline is --pipeline-schedule" },
	{ "$T explain data --weights q8 --train", 2, 1, "--weights bf16, q8, bf12 and mxfp4 are" },
	{ "$T explain data --kv f32 --train", 2, 1,
	  "--tokens and --kv are of a step of inference" },
	{ "DISCRETE_ABSENT=1 TESSERA_DEVICE=discrete $T generate data", 1, 1,
	  "tess-device-discrete.so: not usable here: discrete: absent" },
	{ "DISCRETE_ABSENT=1 TESSERA_DEVICE=mine:discrete $T explain data", 1, 1,
	  "tess-device-discrete.so: not usable here: discrete: absent, or without that device say "
	  "--kv f32 or bf16" },
	{ "TESSERA_DEVICE=discrete $T generate data --weights q8", 1, 1,
	  "8-bit weights: device discrete has none; use device cpu" },
	{ "TESSERA_DEVICE=discrete $T generate data --weights mxfp4", 1, 1,
	  "4-bit weights: device discrete has none; use device cpu" },
	{ "$T generate data --kv-memory 4Q", 2, 1, "--kv-memory 4Q: must be a size, as in 512M" },
	{ "$T generate data --kv-memory 99999999999T", 2, 1, "T: must be a size, as in 512M" },
	{ "$T generate data --kv-memory 1K --prompt a", 1, 1,
	  "of KV cache, and 0.00 of 0.00 MiB are free" },
	{ "$T generate data -n 3 --mesh dp=2,tp=2 --backend shm", 1, 1,
	  "\"dp=2,tp=2\" does not fit a job of 3 ranks: its sizes must multiply to that" },
	{ "$T generate data --mesh xp=2,tp=2", 1, 1,
	  "plan tp has no rule for mesh dimension xp, along which" },
	{ "$T generate data --mesh tp=2,tp=2", 1, 1, "has two dimensions tp" },
	{ "$T generate data --mesh dp=0", 1, 1, "\"dp=0\" is not of the form dp=2,tp=4" },
	{ "$T generate data --mesh tp=1025", 1, 1, "a-z 0-9 _ and a size of 1 to 1024, which" },
	{ "$T generate data --temperature hot", 2, 1, "--temperature hot" },
	{ "$T generate data --top-p 1.5 --temperature 1", 2, 1,
	  "--top-p 1.5: must be a number from 0 to 1" },
	{ "$T generate data --min-p nan", 2, 1, "--min-p nan" },
	{ "$T generate data --repetition-penalty 0", 2, 1, "--repetition-penalty 0: must be" },
	{ "$T generate data --plan nosuch", 1, 1, "nosuch" },
	{ "$T generate data --plan '{\"a.b\":\"colwise\"}'", 1, 1, "matches no module" },
	{ "$T generate data --plan '{\"lm_head\":7}'", 1, 1, "must be a string" },
	{ "$T generate data --plan-override lm_head=colwize", 1, 1, "colwise" },
	{ "$T generate data --plan-override lm_head", 1, 1, "PATTERN=STYLE" },
	{ "$T generate data --plan-override model.layers.*.mlp.down_proj=colwise", 1, 1, "mlp" },
	{ "$T generate data --prompt-file /nonexistent", 2, 1, "/nonexistent" },
	{ "$T generate tests/data/goldens/llama-odd -n 7 --ids 1", 1, 1,
	  "heads: 6 units cannot be cut for 7 ranks; use 1 to 6" },
	{ "$T explain data --nosuch", 2, 1, "explain: no such option: --nosuch; see" },
	{ "$T info --nosuch", 2, 1, "info: no such option: --nosuch; see" },
	{ "$T bench comm --nosuch", 2, 1, "bench: no such option: --nosuch; see" },
	{ "$T conform --nosuch shm", 2, 1, "conform: no such option: --nosuch; see" },
	{ "$T launch -n 2 --nosuch -- true", 2, 1, "launch: no such option: --nosuch; see" },
	/* no reader: 141 is SIGPIPE */
	{ "$T generate data -n 2 --backend loopback --max-tokens 8 >&$GONE", 141, 0, "" },
	{ "$T generate data -n 2 --backend shm --max-tokens 8 >&$GONE", 141, 0, "" },
	{ "$T generate data -n 2 --backend shm --prompts tests/data/prompts.jsonl >&$GONE", 141, 0,
	  "" },
	{ "$T explain data >&$GONE", 141, 0, "" },
	{ "$T bench comm -n 2 -e 4 --samples 5 --backend shm >&$GONE", 141, 0, "" },
	{ "trap '' PIPE; $T info >&$GONE", 1, 1, "info: stdout: Broken pipe" },
	/* no space left */
	{ "$T generate data --max-tokens 2 >/dev/full", 1, 1, "generate: stdout: No space left" },
	{ "$T generate data -n 2 --backend loopback --max-tokens 2 --json >/dev/full", 1, 1,
	  "generate: stdout: No space left" },
	{ "$T generate data -n 2 --backend shm --max-tokens 2 >/dev/full", 1, 1,
	  "generate: stdout: No space left" },
	{ "$T bench comm -n 1 -e 4 --samples 5 >/dev/full", 1, 1, "bench: stdout: No space left" },
	{ "$T explain data >/dev/full", 1, 1, "explain: stdout: No space left" },
	{ "$T explain data --json >/dev/full", 1, 1, "explain: stdout: No space left" },
	{ "$T info >/dev/full", 1, 1, "info: stdout: No space left" },
	{ "$T info --options --json >/dev/full", 1, 1, "info: stdout: No space left" },
	{ "$T --help >/dev/full", 1, 1, "stdout: No space left" },
	{ "$T --version >/dev/full", 1, 1, "stdout: No space left" },
	/*
	 * a failure that all ranks return: one rank prints it, then the launcher its closing line
	 */
	{ "TESSERA_FLIGHT=off $T generate data -n 4 --backend shm "
	  "--plan-override model.norm=defective:nan_all",
	  1, 1, "generate: 512 of the 512 logits" },
	{ "TESSERA_FLIGHT=off $T generate data -n 2 --backend shm --check --prompt 'One day' "
	  "--plan-override model.layers.1.mlp.up_proj=defective:nan",
	  1, 2, "generate: model.layers.1.mlp.up_proj: call gives NaN on rank 1" },
	{ "TESSERA_FLIGHT=off $T generate data -n 3 --backend shm --check --prompt 'One day' "
	  "--plan-override model.layers.1.mlp.up_proj=defective:drift",
	  1, 2, "generate: model.layers.1.mlp.up_proj: call gives 0.2" },
};

/* Runs a command in the source folder; returns its exit status and its stderr. */
static int run_bash(const char *command, char *text, size_t capacity)
{
	char number[16];
	int gone[2], status;

	ck_assert(!chdir(SOURCE_ROOT) && !pipe(gone));
	close(gone[0]);
	snprintf(number, sizeof number, "%d", gone[1]);
	setenv("GONE", number, 1);
	setenv("T", TESSERA, 1);
	setenv("COMMAND", command, 1);
	status = command_run(text, capacity, "exec bash -c \"$COMMAND\" 2>&1 >/dev/null");
	close(gone[1]);
	return status;
}

START_TEST(says_it_once)
{
	const struct sentence *s = &once[_i];
	char text[8192], *end;
	int status = run_bash(s->command, text, sizeof text), lines = 0;

	for (const char *c = text; *c; c++)
		lines += *c == '\n';
	ck_assert_msg(status == s->status, "%s: status %d: %s", s->command, status, text);
	ck_assert_msg(lines <= s->lines, "%s: %d lines: %s", s->command, lines, text);
	end = strchr(text, '\n');
	if (end)
		*end = 0;
	ck_assert_msg(strstr(text, s->says) != NULL, "%s: says %s", s->command, text);
}
END_TEST

/* Checks that rank 0 of several processes gets the prompt that the command read from stdin. */
START_TEST(prompt_of_stdin)
{
	char text[256];
	int status =
		run_bash("diff <($T generate data --prompt Once --max-tokens 8 --temperature 0) "
	                 "<(printf Once | $T generate data -n 2 --backend shm --prompt-file - "
	                 "--max-tokens 8 --temperature 0) >&2",
	                 text, sizeof text);

	ck_assert_msg(!status, "%s", text);
}
END_TEST

#define GENERATE "$T generate data --temperature 0 --max-tokens 8 "
#define SHM "-n 2 --backend shm "

/* Commands and their prompts. $D/P is a file of "One day", $D/open a pipe that never ends. */
static const struct {
	const char *command, *prompt;
} without_option[] = {
	{ "printf Once | " GENERATE, "Once" },
	{ "printf Once | " GENERATE SHM, "Once" },
	{ GENERATE "-n 3 --backend loopback <$D/P", "One day" },
	{ ": | " GENERATE SHM, "" },
	{ GENERATE "</dev/null", "" },
	{ GENERATE "<&-", "" },
	{ GENERATE "--prompt 'One day' <$D/open", "One day" },
	/* a rank started by a launcher */
	{ "RANK=0 WORLD_SIZE=1 " GENERATE "<$D/open", "" },
	{ "PMI_RANK=0 PMI_SIZE=1 " GENERATE "<$D/open", "" },
	{ "$T launch -n 1 -- " GENERATE "<$D/open | sed 's/^.0. //'", "" },
};

static void compare_ways_to_prompt(const char *command, const char *prompt)
{
	char all[1024], text[2048];
	int status;

	snprintf(all, sizeof all,
	         "D=$(mktemp -d); printf 'One day' >$D/P; mkfifo $D/open; exec 9<>$D/open; "
	         "diff <(%s) <(" GENERATE "--prompt '%s') >&2; s=$?; rm -r $D; exit $s",
	         command, prompt);
	status = run_bash(all, text, sizeof text);
	ck_assert_msg(!status && !*text, "%s: %s", command, text);
}

/* Checks that a pipe or a file is the prompt if no option gives one; stderr names the input. */
START_TEST(prompt_without_option)
{
	static const char waits[] = "tessera generate: waiting for the prompt on stdin; ";
	char late[4096];
	FILE *slow;

	ck_assert(!chdir(SOURCE_ROOT) && !setenv("T", TESSERA, 1));
	slow = popen("(printf Once; sleep 5.3; printf ' upon') | " GENERATE SHM "2>&1", "r");
	for (size_t i = 0; i < sizeof without_option / sizeof *without_option; i++)
		compare_ways_to_prompt(without_option[i].command, without_option[i].prompt);
	late[fread(late, 1, sizeof late - 1, slow)] = 0;
	ck_assert_int_eq(pclose(slow), 0);
	ck_assert_msg(!strncmp(late, waits, strlen(waits)), "%s", late);
	ck_assert_int_eq(count_occurrences(late, "waiting"), 1);
	expect_part(late, "\n a time");
}
END_TEST

/* Checks that the first word of a text keeps its space after other text. */
START_TEST(words_stay_apart)
{
	char text[2048];
	int status =
		run_bash("{ for p in 'last no newline' ''; do $T generate data --prompt \"$p\" "
	                 "--max-tokens 3 --temperature 0; done; printf '%s\n%s\n' "
	                 "'{\"prompt\": \"last no newline\", \"max_tokens\": 1}' "
	                 "'{\"ids\": [1], \"max_tokens\": 1}' | "
	                 "$T generate data --prompts - --temperature 0; } >&2",
	                 text, sizeof text);

	ck_assert_int_eq(status, 0);
	ck_assert_msg(strstr(text, " was a big\nOnce upon a\n{") == text, "%s", text);
	expect_part(text, "\"text\":\" was\"");
	expect_part(text, "\"text\":\"Once\"");
}
END_TEST

/* Runs on a file whose first and last line are valid: a failed line fails no other. */
static const char *const odd_line_runs[] = { "", "-n 2 --backend shm",
	                                     "-n 4 --backend shm --mesh dp=2,tp=2" };

START_TEST(odd_lines_fail_alone)
{
	static const char *const says[] = {
		"line 2: '[' or '{' expected near 'oops'",
		"line 4: id 512 at position 1 is outside the vocabulary",
		"line 5: \"top_q\" is not a key of a prompt; use prompt or ids",
		"line 6: a line is an object with \"prompt\" or \"ids\"",
		"line 7: \"temperature\" must be a number from 0 to",
		"line 8: the prompt has 513 ids, and a text has at most 512 positions",
		"line 9: the prompt is empty: it has no ids",
		"line 10: duplicate object key",
		"line 11: unable to decode byte 0xff",
	};
	const int n = (int)(sizeof says / sizeof *says);
	char command[512], text[16384];

	snprintf(command, sizeof command,
	         "cat tests/data/odd_prompts.jsonl | "
	         "{ $T generate data %s --prompts - || echo status $?; } >&2",
	         odd_line_runs[_i]);
	ck_assert_int_eq(run_bash(command, text, sizeof text), 0);
	for (int i = 0; i < n; i++)
		expect_part(text, says[i]);
	expect_part(text, "status 1\n");
	ck_assert_msg(count_occurrences(text, "tessera generate: --prompts: line ") == n, "%s",
	              text);
	ck_assert_msg(count_occurrences(text, "\"index\":") == n + 2, "%s", text);
	ck_assert_msg(count_occurrences(text, "\"finish_reason\":\"length\"") == 2, "%s", text);
	ck_assert_msg(!strstr(text, "launch: "), "%s", text);
}
END_TEST

/* Stop texts of the command, and those of a line in their place; on one rank and on replicas. */
START_TEST(stop_texts)
{
	char command[2048], text[16384];

	snprintf(
		command, sizeof command,
		"{ printf '%%s\\n' '{\"prompt\": \"Once upon\"}' '{\"prompt\": \"Once\", \"stop\": "
		"[\"xyz\", \"a time\"]}' '{\"prompt\": \"Once\", \"stop\": []}' '{\"prompt\": "
		"\"Once\", \"stop\": [\"\"]}' '{\"prompt\": \"Once\", \"stop\": \"</s>\"}' | $T "
		"generate data --temperature 0 --max-tokens 20 --stop 'tle girl' --stop none "
		"--prompts - %s || echo status $?; } >&2",
		_i ? "-n 4 --mesh dp=2,tp" : "");
	ck_assert_int_eq(run_bash(command, text, sizeof text), 0);
	expect_part(text, "\"text\":\" a time, there was a lit\",\"finish_reason\":\"stop\"");
	expect_part(text, "\"text\":\" upon \",\"finish_reason\":\"stop\"");
	expect_part(text, "line 4: \"stop\" must be a text of 1 byte or more, or a list of them");
	ck_assert_int_eq(count_occurrences(text, "\"finish_reason\":\"length\""), 2);
	expect_part(text, "status 1\n");
}
END_TEST

/* Text that streams has no part of a stop text, and an empty one is refused. */
START_TEST(stop_texts_of_the_command)
{
	char text[4096];
	int status = run_bash("{ $T generate data --prompt Once --temperature 0 --stop 'a time'; "
	                      "$T generate data --prompt Once --stop ''; } >&2",
	                      text, sizeof text);

	ck_assert_int_eq(status, 2);
	ck_assert_msg(strstr(text, " upon \ntessera generate: --stop: the text is empty") == text,
	              "%s", text);
}
END_TEST

/* Checks that inputs that would take gigabytes are refused before they do. */
START_TEST(large_inputs)
{
	char text[2048];
	int status =
		run_bash("{ $T generate data --prompts <(printf '{\"ids\": ['; yes '[],' | head "
	                 "-n 2500000 | tr -d '\n'; echo '1]}'); $T generate data "
	                 "--prompt-file <(head -c 16777217 /dev/zero); $T perplexity data "
	                 "--text <(head -c 16777217 /dev/zero); } >&2",
	                 text, sizeof text);

	ck_assert_int_eq(status, 1);
	expect_part(text, ": line 1: its JSON would take 579 MiB of memory; at most 512 are");
	ck_assert_msg(count_occurrences(text, ": more than 16777216 bytes, the limit\n") == 2, "%s",
	              text);
}
END_TEST

static const char *const slowly_read[] = {
	"$T generate data --prompt Once --max-tokens 64 --temperature 0",
	"$T generate data -n 2 --backend shm --prompt Once --max-tokens 64 --temperature 0",
	"$T explain data -n 8 --program",
	"$T explain data -n 8 --json",
	"$T info --json",
	"$T info --options",
	"$T launch --help",
};

/*
 * Reads `fd` to its end, at most `max_bytes` bytes at a time with a pause before each read; closes
 * it.
 */
static size_t read_to_end(int fd, size_t max_bytes, int pause_us, char *text, size_t capacity)
{
	size_t n = 0;
	ssize_t k;

	do {
		usleep((useconds_t)pause_us);
		k = read(fd, text + n, n + max_bytes < capacity ? max_bytes : capacity - n);
		n += k > 0 ? (size_t)k : 0;
	} while (k > 0);
	ck_assert_msg(n < capacity, "more than %zu bytes", capacity);
	close(fd);
	return n;
}

/* Checks a non-blocking stdout, a pipe that is full when the command starts. */
START_TEST(slow_reader_gets_all)
{
	static char full[1 << 13], expected[1 << 20], got[1 << 20];
	size_t nexpected, nfull = 0, n;
	int fd[2], status;
	FILE *f;

	ck_assert(!chdir(SOURCE_ROOT) && !setenv("T", TESSERA, 1));
	f = popen(slowly_read[_i], "r");
	nexpected = fread(expected, 1, sizeof expected, f);
	ck_assert(!pclose(f) && nexpected > 0);
	ck_assert(!pipe2(fd, O_CLOEXEC) && fcntl(fd[1], F_SETPIPE_SZ, 4096) == 4096);
	ck_assert(!fcntl(fd[1], F_SETFL, O_NONBLOCK));
	for (ssize_t k; (k = write(fd[1], full, sizeof full)) > 0;)
		nfull += (size_t)k;
	if (!fork()) {
		dup2(fd[1], STDOUT_FILENO);
		execl("/bin/sh", "sh", "-c", slowly_read[_i], NULL);
		_exit(127);
	}
	close(fd[1]);
	usleep(100000); /* so the first write fails */
	n = read_to_end(fd[0], 1500, 1000, got, sizeof got);
	ck_assert(wait(&status) > 0);
	ck_assert_msg(!status, "%s: status %d", slowly_read[_i], status);
	ck_assert_msg(n == nfull + nexpected && !memcmp(got + nfull, expected, nexpected),
	              "%s: %zu bytes of %zu", slowly_read[_i], n - nfull, nexpected);
}
END_TEST

/* The old file stays until the new one is complete, and no temporary file is left. */
static const char *const failing_runs[] = {
	"--plan nosuch",
	"--prompt Once --kv-memory 1K",
	"--prompt Once --plan-override model.norm=defective:nan_all",
	"-n 2 --backend shm --prompt Once --plan-override model.norm=defective:nan_all",
};

START_TEST(old_logits_stay_after_a_failure)
{
	char command[1024], text[4096];

	snprintf(command, sizeof command,
	         "D=$(mktemp -d); echo old >$D/x.st; TESSERA_FLIGHT=off $T generate data %s "
	         "--logits $D/x.st && echo passed >&2; cat $D/x.st >&2; ls $D >&2; rm -r $D",
	         failing_runs[_i]);
	ck_assert_int_eq(run_bash(command, text, sizeof text), 0);
	ck_assert_msg(!strstr(text, "passed"), "%s", text);
	expect_part(text, "\nold\nx.st\n");
}
END_TEST

/*
 * Checks that one object has both, that its records name their operands and results, and that each
 * column of the tables has a name.
 */
START_TEST(explains)
{
	char text[4096];
	int status =
		run_bash("{ $T explain data -n 2 --json --program | tr -d ' \\n' | grep -oE "
	                 "'\"(collectives|program)\":.{2}|\"record\":0.{99}' | sort -u; "
	                 "$T explain data -n 2 | grep -E '^parameter|^module|^rank|^memory'; } >&2",
	                 text, sizeof text);

	ck_assert_int_eq(status, 0);
	expect_part(text, "\"collectives\":[{");
	expect_part(text, "\"program\":[{");
	expect_part(text, "\"in\":[{\"value\":");
	expect_part(text, "shard of a rank       bytes  times\n");
	expect_part(text, "value   a rank sends  times\n");
	expect_part(text, "memory of a rank (KV cache for 512 positions");
}
END_TEST

/*
 * Checks that a plan is explained for a device that this machine lacks, as if it had it: by the
 * plugin, and for cuda without it.
 */
START_TEST(explains_an_absent_device)
{
	char text[4096];
	int status = run_bash(
		"M=tests/data/goldens/llama-bf16; export DISCRETE_KV=1 DISCRETE_FUSES=1; for how "
		"in "
		"--program --storage --json '--json --train' '--memory 1M'; do diff <($T explain "
		"$M --device discrete $how) <(DISCRETE_ABSENT=1 $T explain $M --device discrete "
		"$how) || exit; done >&2; $T explain $M --device cuda | grep KV "
		">&2; $T explain $M --device cuda --storage "
		"| head -2 >&2; "
		"$T explain $M --device cuda --train --memory 24MiB | grep fits >&2",
		text, sizeof text);

	ck_assert_msg(!status, "%s", text);
	expect_part(text, "memory of a rank (KV cache for 256 positions in bf16,");
	expect_part(text, "of 25.2 MB; ");
}
END_TEST

/* Checks that equal ranks and stages of a pipeline are one line each, and numbers are readable. */
START_TEST(explains_in_classes)
{
	static const char *const lines[] = {
		"260 thousand parameters\n",
		"tp:Shard(0)              f32 53..60x64       15.4 kB      5\n",
		"0           0   169 thousand  model.embed_tokens, model.layers.0-2\n",
		"1           1  90.9 thousand  model.layers.3-4, model.norm, a copy of "
		"model.embed_tokens\n",
		"tp=2 pp=1                   2     148 kB     148 kB     215 kB    6.17 MB    "
		"6.68 MB\n",
		"all                        12 ",
		"fits: the most loaded rank, ",
	};
	static char text[1 << 14];
	int status = run_bash("$T explain data --train --mesh dp=2,tp=3,pp=2 --micro-batches 2 "
	                      "--memory 1GB | sed /^time/q >&2; $T explain "
	                      "tests/data/goldens/qwen3_moe | head -2 >&2",
	                      text, sizeof text);

	ck_assert_int_eq(status, 0);
	for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
		expect_part(text, lines[i]);
	expect_part(text, "qwen3_moe");
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("sentences", 120, &r);

	signal(SIGPIPE, SIG_DFL);
	tcase_add_loop_test(t, says_it_once, 0, (int)(sizeof once / sizeof *once));
	tcase_add_loop_test(t, slow_reader_gets_all, 0,
	                    (int)(sizeof slowly_read / sizeof *slowly_read));
	tcase_add_test(t, prompt_of_stdin);
	tcase_add_test(t, prompt_without_option);
	tcase_add_test(t, words_stay_apart);
	tcase_add_test(t, large_inputs);
	tcase_add_loop_test(t, stop_texts, 0, 2);
	tcase_add_test(t, stop_texts_of_the_command);
	tcase_add_loop_test(t, odd_lines_fail_alone, 0,
	                    (int)(sizeof odd_line_runs / sizeof *odd_line_runs));
	tcase_add_loop_test(t, old_logits_stay_after_a_failure, 0,
	                    (int)(sizeof failing_runs / sizeof *failing_runs));
	tcase_add_test(t, explains);
	tcase_add_test(t, explains_an_absent_device);
	tcase_add_test(t, explains_in_classes);
	return suite_end(r);
}
