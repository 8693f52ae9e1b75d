"""Run a process whose stdout and stderr are a terminal."""

import os
import subprocess


def on_terminal(command, **options) -> tuple[int, str]:
    """Give a process's exit status and everything that it showed."""
    ours, theirs = os.openpty()
    with subprocess.Popen(command, stderr=theirs, stdout=theirs, **options) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # Linux's end of file of a terminal that nobody holds open any more
                break
            shown += part
            if not part:
                break
    os.close(ours)
    return process.returncode, shown.decode()
