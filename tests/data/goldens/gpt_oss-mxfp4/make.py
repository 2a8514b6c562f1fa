"""Makes this checkpoint and its goldens: python make.py OUT, with torch, transformers and safetensors.

Weights are random. Those of experts are quantised here, read back by transformers, which dequantises
them, and compared with a second dequantisation. Logits are those of transformers in float64.
"""
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file
from transformers.models.gpt_oss import modeling_gpt_oss

SEED, LENGTHS, GREEDY = 35035, (1, 7, 40), 24
VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
ROPE = {"rope_type": "yarn", "factor": 8.0, "beta_fast": 1.0, "beta_slow": 0.05, "truncate": False,
        "original_max_position_embeddings": 32}
CONFIG = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": 61, "hidden_size": 96,
    "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 8, "num_local_experts": 8, "num_experts_per_tok": 3, "sliding_window": 10,
    "layer_types": ["sliding_attention"], "swiglu_limit": 1.3, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5, "attention_bias": True, "attention_dropout": 0.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
}


def quantize(w):
    """Returns the blocks and scales of w [experts, outputs, inputs], by OCP MX 1.0."""
    x = w.double().reshape(*w.shape[:2], -1, 32)
    most = x.abs().amax(-1, keepdim=True)
    scale = torch.where(most > 0, most.clamp(min=1e-30).log2().floor() - 2, torch.zeros_like(most))
    y = (x.abs() / 2**scale).unsqueeze(-1)
    distance = (y - VALUES).abs()
    code = (distance + 1e-9 * (torch.arange(8) % 2)).argmin(-1)  # ties to the even code
    code = (code + 8 * (x < 0)).to(torch.uint8)
    return code[..., 0::2] | code[..., 1::2] << 4, (scale[..., 0] + 127).to(torch.uint8)


def dequantize(blocks, scales):
    """Returns [experts, outputs, inputs] in float64."""
    code = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2).long()
    value = VALUES[code & 7] * torch.where(code > 7, -1.0, 1.0)
    return (value * 2.0 ** (scales.double() - 127).unsqueeze(-1)).flatten(-2)


def make_weights():
    g = torch.Generator().manual_seed(SEED)
    h, f, n, e = (CONFIG[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads", "num_local_experts"))
    d, k, v = CONFIG["head_dim"], CONFIG["num_key_value_heads"], CONFIG["vocab_size"]
    w = {}

    def add(name, *shape, std=0.2, mean=0.0):
        w[name] = (mean + std * torch.randn(shape, generator=g)).bfloat16()

    def add_mxfp4(name, *shape, std):
        x = std * torch.randn(shape, generator=g) * 2.0 ** torch.randint(-3, 2, (*shape[:2], 1), generator=g)
        x[0, 0, :32] = 0
        w[name + "_blocks"], w[name + "_scales"] = quantize(x)

    add("model.embed_tokens.weight", v, h, std=1.0)
    add("lm_head.weight", v, h)
    add("model.norm.weight", h, mean=1.0)
    for layer in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for norm in ("input", "post_attention"):
            add(f"{at}{norm}_layernorm.weight", h, mean=1.0)
        for name, rows, columns in (("q", n * d, h), ("k", k * d, h), ("v", k * d, h), ("o", h, n * d)):
            add(f"{at}self_attn.{name}_proj.weight", rows, columns)
            add(f"{at}self_attn.{name}_proj.bias", rows)
        add(f"{at}self_attn.sinks", n, std=1.0)
        add(f"{at}mlp.router.weight", e, h)
        add(f"{at}mlp.router.bias", e)
        add_mxfp4(f"{at}mlp.experts.gate_up_proj", e, 2 * f, h, std=0.3)
        add(f"{at}mlp.experts.gate_up_proj_bias", e, 2 * f)
        add_mxfp4(f"{at}mlp.experts.down_proj", e, h, f, std=0.3)
        add(f"{at}mlp.experts.down_proj_bias", e, h)
    return w


class Float64Torch:
    """torch, whose float32 is float64: the parts of the model that are float32 become float64."""
    def __getattr__(self, name):
        return torch.float64 if name in ("float32", "float") else getattr(torch, name)


def load(out, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        out, quantization_config=transformers.Mxfp4Config(dequantize=True), dtype=torch.bfloat16,
        attn_implementation="eager", experts_implementation="eager")
    return model.eval().to(dtype)


def check_experts(model, w):
    for name, value in model.named_parameters():
        if name.endswith(("gate_up_proj", "down_proj")):
            mine = dequantize(w[name + "_blocks"], w[name + "_scales"]).transpose(1, 2)
            assert torch.equal(value, mine), name


def compute_logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


def choose_greedy(model, ids):
    """Returns the greedy ids after `ids`, and the distance of the two largest logits of each."""
    ids, gaps = list(ids), []
    for _ in range(GREEDY):
        best = compute_logits(model, ids)[-1].topk(2)
        ids.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
    return ids[-GREEDY:], gaps


def compute_goldens(out, w):
    g = torch.Generator().manual_seed(SEED + 1)
    prompts = [torch.randint(3, CONFIG["vocab_size"], (n,), generator=g).tolist() for n in LENGTHS]
    single = load(out, torch.float32)
    errors32 = [compute_logits(single, p) for p in prompts]
    modeling_gpt_oss.torch = Float64Torch()
    torch.Tensor.float = torch.Tensor.double
    model = load(out, torch.float64)
    model.model.rotary_emb.inv_freq = single.model.rotary_emb.inv_freq.to(torch.float64)
    check_experts(model, w)
    tensors, errors, gap = {}, {}, 1.0
    for i, ids in enumerate(prompts):
        logits = compute_logits(model, ids)
        assert logits.dtype == torch.float64
        error = (errors32[i].double() - logits).abs().max().item()
        errors[f"prompt{i}.logits"] = [error, error / logits.abs().max().item()]
        greedy, gaps = choose_greedy(model, ids)
        gap = min(gap, *gaps)
        tensors |= {f"prompt{i}.ids": torch.tensor(ids), f"prompt{i}.logits_f64": logits.to(torch.float32),
                    f"greedy{i}.ids": torch.tensor(greedy)}
    return tensors, {"seed": SEED, "torch": torch.__version__, "transformers": transformers.__version__,
                     "float32_torch_error_max_abs_and_relative": errors, "min_gap": gap}


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def main():
    out = pathlib.Path(sys.argv[1])
    w = make_weights()
    save_file(w, out / "model.safetensors", metadata={"format": "pt"})
    write_json(out / "config.json", CONFIG | {"dtype": "bfloat16", "rope_parameters": ROPE | {"rope_theta": 30000.0}})
    write_json(out / "config_v4.json", CONFIG | {"torch_dtype": "bfloat16", "rope_theta": 30000.0, "rope_scaling": ROPE})
    write_json(out / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0})
    tensors, about = compute_goldens(out, w)
    save_file(tensors, out / "golden.safetensors")
    write_json(out / "golden.json", about)


if __name__ == "__main__":
    main()
