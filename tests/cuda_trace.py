"""Traces as torch.profiler writes them on GPUs with NCCL, made without one: `python tests/cuda_trace.py FOLDER [--ranks 2] [--steps 3]`.

A small simulation: each rank has a main thread, a backward thread, a stream for compute (7) and one for NCCL (20). Kernels queue behind their launches, and a collective ends on all ranks at once."""
import argparse, gzip, json, random
from pathlib import Path

BASE = 1_790_857_026_000_000_000         # baseTimeNanoseconds
MAIN, BACKWARD, COMPUTE, NCCL = 4242, 4310, 7, 20


class Rank:
    "One rank's clocks and events"
    def __init__(self, rank, ranks, slow, seed):
        self.rank, self.ranks, self.slow, self.draw, self.id, self.seq = rank, ranks, slow, random.Random(seed * 1000 + rank), 0, 0
        self.now, self.free, self.events, self.allocated = 5_193_996_116_466.0 + 40 * rank, {COMPUTE: 0.0, NCCL: 0.0}, [], 0

    def span(self, cat, name, tid, ts, dur, pid=MAIN, **args): self.events.append(dict(ph="X", cat=cat, name=name, pid=pid, tid=tid, ts=round(ts, 3), dur=round(dur, 3), args=args))

    def next_id(self):
        self.id += 1
        return self.id

    def op(self, name, us, tid=MAIN, shapes=((64, 64),), kernel=None, kernel_us=0.0, inside=()):
        "An operator on the CPU, with a launch and a kernel if it has one, and operators inside"
        begin, ext = self.now, self.next_id()
        self.now += us * .2
        for inner in inside: self.op(*inner, tid=tid)
        if kernel: self.launch(kernel, kernel_us, ext, tid)
        self.now += us * self.draw.uniform(.6, 1)
        self.span("cpu_op", name, tid, begin, self.now - begin, **{"External id": ext, "Sequence number": ext % 50, "Fwd thread id": 0, "Record function id": 0, "Concrete Inputs": [""] * len(shapes), "Input type": ["float"] * len(shapes), "Input Strides": [[s[-1], 1] for s in shapes], "Input Dims": [list(s) for s in shapes], "Ev Idx": ext})

    def launch(self, kernel, us, ext, tid, stream=COMPUTE, **more):
        "A launch, and the kernel behind what its stream does already. Returns start and end of the kernel"
        corr = self.next_id()
        self.span("cuda_runtime", "cudaLaunchKernel", tid, self.now, 4.5, **{"External id": ext, "cbid": 211, "correlation": corr})
        self.events.append(dict(ph="s", id=corr, pid=MAIN, tid=tid, ts=round(self.now, 3), cat="ac2g", name="ac2g"))
        self.now += 6
        start = max(self.now + 2, self.free[stream])
        us *= self.draw.uniform(.9, 1.1)
        args = {"External id": ext, "queued": 0, "device": 0, "context": 1, "stream": stream, "correlation": corr, "registers per thread": 32, "shared memory": 0, "blocks per SM": 1.5, "warps per SM": 12.0, "grid": [128, 1, 1], "block": [256, 1, 1], "est. achieved occupancy %": 38, **more}
        self.span("kernel", kernel, stream, start, us, pid=0, **args)
        self.events.append(dict(ph="f", id=corr, pid=0, tid=stream, ts=round(start, 3), cat="ac2g", name="ac2g", bp="e"))
        self.free[stream] = start + us
        return start, self.events[-2]

    def memory(self, change, device=1):
        if device: self.allocated += change
        self.events.append(dict(ph="i", cat="cpu_instant_event", s="t", name="[memory]", pid=MAIN, tid=MAIN, ts=round(self.now, 3), args={"Total Reserved": 1 << 24, "Total Allocated": self.allocated if device else 4096, "Bytes": change, "Device Id": 0 if device else -1, "Device Type": device, "Addr": 140_000_000 + self.id, "Ev Idx": self.next_id()}))

    def load(self, us):
        "The next batch, and its copy to the device"
        begin = self.now
        self.now += us
        self.span("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", MAIN, begin, us, **{"External id": self.next_id(), "Record function id": 0, "Ev Idx": self.id})
        ext, corr = self.next_id(), self.next_id()
        self.span("cuda_runtime", "cudaMemcpyAsync", MAIN, self.now, 8, **{"External id": ext, "cbid": 41, "correlation": corr})
        self.now += 10
        start = max(self.now, self.free[COMPUTE])
        self.span("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", COMPUTE, start, 3.2, pid=0, **{"External id": ext, "device": 0, "context": 1, "stream": COMPUTE, "correlation": corr, "bytes": 65536, "memory bandwidth (GB/s)": 20.48 + self.id % 7})
        self.free[COMPUTE] = start + 3.2

    def gradients(self, elements):
        "A bucket's all_reduce is launched. Returns its kernel, which `meet` ends"
        begin, ext, self.seq = self.now, self.next_id(), self.seq + 1
        comms = {"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, "Group size": self.ranks, "dtype": "Float", "In split size": "[]", "Out split size": "[]", "Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": str(list(range(self.ranks)))}
        start, kernel = self.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 1, ext, BACKWARD, NCCL, **comms)
        start = kernel["ts"] = round(max(start, self.free[COMPUTE]), 3)      # it waits for the gradients
        self.span("cpu_op", "record_param_comms", BACKWARD, begin + 2, 12, **{"External id": ext, "Record function id": 0, **comms, "Seq": self.seq, "Ev Idx": ext})
        self.span("cpu_op", "c10d::allreduce_", BACKWARD, begin, self.now - begin + 12, **{"External id": ext, "Record function id": 0, "Concrete Inputs": [""], "Input type": ["TensorList"], "Input Strides": [[]], "Input Dims": [[]], "Ev Idx": ext})
        self.span("user_annotation", "nccl:all_reduce", BACKWARD, begin + 3, 8, **{"External id": ext, "Ev Idx": ext})
        self.now += 14
        return kernel

    def finish(self, steps) -> dict:
        "The file"
        for s in sorted({e["tid"] for e in self.events if e["pid"] == 0}): self.events.append(dict(ph="M", name="thread_name", ts=0, pid=0, tid=s, args=dict(name=f"stream {s} ")))
        for tid, name in ((MAIN, "python"), (BACKWARD, "pt_autograd_0")): self.events.append(dict(ph="M", name="thread_name", ts=0, pid=MAIN, tid=tid, args=dict(name=f"thread {tid} ({name})")))
        for pid, label in ((MAIN, "CPU"), (0, "GPU 0")): self.events += [dict(ph="M", name="process_name", ts=0, pid=pid, tid=0, args=dict(name="python")), dict(ph="M", name="process_labels", ts=0, pid=pid, tid=0, args=dict(labels=label))]
        self.span("overhead", "Activity Buffer Request", 0, self.events[0]["ts"], 900.5, pid=-1)
        self.events += [dict(ph="X", cat="Trace", name="PyTorch Profiler (0)", pid="Spans", tid="PyTorch Profiler", ts=self.events[0]["ts"], dur=1e4, args={"Op count": 0}), dict(ph="i", s="g", name="Record Window End", pid="", tid="", ts=round(self.now, 3))]
        return dict(schemaVersion=1, deviceProperties=[dict(id=0, name="A GPU", totalGlobalMem=85 << 30, computeMajor=9, computeMinor=0, maxThreadsPerBlock=1024, warpSize=32, numSms=132)], cuda_runtime_version=12080, cuda_driver_version=12080, record_shapes=1, profile_memory=1,
                    distributedInfo=dict(backend="nccl", rank=self.rank, world_size=self.ranks, pg_count=1, pg_config=[dict(pg_name="0", pg_desc="default_pg", backend_config="cuda:nccl", pg_size=self.ranks, ranks=list(range(self.ranks)))], nccl_version="2.27.5"),
                    host_name=f"n{self.rank}", displayTimeUnit="ms", baseTimeNanoseconds=BASE, traceEvents=self.events)


