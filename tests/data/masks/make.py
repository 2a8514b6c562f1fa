#!/usr/bin/env python3
"""make.py TRL: writes masks.json, ids of rows of training data and on which of them loss counts.

Conversations by Transformers' apply_chat_template(return_assistant_tokens_mask=True) with the training
templates of trl 1.16, in TRL (trl/chat_templates); prompts and completions as SFTTrainer._prepare_dataset
tokenizes them. Tokenizers are data/tokenizer.json, or GPT-2's made from tests/data/tokenizers, with
the keys of "set" as in variants.json there. Requires transformers, as bench/setup installs it.
"""
import copy
import json
import pathlib
import sys

import transformers
from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).parents[3]

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
BYTE_LEVEL = {
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Split", "pattern": {"Regex": QWEN}, "behavior": "Isolated", "invert": False}, BYTES],
    },
    "post_processor": None,
}

# name of the template, file of trl, base, set, special tokens, bos, eos
CHATS = [
    ("qwen2.5", "qwen2_5", "gpt2", BYTE_LEVEL, ["<|im_start|>", "<|im_end|>"], None, "<|im_end|>"),
    ("qwen3", "qwen3", "gpt2", BYTE_LEVEL, ["<|im_start|>", "<|im_end|>", "<think>", "</think>"], None, "<|im_end|>"),
    ("llama3", "llama3", "gpt2", {**BYTE_LEVEL, "normalizer": None},
     ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"], "<|begin_of_text|>", "<|eot_id|>"),
    ("phi3", "phi3", "stories", {}, ["<|user|>", "<|assistant|>", "<|end|>", "<|system|>", "<|endoftext|>"], "<s>", "<|endoftext|>"),
    ("gemma", "gemma", "stories", {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}},
     ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"], "<bos>", "<eos>"),
    ("deepseek-r1-distill", "deepseek_r1_distill", "gpt2", BYTE_LEVEL,
     ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"], "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    ("glm4.5", "glm4moe", "gpt2", BYTE_LEVEL, ["[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<think>", "</think>"], None, "<|user|>"),
]
TURNS = [
    [["user", "Hello"], ["assistant", "Hi there"]],
    [["user", "1 + 1"], ["assistant", "2"], ["user", "2 + 2"], ["assistant", "4\n"]],
    [["user", " Grüße 👋, e\u0301"], ["assistant", "你好 👋🏽"], ["user", "Who?\n\n"], ["assistant", "\n\n I am."]],
    [["user", "Once upon"], ["assistant", " a time, there was a girl.  She said: it's 12 345.\r\n"], ["user", "More"]],
]
COMPLETIONS = [
    ["Once upon", " a time"], ["Once up", "on a time, there was"], ["Hello ", " World"], ["Question: 1 + 1\nAnswer:", " 2\n"],
    ["", "All of it"], ["Grüße e", "\u0301 👋"], ["No answer", ""], ["The girl", "'s name was Lily.</s>"],
]


def make_gpt2():
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = [chr(b) for b in plain] + [chr(0x100 + i) for i in range(256 - len(plain))]
    vocab = {c: i for i, c in enumerate(letters)}
    lines = (ROOT / "tests/data/tokenizers/gpt2-vocab.bpe").read_text().split("\n")[1:]
    merges = [line for line in lines if " " in line]
    for line in merges:
        vocab[line.replace(" ", "")] = len(vocab)
    vocab["<|endoftext|>"] = len(vocab)
    step = {**BYTES, "trim_offsets": True, "use_regex": True}
    token = make_token("<|endoftext|>", len(vocab) - 1)
    return {"version": "1.0", "added_tokens": [token], "pre_tokenizer": step, "post_processor": step, "decoder": step,
            "model": {"type": "BPE", "vocab": vocab, "merges": merges}}


def make_token(content, index):
    return {"id": index, "content": content, "special": True, "normalized": False, "single_word": False, "lstrip": False,
            "rstrip": False}


def make_tokenizer(base, keys, bos, eos):
    file = make_gpt2() if base == "gpt2" else json.loads((ROOT / "data/tokenizer.json").read_text())
    for key, value in copy.deepcopy(keys).items():
        file[key] = file[key] + value if key == "added_tokens" else value
    return transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(file)), bos_token=bos, eos_token=eos)


def mask_completion(tokenizer, prompt, completion):
    completion += "" if completion.endswith(tokenizer.eos_token) else tokenizer.eos_token
    before, ids = tokenizer(prompt)["input_ids"], tokenizer(prompt + completion)["input_ids"]
    same = next((i for i, (a, b) in enumerate(zip(before, ids)) if a != b), min(len(before), len(ids)))
    return ids, [0] * same + [1] * (len(ids) - same)


def main(trl):
    cases = []
    for name, file, base, keys, specials, bos, eos in CHATS:
        first = 50257 if base == "gpt2" else 512
        keys = {**keys, "added_tokens": [make_token(token, first + i) for i, token in enumerate(specials)]}
        tokenizer = make_tokenizer(base, keys, bos, eos)
        template = (pathlib.Path(trl) / f"{file}_training.jinja").read_text()
        rows = []
        for turns in TURNS:
            messages = [{"role": role, "content": content} for role, content in turns]
            made = tokenizer.apply_chat_template(
                messages, chat_template=template, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
            )
            rows.append([{"messages": messages}, made["input_ids"], made["assistant_masks"]])
        cases.append({"template": name, "base": base, "set": keys, "bos": bos, "eos": eos, "rows": rows})
    for base, bos, eos in (("stories", "<s>", "</s>"), ("gpt2", None, "<|endoftext|>")):
        tokenizer = make_tokenizer(base, {}, bos, eos)
        rows = [[{"prompt": p, "completion": c}, *mask_completion(tokenizer, p, c)] for p, c in COMPLETIONS]
        cases.append({"base": base, "set": {}, "bos": bos, "eos": eos, "rows": rows})
    with open(ROOT / "tests/data/masks/masks.json", "w") as out:
        out.write(f'{{"source": "transformers {transformers.__version__}, trl 1.16.0: make.py", "cases": [\n')
        for i, case in enumerate(cases):
            rows = ",\n".join("  " + json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in case.pop("rows"))
            out.write((",\n" if i else "") + json.dumps(case, ensure_ascii=False)[:-1] + f', "rows": [\n{rows}\n]}}')
        out.write("\n]}\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.splitlines()[0])
    main(sys.argv[1])
