"""Wrong answers to exercise 09. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: downloads on each node yours: [2] our solution: [1]


# %% the other ranks read nothing
# verdict: bytes that each rank reads yours: [200, 0]
def load(path, download):
    if int(os.environ["LOCAL_RANK"]) == 0 and not path.exists():
        download(path)
    return path.read_bytes() if dist.get_rank() == 0 else b""


# %% rank 0 of all nodes
# verdict: return path.read_bytes() FileNotFoundError
def load(path, download):
    if int(os.environ["RANK"]) == 0 and not path.exists():
        download(path)
    dist.barrier()
    return path.read_bytes()


# %% the other ranks wait until a part of the file is there
# verdict: bytes that each rank reads yours: [200, 80]
def load(path, download):
    if int(os.environ["LOCAL_RANK"]) == 0 and not path.exists():
        download(path)
    while not path.exists():
        time.sleep(0.1)
    return path.read_bytes()
