"Saving and going on, on this machine: which step, what is kept, with another number of ranks."
import json, os, signal, time

import pytest

import dtnb
from conftest import wait_until
from dtnb.rank.checkpoint import latest
from dtnb.reader import opening


def train(steps, pause=.01, every=0, how="torch.save"):
    "A model whose weights tell how many steps it has had, on whichever ranks; one collective a step"
    import os, random, time
    import dtnb, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    torch.nn.init.zeros_(model.module.weight)
    history = []
    def save(folder):
        if how == "dcp": dcp.save(model.module.state_dict(), checkpoint_id=folder)
        elif dist.get_rank() == 0: torch.save(model.module.state_dict(), folder / "model.pt")
    def load(folder):
        state = model.module.state_dict()
        if how == "dcp": dcp.load(state, checkpoint_id=folder)
        model.module.load_state_dict(state if how == "dcp" else torch.load(folder / "model.pt"))
        history.append(folder.name)
    ckpt = dtnb.checkpoint(save, load, every=every)
    print("begins at step", ckpt.steps, flush=True)
    for step in dtnb.track(range(ckpt.steps, steps), desc="step"):
        time.sleep(random.random() * 2 * pause)
        model(torch.ones(1, 1)).sum().backward()
        with torch.no_grad(): model.module.weight += model.module.weight.grad      # 1, on average over ranks
        model.zero_grad()
        ckpt.step()
    return model.module.weight.item(), history


def stepped(job, n): wait_until(lambda: (b := job.view.ranks[0].bar) is not None and b.n >= n or job.view.state.ended, 60, f"{n} steps")


@pytest.mark.parametrize("how", ["torch.save", "dcp"])
def test_requeue_goes_on_where_it_was(how):
    job = dtnb.launch(train, 300, how=how, on=dtnb.Local(nproc=3))
    stepped(job, 20)
    job.requeue()
    wait_until(lambda: job.view.attempt == 1, 60, "the second attempt")
    got = job.results(90)
    assert {weight for weight, _ in got.values()} == {300.0} and all(len(h) == 1 for _, h in got.values()), got
    log = job.logs(0)
    assert "begins at step 0" in log and "== attempt 2 ==" in log and f"begins at step {int(got[0][1][0][5:])}" in log   # of both
    assert job.view.ranks[0].attempt == 1


def test_ranks_agree_every_time():
    "Their steps last unequally; every attempt begins at one step on all ranks, and none is lost"
    job = dtnb.launch(train, 1500, pause=.004, on=dtnb.Local(nproc=2))
    for i in range(8):
        wait_until(lambda: job.view.attempt == i and job.view.state == "running" and (b := job.view.ranks[1].bar) is not None and b.n > i % 7, 60, f"attempt {i}")
        job.requeue()
    assert {w for w, _ in job.results(120).values()} == {1500.0}
    begun = [[line for line in job.logs(r).splitlines() if line.startswith("begins")] for r in range(2)]
    assert begun[0] == begun[1] and len(begun[0]) == 9 and len(set(begun[0])) == 9


@pytest.mark.parametrize("how", ["torch.save", "dcp"])
def test_a_guard_that_is_asked_to_end_saves_and_another_world_goes_on(how):
    job = dtnb.launch(train, 200, how=how, on=dtnb.Local(nproc=2))
    stepped(job, 10)
    os.kill(opening(job.paths)["guard"], signal.SIGTERM)
    assert job.wait(60) == "cancelled" and f"dtnb.resume('{job.id}') goes on" in job.view.reason, job.view.reason
    at = latest(job.paths.root)["step"]
    assert 10 <= at < 200 and f"saved step {at}" in job.view.reason
    more = dtnb.resume(job.id, on=dtnb.Local(nproc=3))
    got = more.results(60)
    assert got == {r: (200.0, [f"step-{at:08d}"]) for r in range(3)} and more.spec.resumes == str(job.paths.root)


def test_usr2_on_the_guard_requeues_as_slurm_would():
    job = dtnb.launch(train, 150, on=dtnb.Local(nproc=1))
    stepped(job, 5)
    os.kill(opening(job.paths)["guard"], signal.SIGUSR2)
    assert job.results(60)[0][0] == 150.0 and job.view.attempt == 1


def test_every_so_many_steps_and_a_crash():
    "The last two are kept; a job that failed is resumed by hand"
    def crashes(steps):
        import os, dtnb
        done = []
        ckpt = dtnb.checkpoint(lambda folder: (folder / os.environ["RANK"]).write_text(str(len(done))), lambda folder: done.extend(range(int((folder / os.environ["RANK"]).read_text()))), every=10)
        for i in range(ckpt.steps, steps):
            done.append(i)
            ckpt.step()
            if i == 34 and not os.environ["DTNB_RESUMES"]: os._exit(9)
        return len(done)
    job = dtnb.launch(crashes, 50, on=dtnb.Local(nproc=2))
    with pytest.raises(dtnb.RankFailedError): job.result(timeout=60)
    assert latest(job.paths.root)["step"] == 30 and sorted(p.name for p in (job.paths.root / "checkpoint").glob("step-*")) == ["step-00000020", "step-00000030"]
    assert dtnb.resume(job).results(60) == {0: 50, 1: 50}


