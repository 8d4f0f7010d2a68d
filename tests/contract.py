"The contract of every launcher: subclass `LauncherContract` and give it `make(nproc)`."
import os, threading, time

import pytest

import dtnb
from conftest import SLOW, alive, job_processes, wait_until


def place():
    import os
    return {k: os.environ[k] for k in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")}


def all_reduce_twice():
    import torch, torch.distributed as dist
    out = []
    for _ in range(3):
        dist.init_process_group("gloo")
        x = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(x)
        out.append(x.item())
        dist.destroy_process_group()
    return out


def rank_one_raises():
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    if dist.get_rank() == 1: raise ValueError("bad batch 7")
    dist.all_reduce(torch.ones(1))


def rank_one_exits():
    import os, time
    if os.environ["RANK"] == "1": os._exit(3)
    time.sleep(600)


def rank_one_is_killed():
    import os, signal, time
    if os.environ["RANK"] == "1":
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def rank_one_is_killed_while_the_other_waits():
    import os, signal, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == 1: os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def sleeps(seconds=600):
    import subprocess, time
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print("child", child.pid, flush=True)
    time.sleep(seconds)


CORE = ("test_world", "test_failure_names_its_own_rank", "test_exit_code_is_named", "test_cancel_stops_everything", "test_render_is_text_of_what_runs")

class LauncherContract:
    world = 2
    brief = False   # a second way of a launcher: `make test` tries the core of it, `make test-all` everything

    @pytest.fixture(autouse=True)
    def only_the_core(self, request):
        if self.brief and not SLOW and request.function.__name__ in vars(LauncherContract) and request.function.__name__ not in CORE: pytest.skip("this launcher's other way passes it: make test-all tries both")
    misspelt = "nporc"  # an option that the launcher has, nearly

    def make(self, nproc=2, **options): raise NotImplementedError

    def launch(self, fn, *args, **kwargs): return dtnb.launch(fn, *args, on=self.make(self.world), **kwargs)

    def test_world(self):
        places = self.launch(place).results(60)
        assert [places[r]["RANK"] for r in range(2)] == ["0", "1"]
        assert {p["WORLD_SIZE"] for p in places.values()} == {"2"}
        assert len({(p["MASTER_ADDR"], p["MASTER_PORT"]) for p in places.values()}) == 1

    def test_destroy_then_init_any_number_of_times(self):
        assert self.launch(all_reduce_twice).results(60) == {0: [3.0] * 3, 1: [3.0] * 3}

    def test_failure_names_its_own_rank(self):
        job = self.launch(rank_one_raises)
        with pytest.raises(dtnb.RankFailedError) as caught: job.result(timeout=60)
        e = caught.value
        assert (e.rank, e.message) == (1, "ValueError: bad batch 7")
        assert e.host and 'raise ValueError("bad batch 7")' in e.traceback
        assert str(e).startswith(f"rank 1 on {e.host}: ValueError")
        self.gone(job)

    def test_exit_code_is_named(self):
        job = self.launch(rank_one_exits)
        with pytest.raises(dtnb.RankFailedError, match="rank 1 on .*: its process ended with exit code 3"): job.result(timeout=60)
        self.gone(job)

    def test_signal_is_named_and_last_words_are_kept(self):
        job = self.launch(rank_one_is_killed)
        with pytest.raises(dtnb.RankFailedError, match="rank 1 on .*: its process was killed by SIGKILL") as caught: job.result(timeout=60)
        assert "last words" in caught.value.log_tail
        self.gone(job)

    def test_a_death_is_the_cause_not_what_its_peer_saw(self):
        job = self.launch(rank_one_is_killed_while_the_other_waits)
        with pytest.raises(dtnb.RankFailedError, match="rank 1 on .*: its process was killed by SIGKILL"): job.result(timeout=60)
        self.gone(job)

    def test_cancel_stops_everything(self, decoy):
        job = self.launch(sleeps)
        wait_until(lambda: "child" in job.logs(0) and "child" in job.logs(1), what="both ranks started a child")
        pids = job_processes(job)
        assert len(pids) >= 5
        assert job.cancel() == "cancelled"
        with pytest.raises(dtnb.JobCancelledError): job.result()
        self.gone(job, pids)

    def test_wait_times_out_and_the_job_goes_on(self):
        job = self.launch(sleeps)
        with pytest.raises(dtnb.JobTimeoutError, match="still"): job.wait(timeout=.5)
        assert not job.state.ended
        job.cancel()

    def test_kernel_is_untouched(self):
        import signal, sys
        def circumstances(): return (os.getcwd(), dict(os.environ), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGCHLD), sys.stdout, print, list(sys.path))
        before = circumstances()
        self.launch(place).results(60)
        assert circumstances() == before

    def test_attach(self):
        job = self.launch(place)
        again = dtnb.attach(job.id)
        assert again.results(60) == job.results(60)
        assert job.id in [j.id for j in dtnb.jobs()]

    def test_render_is_text_of_what_runs(self):
        text = self.make(2).render()
        assert isinstance(text, str) and "2" in text

    def test_unknown_option(self):
        with pytest.raises(ValueError, match=f"has no option '{self.misspelt}': did you mean"): self.make(2, **{self.misspelt: 3})

    def gone(self, job, pids=()):
        pids = set(pids) | job_processes(job)
        wait_until(lambda: not alive(pids), what=f"the end of {alive(pids)}")
