"""Commands with random valid options, drawn from a seed: for script/random-options and script/races."""
import json, os, random, struct

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))  # the paths below are relative to the tree

GOLDENS = "tests/data/goldens"
MODELS = ["data", "tests/data/stories260K-bf16"] + sorted(os.path.join(GOLDENS, name) for name in os.listdir(GOLDENS))
WORDS = "Once upon a time there was a little girl named Lily. She saw a big red ball, and the cat said: hello!".split()
# meshes and their weights in the draw
MESHES = [({"tp": 1}, 2), ({"tp": 2}, 5), ({"tp": 3}, 2), ({"tp": 4}, 2), ({"dp": 2}, 3), ({"pp": 2}, 3),
          ({"dp": 2, "tp": 2}, 3), ({"pp": 2, "tp": 2}, 2), ({"dp": 2, "pp": 2}, 1)]
TRAINING_MESHES = [({"ddp": 2, "dp": 2}, 2)]
EXPERT_MESHES = [({"ep": 2, "tp": 1}, 3), ({"dp": 2, "ep": 2, "tp": 1}, 3), ({"ep": 2, "tp": 2}, 3)]
REFUSALS = "cannot be cut for|neither a file nor a plan of model|it is stored in MXFP4"  # refusals caused by a model
BACKENDS = ["loopback", "shm", "gloo"]  # without those that this build lacks


class Case:
    """Draws the options of one command on one model."""

    def __init__(self, seed, number, folder):
        self.draw = random.Random("%s %d" % (seed, number))
        self.folder = folder
        self.model = self.draw.choice(MODELS)
        with open(os.path.join(self.model, "config.json")) as f:
            self.config = json.load(f)
        self.text = os.path.exists(os.path.join(self.model, "tokenizer.json"))
        self.experts = any("expert" in key for key in self.config)
        self.balanced = self.experts and self.config["model_type"] not in ("deepseek_v3", "glm4_moe", "llama4_text")  # by a loss
        self.bf16 = self.model.endswith("bf16")

    def path(self, name):
        return os.path.join(self.folder, name)

    def maybe(self, option, values, odds=0.4):
        """The option with one of the values, or nothing."""
        return [option, str(self.draw.choice(values))] if self.draw.random() < odds else []

    def flag(self, option, odds=0.3):
        return [option] if self.draw.random() < odds else []

    def draw_ids(self, n):
        return [self.draw.randrange(3, self.config["vocab_size"]) for _ in range(n)]

    def draw_ranks(self, training):
        meshes = MESHES + TRAINING_MESHES * training + EXPERT_MESHES * self.experts
        mesh = self.draw.choices([m for m, _ in meshes], [odds for _, odds in meshes])[0]
        ranks = 1
        for size in mesh.values():
            ranks *= size
        options = ["-n", str(ranks), "--mesh", ",".join("%s=%d" % m for m in mesh.items())]
        options += self.maybe("--backend", ["auto"] + BACKENDS, 0.7)
        options += self.maybe("--threads", [1, 2])
        plans = ["auto", "tp", "tp+sp", "hf", "none"] + ["ep", "ep+sp"] * self.experts
        options += ["--plan", self.draw.choice(["ep", "ep+sp"])] if "ep" in mesh else self.maybe("--plan", plans)
        if training and "dp" in mesh:
            options += self.maybe("--plan-override", ["dp:**=zero1", "dp:**=zero2", "dp:**=zero3", "dp:**=zero3"], 0.6)
        if training and "none" not in options:
            options += self.maybe("--plan-override", ["lm_head=loss_parallel"], 0.2)
        return options

    def draw_environment(self):
        environment = {"TESSERA_CPU": "scalar"} if self.draw.random() < 0.1 else {}
        if self.draw.random() < 0.8:  # these models are small
            environment.update(TESSERA_OFFLOAD_MIN="64", TESSERA_OFFLOAD_BUCKET=self.draw.choice(["64", "700", "65536"]))
        if self.draw.random() < 0.3:
            environment["TESSERA_DISK_IO"] = "threads"
        return environment


def draw_sampling(c):
    settings = {}
    for key, values in (("temperature", [0, 0.7, 1.3]), ("top_k", [0, 1, 5, 50]), ("top_p", [0.3, 0.9, 1.0]),
                        ("min_p", [0.0, 0.1]), ("repetition_penalty", [1.0, 1.2]), ("seed", [0, 7, 123456789])):
        if c.draw.random() < 0.4:
            settings[key] = c.draw.choice(values)
    return settings


def draw_numbers(c):
    """What changes the numbers, on one rank too."""
    ways = ["--math f32", "--weights file", "--weights q8", "--weights mxfp4"] + ["--math bf16", "--weights bf12"] * c.bf16
    return c.maybe("--kv", ["f32", "bf16"]) + (c.draw.choice(ways).split() if c.draw.random() < 0.6 else [])


def name_options(settings):
    return [word for key, value in settings.items() for word in ("--" + key.replace("_", "-"), str(value))]


