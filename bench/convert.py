"""convert.py - the files of `tessera convert`, read by safetensors and transformers (bench/setup).

convert.py TESSERA MODEL...: compares every tensor of every checkpoint, and of one with values that
are hard to round, with torch's conversion; the models must load and have equal parameters.
"""
import json
import math
import os
import subprocess
import sys
import tempfile

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "float32"}


def hard_values():
    """Returns ties, subnormals, the largest values, infinities, NaN; and random bits, as f32."""
    edges = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, 1e-40, 65504, 65519.996, 65520, 3.4e38]
    for exponent in (-149, -134, -127, -126, -25, -24, -15, -14, 0, 15, 16, 127):
        for ulp in (2.0**-11, 2.0**-10, 2.0**-9, 2.0**-8, 2.0**-7):
            for k in range(8):
                edges += [2.0**exponent * (1 + k * ulp / 2), 2.0**exponent * (1 + k * ulp / 2 + 2.0**-23)]
    bits = torch.randint(-(2**31), 2**31, (100_000,), dtype=torch.int64).to(torch.int32)
    f32 = torch.cat([torch.tensor(edges, dtype=torch.float64).to(torch.float32), bits.view(torch.float32)])
    return torch.cat([f32, -f32])


def write_hard_checkpoint(folder):
    torch.manual_seed(1)
    f32 = hard_values()
    tensors = {
        "f32": f32, "bf16": f32.to(torch.bfloat16), "f16": f32.to(torch.float16),
        "f64": f32.to(torch.float64) * (1 + 2.0**-30), "scalar": torch.tensor(1 / 3), "empty": torch.zeros(0, 4),
        "i64": torch.arange(7), "u8": torch.arange(250, dtype=torch.uint8).reshape(2, 5, 25),
        "bool": torch.tensor([True, False]), "one": torch.ones(1, dtype=torch.bfloat16),
    }
    os.mkdir(folder)
    save_file(tensors, f"{folder}/model.safetensors", {"format": "pt"})
    with open(f"{folder}/config.json", "w") as f:
        json.dump(LLAMA, f)


def read_tensors(folder):
    index = f"{folder}/model.safetensors.index.json"
    files = {"model.safetensors"}
    if os.path.exists(index):
        with open(index) as f:
            files = set(json.load(f)["weight_map"].values())
    tensors = {}
    for name in sorted(files):
        with safe_open(f"{folder}/{name}", "pt") as f:
            tensors |= {key: f.get_tensor(key) for key in f.keys()}
    return tensors


def equal(a, b):
    """Returns whether the bits are equal, except in a NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    kind = {8: torch.int64, 4: torch.int32, 2: torch.int16}[a.element_size()]
    same = a.contiguous().view(kind) == b.contiguous().view(kind) if a.ndim else a == b
    return bool((same | (a.isnan() & b.isnan())).all())


def check_tensors(source, made, dtype):
    assert source.keys() == made.keys(), source.keys() ^ made.keys()
    for name, tensor in source.items():
        changes = dtype and tensor.is_floating_point() and not name.endswith("e_score_correction_bias")
        wanted = tensor.to(dtype) if changes else tensor
        assert equal(wanted, made[name]), f"{name}: differs"


def check_index(folder, tensors):
    """Checks that the index has save_pretrained's numbers, and every file is within the limit."""
    with open(f"{folder}/model.safetensors.index.json") as f:
        index = json.load(f)
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    assert index["metadata"] == {"total_parameters": sum(t.numel() for t in tensors.values()), "total_size": size}
    names = sorted(set(index["weight_map"].values()))
    assert names == [f"model-{i + 1:05}-of-{len(names):05}.safetensors" for i in range(len(names))], names


def check_model(model, folder, dtype):
    config = AutoConfig.from_pretrained(folder)
    assert dtype is None or config.dtype == dtype, config.dtype
    wanted = AutoModelForCausalLM.from_pretrained(model, dtype=dtype or "auto").state_dict()
    made = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").state_dict()
    for name in wanted:
        assert equal(wanted[name], made[name]), f"{model}: {name} of the loaded model differs"


def main():
    tessera, models = sys.argv[1], sys.argv[2:]
    with tempfile.TemporaryDirectory() as work:
        hard = f"{work}/hard"
        write_hard_checkpoint(hard)
        for model in [hard, *models]:
            for number, (name, size, ranks) in enumerate(
                [("bf16", "5GB", 1), ("f16", "100KB", 3), ("f32", "20KB", 8), (None, "60KB", 2)]
            ):
                made, dtype = f"{work}/made{number}", DTYPES.get(name)
                how = ["--dtype", name] if name else []
                command = [tessera, "convert", model, made, "--max-shard-size", size, "-n", str(ranks), *how]
                subprocess.run(command, check=True, stderr=subprocess.PIPE if model == hard else None)
                check_tensors(read_tensors(model), read_tensors(made), dtype)
                if os.path.exists(f"{made}/model.safetensors.index.json"):
                    check_index(made, read_tensors(made))
                if model != hard:
                    check_model(model, made, dtype)
                subprocess.run(["rm", "-r", made], check=True)
            print(f"{model}: equal as bf16, f16, f32 and unchanged")


main()
