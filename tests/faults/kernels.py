"Faults of the kernel itself, and those that need one with fewer rights: each in a process of its own."
def session_after_restart(): raise NotImplementedError
def job_after_restart(): raise NotImplementedError
def session_after_sigkill(): raise NotImplementedError
def job_after_sigkill(): raise NotImplementedError
def session_in_read_only_folder(): raise NotImplementedError
def job_in_read_only_folder(): raise NotImplementedError
def session_in_read_only_home(): raise NotImplementedError
def job_in_read_only_home(): raise NotImplementedError