def meet(kernels, us=60.0):
    "All ranks' kernels of one collective end together"
    end = max(k["ts"] for _, k in kernels) + us
    for r, k in kernels:
        k["dur"] = round(end - k["ts"], 3)
        r.free[NCCL] = end
        r.span("gpu_user_annotation", "nccl:all_reduce", NCCL, k["ts"], k["dur"], pid=0, **{"External id": k["args"]["External id"]})


def traces(ranks: int = 2, steps: int = 3, layers: int = 4, slow: dict = {}, seed: int = 0) -> list[dict]:
    "The traces of all ranks. `slow`: rank -> microseconds more that its loader takes for each batch"
    all_ranks = [Rank(r, ranks, slow.get(r, 0), seed) for r in range(ranks)]
    for step in range(1, steps + 1):
        begun = [r.now for r in all_ranks]
        for r in all_ranks:
            r.load(120 + r.slow)
            for _ in range(layers):
                r.memory(16384)
                r.op("aten::linear", 25, inside=(("aten::t", 3), ("aten::addmm", 12)), kernel="sm90_xmma_gemm_f32f32_tn_n", kernel_us=30)
                r.op("aten::gelu", 9, kernel="void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>(int)", kernel_us=6)
        for _ in range(2):
            for r in all_ranks:
                for _ in range(layers // 2):
                    r.op("autograd::engine::evaluate_function: AddmmBackward0", 30, BACKWARD, inside=(("AddmmBackward0", 20), ("aten::mm", 9)), kernel="sm90_xmma_gemm_f32f32_nt_n", kernel_us=55)
                    r.memory(-16384)
            meet([(r, r.gradients(33_000)) for r in all_ranks])
        for r, start in zip(all_ranks, begun):
            r.free[COMPUTE] = max(r.free.values())                         # the optimizer waits for the gradients
            at = r.now
            r.op("aten::_foreach_add_", 40, kernel="multi_tensor_apply_kernel", kernel_us=20)
            r.span("user_annotation", "Optimizer.step#AdamW.step", MAIN, at - 3, r.now - at + 4, **{"External id": r.next_id(), "Record function id": 0, "Ev Idx": r.id})
            r.span("cuda_runtime", "cudaStreamSynchronize", MAIN, r.now + 2, max(r.free[COMPUTE] - r.now, 3), **{"cbid": 131, "correlation": r.next_id()})
            r.now = max(r.free[COMPUTE], r.now + 3) + 8
            r.span("user_annotation", f"ProfilerStep#{step}", MAIN, start, r.now - start, **{"External id": r.next_id(), "Record function id": 0, "Ev Idx": r.id})
            gpu = [e for e in r.events if e["pid"] == 0 and e["tid"] == COMPUTE and e["ph"] == "X" and e["ts"] >= start]
            r.span("gpu_user_annotation", f"ProfilerStep#{step}", COMPUTE, gpu[0]["ts"], gpu[-1]["ts"] + gpu[-1]["dur"] - gpu[0]["ts"], pid=0, **{"External id": r.id})
            r.now += 5
    return [r.finish(steps) for r in all_ranks]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for rank, trace in enumerate(traces(args.ranks, args.steps)): (args.folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode()))
