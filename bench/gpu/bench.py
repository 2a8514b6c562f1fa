#!/usr/bin/env python3
"""Decoding, prefill and training of random bf16 models on one GPU: Tessera and its peers, in one run.

The run measures its own ceilings: a device-to-device copy (bytes read and written), and a bf16 product of
8192 x 8192 x 8192. Decoding is compared with the copy: a step reads each weight once, and the experts that its tokens
are expected to choose. Prefill is compared with the product: two operations per token and weight of the layers, plus
causal attention, and the head once. Training counts three times that, and the head for each token. Loading is compared
with reading the file in pieces that are copied to the GPU concurrently. Keys and values are bf16, as in Transformers.

--parts selects the parts and their order; --list prints all parts with their seconds on an H100. --seconds may end the
run at any part. --table prints the met targets, --json has all numbers; both are written after each part. If Nsight
Compute is installed, "slowest" lists the kernels of the four rows that are furthest from their targets. --dry-run tests
the script with a tiny model on the CPU, without PyTorch; its numbers mean nothing.
"""

import argparse
import array
import csv
import fnmatch
import json
import os
import random
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import checkpoint

try:
    import torch
except ImportError:
    torch = None
try:
    import transformers
except ImportError:
    transformers = None

LLAMA = dict(model_type="llama", num_key_value_heads=8, vocab_size=128256)
MOE = dict(model_type="qwen3_moe", norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], num_experts_per_tok=8,
           tie_word_embeddings=False)
SHAPES = {  # JackFram/llama-160m, Llama-3.2-1B and Llama-3.1-8B, and a third of Qwen3-30B-A3B
    "160M": dict(LLAMA, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
                 num_key_value_heads=12, vocab_size=32000, tie_word_embeddings=False),
    "1B": dict(LLAMA, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
               tie_word_embeddings=True),
    "8B": dict(LLAMA, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
               tie_word_embeddings=False),
    "MoE": dict(MOE, hidden_size=2048, intermediate_size=6144, num_hidden_layers=16, num_attention_heads=32,
                num_key_value_heads=4, head_dim=128, vocab_size=151936, num_experts=64, moe_intermediate_size=768),
    "tiny": dict(LLAMA, hidden_size=128, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, vocab_size=1024, tie_word_embeddings=False),
    "tinyMoE": dict(MOE, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                    num_key_value_heads=2, head_dim=32, vocab_size=1024, num_experts=16, moe_intermediate_size=64),
}
FIRST_KERNEL = "look_up_rows"  # the first kernel of a step: it reads the embeddings


