"""Files and ports that processes share: who read what another was writing, who chose the port?"""

import re
from bisect import bisect_left, bisect_right
from pathlib import Path

from ..run.events import Awaited, FixedPort, Read, Returned, Unseen, Wrapped, Wrote
from .changed import condition_around
from .findings import Finding
from .source import code_of, guard_of, parted
from .values import function_around

ABSENT = re.compile(r"exists|is_file|isfile|is_dir|isdir|glob|listdir|not in |stat\(|except", re.I)


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
                    comes_from=creation(wrote) or place_to_wait(read, wrote),
                    role="create" if creation(wrote) else "read",
                )


def creation(wrote):
    """Where every rank may create the file: the `if` that asks whether it is there, or the writing.

    An empty text if only some ranks come to it, by an `if` by the rank.
    """
    path = [wrote.at, *wrote.called_from]
    if guard_of(path):
        return ""
    for line in path:
        asking = condition_around(line)
        if asking and ABSENT.search(code_of(asking)):
            return asking
    return ""


def place_to_wait(read, wrote):
    """The reader's line in the innermost function that has led to the writing as well."""
    for line in [read.at, *read.called_from]:
        for other in [wrote.at, *wrote.called_from]:
            file, number = parted(line)
            other_file, other_number = parted(other)
            apart = file == other_file and number != other_number
            if apart and function_around(file, number) is function_around(file, other_number):
                return line
    return read.at


def stale_file(run):
    """A rank read a file that was there, and another one then wrote it: the file was an old one."""
    for rank in run.ranks:
        for read in rank.all(Read):
            if not read.found or has_awaited(rank, read) or has_written(rank, read):
                continue
            for writer in run.ranks:
                if writer is rank:
                    continue
                wrote = next_write(writer, read)
                # All ranks read a checkpoint at the beginning rightly. Then they take steps.
                if wrote is None or waited_between(writer, read, wrote):
                    continue
                name = Path(read.path).name
                seen = f"Rank {rank.number} read {name}, and rank {writer.number} wrote it then"
                yield Finding(
                    "file-race",
                    read.at,
                    seen=f"{seen}: what was read is what an earlier run had left",
                    fine="the old file is meant",
                    comes_from=creation(wrote) or place_to_wait(read, wrote),
                    role="create" if creation(wrote) else "read",
                )


def has_written(rank, read):
    """Did the rank itself write the file before it read it?"""
    for event in rank.all(Wrote):
        if event.path == read.path and event.when.time < read.when.time:
            return True
    return False


def next_write(writer, read):
    for event in writer.all(Wrote):
        later = event.when.time > read.when.time
        if event.path == read.path and later and not event.appends:
            return event
    return None


def waited_between(writer, read, wrote):
    """Did both wait for each other between the two, in a call or when DDP wrapped a model?"""
    if wrote.passed > read.passed:
        return True
    wrapped = [event.when.time for event in writer.all(Wrapped)]
    return any(read.when.time < time < wrote.when.time for time in wrapped)


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


JUDGES = [file_race, stale_file, fixed_port]
