"""Other right answers to exercise 09. Each stands below our solution in one file."""

# %% each node has a file as a lock
import fcntl


def load(path, download):
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            download(path)
    return path.read_bytes()


# %% the first rank of each host name
import socket


def load(path, download):
    hosts = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())
    first = hosts.index(hosts[dist.get_rank()])
    if dist.get_rank() == first and not path.exists():
        download(path)
    dist.barrier()  # no rank looks for the file before this line
    return path.read_bytes()