class Bench:
    def __init__(self, options):
        self.options = options
        self.device = "cpu" if options.dry_run else "cuda"
        self.end = time.monotonic() + options.seconds
        self.rows, self.kernels, self.shapes = [], [], {}
        self.loads = {}  # by shape: seconds of Tessera, and of reading and copying only
        self.failed = False
        self.tokens = 8 if options.dry_run else 128
        self.context = 16
        self.batches = [1, 4] if options.dry_run else [1, 8, 64]
        self.copy = self.peak = 1e12  # without PyTorch only the dry run works

    def left(self):
        return self.end - time.monotonic()

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def time(self, run, repeats):
        """Returns the median seconds of run()."""
        times = []
        run()
        for _ in range(repeats):
            self.wait()
            begin = time.perf_counter()
            run()
            self.wait()
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    def measure_ceilings(self):
        n = 1 << (20 if self.options.dry_run else 31)
        source = torch.randint(0, 255, (n,), dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        self.copy = 2 * n / self.time(lambda: target.copy_(source), 20)
        del source, target
        m = 256 if self.options.dry_run else 8192
        a, b = (torch.randn(m, m, dtype=torch.bfloat16, device=self.device) for _ in range(2))
        self.peak = 2 * m**3 / self.time(lambda: torch.mm(a, b), 20)
        del a, b
        self.empty()
        print(f"copy {self.copy / 1e12:.3f} TB/s, bf16 product {self.peak / 1e12:.1f} TFLOP/s", flush=True)

    def empty(self):
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def add(self, shape, runner, what, batch, rate, share, memory=None):
        self.rows.append(dict(shape=shape, runner=runner, what=what, batch=batch, tokens_per_second=rate, share=share))
        more = ""
        if memory:
            self.rows[-1]["memory_bytes"] = memory
            more = f"  {memory / 1e9:8.2f} GB"
        print(f"{shape:5} {runner:22} {what:24} batch {batch:3}  {rate:12.1f} tok/s  {100 * share:6.1f} %{more}", flush=True)

    def find(self, shape, runner, what, batch, field):
        return next((r[field] for r in self.rows if (r["shape"], r["runner"], r["what"], r["batch"]) == (shape, runner, what, batch)), None)

    def save(self):
        lines = [t.describe() for t in list_targets(self)]
        if self.options.table:
            with open(self.options.table, "w") as f:
                f.write("".join(line + "\n" for line in lines))
        if self.options.json:
            with open(self.options.json, "w") as f:
                json.dump(dict(copy_bytes_per_second=self.copy, product_flops=self.peak, torch=torch and torch.__version__,
                               transformers=transformers and transformers.__version__, loads=self.loads,
                               rows=self.rows, kernels=self.kernels), f, indent=1)
        return lines

    def run(self, what, least, run):
        """Calls run() if at least `least` seconds are left; a failure does not end the other parts."""
        if self.left() < least:
            print(f"{what}: no time left", flush=True)
            return
        try:
            run()
        except Exception as e:
            self.failed = True
            print(f"{what}: {type(e).__name__}: {e}", flush=True)
        self.empty()
        self.save()


class Shape:
    """A checkpoint, and the cost of a token."""

    def __init__(self, b, name):
        begin = time.monotonic()
        self.config = c = checkpoint.make_config("bf16", **SHAPES[name])
        self.name, self.folder = name, os.path.join(b.options.work, name)
        checkpoint.write_checkpoint(self.folder, c, "bf16")
        self.vocabulary = c["vocab_size"]
        self.head = c["vocab_size"] * c["hidden_size"]
        self.used = sum(used for _, _, used in checkpoint.list_tensors(c))
        self.experts, self.chosen = c.get("num_experts", 0), c.get("num_experts_per_tok", 0)
        self.expert = 3 * c["hidden_size"] * c.get("moe_intermediate_size", 0) * c["num_hidden_layers"]
        # operations for each key that a token sees
        self.attention = 2 * c["num_attention_heads"] * c["head_dim"] * c["num_hidden_layers"]
        self.prefills = [32] if b.options.dry_run else [512, 2048] if self.experts else [512, 2048, 4096]
        self.model = None
        print(f"{name}: {self.used / 1e6:.0f} M weights a token, written in {time.monotonic() - begin:.1f} s", flush=True)

    def count_prompt(self, n):
        return 2 * (self.used - self.head) * n + 2 * self.head + self.attention * n * (n + 1)

    def count_read(self, batch):
        """Returns the bytes of weights that a step reads if each token chooses its experts by chance."""
        if not self.experts:
            return 2 * self.used
        read = self.experts * (1 - (1 - self.chosen / self.experts) ** batch)
        return 2 * (self.used + (read - self.chosen) * self.expert)


def run_tessera(b, *arguments, before=(), environment=None):
    """Runs a command of Tessera; returns its output and its messages."""
    command = [*before, *shlex.split(b.options.tessera), *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=max(b.left(), 10),
                          env=dict(os.environ, TESSERA_DEVICE=b.device, **(environment or {})))
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-600:])
    return done.stdout, done.stderr


def bench_json(b, kind, shape, *arguments, environment=None):
    text, _ = run_tessera(b, "bench", kind, shape.folder, "--kv", "bf16", "--context", 0 if kind == "prefill" else b.context,
                       "--json", *arguments, environment=environment)
    return [json.loads(line) for line in text.splitlines()]


