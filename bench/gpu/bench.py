#!/usr/bin/env python3
"""Decoding and prefill of random bf16 Llama models on one GPU: Tessera, and Transformers eager and compiled, in one run.

The ceilings are measured in the same run: a device-to-device copy (bytes read and written), and a bf16 product of
8192 x 8192 x 8192. Decoding is compared with the copy (each weight is read once a step), prefill with the product
(two operations per weight and token), loading with reading the file in pieces and copying them to the GPU meanwhile.
The last lines, and --table, say which targets are met. Checkpoints are written to --work, with weights from the GPU's generator.
--dry-run: a tiny model on the CPU, to see that the script works; its numbers mean nothing.
"""

import argparse
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
        self.rows = []
        self.loads = {}  # by shape: seconds of Tessera, and of reading and copying alone
        self.prompt, self.tokens, self.prefills = (8, 8, [32]) if options.dry_run else (16, 128, [512, 2048, 4096])
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
        print(f"copy {self.copy / 1e12:.3f} TB/s, bf16 product {self.peak / 1e12:.1f} TFLOP/s", flush=True)

    def add(self, shape, runner, what, batch, rate, share):
        self.rows.append(dict(shape=shape, runner=runner, what=what, batch=batch, tokens_per_second=rate, share=share))
        print(f"{shape:5} {runner:22} {what:14} batch {batch:3}  {rate:12.1f} tok/s  {100 * share:6.1f} %", flush=True)


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


def run_tessera(b, folder, prompts, tokens, chunk):
    """The JSON of each text."""
    path = os.path.join(folder, "prompts.jsonl")
    with open(path, "w") as f:
        for ids in prompts:
            f.write(json.dumps(dict(ids=ids, max_tokens=tokens, temperature=0)) + "\n")
    command = shlex.split(b.options.tessera) + ["generate", folder, "--device", b.device, "--prompts", path,
                                                "--ignore-eos", "--prefill-chunk", str(chunk)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=max(b.left(), 10))
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-300:])
    return [json.loads(line) for line in done.stdout.splitlines()]


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


def bench_tessera(b, name, folder, used):
    vocabulary = SHAPES[name]["vocab_size"]
    for batch in b.batches:
        texts = run_tessera(b, folder, [make_prompt(b.prompt, i, vocabulary) for i in range(batch)], b.tokens, 512)
        rate = sum(len(t["ids"]) - 1 for t in texts) / max(t["timings"]["decode"] for t in texts)
        b.add(name, "Tessera", "decode", batch, rate, rate / batch * 2 * used / b.copy)
    for n in b.prefills:
        text = run_tessera(b, folder, [make_prompt(n, 1, vocabulary)], 1, n)[0]
        rate = n / text["timings"]["prefill"]
        b.add(name, "Tessera", f"prefill {n}", 1, rate, rate * 2 * used / b.peak)
    path = os.path.join(folder, "model.safetensors")
    b.loads[name] = text["timings"]["load"], time_copy_of_file(b, path)
    print(f"{name}: Tessera loads {os.path.getsize(path) / 1e9:.2f} GB in {b.loads[name][0]:.2f} s, "
          f"reading and copying alone {b.loads[name][1]:.2f} s", flush=True)


def bench_transformers(b, name, folder, used, compiled):
    runner = "Transformers compiled" if compiled else "Transformers eager"
    vocabulary = SHAPES[name]["vocab_size"]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(b.device).eval()
    settings = dict(do_sample=False, pad_token_id=0, eos_token_id=None)
    if compiled:
        settings["cache_implementation"] = "static"
        model.forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)

    def generate(ids, tokens):
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens, **settings)

    with torch.inference_mode():
        for batch in b.batches:
            if b.left() < 20:
                return
            ids = torch.tensor([make_prompt(b.prompt, i, vocabulary) for i in range(batch)], device=b.device)
            # the prompt of a few tokens is one step more, 1 % of all
            rate = batch * b.tokens / b.time(lambda: generate(ids, b.tokens), 2)
            b.add(name, runner, "decode", batch, rate, rate / batch * 2 * used / b.copy)
        for n in [] if compiled else b.prefills:
            ids = torch.tensor([make_prompt(n, 1, vocabulary)], device=b.device)
            rate = n / b.time(lambda: model(ids, logits_to_keep=1), 5)
            b.add(name, runner, f"prefill {n}", 1, rate, rate * 2 * used / b.peak)


def bench_shape(b, name):
    folder = os.path.join(b.options.work, name)
    begin = time.monotonic()
    used = write_checkpoint(folder, SHAPES[name], b.device)
    print(f"{name}: {used / 1e6:.0f} M weights a token, written in {time.monotonic() - begin:.1f} s", flush=True)
    runs = [("Tessera", lambda: bench_tessera(b, name, folder, used))]
    if transformers:
        runs += [("eager", lambda: bench_transformers(b, name, folder, used, False)),
                 ("compiled", lambda: bench_transformers(b, name, folder, used, True))]
    for what, run in runs:
        if b.left() < 15:
            print(f"{name} {what}: no time left", flush=True)
            continue
        try:
            run()
        except Exception as e:  # the other runs go on
            b.failed = True
            print(f"{name} {what}: {type(e).__name__}: {e}", flush=True)
        if b.device == "cuda":
            torch.cuda.empty_cache()
    shutil.rmtree(folder)


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
    p.add_argument("--shapes", default="1B,8B,160M", help="which, in this order")
    p.add_argument("--dry-run", action="store_true", help="a tiny model on the CPU")
    options = p.parse_args()
    b = Bench(options)
    b.failed = False
    if not options.dry_run and not torch.cuda.is_available():
        print("no GPU")
        return 77
    if not transformers:
        print("transformers is not installed: Tessera alone")
    b.measure_ceilings()
    for name in ["tiny"] if options.dry_run else options.shapes.split(","):
        if b.left() > 30:
            bench_shape(b, name)
    lines = list(list_targets(b))
    if options.table:
        with open(options.table, "w") as f:
            f.write("".join(line + "\n" for line in lines))
    print("\n".join(lines), flush=True)
    if options.json:
        with open(options.json, "w") as f:
            json.dump(dict(copy_bytes_per_second=b.copy, product_flops=b.peak, torch=torch.__version__, rows=b.rows), f,
                      indent=1)
    return 1 if b.failed else 0


if __name__ == "__main__":
    sys.exit(main())
