#!/usr/bin/env python3
"""Decoding and prefill of random bf16 Llama models on one GPU: Tessera, and Transformers eager and compiled, in one run.

The ceilings are measured in the same run: a device-to-device copy (bytes read and written), and a bf16 product of
8192 x 8192 x 8192. Decoding is compared with the copy (each weight is read once a step); prefill with the product: two
operations per token and weight of the layers, those of causal attention, and the head once. Loading is compared with
reading the file in pieces and copying them to the GPU meanwhile. Keys and values are bf16, as in Transformers.
Tessera goes first, then what its targets are compared with, then the rest: --seconds may end it anywhere.
--table says which targets are met, --json has all numbers; both are written after each run. Where Nsight Compute is
installed, the kernels of a step of decoding and of a prompt are listed with their times. Checkpoints are written to
--work, with weights from the GPU's generator. --dry-run: a tiny model on the CPU, to see that the script works; its
numbers mean nothing.
"""

import argparse
import csv
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time

import torch

try:
    import transformers
except ImportError:
    transformers = None

SHAPES = {  # those of JackFram/llama-160m, Llama-3.2-1B and Llama-3.1-8B
    "160M": dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
                 num_key_value_heads=12, vocab_size=32000, tie_word_embeddings=False),
    "1B": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
               num_key_value_heads=8, vocab_size=128256, tie_word_embeddings=True),
    "8B": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
               num_key_value_heads=8, vocab_size=128256, tie_word_embeddings=False),
    "tiny": dict(hidden_size=128, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, vocab_size=1024, tie_word_embeddings=False),
}


class Bench:
    def __init__(self, options):
        self.options = options
        self.device = "cpu" if options.dry_run else "cuda"
        self.end = time.monotonic() + options.seconds
        self.rows, self.kernels = [], []
        self.loads = {}  # by shape: seconds of Tessera, and of reading and copying alone
        self.failed = False
        self.tokens, self.prefills = (8, [32]) if options.dry_run else (128, [512, 2048, 4096])
        self.context = 16
        self.batches = [1, 4] if options.dry_run else [1, 8, 64]

    def left(self):
        return self.end - time.monotonic()

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def time(self, run, repeats):
        """Median seconds of run()."""
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

    def add(self, shape, runner, what, batch, rate, share):
        self.rows.append(dict(shape=shape, runner=runner, what=what, batch=batch, tokens_per_second=rate, share=share))
        print(f"{shape:5} {runner:22} {what:24} batch {batch:3}  {rate:12.1f} tok/s  {100 * share:6.1f} %", flush=True)

    def save(self):
        lines = list(list_targets(self))
        if self.options.table:
            with open(self.options.table, "w") as f:
                f.write("".join(line + "\n" for line in lines))
        if self.options.json:
            with open(self.options.json, "w") as f:
                json.dump(dict(copy_bytes_per_second=self.copy, product_flops=self.peak, torch=torch.__version__,
                               transformers=transformers and transformers.__version__, loads=self.loads,
                               rows=self.rows, kernels=self.kernels), f, indent=1)
        return lines

    def run(self, what, least, run):
        """Calls run() if so many seconds are left; the others go on if it fails."""
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
    """A checkpoint, and what a token of it costs."""

    def __init__(self, b, name):
        c = SHAPES[name]
        begin = time.monotonic()
        self.name, self.folder = name, os.path.join(b.options.work, name)
        self.vocabulary = c["vocab_size"]
        self.head = c["vocab_size"] * c["hidden_size"]
        self.used = write_checkpoint(self.folder, c, b.device)
        self.attention = 2 * c["hidden_size"] * c["num_hidden_layers"]  # operations for each key that a token sees
        self.model = None
        print(f"{name}: {self.used / 1e6:.0f} M weights a token, written in {time.monotonic() - begin:.1f} s", flush=True)

    def count_prompt(self, n):
        return 2 * (self.used - self.head) * n + 2 * self.head + self.attention * n * (n + 1)


def list_tensors(c):
    """Names and shapes, as Transformers writes them."""
    width = c["hidden_size"] // c["num_attention_heads"]
    hidden, ffn = c["hidden_size"], c["intermediate_size"]
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (hidden,)
        yield at + "post_attention_layernorm.weight", (hidden,)
        for name, rows in ("q", c["num_attention_heads"]), ("k", c["num_key_value_heads"]), ("v", c["num_key_value_heads"]):
            yield at + f"self_attn.{name}_proj.weight", (rows * width, hidden)
        yield at + "self_attn.o_proj.weight", (hidden, c["num_attention_heads"] * width)
        yield at + "mlp.gate_proj.weight", (ffn, hidden)
        yield at + "mlp.up_proj.weight", (ffn, hidden)
        yield at + "mlp.down_proj.weight", (hidden, ffn)
    yield "model.norm.weight", (hidden,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], hidden)


