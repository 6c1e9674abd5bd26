GIVEN = "the number of downloads on node 0 (rank 0 and 1) is 2, not 1"
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
POLLED = """    part, local_rank = Path(f"{path}.part"), int(os.environ["LOCAL_RANK"])
    if local_rank == 0 and not path.exists():
        download(part)
        part.rename(path)
    while not path.exists():
        time.sleep(0.2)
"""
OTHERS_FIRST = """    first = int(os.environ["LOCAL_RANK"]) == 0
    if not first:
        dist.barrier()
    if not path.exists():
        download(path)
    if first:
        dist.barrier()
"""
RIGHT = {
    "the others wait before they look": [(IF + DOWNLOAD + BARRIER, OTHERS_FIRST)],
    "a lock": [(IF + DOWNLOAD + BARRIER, LOCKED)],
    "renamed when it is whole": [(IF + DOWNLOAD + BARRIER, POLLED)],
}
WRONG = {
    "rank 0 first, then all others at once": (
        [(IF + DOWNLOAD + BARRIER, OTHERS_FIRST.replace("LOCAL_RANK", "RANK"))],
        "On 4 ranks: when all come together: the number of downloads on node 1 (rank 2 and 3) is 2",
    ),
    "rank 0 of all nodes": (
        [('os.environ["LOCAL_RANK"]', 'os.environ["RANK"]')],
        "On 4 ranks: rank 2 failed in line",
    ),
    "nobody waits": ([(BARRIER, "")], "rank 1 failed in line"),
    "they wait before the download": (
        [(BARRIER, ""), (IF, "    dist.barrier()\n" + IF)],
        "rank 1 failed in line",
    ),
    "some seconds": (
        [(BARRIER, '    if os.environ["LOCAL_RANK"] != "0":\n        time.sleep(60)\n')],
        "rank 1 failed in line",
    ),
    "until something is there": (
        [(BARRIER, "    while not path.exists():\n        time.sleep(0.1)\n")],
        "when all come together: rank 1 has read 80 of 200 bytes",
    ),
    "only if it was not there when they looked": (
        [
            (
                IF + DOWNLOAD + BARRIER,
                "    if not path.exists():\n"
                '        if os.environ["LOCAL_RANK"] == "0":\n'
                "            download(path)\n"
                "        dist.barrier()\n",
            )
        ],
        "rank 0 waits in line",
    ),
    "always, on one rank": (
        [(" and not path.exists()", "")],
        "when the file is there: the number of downloads on node 0 (rank 0 and 1) is 1, not 0",
    ),
}
