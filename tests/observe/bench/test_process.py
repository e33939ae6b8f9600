import subprocess
import sys

# Ctrl-C is for a whole process, so it comes to one of its own.
PROGRAM = """
import signal, subprocess, sys
from cellerate.observe.bench import process

# Who starts the tests in the background may have told them to ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
start, started = subprocess.Popen, []

def interrupted(*arguments, **options):
    started.append(start(*arguments, **options))
    signal.raise_signal(signal.SIGINT)
    return started[0]

subprocess.Popen = interrupted
try:
    process.Process([sys.executable, "-c", "import time; time.sleep(60)"])
except KeyboardInterrupt:
    print(started[0].poll())
finally:
    started[0].kill()
"""


def test_ctrl_c_while_a_process_starts_ends_it_too():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.stdout == "-9\n", done.stderr
