"Take README's screenshots: `python tests/shots.py docs`"
import os, shutil, sys, tempfile
from pathlib import Path

from lab import Lab, Page
from slurm import Cluster
from test_browser import quick_start, write_notebook
from test_launchpad_browser import tour as launchpad_tour
from test_session_browser import tour
from test_timeline_browser import still

RECORD = '''import dtnb

def train(folder):
    import os, time, torch
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import profile, schedule
    rank = int(os.environ["RANK"])
    class Samples(torch.utils.data.Dataset):
        def __len__(self): return 64
        def __getitem__(self, i):
            if rank == 2: time.sleep(.02)               # the disk of one rank is slow
            return torch.randn(48, 128)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), 3), bucket_cap_mb=.5)
    optimizer = torch.optim.AdamW(model.parameters())
    with profile(record_shapes=True, profile_memory=True, schedule=schedule(wait=1, warmup=1, active=6), on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/rank{rank}.json")) as prof:
        for x in torch.utils.data.DataLoader(Samples(), batch_size=4):
            model(x).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
            if prof.step_num == 8: break

job = dtnb.launch(train, "traces", on=dtnb.Local(nproc=4))
job.wait(120, draw=False)'''
OPEN = '''import dtnb

dtnb.open_trace("traces").show(open=True)'''


def timeline(lab, shots):
    "A real training of four ranks, one with a slow loader; a collective that waits for it"
    (lab.folder / "traces").mkdir()
    write_notebook(lab.folder / "slow_rank.ipynb", OPEN, RECORD)
    with Page(lab, width=1400, height=1180) as p:
        p.open("slow_rank.ipynb")
        p.run_cell(1)
        p.wait_done([1])
        p.run_cell(0)
        over = p.page.locator(".dtl-over").first
        over.wait_for(timeout=60_000)
        p.page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area').then(() => null)")
        p.page.evaluate("() => { const t = document.querySelector('.dtl').timeline; t.at(t.scene.span * .4, t.scene.span * .6) }")
        p.page.locator(".dtl-find").fill("c10d::allreduce_")
        for _ in range(40):                              # until one of the slow rank's
            p.page.locator(".dtl-find").press("Enter")
            p.page.wait_for_timeout(150)
            if "rank 2 · main" in p.page.locator(".dtl-details").inner_text(): break
        p.page.locator(".dtl-find").fill("")
        p.page.get_by_role("button", name="Show this collective on all ranks").click()
        still(p)
        p.page.evaluate("() => { const n = window.jupyterapp.shell.currentWidget.content; n.node.querySelector('.jp-WindowedPanel-outer, .jp-Notebook')?.scrollTo(0, 0); return null }")
        p.shot(shots / "timeline.png")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp) / "notebooks"
        folder.mkdir()
        os.environ["DTNB_HOME"] = f"{tmp}/home"
        with Lab(folder, tmp) as lab:
            quick_start(lab, Path(sys.argv[1]))
            tour(lab, Path(tmp) / "shots")
            timeline(lab, Path(sys.argv[1]))
        folder = Path(tmp) / "launchpad"
        folder.mkdir()
        with Cluster(conf=dict(EnforcePartLimits="ALL")) as cluster:
            os.environ |= dict(SLURM_CONF=cluster.env["SLURM_CONF"], DTNB_SQUEUE_SECONDS=".5", DTNB_HOME=f"{tmp}/jobs")
            with Lab(folder, folder) as lab: launchpad_tour(lab, cluster, Path(tmp) / "shots")
        for name in ("session-live.png", "launchpad.png"): shutil.copy(Path(tmp) / "shots" / name, sys.argv[1])