def draw_texts(c):
    """The prompts of a command: objects as in the file of --prompts."""
    n = c.draw.choice([1, 1, 2, 3, 5])
    return [{"prompt": " ".join(c.draw.choices(WORDS, k=c.draw.randrange(9)))} if c.text and c.draw.random() < 0.6 else
            {"ids": c.draw_ids(c.draw.randrange(1, 20))} for _ in range(n)]


def name_prompt(text):
    return ["--prompt", text["prompt"]] if "prompt" in text else ["--ids", ",".join(map(str, text["ids"]))]


def make_rows(c):
    """Writes chats, or prompts with completions, and returns options for them."""
    def speak(n):
        return " ".join(c.draw.choices(WORDS, k=c.draw.randrange(1, n)))
    def make_row(chat):
        if not chat:
            return {"prompt": speak(9), "completion": " " + speak(20)}
        turns = [{"role": role, "content": speak(20)} for _ in range(c.draw.choice([1, 1, 2])) for role in ("user", "assistant")]
        return {"messages": turns[:-1] if c.draw.random() < 0.1 else turns}
    chat = c.draw.random() < 0.6
    with open(c.path("rows.jsonl"), "w") as f:
        f.writelines(json.dumps(make_row(chat)) + "\n" for _ in range(40))
    template = ["--chat-template", c.draw.choice(["zephyr", "chatml"])] if chat else []
    return ["--data", c.path("rows.jsonl")] + template + c.maybe("--loss", ["all"])


def make_training_data(c):
    if c.text and c.draw.random() < 0.4:
        return make_rows(c)
    if c.text and c.draw.random() < 0.5:
        return ["--data", "data/texts/stories.jsonl"]
    ids = c.draw_ids(600)
    with open(c.path("ids.u16"), "wb") as f:
        f.write(struct.pack("<%dH" % len(ids), *ids))
    return ["--data", c.path("ids.u16")]


def draw_training(c, steps):
    """What changes the numbers of a training, on one rank too."""
    kept = make_training_data(c) + ["--steps", str(steps), "--sequence", str(c.draw.choice([8, 16, 33]))] + \
        ["--batch", str(c.draw.choice([2, 4]))] + c.maybe("--micro-batches", [1, 2]) + c.maybe("--seed", [1, 99]) + \
        c.maybe("--lr", ["1e-3", "5e-4"]) + c.maybe("--warmup", [1, 2]) + \
        c.maybe("--schedule", ["constant", "cosine"]) + c.maybe("--weight-decay", [0.1]) + \
        c.maybe("--clip", [0, 0.5]) + c.maybe("--dropout", [0, 0.1]) + c.maybe("--math", ["f32", "bf16"], 0.3) + \
        c.maybe("--aux-loss", [0.01]) * c.balanced + c.flag("--separate", 0.2)
    return kept + c.draw.choice([[], ["--optimizer", "sgd"] + c.maybe("--momentum", [0.9]), c.maybe("--betas", ["0.8,0.95"])])


def draw_offloading(c):
    """Options that keep values in files, or bound weights that are gathered or read at once."""
    options = []
    for what in ("optimizer", "weights"):
        if c.draw.random() < 0.3:
            options += ["--offload-" + what, c.draw.choice([c.folder, c.folder, c.folder, "host"])]
    tile = c.maybe("--tile", ["1", "700", "5K", "1M", "auto"], 0.35)
    return options + tile + ["--memory", c.draw.choice(["300M", "2G"])] * ("auto" in tile)


def draw_ways_to_train(c):
    layers = {"gpt2": "transformer.h.*", "gpt_neox": "gpt_neox.layers.*", "opt": "model.decoder.layers.*"}.get(
        c.config["model_type"], "model.layers.*")
    ranks = c.draw_ranks(True)
    schedules = ["gpipe", "1f1b", "interleaved:2", "looped-bfs:2", "zb-h1", "zb-v"]
    return ranks + c.maybe("--recompute", ["**", layers]) + c.maybe("--bucket", ["4K", "1M"]) + draw_offloading(c) + \
        c.flag("--check", 0.1) + \
        (c.maybe("--pipeline-schedule", schedules, 0.6) if any("pp=" in word for word in ranks) else [])


def write_batch(c):
    n, length = c.draw.choice([2, 4]), c.draw.choice([5, 16])
    ids = [c.draw_ids(length) for _ in range(n)]
    labels = [[i if c.draw.random() < 0.9 else -100 for i in row] for row in ids]
    size = 8 * n * length
    header = json.dumps({name: {"dtype": "I64", "shape": [n, length], "data_offsets": [k * size, (k + 1) * size]}
                         for k, name in enumerate(("ids", "labels"))}).encode()
    with open(c.path("batch"), "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header)
        for rows in (ids, labels):
            f.write(struct.pack("<%dq" % (n * length), *sum(rows, [])))
    return c.path("batch")
