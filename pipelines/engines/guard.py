"""Guard: a process that runs an engine, and ends it once its own standard input ends.

That is when whoever started the guard has closed it or is gone, however it ended. Run by its path,
with the engine's command as its arguments. What the engine logged last goes to standard output.
"""

from __future__ import annotations

import collections
import os
import subprocess
import sys
import threading

LINES = 20


def main() -> None:
    """Run the engine; ends with its status."""
    engine = subprocess.Popen(
        sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )

    def end() -> None:
        sys.stdin.buffer.read()
        engine.kill()

    threading.Thread(target=end, daemon=True).start()
    assert engine.stdout is not None
    last = collections.deque(engine.stdout, LINES)
    sys.stdout.buffer.writelines(last)
    sys.stdout.buffer.flush()
    os._exit(engine.wait() & 0xFF)  # the thread still reads


if __name__ == "__main__":
    main()