def time_copy_of_file(b, path):
    """Returns the seconds to read a file in pieces, copied to the GPU during the next read; the faster of two runs."""
    piece, pinned = 32 << 20, b.device == "cuda"
    stages = [torch.empty(piece, dtype=torch.uint8, pin_memory=pinned) for _ in range(4)]
    target = torch.empty(os.path.getsize(path), dtype=torch.uint8, device=b.device)
    times = []
    for _ in range(2):
        events, at = [None] * len(stages), 0
        b.wait()
        begin = time.perf_counter()
        with open(path, "rb", buffering=0) as f:
            while at < len(target):
                i = at // piece % len(stages)
                if events[i]:
                    events[i].synchronize()
                n = min(piece, len(target) - at)
                view, done = memoryview(stages[i].numpy())[:n], 0
                while done < n:
                    done += f.readinto(view[done:])
                target[at:at + n].copy_(stages[i][:n], non_blocking=True)
                if pinned:
                    events[i] = torch.cuda.Event()
                    events[i].record()
                at += n
        b.wait()
        times.append(time.perf_counter() - begin)
    return min(times)


def make_prompt(n, seed, vocabulary):
    return [3 + (seed * 7919 + i * 104729) % (vocabulary - 3) for i in range(n)]


def bench_decode(b, s):
    batches = [*b.batches, 4 * b.batches[-1]]  # the last: no graphs, no kernels of few rows
    for got in bench_json(b, "decode", s, "--tokens", b.tokens, "--rounds", 3, "--batch", ",".join(map(str, batches))):
        rate = got["median"]
        b.add(s.name, "Tessera", "decode", got["batch"], rate, rate / got["batch"] * s.count_read(got["batch"]) / b.copy)
    for what, environment in ("kernels in turn", dict(TESSERA_CUDA_SYNC="kernels")), ("no graphs", dict(TESSERA_GRAPHS="none")):
        rate = bench_json(b, "decode", s, "--tokens", b.tokens, "--rounds", 2, environment=environment)[0]["median"]
        b.add(s.name, "Tessera", f"decode, {what}", 1, rate, rate * 2 * s.used / b.copy)


def bench_prefill(b, s):
    """Measures one step, and steps of 1024 rows, whose activations fit in the second cache; the faster way counts."""
    for n in s.prefills:
        rates = {c: bench_json(b, "prefill", s, "--tokens", n, "--rounds", 3, "--prefill-chunk", c)[0]["median"]
                 for c in sorted({n, min(n, 1024)})}
        for c, rate in rates.items():
            b.add(s.name, "Tessera", f"prefill {n} by {c}", 1, rate, rate * s.count_prompt(n) / n / b.peak)
        rate = max(rates.values())
        b.add(s.name, "Tessera", f"prefill {n}", 1, rate, rate * s.count_prompt(n) / n / b.peak)


def bench_load(b, s):
    path = os.path.join(s.folder, "model.safetensors")
    got = bench_json(b, "load", s, "--rounds", 2)[0]
    print(f"{s.name}: Tessera opens {os.path.getsize(path) / 1e9:.2f} GB in {min(got['open_s']):.2f} s", flush=True)
    if torch:
        b.loads[s.name] = min(got["open_s"]), time_copy_of_file(b, path)
        print(f"{s.name}: reading and copying alone {b.loads[s.name][1]:.2f} s", flush=True)


def print_ops(b, s, kind, *arguments):
    """Prints the time by kind of op; each op is completed before the next one, which costs about 10 us."""
    got = bench_json(b, kind, s, "--rounds", 1, "--breakdown", *arguments)[0]["breakdown"]
    print(f"{s.name} {kind}, ops that are waited for: " + ", ".join(
        f"{o['op']} {1e6 * o['seconds'] / o['calls']:.0f} us x {o['calls']}" for o in got["ops"] if o["calls"]), flush=True)


