"""Record traces of a small transformer that DDP trains with gloo: `python benchmarks/make_trace.py FOLDER [--ranks 4] [--events 260000] [--plain]`.

Each rank writes FOLDER/rank0.json.gz, ... by torch.profiler, with shapes and memory unless `--plain`. The number of steps is chosen so that each has about as many events (with a duration) as wanted."""
import argparse, gzip, json, multiprocessing, os, socket, time
from pathlib import Path


def train(model, optimizer, data, steps, prof=None):
    "`steps` steps, over and over the data"
    done = 0
    while done < steps:
        for (x,) in data:
            model(x).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if prof: prof.step()
            done += 1
            if done == steps: break


def record(model, optimizer, data, steps, path, plain):
    "A trace of `steps` steps in `path`"
    from torch.profiler import ProfilerActivity, profile, schedule
    with profile(activities=[ProfilerActivity.CPU], record_shapes=not plain, profile_memory=not plain, schedule=schedule(wait=0, warmup=1, active=steps, repeat=1), on_trace_ready=lambda p: p.export_chrome_trace(str(path))) as prof:
        train(model, optimizer, data, steps + 1, prof)


def rank_main(rank, ranks, events, folder, port, plain):
    "What one rank does"
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    model = DistributedDataParallel(torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), 4))
    optimizer, data = torch.optim.Adam(model.parameters()), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(256, 8, 32)), batch_size=8)
    trial = folder / f".trial{rank}.json.gz"
    record(model, optimizer, data, 2, trial, plain)
    a_step = sum(e.get("ph") == "X" for e in json.loads(gzip.decompress(trial.read_bytes()))["traceEvents"]) / 2
    trial.unlink()
    steps = torch.tensor(max(1, round(events / a_step)))
    dist.all_reduce(steps, dist.ReduceOp.MAX)
    record(model, optimizer, data, int(steps), folder / f"rank{rank}.json.gz", plain)
    dist.destroy_process_group()


def make(folder, ranks: int = 4, events: int = 260_000, plain: bool = False) -> list[Path]:
    "Record; returns the files"
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=rank_main, args=(r, ranks, events, folder, port, plain), daemon=True) for r in range(ranks)]
    for p in processes: p.start()
    while any(p.is_alive() for p in processes) and not any(p.exitcode for p in processes): time.sleep(.05)
    failed = [r for r, p in enumerate(processes) if p.exitcode]
    for p in processes:
        if failed: p.terminate()
        p.join()
    if failed: raise RuntimeError(f"recording failed on rank {failed[0]}: its error is above")
    return [folder / f"rank{r}.json.gz" for r in range(ranks)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--events", type=int, default=260_000, help="a rank's, with a duration")
    parser.add_argument("--plain", action="store_true", help="without shapes and memory, as `%%%%distributed --trace` records")
    args = parser.parse_args()
    os.environ["KINETO_LOG_LEVEL"] = "5"
    for path in make(**vars(args)): print(path)
