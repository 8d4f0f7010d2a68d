"""Two first steps, and the kernels that launch them. A kernel reads lines `WHAT RANKS FOLDER`; each is a launch, answered by a line of JSON.

    python first_step.py dtnb|accelerate             a kernel
    python first_step.py --rank WHAT FOLDER          one rank, for torchrun
"""
import json, os, socket, sys, time
from pathlib import Path


def reduce_step(folder):
    "Join a gloo group, reduce one number, write down when (Unix seconds)"
    called = time.time()
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    group, number = time.time(), torch.ones(1)
    dist.all_reduce(number)
    step = time.time()
    Path(folder, f"{dist.get_rank()}.json").write_text(json.dumps(dict(called=called, group=group, step=step, sum=number.item())))
    dist.destroy_process_group()


def train_step(folder):
    "The same for one optimizer step of a linear layer under `Accelerator`: what a lesson's first cell does"
    called = time.time()
    import torch, torch.distributed as dist
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    group, model = time.time(), torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), .1))
    accelerator.backward(model(torch.ones(8, 4)).sum())
    optimizer.step()
    step = time.time()
    number = accelerator.reduce(torch.ones(1))
    Path(folder, f"{accelerator.process_index}.json").write_text(json.dumps(dict(called=called, group=group, step=step, sum=number.item())))
    model, optimizer = accelerator.free_memory(model, optimizer)  # torch 2.13: a DDP model that outlives its gloo group can hang the rank (its Reducer joins gloo's thread while it holds the GIL)
    dist.destroy_process_group()


STEPS = dict(reduce=reduce_step, train=train_step)

def free_port() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def dtnb_kernel():
    "Import dtnb; returns how it launches"
    import dtnb
    def launch(step, n, folder):
        job = dtnb.launch(step, folder, on=dtnb.Local(nproc=n))
        returned = time.time()
        job.wait(100, draw=False)
        job.results()
        return dict(returned=returned, **stages(job))
    return launch


def stages(job) -> dict:
    "When a job's guard and its last rank were there, from the job's own records"
    from dtnb.event import EventReader
    starts = [next(e.t for e in EventReader(job.paths.events(r)).read() if e.get("state") == "starting") for r in range(job.world_size)]
    return dict(guard=EventReader(job.paths.launcher).read()[0].t, ranks=max(starts))


def accelerate_kernel():
    "Import accelerate; returns how it launches"
    from accelerate import notebook_launcher
    return lambda step, n, folder: notebook_launcher(step, (folder,), num_processes=n, use_port=free_port()) or {}


def serve(launch, answers):
    for line in sys.stdin:
        what, n, folder = line.split()
        called = time.time()
        more = launch(STEPS[what], int(n), folder)
        print(json.dumps(dict(called=called, ended=time.time(), **more)), file=answers)


if __name__ == "__main__":
    if sys.argv[1] == "--rank": STEPS[sys.argv[2]](sys.argv[3])
    else:
        answers = os.fdopen(os.dup(1), "w", buffering=1)  # what a launcher prints must not be taken for an answer
        os.dup2(2, 1)
        serve(dict(dtnb=dtnb_kernel, accelerate=accelerate_kernel)[sys.argv[1]](), answers)
