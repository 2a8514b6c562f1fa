"""Writes the outputs of the modules of a Transformers model as safetensors.

    python -m tessera.record DIR --ids 1,2,3 --out transformers.safetensors
    tessera generate DIR --ids 1,2,3 --max-tokens 0 --values ours.safetensors
    tessera compare ours.safetensors transformers.safetensors

With --train --ids-file FILE also the loss and the gradients, as `tessera grad --values` writes them.
With --tp N the model is cut over N processes on the CPU by the plan that Transformers ships for it
(Gloo on the loopback interface, a file for the rendezvous); --tp-rule adds a rule to that plan.
Names, shapes and order are those of `tessera generate --values`: a row per id, in the order in which
modules end. Weights and values are float32. It needs torch and transformers, and nothing else of
this package.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

Rules = Mapping[str, str] | None  # {module pattern: style} added to a plan of Transformers
SKIPPED = 77  # the exit status of a skipped test for Meson and Automake


class MissingTransformers(ImportError):
    """Raised if torch or transformers is not installed."""


def import_transformers() -> tuple[Any, Any]:
    """Returns the modules torch and transformers. Raises MissingTransformers."""
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]
        import transformers  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise MissingTransformers(
            f"needs torch and transformers ({error}); install them: pip install torch transformers"
        ) from error
    return torch, transformers


def _import_sharding() -> Any:
    """Returns the class DistributedConfig of Transformers."""
    try:
        import accelerate  # type: ignore[import-not-found,unused-ignore]  # noqa: F401 - from_pretrained needs it for tensor parallelism
        from transformers.distributed.configuration_utils import (  # type: ignore[import-not-found,unused-ignore]
            DistributedConfig,
        )
    except ImportError as error:
        raise MissingTransformers(
            f"tensor parallelism needs accelerate and transformers as new as 5.24 ({error})"
        ) from error
    return DistributedConfig


def _find_rows(torch: Any, output: Any, shape: tuple[int, ...]) -> Any:
    """Returns the first tensor of a module's output as [ids, elements]; None: it has no rows.

    shape: [sequences, ids of each].
    """
    while isinstance(output, (tuple, list)) or hasattr(output, "to_tuple"):
        output = output[0] if len(output) else None
    if not isinstance(output, torch.Tensor) or not output.is_floating_point():
        return None
    rows = shape[0] * shape[1]
    if output.dim() > 2 and len(output) == 1:  # of positions: alike for all sequences
        output = output.expand(shape[0], *output.shape[1:])
    if tuple(output.shape[:2]) != tuple(shape) and (output.dim() != 2 or len(output) != rows):
        return None
    return output.detach().reshape(rows, -1).float().contiguous()


def _load_model(directory: str, **more: Any) -> tuple[Any, Any]:
    torch, transformers = import_transformers()
    if not os.path.isdir(directory):
        raise ValueError(f"{directory}: is no directory; give that of a checkpoint")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", local_files_only=True, **more
    )
    if hasattr(model.config, "output_router_logits"):
        model.config.output_router_logits = False
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the default needs rows of whole 16 bytes
    return torch, model.eval()


def _load_sharded(directory: str, ranks: int, rules: Rules) -> tuple[Any, Any]:
    """Loads this rank's part, as the plan of Transformers cuts it; `rules` are added to the plan."""
    config = _import_sharding()(tp_size=ranks, tp_plan=rules or None)
    # the default experts need rows of 16 bytes, which parts may not have
    return _load_model(directory, distributed_config=config, experts_implementation="eager")


def _check_ids(model: Any, ids: Any) -> None:
    size = model.get_input_embeddings().num_embeddings
    if int(ids.min()) < 0 or int(ids.max()) >= size:
        raise ValueError(f"an id is outside the vocabulary; use 0 to {size - 1}")


def _keep_outputs(torch: Any, model: Any, shape: tuple[int, ...], values: dict[str, Any]) -> None:
    """Adds the outputs of the next forward to `values`."""

    def keep(name: str) -> Any:
        def hook(module: Any, _inputs: Any, output: Any) -> None:
            if type(module).__name__ == "Llama4Router":
                output = output[1]  # the logits; the first are the scores of the chosen experts
            value = _find_rows(torch, output, shape)
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


