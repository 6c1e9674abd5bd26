GIVEN = "downloads on node 0 (rank 0 and 1) is 2, not 1"
IF = (
    '    if int(os.environ["LOCAL_RANK"]) == 0 and not path.exists():'
    "  # the first rank of each node\n"
)
DOWNLOAD = "        download(path)\n"
BARRIER = "    dist.barrier()  # nobody looks at the file before, not even whether it is there\n"
LOCKED = """    import fcntl

    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            download(path)
"""
RIGHT = {"a lock": [(IF + DOWNLOAD + BARRIER, LOCKED)]}
WRONG = {
    "rank 0 of all nodes": (
        [('os.environ["LOCAL_RANK"]', 'os.environ["RANK"]')],
        "On 4 ranks: rank 2 failed in line",
    ),
    "until something is there": (
        [(BARRIER, "    while not path.exists():\n        time.sleep(0.1)\n")],
        "80 of 200 bytes",
    ),
}
