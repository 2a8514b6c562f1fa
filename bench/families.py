#!/usr/bin/env python3
"""families.py - decode and prefill of the model families on the CPU, compared with Llama.

Each family gets a checkpoint of random bf16 weights in the shape of Llama 160M: hidden 768, 12 layers, 12 heads of 64,
ffn 2048 (3072 without a gate), vocabulary 32000, untied. A mixture has 8 experts of 1024, 2 per token (llama4_text: 1),
and shared experts where the family has them. Tessera lists the tensors (`tessera explain`), and counts the weights that a
token reads and the FLOPs of a forward (`tessera bench`). Llama and the family run in turn, in rounds; a ratio is the
median over the rounds. Llama itself is measured like a family: its ratios show the noise. Files are removed at the end.
"""
import argparse, json, os, shutil, signal, statistics, subprocess, sys, tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import checkpoint

SHAPE = dict(hidden=768, layers=12, heads=12, head=64, ffn=2048, vocabulary=32000, context=16, decode=64, prefill=512)
TINY = dict(hidden=64, layers=4, heads=4, head=16, ffn=128, vocabulary=128, context=2, decode=4, prefill=8)


def list_families(s):
    """Returns the keys of config.json of each family that differ from Llama's."""
    layers, ffn, head, window = s["layers"], s["ffn"], s["head"], s["prefill"] // 2
    expert, ungated = ffn // 2, dict(intermediate_size=ffn * 3 // 2)
    yarn = dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=s["prefill"], beta_fast=32.0, beta_slow=1.0)

    def slide(period, last="full_attention"):
        return dict(sliding_window=window, layer_types=[last if (i + 1) % period == 0 else "sliding_attention" for i in range(layers)])

    mixture = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=expert)
    routed = dict(mixture, n_routed_experts=8, n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1)
    return {
        "llama": {},
        "smollm3": {},
        "starcoder2": dict(ungated, hidden_act="gelu_pytorch_tanh", use_bias=True, sliding_window=window),
        "glm4": dict(attention_bias=True, partial_rotary_factor=0.5),
        "glm4_moe": dict(routed, attention_bias=True, use_qk_norm=True, partial_rotary_factor=0.5),
        "seed_oss": dict(attention_bias=True),
        "ernie4_5": {},
        "ministral": slide(2),
        "hunyuan_v1_dense": {},
        "gpt_neox": dict(ungated, hidden_act="gelu", rotary_pct=0.25, use_parallel_residual=True),
        "opt": dict(ffn_dim=ffn * 3 // 2, activation_function="relu", do_layer_norm_before=True),
        "phi": dict(ungated, hidden_act="gelu_new", partial_rotary_factor=0.5),
        "deepseek_v2": dict(routed, q_lora_rank=None, kv_lora_rank=3 * head, qk_nope_head_dim=head, qk_rope_head_dim=head // 2,
                            v_head_dim=head, topk_method="greedy"),
        "stablelm": dict(use_qkv_bias=True, partial_rotary_factor=0.25),
        "ministral3": dict(rope_parameters=dict(yarn, rope_theta=1e4, llama_4_scaling_beta=0.1)),
        "gemma3_text": dict(slide(6), hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=head),
        "cohere2": slide(4),
        "qwen2_moe": dict(mixture, shared_expert_intermediate_size=expert, decoder_sparse_step=1, mlp_only_layers=[],
                          layer_types=["full_attention"] * layers),
        "olmoe": dict(mixture, intermediate_size=expert),
        "olmo3": slide(4),
        "exaone4": slide(4),
        "llama4_text": dict(num_local_experts=8, num_experts_per_tok=1, intermediate_size=expert, intermediate_size_mlp=ffn,
                            interleave_moe_layer_step=1, attention_chunk_size=window),
        "gpt_oss": dict(slide(2), num_local_experts=8, num_experts_per_tok=2, intermediate_size=expert, attention_bias=True,
                        rope_scaling=dict(yarn, truncate=False)),
        "granite": dict(embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=1 / head, logits_scaling=8.0),
    }


def make_config(family, s):
    shape = dict(hidden_size=s["hidden"], intermediate_size=s["ffn"], num_hidden_layers=s["layers"], head_dim=s["head"],
                 num_attention_heads=s["heads"], num_key_value_heads=s["heads"], vocab_size=s["vocabulary"],
                 tie_word_embeddings=False)
    c = checkpoint.make_config("bf16", **dict(shape, model_type=family))
    c.update(list_families(s)[family], max_position_embeddings=2 * s["prefill"])
    del c["architectures"]
    return c


class Failed(Exception):
    pass


class Bench:
    def __init__(self, options, work):
        self.options, self.work = options, work
        self.shape = TINY if options.dry_run else SHAPE
        self.samples = {}  # (family, bench): [[the family's rate, Llama's rate just before]]
        self.counts = {}   # (family, bench): what `tessera bench --json` printed last
        self.write("llama")

    def call(self, *arguments):
        command = [self.options.tessera, *map(str, arguments)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        except (OSError, subprocess.TimeoutExpired) as e:
            raise Failed("%s: %s" % (" ".join(command), e))
        if done.returncode:
            raise Failed("%s: exit status %d: %s" % (" ".join(command), done.returncode, done.stderr.strip()))
        return done.stdout

    def find(self, family):
        return os.path.join(self.work, family)

    def write(self, family):
        """Writes a checkpoint; its config.json alone first, for `tessera explain`."""
        config = make_config(family, self.shape)
        alone = self.find(family) + ".config"
        os.mkdir(alone)
        with open(os.path.join(alone, "config.json"), "w") as f:
            json.dump(config, f)
        parameters = json.loads(self.call("explain", alone, "-n", 1, "--json"))["parameters"]
        checkpoint.write_checkpoint(self.find(family), config, "bf16", [(p["name"], p["ranks"][0]["shape"]) for p in parameters])
        shutil.rmtree(alone)

    def run(self, family, bench, *more):
        s, o = self.shape, self.options
        command = ["bench", bench, self.find(family), "-n", o.ranks, "--threads", 1, "--backend", "shm", "--tokens", s[bench]]
        command += ["--context", s["context"]] if bench == "decode" else []
        return self.call(*command, "--rounds", o.repeats, *more)

    def measure(self, family, bench):
        """Returns bytes of weights per second of decoding, or FLOPs per second of a prefill."""
        line = json.loads(self.run(family, bench, "--json"))
        self.counts[family, bench] = line
        if bench == "decode":
            return line["median"] * line["weight_bytes"]
        return line["median"] * line["flops"] / line["tokens"]

    def measure_family(self, family):
        for i in range(self.options.rounds):
            for bench in ("decode", "prefill"):
                base = self.measure("llama", bench)
                rate = self.measure(family, bench)
                self.samples.setdefault((family, bench), []).append((rate, base))
                say("%s: %s, round %d: %.3g, Llama %.3g, ratio %.2f" % (family, bench, i + 1, rate, base, rate / base))
        if self.options.breakdown:
            for bench in ("decode", "prefill"):
                sys.stdout.write(self.run(family, bench, "--breakdown"))
                sys.stdout.flush()

    def measure_all(self):
        failed = 0
        for family in self.options.families:
            try:
                if family != "llama":
                    self.write(family)
                self.measure_family(family)
            except Failed as e:
                say("%s: %s" % (family, e))
                failed += 1
            for folder in ("", ".part", ".config") if family != "llama" else ():
                shutil.rmtree(self.find(family) + folder, ignore_errors=True)
        return failed

    def print_table(self):
        print("| family | decode, tokens/s | MB/token | GB/s | : Llama | prefill, tokens/s | GFLOP | GFLOP/s | : Llama |")
        print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
        for family in self.options.families:
            if (family, "prefill") not in self.samples:
                continue
            cells = [family]
            for bench, count, unit in (("decode", "weight_bytes", 1e6), ("prefill", "flops", 1e9)):
                samples, line = self.samples[family, bench], self.counts[family, bench]
                rate = statistics.median(x for x, _ in samples)
                forward = 1 if bench == "decode" else line["tokens"]
                cells += ["%.0f" % (rate / line[count] * forward), "%.1f" % (line[count] / unit), "%.1f" % (rate / 1e9),
                          "%.2f" % statistics.median(x / base for x, base in samples)]
            print("| %s |" % " | ".join(cells))


def say(text):
    print("families: " + text, file=sys.stderr, flush=True)


def read_options():
    names = list(list_families(SHAPE))
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("families", nargs="*", metavar="FAMILY", help="families to measure (default: all): " + ", ".join(names))
    p.add_argument("--tessera", default="tessera", metavar="COMMAND", help="the command to measure (default: tessera)")
    p.add_argument("--work", metavar="FOLDER", help="folder for the checkpoints, 1 GB (default: a temporary one)")
    p.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds per family (default: 3)")
    p.add_argument("--repeats", type=int, default=2, metavar="N", help="forwards or sequences per round (default: 2)")
    p.add_argument("--ranks", type=int, default=2, metavar="N", help="ranks of one thread (default: 2)")
    p.add_argument("--breakdown", action="store_true", help="also print where each family's time goes")
    p.add_argument("--dry-run", action="store_true", help="test the script with tiny shapes; the numbers mean nothing")
    o = p.parse_args()
    o.families = o.families or names
    for family in o.families:
        if family not in names:
            p.error("%s: no such family; known: %s" % (family, ", ".join(names)))
    if min(o.rounds, o.repeats, o.ranks) < 1:
        p.error("--rounds, --repeats and --ranks are at least 1")
    return o


def main():
    options = read_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes the checkpoints, too
    try:
        if options.work:
            os.makedirs(options.work, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="families-", dir=options.work) as work:
            bench = Bench(options, work)
            failed = bench.measure_all()
            bench.print_table()
    except (Failed, OSError) as e:
        say(str(e))
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
