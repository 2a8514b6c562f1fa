"""peer_train.py - a rank of PyTorch that trains, for bench/train; rank 0 prints a line of JSON.

	peer_train.py MODEL --case CASE --math f32|bf16 --threads T --steps N --warm N --batch N --sequence N
	              [--micro-batches N] [--first-layers N,...] [--compile]

Runs alone, or under torchrun over gloo. MODEL is a checkpoint of the family llama in f32. bf16: autocast, and
MixedPrecisionPolicy with gradients in f32 for fsdp; weights and the state of AdamW (fused) stay in f32. --compile:
torch.compile of the model, or of each layer where the layers are partitioned. --first-layers: the first layer of each
stage of a pipeline. Prints the median step in seconds, and the bytes that a rank sent in a step: the mean of what the
loopback network carried, on which nothing else should run.
"""
import argparse, contextlib, json, os, statistics, sys, time

import torch
import torch.distributed as dist

LR, DECAY = 1e-4, 0.1


class Llama(torch.nn.Module):
    """Layers [first, end) of a Llama of Transformers, with the embedding before its first layer and the head after its last."""

    def __init__(self, of, first, end, autocast=False):
        super().__init__()
        self.autocast = autocast
        self.embed = of.model.embed_tokens if first == 0 else None
        self.layers, self.rotary = torch.nn.ModuleList(of.model.layers[first:end]), of.model.rotary_emb
        last = end == len(of.model.layers)
        self.norm, self.head = (of.model.norm, of.lm_head) if last else (None, None)
        self.length = None  # length of a sequence, if x has only a part of it

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            return self.run_layers(x)

    def run_layers(self, x):
        length = self.length or x.shape[1]
        x = self.embed(x) if self.embed is not None else x
        rotary = self.rotary(x, torch.arange(length)[None])
        for layer in self.layers:
            y = layer(x, position_embeddings=rotary, attention_mask=None)
            x = y[0] if isinstance(y, tuple) else y
        return self.head(self.norm(x)) if self.head is not None else x


def shard_tensors(model, world, sequence):
    """Makes the model tensor parallel; with `sequence`, norms are partitioned over the sequence."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tp

    rows = Shard(1) if sequence else Replicate()
    plan = {"embed": tp.RowwiseParallel(input_layouts=Replicate(), output_layouts=rows),
            "head": tp.ColwiseParallel(input_layouts=rows, output_layouts=Shard(-1), use_local_output=False)}
    for name, _ in model.named_modules():
        end = name.rpartition(".")[2]
        if end in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"):
            plan[name] = tp.ColwiseParallel()
        elif end in ("o_proj", "down_proj"):
            plan[name] = tp.RowwiseParallel(output_layouts=rows)
        elif sequence and (end == "norm" or end.endswith("layernorm")):
            plan[name] = tp.SequenceParallel(use_local_output=True)
        elif sequence and end == "self_attn":
            plan[name] = tp.PrepareModuleInput(input_kwarg_layouts={"hidden_states": rows},
                                               desired_input_kwarg_layouts={"hidden_states": Replicate()})
        elif sequence and end == "mlp":
            plan[name] = tp.PrepareModuleInput(input_layouts=(rows,), desired_input_layouts=(Replicate(),))
    tp.parallelize_module(model, dist.init_device_mesh("cpu", (world,)), plan)


def compute_loss(logits, ids):
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def make_pipeline(a, model, rank, world):
    """Returns the stages of this rank, and a function that computes gradients."""
    from torch.distributed import pipelining

    first = [int(x) for x in a.first_layers.split(",")] + [len(model.model.layers)]
    nstages = len(first) - 1
    modules = torch.nn.ModuleDict({str(s): Llama(model, first[s], first[s + 1], a.math == "bf16")
                                   for s in range(rank, nstages, world)})
    stages = [pipelining.PipelineStage(m, int(s), nstages, torch.device("cpu")) for s, m in modules.items()]
    how = dict(n_microbatches=a.micro_batches, loss_fn=compute_loss)
    schedule = (pipelining.ScheduleInterleaved1F1B(stages, **how) if nstages > world else
                pipelining.Schedule1F1B(stages[0], **how))

    def backward(ids):
        schedule.step(*([ids] if rank == 0 else []), **({"target": ids} if rank == world - 1 else {}))
    return modules, backward


def prepare(a, rank, world):
    """Returns the modules of this rank, and a function that computes gradients of ids."""
    import transformers

    whole = transformers.AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32)
    whole.train()
    if a.compile and (a.case in ("tp", "tp+sp", "fsdp") or a.first_layers):
        for layer in whole.model.layers:
            layer.compile()
    if a.first_layers:
        return make_pipeline(a, whole, rank, world)
    model = Llama(whole, 0, len(whole.model.layers), a.math == "bf16" and a.case != "fsdp")
    around = contextlib.nullcontext
    if a.case in ("tp", "tp+sp"):
        from torch.distributed.tensor.parallel import loss_parallel

        model.length, around = a.sequence, loss_parallel
        shard_tensors(model, world, a.case == "tp+sp")
    elif a.case == "fsdp":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = (MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if a.math == "bf16"
                  else MixedPrecisionPolicy())
        for layer in model.layers:
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    elif a.compile:
        model.compile()
    computed = torch.nn.parallel.DistributedDataParallel(model) if a.case == "ddp" else model

    def backward(ids):
        with around():
            compute_loss(computed(ids), ids).backward()
    return model, backward


def read_sent():
    with open("/proc/net/dev") as f:
        return next(int(line.split()[9]) for line in f if line.strip().startswith("lo:"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--case", required=True)
    parser.add_argument("--math", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--first-layers")
    parser.add_argument("--compile", action="store_true")
    a = parser.parse_args()
    world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    torch.set_num_threads(a.threads)
    if world > 1:
        dist.init_process_group("gloo")
    model, backward = prepare(a, rank, world)
    groups = {}
    for p in model.parameters():  # fused AdamW accepts one kind of tensor
        groups.setdefault(type(p), []).append(p)
    optimizer = torch.optim.AdamW([{"params": g} for g in groups.values()], lr=LR, weight_decay=DECAY, fused=True)
    ids = torch.randint(3, 1000, (a.batch, a.sequence), generator=torch.Generator().manual_seed(1))
    if a.case in ("fsdp", "ddp"):
        ids = ids[rank * a.batch // world:(rank + 1) * a.batch // world]
    seconds, sent = [], []
    for _ in range(a.warm + a.steps):
        if world > 1:
            dist.barrier()
        before, begin = read_sent(), time.perf_counter()
        backward(ids)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begin)
        if world > 1:
            dist.barrier()
        sent.append(read_sent() - before)
    if rank == 0:
        print(json.dumps({"seconds": statistics.median(seconds[a.warm:]),
                          "sent": statistics.median(sent[a.warm:]) / world if world > 1 else 0,
                          "version": "PyTorch " + torch.__version__}), flush=True)
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


sys.exit(main())
