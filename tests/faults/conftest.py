"Prints the table after the tests."
from collections import defaultdict
from statistics import median

import pytest

pytest.register_assert_rewrite("faults.trial", "faults.kernels")


def pytest_terminal_summary(terminalreporter):
    "A trial is a property of its test: (fault, where, seconds or None if it went wrong, what it said)"
    trials = [value for reports in terminalreporter.stats.values() for r in reports for key, value in getattr(r, "user_properties", ()) if key == "trial" and r.when == "call"]
    if not trials: return
    rows = defaultdict(lambda: defaultdict(list))
    for fault, where, seconds, said in trials: rows[fault][where].append((seconds, said))
    def cell(tried):
        if not tried: return ""
        if tried[0][0] == "-": return f"- {tried[0][1]}"
        well = [t for t, _ in tried if t is not None]
        return f"{len(well)}/{len(tried)}" + (f"  {median(well):.2f} s" if well else "")
    terminalreporter.section("faults: how often all was as it must be, and the median time from the fault to its error")
    for fault, by in rows.items(): terminalreporter.write_line(f"{fault:30} session {cell(by['session']):15} job {cell(by['job'])}")