def list_kernels(b, s, kind, n, batch):
    """Prints times and bytes of the kernels of one step, run singly by Nsight Compute; each begins with cold caches.

    All kernels of a short run are measured, and those of its last step are kept: their number depends on fusion, so no
    kernels are skipped by a count.
    """
    metrics = "gpu__time_duration.sum", "dram__bytes.sum"
    before = (*shlex.split(b.options.ncu), "--target-processes", "all", "--csv", "--page", "raw", "--print-units", "base",
              "--clock-control", "none", "--metrics", ",".join(metrics))
    if kind == "train":
        arguments = list_train_arguments(b, s, 2)
    else:
        arguments = ["bench", kind, s.folder, "--kv", "bf16", "--rounds", 1, "--json"]
        arguments += ["--context", 0, "--tokens", n, "--prefill-chunk", n] if kind == "prefill" else ["--context", b.context, "--tokens", 2, "--batch", batch]
    text, _ = run_tessera(b, *arguments, before=before, environment=dict(TESSERA_GRAPHS="none"))
    rows = list(csv.DictReader(line for line in text.splitlines() if line.startswith('"')))[1:]  # then units
    begins = [i for i, row in enumerate(rows) if FIRST_KERNEL in row["Kernel Name"]]
    if not begins:
        raise RuntimeError(f"no kernel of {len(rows)} is {FIRST_KERNEL}")
    sums = {}
    for row in rows[begins[-1]:]:
        at = sums.setdefault(f"{row['Kernel Name'][:60]} {row['Grid Size']}", [0, 0.0, 0.0])
        at[0] += 1
        for i, metric in enumerate(metrics):
            at[1 + i] += float(row[metric].replace(",", ""))
    what = name_row(kind, n)
    print(f"{s.name} {what} batch {batch}: the {len(rows) - begins[-1]} kernels of the last step, of {len(rows)}", flush=True)
    for name, (calls, ns, size) in sorted(sums.items(), key=lambda item: -item[1][1]):
        b.kernels.append(dict(shape=s.name, what=what, batch=batch, kernel=name, calls=calls, seconds=ns / 1e9, bytes=size))
        print(f"  {calls:5} x {ns / calls / 1e3:9.2f} us  {size / max(ns, 1):8.1f} GB/s  {name}", flush=True)


def name_row(kind, n):
    return kind if kind == "decode" else f"{kind} {n}"


def list_slowest(b):
    """Profiles the four of our rows that are furthest from their targets, or without targets from their ceilings."""
    keys = [(s, kind, n, batch) for s in b.shapes.values()
            for kind, n, batch in [*(("decode", 0, batch) for batch in b.batches), *(("prefill", n, 1) for n in s.prefills),
                                   ("train", get_train_size(b)[1], get_train_size(b)[0])]]
    ranks = {}
    for i, (s, kind, n, batch) in enumerate(keys):
        share = b.find(s.name, "Tessera", name_row(kind, n), batch, "share")
        met = [t.value / t.target for t in list_targets(b) if t.row == (s.name, name_row(kind, n), batch) and t.value is not None and t.target]
        if share is not None:
            ranks[i] = (0, min(met)) if met else (1, share)
    for i in sorted(ranks, key=ranks.get)[:4]:
        s, kind, n, batch = keys[i]
        b.run(f"{s.name} {kind} kernels", 30, lambda: list_kernels(b, s, kind, n, batch))


def load_model(b, s):
    if not s.model:
        for other in b.shapes.values():
            other.model = None
        b.empty()
        s.model = transformers.AutoModelForCausalLM.from_pretrained(s.folder, dtype=torch.bfloat16).to(b.device).eval()
    return s.model


def bench_generate(b, s, compiled, batch):
    """Measures decoding; with a static cache Transformers compiles the step itself, and makes CUDA graphs of it."""
    model = load_model(b, s)
    settings = dict(do_sample=False, pad_token_id=0, eos_token_id=None, max_new_tokens=b.tokens, min_new_tokens=b.tokens)
    if compiled:
        settings["cache_implementation"] = "static"
    ids = torch.tensor([make_prompt(b.context, i, s.vocabulary) for i in range(batch)], device=b.device)
    with torch.inference_mode():
        # the prompt of a few tokens adds one step, 1 % of the total
        seconds = b.time(lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **settings), 2)
    if compiled and b.device == "cuda" and not getattr(model, "_compiled_call", None):
        raise RuntimeError("Transformers did not compile the model")
    rate = batch * b.tokens / seconds
    b.add(s.name, "Transformers compiled" if compiled else "Transformers eager", "decode", batch, rate,
          rate / batch * s.count_read(batch) / b.copy)


def bench_forward(b, s):
    model = load_model(b, s)
    with torch.inference_mode():
        for n in s.prefills:
            ids = torch.tensor([make_prompt(n, 1, s.vocabulary)], device=b.device)
            rate = n / b.time(lambda: model(ids, logits_to_keep=1), 5)
            b.add(s.name, "Transformers eager", f"prefill {n}", 1, rate, rate * s.count_prompt(n) / n / b.peak)