def _compute(torch: Any, model: Any, ids: Any, labels: Any) -> dict[str, Any]:
    """Returns outputs of modules, and with labels the loss; then the model has gradients."""
    values: dict[str, Any] = {}
    _keep_outputs(torch, model, tuple(ids.shape), values)
    with torch.set_grad_enabled(labels is not None):
        loss = model(ids, labels=labels, use_cache=False).loss
    if labels is not None:
        loss.backward()
        values["loss"] = loss.detach().reshape(1).float()
    return values


def _list_gradients(model: Any) -> dict[str, Any]:
    """Returns {parameter: complete gradient}. One of a replicated parameter is this rank's own."""
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {
        name: g.full_tensor() if hasattr(g, "full_tensor") else g for name, g in found.items()
    }


def _run_rank(
    rank: int, folder: str, ranks: int, rules: Rules, directory: str, ids: Any, labels: Any
) -> None:
    """Runs one rank of a sharded model; stores what it computed as FOLDER/RANK."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    os.environ.update(CUDA_VISIBLE_DEVICES="", GLOO_SOCKET_IFNAME="lo")
    torch, _ = import_transformers()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks
    )
    torch, model = _load_sharded(directory, ranks, rules)
    values = _compute(torch, model, ids, labels)
    torch.save((values, _list_gradients(model)), os.path.join(folder, str(rank)))
    torch.distributed.destroy_process_group()


def _run_ranks(torch: Any, ranks: int, *arguments: Any) -> list[Any]:
    """Runs `ranks` processes; returns the outputs and the gradients of each."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_run_rank, (folder, ranks, *arguments), nprocs=ranks)
        return [torch.load(os.path.join(folder, str(rank))) for rank in range(ranks)]


def _join_columns(
    torch: Any, whole: dict[str, Any], parts: list[dict[str, Any]]
) -> dict[str, Any]:
    """Returns complete values: those of rank 0, or the columns of all ranks one after the other.

    whole: {name: value of one rank}, which has the number of columns.
    """
    joined: dict[str, Any] = {}
    for name, value in whole.items():
        columns = [part[name] for part in parts]
        if any(c.shape != value.shape for c in columns):
            columns = [torch.cat(columns, 1)]
        if columns[0].shape != value.shape:
            raise ValueError(
                f"{name}: the ranks have {columns[0].shape[1]} columns, one rank {value.shape[1]}"
            )
        joined[name] = columns[0]
    return joined


def _record(directory: str, ids: Any, labels: Any, ranks: int, rules: Rules) -> dict[str, Any]:
    torch, model = _load_model(directory)
    _check_ids(model, ids)
    if ranks == 1:
        values, gradients = _compute(torch, model, ids, labels), _list_gradients(model)
    else:
        _import_sharding()
        whole = _compute(torch, model, ids, None)
        parts = _run_ranks(torch, ranks, rules, directory, ids, labels)
        values, gradients = _join_columns(torch, whole, [part for part, _ in parts]), parts[0][1]
        if labels is not None:
            values["loss"] = parts[0][0]["loss"]
    if labels is not None:
        values.update(_name_gradients(model, gradients))
    return values


def record_values(
    directory: str, ids: Sequence[int], ranks: int = 1, rules: Rules = None
) -> dict[str, Any]:
    """Runs a checkpoint on one sequence; returns {module name: torch tensor [ids, elements]}.

    A module that is called several times has NAME, NAME#2, ... Embeddings that scale their rows
    (Gemma) are recorded without the factor, which ours apply behind the module. Raises
    MissingTransformers.

    ranks: more than one cut the model by the plan of Transformers, in a process each; {module
    pattern: style} in `rules` is added to the plan. Values are complete: columns of all ranks.
    """
    torch, _ = import_transformers()
    return _record(directory, torch.tensor([list(ids)]), None, ranks, rules)


def record_training(
    directory: str, ids: Any, labels: Any, ranks: int = 1, rules: Rules = None
) -> dict[str, Any]:
    """Computes the loss of a batch and its gradients, without dropout and loss of balance.

    ids, labels: torch tensors [sequences, ids]; labels are -100 where an id is not to be predicted.
    Returns the outputs of modules as record_values does, a row per id of all sequences, then "loss",
    then "NAME.grad" for each weight NAME of the checkpoint, the last module first. Over several
    ranks, gradients of sharded weights are gathered; of a replicated weight, that of rank 0 is
    returned. It is incomplete if the plan does not sum it.
    """
    return _record(directory, ids, labels, ranks, rules)


