"""The first line of a Chinese page, which names the English page that it follows by its blob."""

import hashlib
import re

STAMP = re.compile(r"<!-- follows (\S+) ([0-9a-f]{40}) -->\n")


def blob(data: bytes) -> str:
    """The hash that `git hash-object` prints, computed without git."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