def write_checkpoint(folder, shape, device):
    """Random weights of a size that keeps activations finite. Returns the number of weights that a token multiplies."""
    config = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", rms_norm_eps=1e-5,
                  rope_theta=500000.0, max_position_embeddings=8192, torch_dtype="bfloat16", bos_token_id=1,
                  eos_token_id=2, attention_bias=False, mlp_bias=False, **shape)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    tensors, header, at, used = list(list_tensors(shape)), {}, 0, 0
    for name, size in tensors:
        n = 2 * torch.Size(size).numel()
        header[name] = dict(dtype="BF16", shape=list(size), data_offsets=[at, at + n])
        at += n
        if "embed_tokens" not in name or shape["tie_word_embeddings"]:
            used += n // 2
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for name, size in tensors:
            x = torch.ones(size) if len(size) == 1 else torch.randn(size, device=device) * size[-1] ** -0.5
            f.write(x.to(torch.bfloat16).cpu().contiguous().view(torch.uint8).numpy())
    return used


def run_tessera(b, *arguments, before=(), environment=None):
    """What a command of Tessera prints."""
    command = [*before, *shlex.split(b.options.tessera), *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=max(b.left(), 10),
                          env=dict(os.environ, TESSERA_DEVICE=b.device, **(environment or {})))
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-600:])
    return done.stdout


def bench_json(b, kind, shape, *arguments, environment=None):
    text = run_tessera(b, "bench", kind, shape.folder, "--kv", "bf16", "--context", 0 if kind == "prefill" else b.context,
                       "--json", *arguments, environment=environment)
    return [json.loads(line) for line in text.splitlines()]


def time_copy_of_file(b, path):
    """Seconds to read a file in pieces, each of which goes to the GPU while the next one is read; the faster of two."""
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
    batches = [*b.batches, 4 * b.batches[-1]]  # the last one is beyond what graphs and the kernels of few rows have
    for got in bench_json(b, "decode", s, "--tokens", b.tokens, "--rounds", 3, "--batch", ",".join(map(str, batches))):
        rate = got["median"]
        b.add(s.name, "Tessera", "decode", got["batch"], rate, rate / got["batch"] * 2 * s.used / b.copy)
    for what, environment in ("kernels in turn", dict(TESSERA_CUDA_SYNC="kernels")), ("no graphs", dict(TESSERA_GRAPHS="none")):
        rate = bench_json(b, "decode", s, "--tokens", b.tokens, "--rounds", 2, environment=environment)[0]["median"]
        b.add(s.name, "Tessera", f"decode, {what}", 1, rate, rate * 2 * s.used / b.copy)


def bench_prefill(b, s):
    """In one step, and in steps of 1024 rows, whose activations the second cache can hold; the faster one counts."""
    for n in b.prefills:
        rates = {c: bench_json(b, "prefill", s, "--tokens", n, "--rounds", 3, "--prefill-chunk", c)[0]["median"]
                 for c in sorted({n, min(n, 1024)})}
        for c, rate in rates.items():
            b.add(s.name, "Tessera", f"prefill {n} by {c}", 1, rate, rate * s.count_prompt(n) / n / b.peak)
        rate = max(rates.values())
        b.add(s.name, "Tessera", f"prefill {n}", 1, rate, rate * s.count_prompt(n) / n / b.peak)


def bench_load(b, s):
    path = os.path.join(s.folder, "model.safetensors")
    got = bench_json(b, "load", s, "--rounds", 2)[0]
    b.loads[s.name] = min(got["open_s"]), time_copy_of_file(b, path)
    print(f"{s.name}: Tessera opens {os.path.getsize(path) / 1e9:.2f} GB in {b.loads[s.name][0]:.2f} s, "
          f"reading and copying alone {b.loads[s.name][1]:.2f} s", flush=True)


def print_ops(b, s, kind, *arguments):
    """Where the time goes, by kind of op; each is waited for, which costs about 10 us."""
    got = bench_json(b, kind, s, "--rounds", 1, "--breakdown", *arguments)[0]["breakdown"]
    print(f"{s.name} {kind}, ops that are waited for: " + ", ".join(
        f"{o['op']} {1e6 * o['seconds'] / o['calls']:.0f} us x {o['calls']}" for o in got["ops"] if o["calls"]), flush=True)


