"""A script in a Python of its own: nothing is imported yet, and what would end the process ends only that one."""

import os
import subprocess
import sys


def fresh_python(code, *, without=(), **environment):
    """What the script prints, in the environment of this process but for variables that begin like one of `without`."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(tuple(without))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=inherited | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
