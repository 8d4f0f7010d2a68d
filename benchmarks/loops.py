"""What an iteration costs when somebody watches the loop: `dtnb` beside `tqdm` and torch's profiler marks."""
import os, time

N, REPEATS = 20_000, 45  # short and many: a repeat that another process cut into does not move the median


def bare(n, quiet):
    for _ in range(n): pass

def track(n, quiet):
    from dtnb import track
    for _ in track(range(n), desc="batch"): pass

def tqdm(n, quiet):
    from tqdm import tqdm
    for _ in tqdm(range(n), desc="batch", file=quiet): pass

def log(n, quiet):
    from dtnb import log
    for i in range(n): log(loss=.5, step=i)

def set_postfix(n, quiet):
    from tqdm import tqdm
    bar = tqdm(total=n, file=quiet)
    for _ in range(n): bar.set_postfix(loss=.5, refresh=False)
    bar.close()

def span(n, quiet):
    from dtnb import span
    for _ in range(n):
        with span("forward"): pass

def phase(n, quiet):
    "What a loader, `backward` or an optimizer does when the rank's step comes by"
    from dtnb.rank import phases
    mine = phases._mine
    for _ in range(n):
        if (p := mine()) is not None: p.to("forward")

def record_function(n, quiet):
    from torch.profiler import record_function
    for _ in range(n):
        with record_function("forward"): pass


ALL = dict(bare=bare, track=track, tqdm=tqdm, log=log, set_postfix=set_postfix, span=span, phase=phase, record_function=record_function)

def costs() -> dict[str, list[float]]:
    "Nanoseconds an iteration of each loop, the loop itself included; one number a repeat, the loops taken in turn"
    found = {name: [] for name in ALL}
    with open(os.devnull, "w") as quiet:
        for loop in ALL.values(): loop(1000, quiet)
        for _ in range(REPEATS):
            for name, loop in ALL.items():
                n = N // 10 if name in ("set_postfix", "record_function") else N
                start = time.perf_counter()
                loop(n, quiet)
                found[name].append((time.perf_counter() - start) / n * 1e9)
    return found
