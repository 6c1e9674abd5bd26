"""Files and ports that processes share: who read what another was writing, who chose the port?"""

from bisect import bisect_left, bisect_right
from pathlib import Path

from ..run.events import Awaited, FixedPort, Read, Returned, Unseen, Wrote
from .findings import Finding


def file_race(run):
    """A rank read a file that another had begun to write, and nothing made it wait."""
    writes = []
    for rank in run.ranks:
        for event in rank.all(Wrote):
            if not event.appends:
                writes.append((rank, event))
    for rank in run.ranks:
        returns = [event.when.time for event in rank.all(Returned)]
        all_known = not rank.says(Unseen)  # of a long run only the first calls are written
        for read in rank.all(Read):
            earlier = []
            for writer, event in writes:
                before = event.path == read.path and event.when.time < read.when.time
                if before and writer is not rank:
                    earlier.append((event.when.time, writer, event))
            if not earlier:
                continue
            _, writer, wrote = max(earlier, key=lambda one: one[0])
            # A call in which both ranks were since then made the reader wait. init_process_group
            # may have returned long before the other rank arrived.
            returned = bisect_left(returns, read.when.time) > bisect_right(returns, wrote.when.time)
            early = read.passed <= wrote.passed or (all_known and not returned)
            unordered = early and not has_awaited(rank, read)
            # A file that was whole before it got this name can be read at any time.
            if unordered and not wrote.renamed:
                name = Path(read.path).name
                seen = (
                    f"Rank {rank.number} read {name} after rank {writer.number} began to write it"
                )
                yield Finding(
                    "file-race",
                    read.at,
                    seen=f"{seen}, and no collective in between made it wait",
                    fine="the reader waits until the writing is finished; that the file exists is"
                    " not enough",
                    comes_from=wrote.at,
                )


def has_awaited(rank, read):
    """Did it wait for others since the last collective, by a lock or by a key of the store?"""
    for event in rank.all(Awaited):
        if event.passed == read.passed and event.when.time < read.when.time:
            return True
    return False


def fixed_port(run):
    """The script itself chooses the port at which its ranks meet."""
    for process in run.processes:
        for event in process.all(FixedPort):
            how = "computed" if event.computed else "written"
            yield Finding(
                "fixed-port",
                event.at,
                seen=f"The script itself chooses port {event.port}, {how} in {event.written_in}",
                fine="no other job ever runs on the machine",
                comes_from=event.number_at,
            )


JUDGES = [file_race, fixed_port]
