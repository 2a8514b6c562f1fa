"""gpt_oss.py - checkpoints of GPT-OSS of random weights, with equal values as safetensors and as GGUF of llama.cpp.

Experts are in MXFP4, in both files as their users store them; other weights are bf16. Standard library only.
"""
import io, math, os, random, zlib
import checkpoint

POOL = 65521  # random blocks of 32 elements, read in a circle from any start; odd, so rows differ
SHAPE = dict(hidden_size=2048, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=32, num_key_value_heads=8,
             head_dim=64, vocab_size=32000, num_local_experts=8, num_experts_per_tok=2)  # 1.03 G weights


def make_config():
    return dict(model_type="gpt_oss", architectures=["GptOssForCausalLM"], **SHAPE, tie_word_embeddings=False,
                attention_bias=True, attention_dropout=0.0, hidden_act="silu", rms_norm_eps=1e-5, sliding_window=128,
                max_position_embeddings=131072, bos_token_id=1, eos_token_id=2, torch_dtype="bfloat16",
                layer_types=["full_attention" if i % 2 else "sliding_attention" for i in range(SHAPE["num_hidden_layers"])],
                swiglu_alpha=1.702, swiglu_limit=7.0, rope_theta=150000.0,
                rope_scaling=dict(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                                  original_max_position_embeddings=4096),
                quantization_config=dict(quant_method="mxfp4", modules_to_not_convert=[
                    "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]))


def list_dense(c):
    """Lists (name, name in GGUF, shape) of the weights that are not of experts."""
    hidden, head = c["hidden_size"], c["head_dim"]
    yield "model.embed_tokens.weight", "token_embd.weight", (c["vocab_size"], hidden)
    yield "lm_head.weight", "output.weight", (c["vocab_size"], hidden)
    yield "model.norm.weight", "output_norm.weight", (hidden,)
    for i in range(c["num_hidden_layers"]):
        at, to = "model.layers.%d." % i, "blk.%d." % i
        yield at + "input_layernorm.weight", to + "attn_norm.weight", (hidden,)
        yield at + "post_attention_layernorm.weight", to + "post_attention_norm.weight", (hidden,)
        yield at + "self_attn.sinks", to + "attn_sinks.weight", (c["num_attention_heads"],)
        rows = dict(q=c["num_attention_heads"] * head, k=c["num_key_value_heads"] * head, v=c["num_key_value_heads"] * head)
        for name, n in rows.items():
            yield at + "self_attn.%s_proj.weight" % name, to + "attn_%s.weight" % name, (n, hidden)
            yield at + "self_attn.%s_proj.bias" % name, to + "attn_%s.bias" % name, (n,)
        yield at + "self_attn.o_proj.weight", to + "attn_output.weight", (hidden, rows["q"])
        yield at + "self_attn.o_proj.bias", to + "attn_output.bias", (hidden,)
        yield at + "mlp.router.weight", to + "ffn_gate_inp.weight", (c["num_local_experts"], hidden)
        yield at + "mlp.router.bias", to + "ffn_gate_inp.bias", (c["num_local_experts"],)


def list_experts(c):
    """Lists (name, names in GGUF, experts, outputs, inputs); rows of gates and ups alternate."""
    n, hidden, ffn = c["num_local_experts"], c["hidden_size"], c["intermediate_size"]
    for i in range(c["num_hidden_layers"]):
        at, to = "model.layers.%d.mlp.experts." % i, "blk.%d.ffn_" % i
        yield at + "gate_up_proj", (to + "gate_exps", to + "up_exps"), n, 2 * ffn, hidden
        yield at + "down_proj", (to + "down_exps",), n, hidden, ffn


def count_used(c):
    """Returns the weights that a token multiplies."""
    dense = sum(math.prod(shape) for name, _, shape in list_dense(c) if "embed" not in name and len(shape) > 1)
    return dense + sum(c["num_experts_per_tok"] * outs * ins for _, _, _, outs, ins in list_experts(c))


def count_stored(c):
    """Returns the bytes of a checkpoint."""
    dense = sum(2 * math.prod(shape) for _, _, shape in list_dense(c))
    return dense + sum(n * outs * (ins // 32 * 17 + 2) for _, _, n, outs, ins in list_experts(c))


def count_read(c):
    """Returns the bytes of weights that a token reads."""
    used = c["num_experts_per_tok"]
    dense = sum(2 * math.prod(shape) for name, _, shape in list_dense(c) if "embed" not in name)
    return dense + sum(used * outs * (ins // 32 * 17 + 2) for _, _, _, outs, ins in list_experts(c))


class Blocks:
    """Random blocks: codes and scales, and both as llama.cpp has them."""

    def __init__(self):
        draw = random.Random(20261127)
        self.codes = draw.randbytes(16 * POOL)
        self.scales = bytes(draw.choices(range(117, 121), k=POOL))
        both = bytearray(17 * POOL)
        both[::17] = self.scales
        for i in range(16):  # element i is beside element i + 16, not beside its neighbour
            shift = i % 2 * 4
            low, high = self.codes[i // 2::16], self.codes[8 + i // 2::16]
            both[1 + i::17] = bytes((a >> shift & 15) | (b >> shift & 15) << 4 for a, b in zip(low, high))
        self.both = memoryview(bytes(both) * 2)

    def write(self, f, name, n, which):
        """Writes n blocks of a weight: their codes or scales."""
        size, at = len(which) // POOL, self.start(name)
        view = memoryview(which)
        while n:
            here = min(n, POOL - at)
            f.write(view[at * size:(at + here) * size])
            n, at = n - here, 0

    def start(self, name):
        return zlib.crc32(name.encode()) % POOL


def write_values(f, values, name, shape):
    """Norms are 1, other vectors random, as matrices are."""
    values.write(f, name, shape if len(shape) > 1 or "norm" in name else (1,) + shape)


def write_checkpoint(folder, c):
    """Writes config.json and model.safetensors, unless they exist."""
    if os.path.exists(os.path.join(folder, "config.json")):
        return
    values, blocks, parts = checkpoint.Values("bf16"), Blocks(), []
    for name, _, shape in list_dense(c):
        parts.append((name, "BF16", shape, lambda f, name=name, shape=shape: write_values(f, values, name, shape)))
    for name, _, n, outs, ins in list_experts(c):
        count = n * outs * (ins // 32)
        for kind, shape, data in ("_blocks", (n, outs, ins // 32, 16), blocks.codes), ("_scales", (n, outs, ins // 32), blocks.scales):
            parts.append((name + kind, "U8", shape, lambda f, name=name, n=count, data=data: blocks.write(f, name, n, data)))
        parts.append((name + "_bias", "BF16", (n, outs),
                      lambda f, name=name, shape=(n, outs): write_values(f, values, name + "_bias", shape)))
    checkpoint.write_tensors(folder, c, [(name, dtype, math.prod(shape) * (2 if dtype == "BF16" else 1), shape, write)
                                         for name, dtype, shape, write in parts])


def list_gguf(c, blocks):
    """Lists (name, type, bytes, shape, write) of GGUF: f32 (0), bf16 (30) or MXFP4 (39)."""
    bf16, f32 = checkpoint.Values("bf16"), checkpoint.Values("f32")
    for name, to, shape in list_dense(c):
        wide = len(shape) == 1 or "router" in name
        values = f32 if wide else bf16
        yield (to, 0 if wide else 30, values.size * math.prod(shape), shape,
               lambda f, name=name, shape=shape, values=values: write_values(f, values, name, shape))
    for name, tos, n, outs, ins in list_experts(c):
        row, each = ins // 32, outs // len(tos)

        def write_rows(f, first, name=name, row=row, step=len(tos), count=n * outs):
            at = blocks.start(name)
            for r in range(first, count, step):
                begin = (at + r * row) % POOL * 17
                f.write(blocks.both[begin:begin + row * 17])

        def write_bias(f, first, name=name + "_bias", step=len(tos), shape=(n, outs)):
            all_of_them = io.BytesIO()
            write_values(all_of_them, f32, name, shape)
            words = memoryview(all_of_them.getvalue()).cast("I")
            f.write(words[first::step].tobytes())

        for i, to in enumerate(tos):
            yield to + ".weight", 39, n * each * row * 17, (n, each, ins), lambda f, i=i, write=write_rows: write(f, i)
            yield to + ".bias", 0, 4 * n * each, (n, each), lambda f, i=i, write=write_bias: write(f, i)


def write_gguf(path, c):
    """Writes the checkpoint of write_checkpoint() for llama.cpp, unless it exists. No tokenizer."""
    if os.path.exists(path):
        return
    word, number, real = checkpoint.gguf_word, checkpoint.gguf_number, checkpoint.gguf_real
    rope = c["rope_scaling"]
    keys = {"general.architecture": word("gpt-oss"), "general.alignment": number(32), "general.file_type": number(38),
            "tokenizer.ggml.model": word("no_vocab")}
    keys.update({"gpt-oss." + key: value for key, value in {
        "vocab_size": number(c["vocab_size"]), "context_length": number(c["max_position_embeddings"]),
        "embedding_length": number(c["hidden_size"]), "block_count": number(c["num_hidden_layers"]),
        "feed_forward_length": number(c["intermediate_size"]), "expert_feed_forward_length": number(c["intermediate_size"]),
        "expert_count": number(c["num_local_experts"]), "expert_used_count": number(c["num_experts_per_tok"]),
        "attention.head_count": number(c["num_attention_heads"]), "attention.head_count_kv": number(c["num_key_value_heads"]),
        "attention.key_length": number(c["head_dim"]), "attention.value_length": number(c["head_dim"]),
        "attention.layer_norm_rms_epsilon": real(c["rms_norm_eps"]), "attention.sliding_window": number(c["sliding_window"]),
        "rope.freq_base": real(c["rope_theta"]), "rope.dimension_count": number(c["head_dim"]),
        "rope.scaling.type": word("yarn"), "rope.scaling.factor": real(rope["factor"]),
        "rope.scaling.original_context_length": number(rope["original_max_position_embeddings"])}.items()})
    checkpoint.write_gguf_file(path, keys, list(list_gguf(c, Blocks())))
