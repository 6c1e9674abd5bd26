GIVEN = "EADDRINUSE"
PORT = '("127.0.0.1", 0, is_master'
STORE = f"    store = dist.TCPStore{PORT}=True, wait_for_workers=False)  # 0: a free port\n"
CONNECT = '    store = dist.TCPStore("127.0.0.1", port, is_master=False)\n'
FREE = """    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
"""
ADDRESS = """    import os
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
"""
ENVIRONMENT = ('"gloo", store=store', '"gloo"')
SPAWN = "    mp.spawn(run_rank, args=(work, world_size, store.port, results), nprocs=world_size)\n"
RIGHT = {
    "a file that is new for each job": [
        (STORE, "    import tempfile\n    folder = tempfile.mkdtemp()\n"),
        ("store.port, results", 'folder + "/store", results'),
        (CONNECT, "    store = dist.FileStore(port, world_size)\n"),
    ],
    "a free port, looked for before": [
        (STORE, FREE),
        ("store.port, results", "port, results"),
        (CONNECT, ADDRESS),
        ENVIRONMENT,
    ],
}
WRONG = {
    "another port": (
        [(STORE, ""), ("store.port, results", "29517, results"), (CONNECT, ADDRESS), ENVIRONMENT],
        "EADDRINUSE",
    ),
    "another port for the store": (
        [(PORT, PORT.replace("0, ", "29518, "))],
        "Of two jobs that then start at the same time",
    ),
    "each rank alone": (
        [
            (CONNECT, "    store = dist.HashStore()\n"),
            (
                "rank=rank, world_size=world_size)\n    results",
                "rank=0, world_size=1)\n    results",
            ),
        ],
        "'sum': 1000}]",
    ),
    "in this process": (
        [(SPAWN, "    return [work(0)] * world_size\n")],
        "a job that is alone on the machine fails",
    ),
}