def list_kernels(b, s, kind, skip, count, *arguments):
    """Times and bytes of kernels, one at a time, from Nsight Compute; each begins with cold caches."""
    metrics = "gpu__time_duration.sum", "dram__bytes.sum"
    text = run_tessera(b, "bench", kind, s.folder, "--kv", "bf16", "--rounds", 1, "--json", *arguments,
                       before=("ncu", "--target-processes", "all", "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
                               "--launch-skip", str(skip), "--launch-count", str(count), "--metrics", ",".join(metrics)),
                       environment=dict(TESSERA_GRAPHS="none"))
    lines = [line for line in text.splitlines() if line.startswith('"')]
    sums = {}
    for row in list(csv.DictReader(lines))[1:]:  # the first row has units
        at = sums.setdefault(f"{row['Kernel Name'][:60]} {row['Grid Size']}", [0, 0.0, 0.0])
        at[0] += 1
        for i, metric in enumerate(metrics):
            at[1 + i] += float(row[metric].replace(",", ""))
    what = " ".join([kind, *map(str, arguments)])
    print(f"{s.name} {what}, {count} kernels after {skip}:", flush=True)
    for name, (n, ns, size) in sorted(sums.items(), key=lambda item: -item[1][1]):
        b.kernels.append(dict(shape=s.name, what=what, kernel=name, calls=n, seconds=ns / 1e9, bytes=size))
        print(f"  {n:5} x {ns / n / 1e3:9.2f} us  {size / max(ns, 1):8.1f} GB/s  {name}", flush=True)


def load_model(b, s):
    if not s.model:
        s.model = transformers.AutoModelForCausalLM.from_pretrained(s.folder, dtype=torch.bfloat16).to(b.device).eval()
    return s.model


def bench_generate(b, s, compiled, batch):
    """With a static cache Transformers compiles the step of decoding itself, and makes CUDA graphs of it."""
    model = load_model(b, s)
    settings = dict(do_sample=False, pad_token_id=0, eos_token_id=None, max_new_tokens=b.tokens, min_new_tokens=b.tokens)
    if compiled:
        settings["cache_implementation"] = "static"
    ids = torch.tensor([make_prompt(b.context, i, s.vocabulary) for i in range(batch)], device=b.device)
    with torch.inference_mode():
        # the prompt of a few tokens is one step more, 1 % of all
        seconds = b.time(lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **settings), 2)
    if compiled and b.device == "cuda" and not getattr(model, "_compiled_call", None):
        raise RuntimeError("Transformers did not compile the model")
    rate = batch * b.tokens / seconds
    b.add(s.name, "Transformers compiled" if compiled else "Transformers eager", "decode", batch, rate,
          rate / batch * 2 * s.used / b.copy)


def bench_forward(b, s):
    model = load_model(b, s)
    with torch.inference_mode():
        for n in b.prefills:
            ids = torch.tensor([make_prompt(n, 1, s.vocabulary)], device=b.device)
            rate = n / b.time(lambda: model(ids, logits_to_keep=1), 5)
            b.add(s.name, "Transformers eager", f"prefill {n}", 1, rate, rate * s.count_prompt(n) / n / b.peak)


def bench_train(b, s):
    """Steps of AdamW: Tessera's with f32 masters and gradients, Transformers' all in bf16."""
    batch, length = (2, 32) if b.options.dry_run else (8, 1024)
    data, log = os.path.join(s.folder, "ids.u32"), os.path.join(s.folder, "train.log")
    ids = torch.randint(3, s.vocabulary, (4 * batch, length), dtype=torch.int32)
    ids.numpy().tofile(data)
    run_tessera(b, "train", s.folder, "--data", data, "--steps", 4, "--batch", batch, "--sequence", length, "--log", log)
    with open(log) as f:
        seconds = [json.loads(line)["seconds"] for line in f]
    rates = {"Tessera": batch * length / statistics.median(seconds[1:])}
    if transformers:
        model = load_model(b, s).train()
        optimizer, part = torch.optim.AdamW(model.parameters(), fused=True), ids[:batch].long().to(b.device)

        def step():
            model(part, labels=part).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        rates["Transformers eager"] = batch * length / b.time(step, 3)
        s.model = None
    for runner, rate in rates.items():
        # forward and backward; the attention of a token sees half of its text on average
        b.add(s.name, runner, f"train {length}", batch, rate, rate * 3 * (2 * s.used + s.attention * length) / b.peak)


def bench_tessera(b, s):
    b.run(f"{s.name} decode", 15, lambda: bench_decode(b, s))
    b.run(f"{s.name} prefill", 15, lambda: bench_prefill(b, s))
    b.run(f"{s.name} load", 15, lambda: bench_load(b, s))