def test_what_can_not_be_saved_or_resumed():
    job = dtnb.launch(lambda: __import__("time").sleep(60), on=dtnb.Local(nproc=2))
    wait_until(lambda: job.state == "running", 60, "a start")
    job.requeue()                                            # nobody says how: nothing happens
    time.sleep(1)
    assert job.state == "running" and job.view.attempt == 0
    with pytest.raises(dtnb.LaunchError, match="is running: it goes on by itself"): dtnb.resume(job)
    job.cancel()
    with pytest.raises(dtnb.LaunchError, match="has saved nothing: its function has to call dtnb.checkpoint"): dtnb.resume(job)
    with pytest.raises(dtnb.LaunchError, match="is cancelled: only one that runs can save"): job.requeue()


def test_asked_before_all_have_said_how_and_after_one_has_returned():
    def uneven():
        import os, time, dtnb
        me = os.environ["RANK"]
        if me == "1": time.sleep(2)
        saved = []
        ckpt = dtnb.checkpoint(lambda folder: (folder / me).write_text("x"), lambda folder: saved.append(folder.name))
        steps = 20 if me == "2" else 150
        for i in range(ckpt.steps, steps):
            time.sleep(.02)
            ckpt.step()
        return len(saved)
    job = dtnb.launch(uneven, on=dtnb.Local(nproc=3))
    wait_until(lambda: job.state == "running", 60, "a start")
    time.sleep(.7)
    job.requeue()                                            # rank 1 has not said how; rank 2 is about to return
    wait_until(lambda: job.view.attempt == 1, 60, "the second attempt")
    assert job.wait(60) == "done" and job.results()[0] == job.results()[1] == 1


def slow_to_save(every=0):
    import time, dtnb, torch.distributed as dist
    dist.init_process_group("gloo")
    def save(folder):
        time.sleep(1)
        dist.barrier()
    ckpt = dtnb.checkpoint(save, every=every)
    while True:
        time.sleep(.02 + .01 * dist.get_rank())
        ckpt.step()


def test_a_cancel_while_it_saves_ends_it():
    job = dtnb.launch(slow_to_save, on=dtnb.Local(nproc=2))
    wait_until(lambda: job.state == "running", 60, "a start")
    time.sleep(1)
    job.requeue()
    time.sleep(.5)
    assert job.cancel("enough", timeout=30) == "cancelled" and job.view.reason.startswith("enough")
    time.sleep(1)
    assert dtnb.attach(job.id).state == "cancelled" and dtnb.attach(job.id).view.attempt == 0


def test_asked_while_it_saves_by_itself():
    "The step at which all stop may be one at which they save anyhow"
    job = dtnb.launch(slow_to_save, every=5, on=dtnb.Local(nproc=2))
    for i in range(3):
        wait_until(lambda: job.view.attempt == i and latest(job.paths.root) and job.state == "running", 60, f"attempt {i}")
        time.sleep(1 + .3 * i)
        job.requeue()
    wait_until(lambda: job.view.attempt == 3, 60, "the last attempt")
    assert job.cancel() == "cancelled"


def test_a_save_that_fails_is_the_error():
    def bad():
        import time, dtnb
        ckpt = dtnb.checkpoint(lambda folder: 1 / 0)
        while True:
            time.sleep(.01)
            ckpt.step()
    job = dtnb.launch(bad, on=dtnb.Local(nproc=2))
    wait_until(lambda: job.state == "running", 60, "a start")
    time.sleep(.5)
    job.requeue()
    with pytest.raises(dtnb.RankFailedError, match="ZeroDivisionError"): job.result(timeout=60)
    assert latest(job.paths.root) is None


class Counter:
    "As submitit has it: an object whose method says what is to be called next"
    def __init__(self, n=0): self.n = n
    def __call__(self, end):
        import time
        while self.n < end:
            time.sleep(.02)
            self.n += 1
        return self.n, self.began
    began = 0
    def checkpoint(self, end):
        from types import SimpleNamespace
        again = Counter(self.n)
        again.began = self.n
        return SimpleNamespace(function=again, args=(end,), kwargs={})


def test_an_object_with_a_checkpoint_method():
    job = dtnb.launch(Counter(), 150, on=dtnb.Local(nproc=2))
    wait_until(lambda: job.state == "running", 60, "a start")
    time.sleep(1)
    job.requeue()
    got = job.results(60)
    assert all(n == 150 and 0 < began < 150 for n, began in got.values()) and job.view.attempt == 1


def test_outside_a_job_it_only_counts():
    ckpt = dtnb.checkpoint(lambda folder: 1 / 0, lambda folder: 1 / 0, every=1)
    for _ in range(3): ckpt.step()
    assert ckpt.steps == 3