def get_train_size(b):
    return (2, 32) if b.options.dry_run else (8, 1024)


def list_train_arguments(b, s, steps):
    """Writes the data of a command and returns it; tessera train writes nothing into the folder of a checkpoint."""
    batch, length = get_train_size(b)
    data = os.path.join(b.options.work, f"{s.name}.u32")
    draw = random.Random(1)
    with open(data, "wb") as f:
        array.array("I", (draw.randrange(3, s.vocabulary) for _ in range(4 * batch * length))).tofile(f)
    return ["train", s.folder, "--data", data, "--steps", steps, "--batch", batch, "--sequence", length,
            "--log", os.path.join(b.options.work, f"{s.name}.log")]


def add_train(b, s, runner, seconds, memory):
    batch, length = get_train_size(b)
    rate = batch * length / seconds
    # forward and backward; the attention of a token sees half of its text on average
    b.add(s.name, runner, f"train {length}", batch, rate, rate * 3 * (2 * s.used + s.attention * length) / b.peak, memory)


def bench_train(b, s):
    """Measures AdamW, with masters and gradients in f32; memory: weights, gradients, states and values of a step."""
    arguments = list_train_arguments(b, s, 4)
    _, said = run_tessera(b, *arguments)
    with open(arguments[-1]) as f:
        seconds = [json.loads(line)["seconds"] for line in f]
    add_train(b, s, "Tessera", statistics.median(seconds[1:]), float(re.findall(r"([\d.]+) MiB", said)[-1]) * 1048576)


def bench_train_peer(b, s):
    """Measures fused AdamW, all in bf16."""
    batch, length = get_train_size(b)
    if b.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    model = load_model(b, s).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    part = torch.tensor([make_prompt(length, i, s.vocabulary) for i in range(batch)], device=b.device)

    def step():
        model(part, labels=part).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    try:
        add_train(b, s, "Transformers eager", b.time(step, 3), torch.cuda.max_memory_allocated() if b.device == "cuda" else None)
    finally:
        s.model = None


def bench_llama(b, s):
    """Measures llama.cpp with all layers on the GPU and flash attention; the faster of two step sizes counts."""
    gguf = os.path.join(b.options.work, s.name + ".gguf")
    checkpoint.write_gguf(gguf, s.config, "bf16")
    folder = os.path.abspath(b.options.llama)
    try:
        done = subprocess.run([os.path.join(folder, "llama-bench"), "-m", gguf, "-p", ",".join(map(str, s.prefills)), "-n", str(b.tokens),
                               "-ngl", "99", "-fa", "1", "-b", "4096", "-ub", "512,2048", "-r", "3", "-o", "jsonl"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=max(b.left(), 10),
                              env=dict(os.environ, LD_LIBRARY_PATH=":".join(filter(None, (folder, os.environ.get("LD_LIBRARY_PATH"))))))
    finally:
        os.remove(gguf)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-600:])
    rates = {}
    for line in map(json.loads, filter(None, done.stdout.splitlines())):
        rates.setdefault(line["n_prompt"], []).append(statistics.median(line["samples_ts"]))
    for n, found in rates.items():
        cost = s.count_prompt(n) / n / b.peak if n else s.count_read(1) / b.copy
        b.add(s.name, "llama.cpp", f"prefill {n}" if n else "decode", 1, max(found), max(found) * cost)


def print_all_ops(b, s):
    print_ops(b, s, "decode", "--tokens", 8)
    print_ops(b, s, "prefill", "--tokens", s.prefills[-1], "--prefill-chunk", s.prefills[-1])


def list_all_kernels(b, s):
    for kind, n, batch in ("decode", 0, b.batches[0]), ("decode", 0, b.batches[-1]), ("prefill", s.prefills[-1], 1):
        list_kernels(b, s, kind, n, batch)


def list_train_kernels(b, s):
    list_kernels(b, s, "train", *reversed(get_train_size(b)))


def bench_each_batch(compiled):
    return lambda b, s: [bench_generate(b, s, compiled, batch) for batch in b.batches[1:]]


