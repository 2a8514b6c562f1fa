"""checkpoint.py - checkpoints of random weights, with equal values as safetensors and as GGUF of llama.cpp.

All values fit bf16, so checkpoints in f32 and in bf16 have equal values. Standard library only.
"""
import json, math, os, random, shutil, struct, zlib

BLOCK = (1 << 22) - 3  # random values, read in a circle from any start; odd, so rows differ
SIZE = {"f32": 4, "bf16": 2}
SHAPES = {
    "160m": dict(model_type="llama", hidden_size=768, intermediate_size=2048, num_hidden_layers=12,
                 num_attention_heads=12, num_key_value_heads=12, vocab_size=32000, tie_word_embeddings=False),
    "1b": dict(model_type="llama", hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
               num_attention_heads=32, num_key_value_heads=8, vocab_size=128256, tie_word_embeddings=True),
    "moe": dict(model_type="mixtral", hidden_size=768, intermediate_size=2048, num_hidden_layers=12,
                num_attention_heads=12, num_key_value_heads=12, vocab_size=32000, tie_word_embeddings=False,
                num_local_experts=8, num_experts_per_tok=2),
}


def make_config(dtype, **shape):
    c = dict(hidden_act="silu", attention_bias=False, mlp_bias=False, attention_dropout=0.0, initializer_range=0.02,
             rms_norm_eps=1e-5, max_position_embeddings=16384, rope_theta=10000.0, use_cache=True, bos_token_id=1,
             eos_token_id=2, torch_dtype={"f32": "float32", "bf16": "bfloat16"}[dtype], **shape)
    c.setdefault("head_dim", c["hidden_size"] // c["num_attention_heads"])
    c["architectures"] = [{"mixtral": "MixtralForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}.get(c["model_type"], "LlamaForCausalLM")]
    return c


def list_tensors(c):
    """Lists [(name, shape, number of elements that a token reads)] of a config.json."""
    hidden, vocabulary, head = c["hidden_size"], c["vocab_size"], c["head_dim"]
    yield "model.embed_tokens.weight", (vocabulary, hidden), vocabulary * hidden if c["tie_word_embeddings"] else 0
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (vocabulary, hidden), vocabulary * hidden
    yield "model.norm.weight", (hidden,), hidden
    for i in range(c["num_hidden_layers"]):
        at = "model.layers.%d." % i
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield at + name + ".weight", (hidden,), hidden
        heads = dict(q=c["num_attention_heads"], k=c["num_key_value_heads"], v=c["num_key_value_heads"])
        for name, n in heads.items():
            yield at + "self_attn.%s_proj.weight" % name, (n * head, hidden), n * head * hidden
        yield at + "self_attn.o_proj.weight", (hidden, heads["q"] * head), hidden * heads["q"] * head
        if "qwen3" in c["model_type"]:
            for name in "qk":
                yield at + "self_attn.%s_norm.weight" % name, (head,), head
        experts = c.get("num_local_experts", c.get("num_experts"))
        ffn = c.get("moe_intermediate_size", c["intermediate_size"])
        mlp, names, share = "mlp.", ("gate_proj", "up_proj", "down_proj"), 1
        if experts:
            if c["model_type"] == "mixtral":
                mlp, names = "block_sparse_moe.", ("w1", "w3", "w2")
            share = c["num_experts_per_tok"] / experts
            yield at + mlp + "gate.weight", (experts, hidden), experts * hidden
        for e in range(experts or 1):
            for name in names:
                shape = (hidden, ffn) if name == names[2] else (ffn, hidden)
                of = "experts.%d." % e if experts else ""
                yield at + mlp + of + name + ".weight", shape, int(ffn * hidden * share)


class Values:
    """The values of tensors, by name."""

    def __init__(self, dtype):
        draw = random.Random(20261121)
        low, high = draw.randbytes(BLOCK), draw.randbytes(BLOCK)
        self.size = SIZE[dtype]
        block = bytearray(self.size * BLOCK)
        block[self.size - 2::self.size] = low  # of either sign, from 0.008 to 0.03
        block[self.size - 1::self.size] = high.translate(bytes(0x3c | i & 0x80 for i in range(256)))
        self.block = memoryview(block)

    def write(self, f, name, shape):
        """Writes a tensor: 0 in a vector of biases, 1 in other vectors, else random values."""
        n = math.prod(shape)
        if len(shape) == 1:
            f.write((bytes(4) if name.endswith("bias") else b"\0\0\x80\x3f")[-self.size:] * n)
            return
        at = zlib.crc32(name.encode()) % BLOCK
        while n:
            here = min(n, BLOCK - at)
            f.write(self.block[at * self.size:(at + here) * self.size])
            n, at = n - here, 0


def write_tensors(folder, c, parts):
    """Writes config.json and model.safetensors of parts [(name, dtype, bytes, shape, write(file))]."""
    part, header, at = folder + ".part", {}, 0
    for name, dtype, size, shape, _ in parts:
        header[name] = dict(dtype=dtype, shape=shape, data_offsets=[at, at + size])
        at += size
    text = json.dumps(dict(header, __metadata__={"format": "pt"})).encode()
    text += b" " * (-len(text) % 8)
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    with open(os.path.join(part, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for *_, write in parts:
            write(f)
    with open(os.path.join(part, "config.json"), "w") as f:
        json.dump(c, f, indent=1)
    os.rename(part, folder)


def write_checkpoint(folder, c, dtype, tensors=None):
    """Writes config.json and model.safetensors, unless they exist. tensors: [(name, shape)], if not list_tensors()."""
    if os.path.exists(os.path.join(folder, "config.json")):
        return
    values, tensors = Values(dtype), tensors or [(name, shape) for name, shape, _ in list_tensors(c)]
    write_tensors(folder, c, [(name, dtype.upper(), values.size * math.prod(shape), shape,
                               lambda f, name=name, shape=shape: values.write(f, name, shape)) for name, shape in tensors])


GGUF_NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
              "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
              "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
              "block_sparse_moe.gate": "ffn_gate_inp", "w1": "ffn_gate_exps", "w2": "ffn_down_exps",
              "w3": "ffn_up_exps"}


def name_gguf(name):
    """Returns llama.cpp's name of a tensor: all experts of a layer are one."""
    outer = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
             "lm_head.weight": "output.weight"}
    if name in outer:
        return outer[name]
    layer, inner = name[len("model.layers."):-len(".weight")].split(".", 1)
    return "blk.%s.%s.weight" % (layer, GGUF_NAMES[inner.split(".")[-1] if ".experts." in inner else inner])


class Rows:
    """A file in memory that writes rows in llama.cpp's order of rotation: pairs are neighbours, not halves apart."""

    def __init__(self, f, nheads, nrows):
        self.f, self.nheads, self.nrows, self.data = f, nheads, nrows, bytearray()

    def write(self, data):
        self.data += data

    def close(self):
        row, half = len(self.data) // self.nrows, self.nrows // self.nheads // 2
        for i in range(self.nrows):
            head, j = divmod(i, 2 * half)
            at = (2 * head + j % 2) * half + j // 2
            self.f.write(self.data[at * row:(at + 1) * row])


def gguf_text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def gguf_word(s):
    """Returns the value of a key, as gguf_number() and gguf_real() do."""
    return struct.pack("<I", 8) + gguf_text(s)


def gguf_number(n):
    return struct.pack("<II", 4, n)


def gguf_real(x):
    return struct.pack("<If", 6, x)


def write_gguf_file(path, keys, parts):
    """Writes a GGUF file: values of keys, and parts [(name, type, bytes, shape, write(file))]."""
    infos, at = b"", 0
    for name, kind, size, shape, _ in parts:
        infos += gguf_text(name) + struct.pack("<I%dQIQ" % len(shape), len(shape), *reversed(shape), kind, at)
        at += size + -size % 32
    with open(path + ".part", "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, len(parts), len(keys)))
        for key, value in keys.items():
            f.write(gguf_text(key) + value)
        f.write(infos)
        f.write(b"\0" * (-f.tell() % 32))
        for *_, write in parts:
            write(f)
            f.write(b"\0" * (-f.tell() % 32))
    os.rename(path + ".part", path)


def write_gguf(path, c, dtype):
    """Writes the checkpoint of write_checkpoint() for llama.cpp, unless it exists. No tokenizer."""
    if os.path.exists(path):
        return
    keys = {"general.architecture": gguf_word("llama"), "general.alignment": gguf_number(32),
            "general.file_type": gguf_number({"f32": 0, "bf16": 32}[dtype]),
            "tokenizer.ggml.model": gguf_word("no_vocab"),
            "llama.vocab_size": gguf_number(c["vocab_size"]), "llama.context_length": gguf_number(c["max_position_embeddings"]),
            "llama.embedding_length": gguf_number(c["hidden_size"]), "llama.block_count": gguf_number(c["num_hidden_layers"]),
            "llama.feed_forward_length": gguf_number(c["intermediate_size"]),
            "llama.attention.head_count": gguf_number(c["num_attention_heads"]),
            "llama.attention.head_count_kv": gguf_number(c["num_key_value_heads"]),
            "llama.rope.dimension_count": gguf_number(c["head_dim"]), "llama.rope.freq_base": gguf_real(c["rope_theta"]),
            "llama.attention.layer_norm_rms_epsilon": gguf_real(c["rms_norm_eps"])}
    if "num_local_experts" in c:
        keys["llama.expert_count"] = gguf_number(c["num_local_experts"])
        keys["llama.expert_used_count"] = gguf_number(c["num_experts_per_tok"])
    parts = {}  # tensors of GGUF: names and shapes in the checkpoint
    for name, shape, _ in list_tensors(c):
        parts.setdefault(name_gguf(name), []).append((name, shape))
    kinds = {name: "f32" if len(part[0][1]) == 1 or "gate_inp" in name else dtype for name, part in parts.items()}
    values = {k: Values(k) for k in set(kinds.values())}

    def write_part(f, name):
        for tensor, shape in parts[name]:
            heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(tensor.split(".")[-2])
            to = Rows(f, c[heads], shape[0]) if heads else f
            values[kinds[name]].write(to, tensor, shape)
            if heads:
                to.close()

    out = []
    for name, part in parts.items():
        shape = part[0][1] if "_exps" not in name else (len(part),) + part[0][1]
        out.append((name, {"f32": 0, "bf16": 30}[kinds[name]], SIZE[kinds[name]] * math.prod(shape), shape,
                    lambda f, name=name: write_part(f, name)))
    write_gguf_file(path, keys, out)
