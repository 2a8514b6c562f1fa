"""comm_torch.py - torch.distributed over gloo, for bench/comm.

Started like comm_gloo, timed like measure.h: before each sample a rank reads the last result and
writes new data; a barrier follows. Up to 1 KiB ten calls are one sample. The time is the median of
the slowest rank.
"""
import os
import sys
import time

import torch
import torch.distributed as dist

WARM, SAMPLES_MIN, SAMPLES_MAX, TINY, BATCH = 3, 5, 200, 1024, 10


def reduce_max(x):
    t = torch.tensor([x], dtype=torch.float64)
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    return t.item()


def make_call(kind, src, dst):
    """Returns a call, and the tensor of its result."""
    if kind == "all_reduce":  # torch has only an in-place all_reduce
        return lambda: dist.all_reduce(src), src
    if kind == "all_gather":
        part = src[: src.numel() // dist.get_world_size()]
        return lambda: dist.all_gather_into_tensor(dst, part), dst
    part = dst[: src.numel() // dist.get_world_size()]
    return lambda: dist.reduce_scatter_tensor(part, src), part


def time_sample(run, src, out, batch, i):
    out[::16].max()
    src.fill_(0.75 + i % 256 / 1024)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(batch):
        run()
    return (time.perf_counter() - begin) * 1e6 / batch


def measure_call(run, src, out, batch, seconds):
    for i in range(WARM):
        begin = time.perf_counter()
        time_sample(run, src, out, batch, i)
    n = min(seconds / (time.perf_counter() - begin), SAMPLES_MAX)
    n = max(int(reduce_max(n)), SAMPLES_MIN)
    times = sorted(time_sample(run, src, out, batch, i) for i in range(n))
    return reduce_max(times[n // 2])


def main():
    kind, max_bytes, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    store = f"file://{os.environ['COMM_STORE']}/torch"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    if rank == 0:
        print("version torch", torch.__version__, flush=True)
    nbytes = 4 if kind == "all_reduce" else 4 ** (1 + (size > 1) + (size > 4))
    while nbytes <= max_bytes:
        src, dst = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4)
        run, out = make_call(kind, src, dst)
        us = measure_call(run, src, out, BATCH if nbytes <= TINY else 1, seconds)
        if rank == 0:
            print("torch", nbytes, f"{us:.3f}", flush=True)
        nbytes *= 4
    dist.barrier()
    dist.destroy_process_group()


main()