def _name_gradients(model: Any, found: dict[str, Any]) -> dict[str, Any]:
    """Returns gradients by the names and shapes of a saved checkpoint, which differ in the model."""
    from safetensors.torch import load_file  # type: ignore[import-not-found,unused-ignore]

    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory, state_dict=found, max_shard_size="1000TB")
        found = load_file(os.path.join(directory, "model.safetensors"))
    place = {name: i for i, (name, _) in enumerate(model.named_modules())}

    def find_place(name: str) -> int:
        while name not in place:
            name = name.rpartition(".")[0]
        return place[name]

    order = sorted(found, key=find_place, reverse=True)
    return {f"{name}.grad": found[name].float().contiguous() for name in order}


def write_values(path: str, values: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Writes {name: float32 tensor} as safetensors, in the order of the dict."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    at = 0
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


def _parse_ids(text: str) -> list[int]:
    try:
        ids = [int(word) for word in text.split(",")]
    except ValueError:
        ids = []
    if not ids or min(ids) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: use token ids, as in 1,2,3")
    return ids


def _parse_rule(text: str) -> tuple[str, str]:
    pattern, _, style = text.partition("=")
    if not pattern or not style:
        raise argparse.ArgumentTypeError(f"{text!r}: use PATTERN=STYLE")
    return pattern, style


def _parse_ranks(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: use a number of ranks, 1 or more")
    return int(text)


def _read_batch(path: str) -> tuple[Any, Any]:
    """Reads a batch of `tessera grad`: safetensors with ids and labels, I64 [sequences, ids]."""
    import_transformers()
    from safetensors import SafetensorError  # type: ignore[import-not-found,unused-ignore]
    from safetensors.torch import load_file  # type: ignore[import-not-found,unused-ignore]

    try:
        batch = load_file(path)
        ids, labels = batch["ids"], batch["labels"]
    except KeyError as error:
        raise ValueError(f"{path}: has no tensor {error}; it needs ids and labels") from error
    except SafetensorError as error:
        raise ValueError(f"{path}: {error}") from error
    if ids.dim() != 2 or ids.shape != labels.shape:
        raise ValueError(f"{path}: ids and labels must be [sequences, ids] alike")
    return ids, labels


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tessera.record",
        description="Writes the outputs of the modules of a Transformers model as safetensors.",
        epilog=f"Exit status: 0, 1 for an error, or {SKIPPED} if torch or transformers is not "
        "installed.",
    )
    parser.add_argument("directory", metavar="DIR", help="checkpoint directory")
    inputs = parser.add_mutually_exclusive_group(required=True)
    inputs.add_argument("--ids", type=_parse_ids, help="token ids, as in 1,2,3")
    inputs.add_argument(
        "--ids-file", metavar="FILE", help="batch of --train, as in tessera grad"
    )
    parser.add_argument(
        "--train",
        action="store_true",
        help="compute the loss of a batch and gradients, too (NAME.grad)",
    )
    parser.add_argument(
        "--tp",
        type=_parse_ranks,
        default=1,
        metavar="N",
        help="cut the model over N processes by the plan of Transformers (default: %(default)s)",
    )
    parser.add_argument(
        "--tp-rule",
        type=_parse_rule,
        action="append",
        default=[],
        metavar="PATTERN=STYLE",
        help="add a rule to that plan, or replace one, by names and styles of Transformers; "
        "repeatable",
    )
    parser.add_argument(
        "--out",
        default="transformers.safetensors",
        metavar="FILE",
        help="file to write (default: %(default)s)",
    )
    return parser


def _run(options: argparse.Namespace) -> dict[str, Any]:
    ranks, rules = options.tp, dict(options.tp_rule)
    if options.train:
        return record_training(
            options.directory, *_read_batch(options.ids_file), ranks=ranks, rules=rules
        )
    return record_values(options.directory, options.ids, ranks=ranks, rules=rules)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _make_parser()
    options = parser.parse_args(arguments)
    if options.train != bool(options.ids_file):
        parser.error("--train and --ids-file: give both or none")
    if options.tp_rule and options.tp == 1:
        parser.error("--tp-rule: needs --tp N")
    try:
        values = _run(options)
        numerics = f"transformers, float32, {options.tp} ranks"
        write_values(options.out, values, {"tessera.numerics": numerics})
    except MissingTransformers as error:
        print(f"tessera.record: skipped: {error}", file=sys.stderr)
        return SKIPPED
    except (OSError, ValueError) as error:
        print(f"tessera.record: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
