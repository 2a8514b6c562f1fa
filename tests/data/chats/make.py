#!/usr/bin/env python3
"""make.py TRL LLAMA.CPP MORE: writes the goldens of chat templates, NAME.json for each.

Renders conversations.json with Transformers and published templates, which are not part of this
project: TRL is trl/chat_templates of trl 1.16, LLAMA.CPP the source in llama_cpp_python 0.3.36, and
MORE a folder of NAME.jinja. Requires transformers and jinja2, as bench/setup installs them.

A golden has, for each conversation, the text with a generation prompt, the text without one, and
the text with the bytes that count in training, by the template with {% generation %} that trl uses
instead. null: the template raises an error, or drops a message. "sha256" has the hashes of all
texts of this template (hf/chat/source.c).
"""
import datetime
import hashlib
import json
import os
import pathlib
import re
import sys

import transformers.utils.chat_template_utils as chats

LLAMA = "<|begin_of_text|>", "<|eot_id|>"
MISTRAL = "<s>", "</s>"
QWEN = None, "<|im_end|>"
PHI = "<s>", "<|endoftext|>"
DEEPSEEK = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
COHERE = "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"
GEMMA = "<bos>", "<eos>"

# name: (bos_token, eos_token), training template of trl or None, texts (file in TRL; / file or
# test in LLAMA.CPP; + file in MORE); the first is rendered, the others only differ in spelling
TEMPLATES = {
    "chatml": (QWEN, None, "+chatml +chatml-escaped +chatml-defined +chatml-defined-escaped"),
    "qwen2": (QWEN, None, "+qwen2 +qwen2-escaped"),
    "qwen2.5": (QWEN, "qwen2_5", "qwen2_5 /Qwen-Qwen2.5-7B-Instruct"),
    "qwen3": (QWEN, "qwen3", "qwen3 /Qwen-Qwen3-0.6B +qwen3-npm"),
    "qwen3-2507": (QWEN, "qwen3_instruct_2507", "qwen3_instruct_2507"),
    "qwen3-coder": (QWEN, None, "/Qwen3-Coder"),
    "qwq": (QWEN, None, "+qwq"),
    "smollm2": (QWEN, None, "+smollm2 +smollm2-escaped"),
    "smollm3": (QWEN, None, "/HuggingFaceTB-SmolLM3-3B"),
    "llama2": (MISTRAL, None, "+llama2"),
    "llama3": (LLAMA, "llama3", "llama3"),
    "llama3-prompt": (LLAMA, None, "+llama3-npm /test:Llama-3"),
    "llama3.1": (LLAMA, None, "llama3_1 /meta-llama-Llama-3.1-8B-Instruct /meta-llama-Llama-3.3-70B-Instruct"),
    "llama3.2": (LLAMA, None, "llama3_2 /meta-llama-Llama-3.2-3B-Instruct"),
    "llama4": (("<|begin_of_text|>", "<|eot|>"), None, "+llama4"),
    "mistral-v0.1": (MISTRAL, None, "+mistral-v0.1"),
    "mistral-v0.2": (MISTRAL, None, "/test:mistralai/Mistral-7B-Instruct-v0.2:old"),
    "mistral-v1": (MISTRAL, None, "/test:mistralai/Mistral-7B-Instruct-v0.2:'v1'"),
    "mistral-v3": (MISTRAL, None, "/test:Mistral-Large-Instruct-2407"),
    "mistral-nemo": (MISTRAL, None, "/mistralai-Mistral-Nemo-Instruct-2407 /test:Mistral-Nemo-Instruct-2407"),
    "mistral-v7": (MISTRAL, None, "/test:mistralai/Mistral-Large-Instruct-2411"),
    "mistral-small3.2": (MISTRAL, None, "/Mistral-Small-3.2-24B-Instruct-2506"),
    "ministral3": (MISTRAL, None, "/mistralai-Ministral-3-14B-Reasoning-2512"),
    "gemma": (GEMMA, "gemma", "gemma /google-gemma-2-2b-it"),
    "gemma-bare": (GEMMA, None, "/test:google/gemma-7b-it"),
    "gemma3": (GEMMA, "gemma3", "gemma3"),
    "phi3": (PHI, "phi3", "phi3"),
    "phi3-bare": (PHI, None, "/test:Phi-3-medium"),
    "phi3-bos": (PHI, None, "/test:Phi-3-mini"),
    "phi3-small": (PHI, None, "/test:Phi-3-small"),
    "phi3.5": (PHI, "phi3_5", "phi3_5 /microsoft-Phi-3.5-mini-instruct"),
    "phi4": (PHI, None, "/test:phi-4"),
    "granite3": (("<|end_of_text|>",) * 2, None, "/test:ibm-granite/granite-3.0-8b-instruct"),
    "granite3.3": (("<|end_of_text|>",) * 2, None, "/ibm-granite-granite-3.3-2B-Instruct"),
    "gpt-oss": (("<|startoftext|>", "<|return|>"), "gptoss", "gptoss /openai-gpt-oss-120b"),
    "cohere": (COHERE, "cohere", "cohere /test:CohereForAI/c4ai-command-r-plus"),
    "tiny-aya": (COHERE, "cohere2", "cohere2"),
    "deepseek": (DEEPSEEK, None, "/test:DeepSeek-V2"),
    "deepseek-v3": (DEEPSEEK, "deepseekv3", "deepseekv3"),
    "deepseek-v3.1": (DEEPSEEK, None, "/deepseek-ai-DeepSeek-V3.1"),
    "deepseek-r1-distill": (DEEPSEEK, "deepseek_r1_distill", "deepseek_r1_distill"),
    "glm4": ((None, "<|endoftext|>"), None, "/test:ChatGLM4"),
    "glm4.5": ((None, "<|endoftext|>"), "glm4moe", "glm4moe /GLM-4.6"),
    "seed-oss": (("<seed:bos>", "<seed:eos>"), None, "/ByteDance-Seed-OSS"),
    "exaone4": (("[BOS]", "[|endofturn|]"), None, "+exaone4"),
    "olmo2": (("<|endoftext|>",) * 2, None, "+olmo2 +olmo2-escaped"),
    "zephyr": (MISTRAL, None, "+zephyr"),
}


