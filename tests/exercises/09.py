GIVEN = "downloads on each node\n  yours: [2]\n  our solution: [1]"
BARRIER = "    dist.barrier()  # no rank looks for the file before this line\n"
WRONG = {
    "rank 0 of all nodes": (
        [('os.environ["LOCAL_RANK"]', 'os.environ["RANK"]')],
        "On 4 ranks: rank 2 failed in line",
    ),
    "until something is there": (
        [(BARRIER, "    while not path.exists():\n        time.sleep(0.1)\n")],
        "bytes that each rank reads\n  yours: [200, 80]",
    ),
}
