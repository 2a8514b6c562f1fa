"""Writes the outputs of the modules of a Transformers model as safetensors.

    python -m tessera.record DIR --ids 1,2,3 --out transformers.safetensors
    tessera generate DIR --ids 1,2,3 --max-tokens 0 --values ours.safetensors
    tessera compare ours.safetensors transformers.safetensors

Names, shapes and order are those of `tessera generate --values`: a row per id, in the order in which
modules end. Weights and values are float32. It needs torch and transformers, and nothing else of
this package.
"""

import argparse
import json
import struct
import sys

SKIPPED = 77  # the exit status of a skipped test for Meson and Automake


class MissingTransformers(ImportError):
    """Raised if torch or transformers is not installed."""


def _import_transformers():
    try:
        import torch
        import transformers
    except ImportError as error:
        raise MissingTransformers(
            f"needs torch and transformers ({error}); install them: pip install torch transformers"
        ) from error
    return torch, transformers


def _find_rows(torch, output, rows):
    """Returns the first tensor of a module's output as [rows, elements]; None: it has no rows."""
    while isinstance(output, (tuple, list)) or hasattr(output, "to_tuple"):
        output = output[0] if len(output) else None
    if not isinstance(output, torch.Tensor) or not output.is_floating_point():
        return None
    if output.dim() >= 3 and output.shape[0] == 1:
        output = output[0]
    if output.dim() < 2 or output.shape[0] != rows:
        return None
    return output.detach().reshape(rows, -1).float().contiguous()


def record_values(directory, ids):
    """Runs a checkpoint on one sequence; returns {module name: torch tensor [ids, elements]}.

    A module that is called several times has NAME, NAME#2, ... Embeddings that scale their rows
    (Gemma) are recorded without the factor, which ours apply behind the module. Raises
    MissingTransformers.
    """
    torch, transformers = _import_transformers()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    ).eval()
    values = {}

    def keep(name):
        def hook(module, _inputs, output):
            value = _find_rows(torch, output, len(ids))
            scale = getattr(module, "embed_scale", None)
            calls = 1
            if value is not None and scale is not None:
                value = value / float(scale)
            while value is not None and (name if calls == 1 else f"{name}#{calls}") in values:
                calls += 1
            if value is not None:
                values[name if calls == 1 else f"{name}#{calls}"] = value.clone()

        return hook

    for name, module in model.named_modules():
        if name:
            module.register_forward_hook(keep(name))
    with torch.no_grad():
        model(torch.tensor([ids]), use_cache=False)
    return values


def write_values(path, values, metadata=None):
    """Writes {name: float32 tensor} as safetensors, in the order of the dict."""
    header, at = {"__metadata__": {"format": "pt", **(metadata or {})}}, 0
    for name, value in values.items():
        size = 4 * value.numel()
        header[name] = {
            "dtype": "F32",
            "shape": list(value.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for value in values.values():
            file.write(value.numpy().tobytes())


def _parse_ids(text):
    try:
        ids = [int(word) for word in text.split(",")]
    except ValueError:
        ids = []
    if not ids or min(ids) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: use token ids, as in 1,2,3")
    return ids


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m tessera.record",
        description="Writes the outputs of the modules of a Transformers model as safetensors.",
        epilog=f"Exit status: 0, or {SKIPPED} if torch or transformers is not installed.",
    )
    parser.add_argument("directory", metavar="DIR", help="checkpoint directory")
    parser.add_argument("--ids", type=_parse_ids, required=True, help="token ids, as in 1,2,3")
    parser.add_argument(
        "--out",
        default="transformers.safetensors",
        metavar="FILE",
        help="file to write (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    try:
        values = record_values(options.directory, options.ids)
    except MissingTransformers as error:
        print(f"tessera.record: skipped: {error}", file=sys.stderr)
        return SKIPPED
    write_values(options.out, values, {"tessera.numerics": "transformers, float32"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
