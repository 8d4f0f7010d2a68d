"A rank that holds up the others, in a real training of three: the timeline's sentence names the rank and the cause. `DTNB_TRIALS=20` tries each twenty times."
import os, time
from dataclasses import dataclass
from functools import cache

import pytest

import dtnb
from dtnb.launchers.local import Local
from dtnb.trace.timeline import open_trace
from test_session import own_home

N = int(os.environ.get("DTNB_TRIALS", 1))


@dataclass(frozen=True)
class Slow:
    "One row: what one rank (or every one) does, and what is found"
    name: str
    kind: str
    part: str | None = None
    words: str = ""          # in the sentence
    blames: bool = True      # the rank; else nobody


ROWS = [Slow("slow loader", "slow", "data", "data loading"), Slow("slow compute", "slow", "compute", "compute"), Slow("slow Python", "slow", "other", "most of it in bookkeeping"), Slow("late start", "late", None, "begins"),
        Slow("one slow batch", "once", "data", "data loading"), Slow("every loader slow", "data", "data", "on every rank", blames=False)]


def train_each(rows, who, folder):
    "A training for each row, of 6 steps, traced by torch.profiler; in `who` or everywhere it is slow"
    import time, warnings
    import torch, torch.distributed as dist
    from torch.profiler import profile, record_function, schedule
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]))
    optimizer, a = torch.optim.SGD(net.parameters(), lr=.01), torch.ones(128, 128)
    def compute(seconds):
        end = time.perf_counter() + seconds
        while time.perf_counter() < end: a @ a

    class Data(torch.utils.data.Dataset):
        def __len__(self): return 12
        def __getitem__(self, i):
            if fault == "every loader slow" or fault == "slow loader" and rank == who: time.sleep(.02)
            if fault == "one slow batch" and rank == who and i == 6: time.sleep(.3)
            return torch.ones(64) * i

    def step(batch):
        loss = net(batch).pow(2).mean()
        if fault == "slow compute" and rank == who: compute(.04)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if fault == "slow Python" and rank == who:
            with record_function("bookkeeping"): time.sleep(.04)

    for fault in ["warm up", *rows]:
        dist.barrier()
        if fault == "late start" and rank == who: time.sleep(.5)
        with profile(schedule=schedule(wait=0, warmup=0, active=6, repeat=1), on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/{fault}/{rank}.json.gz")) as p:
            for batch in torch.utils.data.DataLoader(Data(), batch_size=2):
                step(batch)
                p.step()


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    "For a trial, the folder with its traces and the rank that was slow; each trial is one job"
    @cache
    def folder(trial):
        where, who = tmp_path_factory.mktemp("traces"), trial % 3
        for name in ("warm up", *(r.name for r in ROWS)): (where / name).mkdir()
        with own_home(tmp_path_factory):
            job = dtnb.launch(train_each, [r.name for r in ROWS], who, str(where), on=Local(nproc=3))
            job.follow(120)
            job.results()
        return where, who
    return folder


@pytest.mark.parametrize("trial_number", range(N))
@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_the_sentence_names_it(row, trial_number, traces, record_property):
    where, who = traces(trial_number)
    began = time.monotonic()
    t = open_trace(where / row.name)
    found, sentence = t.findings[0], t.sentence
    seconds = time.monotonic() - began
    well = (found.kind, found.rank, found.part) == (row.kind, who if row.blames else None, row.part) and row.words in sentence and (f"rank {who}" in sentence.lower()) == row.blames
    record_property("trial", (row.name, "job", seconds if well else None, ""))
    assert well, f"rank {who}, {row.name}: {t}\n{t.steps.to_string()}\n{t.findings}"
    assert (t.ranks, t.matched_by, len(t.steps)) == ([0, 1, 2], "their order", 18)
    print(f"\n>>> {row.name}: {sentence}")
