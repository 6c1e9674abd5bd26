"""What the rehearsal's commands share: errors in one line."""

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn


class RehearsalError(Exception):
    """Something cannot be done; the message is one line that says what and why."""


class Parser(argparse.ArgumentParser):
    """Reports bad input in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        fail(message)


def fail(message: str) -> NoReturn:
    """Print one line on stderr and exit with code 2."""
    print(f"{Path(sys.argv[0]).stem}: error: {message}", file=sys.stderr)
    sys.exit(2)


def run_main(main: Callable[[], int]) -> NoReturn:
    """Exit with what main returns. An expected error and Ctrl-C end in one line, no traceback."""
    try:
        sys.exit(main())
    except (RehearsalError, OSError, subprocess.TimeoutExpired) as error:
        fail(str(error))
    except KeyboardInterrupt:
        print(f"\n{Path(sys.argv[0]).stem}: interrupted", file=sys.stderr)
        sys.exit(130)
