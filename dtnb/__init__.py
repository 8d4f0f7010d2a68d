"Train on many ranks from a notebook. Names resolve on first use, so that `import dtnb` costs milliseconds."
__version__ = "0.1.0"

_WHERE = {
    "launch": "api", "launchpad": "pad", "resume": "api", "attach": "api", "jobs": "api", "Job": "api",
    "Local": "launchers.local", "Slurm": "launchers.slurm", "Torchrun": "launchers.torchrun", "script": "scripts",
    "Session": "api", "Cell": "cell", "CellFailedError": "cell",
    "track": "rank.report", "log": "rank.report", "span": "rank.report", "checkpoint": "rank.checkpoint",
    "profile": "rank.profile", "open_trace": "trace.timeline",
    "JobState": "job", "DtnbError": "job", "LaunchError": "job", "RankFailedError": "job",
    "JobCancelledError": "job", "JobTimeoutError": "job",
}
__all__ = list(_WHERE)


def __getattr__(name):
    if name not in _WHERE: raise AttributeError(f"module 'dtnb' has no attribute {name!r}")
    from importlib import import_module
    value = globals()[name] = getattr(import_module(f"dtnb.{_WHERE[name]}"), name)
    return value


def load_ipython_extension(shell):
    "`%load_ext dtnb`"
    from dtnb.magic import load
    load(shell)


def unload_ipython_extension(shell):
    "`%unload_ext dtnb`"
    from dtnb.magic import unload
    unload(shell)


def __dir__(): return sorted(set(globals()) | set(__all__))
