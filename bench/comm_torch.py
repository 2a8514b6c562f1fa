"""comm_torch.py - torch.distributed over gloo, for bench/comm: started as comm_gloo.cc and timed as measure.h does.

A rank reads what came last and writes new data before each sample, which a barrier begins; up to 1 KiB ten calls are
one sample; the time is the median of the slowest rank.
"""
import os
import sys
import time

import torch
import torch.distributed as dist

WARM, LEAST, MOST, TINY, BATCH = 3, 5, 200, 1024, 10


def greatest(x):
    t = torch.tensor([x], dtype=torch.float64)
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    return t.item()


def calls(kind, src, dst):
    """What is called, and the tensor that has the result."""
    if kind == "all_reduce":  # torch has it in place only
        return lambda: dist.all_reduce(src), src
    if kind == "all_gather":
        part = src[: src.numel() // dist.get_world_size()]
        return lambda: dist.all_gather_into_tensor(dst, part), dst
    part = dst[: src.numel() // dist.get_world_size()]
    return lambda: dist.reduce_scatter_tensor(part, src), part


def sample(run, src, out, batch, i):
    out[::16].max()
    src.fill_(0.75 + i % 256 / 1024)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(batch):
        run()
    return (time.perf_counter() - begin) * 1e6 / batch


def measure(run, src, out, batch, seconds):
    for i in range(WARM):
        begin = time.perf_counter()
        sample(run, src, out, batch, i)
    n = min(seconds / (time.perf_counter() - begin), MOST)
    n = max(int(greatest(n)), LEAST)
    times = sorted(sample(run, src, out, batch, i) for i in range(n))
    return greatest(times[n // 2])


def main():
    kind, most, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{os.environ['COMM_STORE']}/torch", rank=rank, world_size=size)
    if rank == 0:
        print("version torch", torch.__version__, flush=True)
    nbytes = 4 if kind == "all_reduce" else 4 ** (1 + (size > 1) + (size > 4))
    while nbytes <= most:
        src, dst = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4)
        run, out = calls(kind, src, dst)
        us = measure(run, src, out, BATCH if nbytes <= TINY else 1, seconds)
        if rank == 0:
            print("torch", nbytes, f"{us:.3f}", flush=True)
        nbytes *= 4
    dist.barrier()
    dist.destroy_process_group()


main()