def explain_tessera(b, s):
    b.run(f"{s.name} ops", 60, lambda: print_ops(b, s, "decode", "--tokens", 8))
    b.run(f"{s.name} ops", 60, lambda: print_ops(b, s, "prefill", "--tokens", b.prefills[-1], "--prefill-chunk", b.prefills[-1]))
    if shutil.which("ncu") and b.device == "cuda":
        layers = SHAPES[s.name]["num_hidden_layers"]
        # decode: a step of 7 or 8 kernels a layer, or 9 of many texts, after the first prompts, of 10 to 16; prefill: the second prompt
        b.run(f"{s.name} kernels", 60, lambda: list_kernels(b, s, "decode", 18 * layers, 8 * layers, "--tokens", 4))
        b.run(f"{s.name} kernels", 60, lambda: list_kernels(b, s, "decode", 18 * layers, 9 * layers, "--tokens", 4, "--batch", b.batches[-1]))
        b.run(f"{s.name} kernels", 60, lambda: list_kernels(b, s, "prefill", 22 * layers, 60, "--tokens", b.prefills[-1],
                                                            "--prefill-chunk", b.prefills[-1]))


def bench_peers(b, s):
    b.run(f"{s.name} eager", 25, lambda: bench_generate(b, s, False, b.batches[0]))
    b.run(f"{s.name} compiled", 60, lambda: bench_generate(b, s, True, b.batches[0]))
    b.run(f"{s.name} eager", 15, lambda: bench_forward(b, s))


def bench_peer_batches(b, s):
    for batch in b.batches[1:]:
        b.run(f"{s.name} eager", 25, lambda: bench_generate(b, s, False, batch))


def list_targets(b):
    """Lines of what was measured beside what is aimed at on one H100 or H200."""
    def find(shape, runner, what, batch, field):
        return next((r[field] for r in b.rows if (r["shape"], r["runner"], r["what"], r["batch"]) == (shape, runner, what, batch)), None)

    def say(what, value, target, unit):
        word = "not measured" if value is None else f"{value:.2f}{unit}, target {target}{unit}: {'met' if value >= target else 'short'}"
        yield f"{what}: {word}"

    few, many = b.batches[0], b.batches[-1]
    for shape, share in [("tiny", 0)] if b.options.dry_run else [("1B", 65), ("8B", 80)]:
        got = find(shape, "Tessera", "decode", few, "share")
        yield from say(f"{shape} decode, share of the copy", got and 100 * got, share, " %")
        rate = find(shape, "Tessera", "decode", few, "tokens_per_second")
        for runner, least in ("Transformers eager", 2), ("Transformers compiled", 1.1):
            peer = find(shape, runner, "decode", few, "tokens_per_second")
            yield from say(f"{shape} decode, to {runner}", rate / peer if rate and peer else None, least, " x")
        all_rate = find(shape, "Tessera", "decode", many, "tokens_per_second")
        yield from say(f"{shape} decode, batch {many} to {few}", all_rate / rate if rate and all_rate else None, many * 5 / 8, " x")
        for n in b.prefills:
            got = find(shape, "Tessera", f"prefill {n}", 1, "share")
            if shape != "1B":
                yield from say(f"{shape} prefill {n}, share of the product", got and 100 * got, 60, " %")
        load = b.loads.get(shape)
        yield from say(f"{shape} load, share of reading and copying", load and 100 * load[1] / load[0], 70, " %")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tessera", default="tessera", help="the command")
    p.add_argument("--work", default="/tmp/tessera-bench-gpu", help="a folder for the checkpoints, of 17 GB")
    p.add_argument("--seconds", type=float, default=480, help="no run begins later")
    p.add_argument("--json", help="a file for the rows and ceilings")
    p.add_argument("--table", help="a file for the targets")
    p.add_argument("--shapes", default="1B,8B,160M", help="which, in this order; the first two with their targets first")
    p.add_argument("--dry-run", action="store_true", help="a tiny model on the CPU")
    options = p.parse_args()
    b = Bench(options)
    if not options.dry_run and not torch.cuda.is_available():
        print("no GPU")
        return 77
    if not transformers:
        print("transformers is not installed: Tessera alone")
    b.measure_ceilings()
    names, shapes = ["tiny"] if options.dry_run else options.shapes.split(","), []
    for part in names[:2], names[2:]:  # targets are of the first two
        first = len(shapes)
        for name in part:
            b.run(name, 60, lambda: shapes.append(Shape(b, name)))
            if shapes[first:] and shapes[-1].name == name:
                bench_tessera(b, shapes[-1])
        for s in shapes[first:] if transformers else []:
            bench_peers(b, s)
        for s in shapes[first:]:
            explain_tessera(b, s)
    for s in shapes if transformers else []:
        bench_peer_batches(b, s)
    for s in (s for s in shapes if s.name in ("160M", "tiny")):
        b.run(f"{s.name} train", 30, lambda: bench_train(b, s))
    shutil.rmtree(options.work, ignore_errors=True)
    print("\n".join(b.save()), flush=True)
    return 1 if b.failed else 0


if __name__ == "__main__":
    sys.exit(main())
