"""peer_transformers.py - Transformers, for script/bench: a line of JSON a case.

	peer_transformers.py MODEL --dtype f32|bf16 --threads T [--rounds R] [--decode N] [--prefill N] [--load] [--gemm ROWS]

Runs alone, or under torchrun, tensor parallel by the plan of Transformers, over gloo. --decode: N tokens after a prompt
of 16; --prefill: one prompt of N, logits of its last token; --load: prints the first token and ends; --gemm: no model,
but the sgemm (MKL) of the shapes of its linears on ROWS rows, and the tokens/s that these alone would allow.
"""
import argparse, json, os, sys, time

import torch

import checkpoint

CONTEXT = 16


def time_gemm(a):
    """Lists the products of one prompt: all layers for each row, the head for one."""
    with open(os.path.join(a.model, "config.json")) as f:
        config = json.load(f)
    counts = {}
    for name, shape, used in checkpoint.list_tensors(config):
        if used and "layers" in name and len(shape) > 1:
            counts[shape] = counts.get(shape, 0) + 1
    total = flops = 0
    for (n, k), count in counts.items():
        x, w, least = torch.randn(a.gemm, k), torch.randn(n, k), float("inf")
        for _ in range(5):
            begin = time.perf_counter()
            torch.nn.functional.linear(x, w)
            least = min(least, time.perf_counter() - begin)
        total += count * least
        flops += count * 2 * a.gemm * n * k
    print(json.dumps({"bench": "gemm", "tokens_per_s": [a.gemm / total], "flops_per_s": flops / total}), flush=True)


def load_model(a, world):
    import transformers

    transformers.logging.set_verbosity_error()
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[a.dtype]
    more = {}
    if world > 1:
        from transformers.distributed.configuration_utils import DistributedConfig

        more = {"distributed_config": DistributedConfig(tp_size=world)}
    return transformers.AutoModelForCausalLM.from_pretrained(a.model, dtype=dtype, **more).eval()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--decode", type=int)
    parser.add_argument("--prefill", type=int)
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--gemm", type=int)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    if a.gemm:
        return time_gemm(a)
    world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    model = load_model(a, world)
    draw = torch.Generator().manual_seed(7)

    def make_ids(n):
        return torch.randint(3, model.config.vocab_size, (1, n), generator=draw)

    def choose(logits):
        whole = logits.full_tensor() if hasattr(logits, "full_tensor") else logits
        return whole[:, -1:].argmax(-1)

    def wait():
        if world > 1:
            torch.distributed.barrier()

    def decode(n):
        out = model(input_ids=make_ids(CONTEXT), use_cache=True, logits_to_keep=1)
        token = choose(out.logits)
        wait()
        begin = time.perf_counter()
        for _ in range(n):
            out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True, logits_to_keep=1)
            token = choose(out.logits)
        return n / (time.perf_counter() - begin)

    def prefill(n):
        ids = make_ids(n)
        wait()
        begin = time.perf_counter()
        choose(model(input_ids=ids, use_cache=True, logits_to_keep=1).logits)
        return n / (time.perf_counter() - begin)

    def show(**record):
        if rank == 0:
            print(json.dumps(record), flush=True)

    with torch.inference_mode():
        if a.load:
            token = choose(model(input_ids=make_ids(1), use_cache=True, logits_to_keep=1).logits)
            show(bench="load", token=int(token))
        if a.decode:
            decode(2)
            show(bench="decode", tokens_per_s=[decode(a.decode) for _ in range(a.rounds)])
        if a.prefill:
            prefill(a.prefill)
            show(bench="prefill", tokens_per_s=[prefill(a.prefill) for _ in range(a.rounds)])
    if world > 1:
        torch.distributed.destroy_process_group()


sys.exit(main())