# the requirements of a part, and its function; the first part that needs a checkpoint writes it
PARTS = {
    "decode": ("", bench_decode),
    "prefill": ("", bench_prefill),
    "load": ("", bench_load),
    "train": ("", bench_train),
    "eager": ("transformers", lambda b, s: bench_generate(b, s, False, b.batches[0])),
    "eager_prefill": ("transformers", bench_forward),
    "eager_batches": ("transformers", bench_each_batch(False)),
    "compiled": ("transformers", lambda b, s: bench_generate(b, s, True, b.batches[0])),
    "compiled_batches": ("transformers", bench_each_batch(True)),
    "eager_train": ("transformers", bench_train_peer),
    "llama": ("llama", bench_llama),
    "ops": ("", print_all_ops),
    "kernels": ("ncu", list_all_kernels),
    "train_kernels": ("ncu", list_train_kernels),
}
# estimated seconds on an H100, including the time to write or load a checkpoint for the first time
SECONDS = {
    "160M": dict(decode=8, prefill=10, train=8, eager_train=10, llama=10, ops=5, kernels=60, train_kernels=40),
    "1B": dict(decode=12, prefill=14, load=6, train=15, eager=10, eager_prefill=5, eager_batches=12, compiled=35,
               compiled_batches=70, eager_train=15, llama=25, ops=8, kernels=60, train_kernels=60),
    "8B": dict(decode=40, prefill=30, load=20, eager=25, eager_prefill=10, eager_batches=20, compiled=45,
               compiled_batches=90, llama=90, ops=12, kernels=120),
    "MoE": dict(decode=25, prefill=15, load=15, eager=20, eager_prefill=8, eager_batches=25, ops=10, kernels=90),
}
# the order without --parts: rows with targets, their peers, then all others
DEFAULT = ["1B:decode", "1B:prefill", "1B:load", "8B:decode", "8B:prefill", "8B:load", "MoE:decode", "MoE:prefill", "1B:train",
           "1B:eager_train", "1B:eager", "1B:eager_prefill", "8B:eager", "8B:eager_prefill", "MoE:eager", "MoE:eager_prefill",
           "1B:compiled", "8B:compiled", "slowest", "160M:train", "160M:eager_train", "160M:decode", "160M:prefill",
           "*:llama", "*:compiled_batches", "*:eager_batches", "*:ops"]


def list_parts(b):
    """Lists (name, seconds) of all parts."""
    if b.options.dry_run:
        return [*((f"{name}:{part}", 1) for name in ("tiny", "tinyMoE") for part in PARTS if name == "tiny" or part not in ("llama", "kernels", "train_kernels")),
                ("slowest", 1)]
    return [*((f"{name}:{part}", n) for name, parts in SECONDS.items() for part, n in parts.items()), ("slowest", 60)]


def choose_parts(b):
    """Lists the parts in the order of --parts, each once: SHAPE, SHAPE:ROW, with * and ?, or slowest."""
    names, chosen = [name for name, _ in list_parts(b)], []
    for word in b.options.parts.split(",") if b.options.parts else ["*"] if b.options.dry_run else DEFAULT:
        found = [name for name in names if fnmatch.fnmatchcase(name, word) or fnmatch.fnmatchcase(name.split(":")[0], word)]
        if not found:
            raise SystemExit(f"bench.py: --parts {word}: no such part; --list prints all")
        chosen += [name for name in found if name not in chosen]
    return chosen


def run_part(b, part):
    name, _, kind = part.partition(":")
    needs, run = PARTS[kind] if kind else ("ncu", list_slowest)
    if needs and not dict(transformers=torch and transformers, llama=b.options.llama, ncu=b.options.ncu)[needs]:
        print(f"{part}: skipped, no {needs}", flush=True)
    elif not kind:
        list_slowest(b)
    else:
        seconds = dict(list_parts(b))[part]
        if name not in b.shapes:
            b.run(name, seconds, lambda: b.shapes.update({name: Shape(b, name)}))
        if name in b.shapes:
            b.run(part, seconds, lambda: run(b, b.shapes[name]))


