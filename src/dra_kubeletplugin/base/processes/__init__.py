"""Processes that outlive the process that started them: started detached, found again, and ended, by process id and start time."""