class Date(datetime.datetime):
    """The clock of templates."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 3, 7)


def find_test(source, name):
    """Returns the template in the C++ test whose name begins with `name`, and contains what follows a colon."""
    name, _, part = name.partition(":")
    for case in re.finditer(r'/\* \.name= \*/ "(.*?)",\n.*?\.template_str= \*/ (?:U8C\()?"((?:[^"\\]|\\.)*)"', source, re.S):
        if case[1].startswith(name) and part.lower() in case[1].lower():
            return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), case[2])
    raise SystemExit(f"make.py: no test {name}")


def read_template(name, trl, llama, more):
    if name.startswith("/test:"):
        return find_test((llama / "tests/test-chat-template.cpp").read_text(), name[6:])
    path = llama / "models/templates" / f"{name[1:]}.jinja" if name[0] == "/" else more / f"{name[1:]}.jinja" if name[0] == "+" else trl / f"{name}.jinja"
    return path.read_bytes().decode()


def normalise(text):
    """As hf/chat/source.c: ends of lines are LF, and one at the end is removed, as Jinja does."""
    return re.sub(r"\r\n?", "\n", text).removesuffix("\n")


def render(template, conversation, tokens, prompt, training=False):
    """Returns text and ranges of bytes, or None if the template raises an error or drops a message."""
    messages = [
        {"role": role, "content": [{"type": "text", "text": t} for t in content] if isinstance(content, list) else content}
        for role, content in conversation
    ]
    special = {k: v for k, v in zip(("bos_token", "eos_token"), tokens) if v is not None}
    try:
        texts, ranges = chats.render_jinja_template(
            [messages], chat_template=template, return_assistant_tokens_mask=training, add_generation_prompt=prompt, **special
        )
    except Exception:  # what a template raises, or what Python does where it lacks a check
        return None
    for _, content in conversation:
        for part in content if isinstance(content, list) else [content]:
            if part.split("</think>")[-1].replace("/no_think", "").strip() not in texts[0]:
                return None
    if "{'type'" in texts[0]:
        return None
    joined = []
    for begin, end in ranges[0] if training else []:
        begin, end = (len(texts[0][:at].encode()) for at in (begin, end))
        if joined and joined[-1][1] == begin:
            joined[-1][1] = end
        else:
            joined.append([begin, end])
    return [texts[0], joined] if training else texts[0]


def write_golden(path, golden):
    """Writes a line for each text. What all texts begin with is written once, as "head"."""
    lists = [golden[key] for key in ("prompt", "text", "training") if key in golden]
    texts = [x if isinstance(x, str) else x[0] for texts in lists for x in texts if x]
    head = os.path.commonprefix(texts)
    for texts in lists:
        for i, x in enumerate(texts):
            texts[i] = x and (x[len(head):] if isinstance(x, str) else [x[0][len(head):], x[1]])
    lines = []
    for key, value in {**golden, "head": head}.items():
        if isinstance(value, list):
            value = "[\n" + ",\n".join("    " + json.dumps(x, ensure_ascii=False) for x in value) + "\n  ]"
        else:
            value = json.dumps(value, ensure_ascii=False)
        lines.append(f'  "{key}": {value}')
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main(trl, llama, more):
    folder = pathlib.Path(__file__).parent
    conversations = [c["messages"] for c in json.loads((folder / "conversations.json").read_text())]
    chats.datetime = Date
    for name, (tokens, training, texts) in TEMPLATES.items():
        known = [read_template(t, trl, llama, more) for t in texts.split()]
        hashes = {hashlib.sha256(normalise(t).encode()).hexdigest(): None for t in known}
        golden = {
            "bos": tokens[0],
            "eos": tokens[1],
            "sha256": list(hashes),
            "prompt": [render(known[0], c, tokens, True) for c in conversations],
            "text": [render(known[0], c, tokens, False) for c in conversations],
        }
        for other in known[1:]:
            assert golden["prompt"][:-1] == [render(other, c, tokens, True) for c in conversations][:-1], name
        if training:
            marked = read_template(training + "_training", trl, llama, more)
            golden["training"] = [
                render(marked, c, tokens, False, True) if c[-1][0] == "assistant" else None for c in conversations
            ]
        write_golden(folder / f"{name}.json", golden)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__.splitlines()[0])
    main(*map(pathlib.Path, sys.argv[1:]))