class Target:
    """A number of one of our rows, (shape, what, batch), and its target on one H100 or H200."""

    def __init__(self, row, what, value, target, unit):
        self.row, self.what, self.value, self.target, self.unit = row, what, value, target, unit

    def describe(self):
        if self.value is None:
            return f"{self.what}: not measured"
        word = "met" if self.value >= self.target else "short"
        return f"{self.what}: {self.value:.2f}{self.unit}, target {self.target}{self.unit}: {word}"


def list_targets(b):
    few, many, dry = b.batches[0], b.batches[-1], b.options.dry_run

    def rate(shape, what, batch, runner="Tessera"):
        return b.find(shape, runner, what, batch, "tokens_per_second")

    def compare(shape, what, batch, peer, least):
        ours, theirs = rate(shape, what, batch), rate(shape, what, batch, peer)
        return Target((shape, what, batch), f"{shape} {what}, to {peer}", ours / theirs if ours and theirs else None, least, " x")

    def reach(shape, what, batch, of, percent):
        share = b.find(shape, "Tessera", what, batch, "share")
        return Target((shape, what, batch), f"{shape} {what}, share of {of}", None if share is None else 100 * share, percent, " %")

    def scale(shape, times):
        one, all_of_them = rate(shape, "decode", few), rate(shape, "decode", many)
        return Target((shape, "decode", many), f"{shape} decode, batch {many} to {few}", all_of_them / one if one and all_of_them else None,
                      times, " x")

    for shape, copy, times, product in [("tiny", 0, 0, 0)] if dry else [("1B", 75, 40, 55), ("8B", 88, 50, 72)]:
        yield reach(shape, "decode", few, "the copy", copy)
        yield compare(shape, "decode", few, "Transformers eager", 2)
        yield compare(shape, "decode", few, "Transformers compiled", 1.1)
        yield scale(shape, times)
        for n in [32] if dry else [512, 2048, 4096]:
            yield reach(shape, f"prefill {n}", 1, "the product", product)
            yield compare(shape, f"prefill {n}", 1, "Transformers eager", 1.1)
        load = b.loads.get(shape)
        yield Target(None, f"{shape} load, share of reading and copying", load and 100 * load[1] / load[0], 70, " %")
    yield scale("tinyMoE" if dry else "MoE", 12)
    for n in [32] if dry else [512, 2048]:
        yield compare("tinyMoE" if dry else "MoE", f"prefill {n}", 1, "Transformers eager", 1.3)
    batch, length = get_train_size(b)
    for shape in ["tiny"] if dry else ["160M", "1B"]:
        yield compare(shape, f"train {length}", batch, "Transformers eager", 1.0)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tessera", default="tessera", help="the command to measure")
    p.add_argument("--llama", help="a folder with llama-bench of llama.cpp and its libraries")
    p.add_argument("--ncu", help="the command of Nsight Compute (default: ncu, if installed)")
    p.add_argument("--work", default="/tmp/tessera-bench-gpu", help="a folder for 32 GB of checkpoints, or 48 GB with --llama")
    p.add_argument("--seconds", type=float, default=480, help="start no part after this time")
    p.add_argument("--json", help="a file for the rows and ceilings")
    p.add_argument("--table", help="a file for the targets")
    p.add_argument("--parts", help="SHAPE, SHAPE:ROW (8B:decode, *:train) and slowest, in this order, with commas")
    p.add_argument("--list", action="store_true", help="print all parts with their seconds on an H100")
    p.add_argument("--dry-run", action="store_true", help="a tiny model on the CPU")
    options = p.parse_args()
    b = Bench(options)
    if not options.ncu and not options.dry_run:
        options.ncu = shutil.which("ncu")
    parts = choose_parts(b)
    if options.list:
        print("\n".join(f"{name:24} {n:4} s" for name, n in list_parts(b)))
        return 0
    if not options.dry_run and not (torch and torch.cuda.is_available()):
        print("no GPU" if torch else "no PyTorch")
        return 77
    os.makedirs(options.work, exist_ok=True)
    if torch:
        b.measure_ceilings()
    for part in parts:
        run_part(b, part)
    shutil.rmtree(options.work, ignore_errors=True)
    print("\n".join(b.save()), flush=True)
    return 1 if b.failed else 0


if __name__ == "__main__":
    sys.exit(main())
