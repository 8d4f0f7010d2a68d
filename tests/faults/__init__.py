"Named faults, each tried in a session and in a local job: `table.py` says what happens, `trial.py` how it is tried, `make faults N=20` prints how often it went well."
