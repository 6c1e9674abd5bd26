GIVEN = "EADDRINUSE"
FOLDER = (
    "    with tempfile.TemporaryDirectory() as folder:  # new for each job, and no port is needed\n"
)
FILE = 'f"file://{folder}/store"'
SPAWN = "        mp.spawn(run_rank, args=args, nprocs=world_size)\n"
INIT = (
    '    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size)\n'
)
STORE = """    import socket

    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    fd = server.detach()
    store = dist.TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=fd
    )
    if True:
"""
CONNECT = """    store = dist.TCPStore("127.0.0.1", meeting, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
"""
FIXED = """    store = dist.TCPStore("127.0.0.1", 29518, is_master=True, wait_for_workers=False)
    port = 29518
    if True:
"""
HERE = '"file://" + __import__("os").getcwd() + "/one"'
RIGHT = {
    "a free port": [(FOLDER, STORE), (FILE, "port"), (INIT, CONNECT)],
    "a file that stays": [
        (FOLDER, "    folder = tempfile.mkdtemp()\n    if True:\n"),
        (
            INIT,
            INIT.replace("init_method=meeting", "store=dist.FileStore(meeting[7:], world_size)"),
        ),
    ],
}
WRONG = {
    "one file for all jobs": ([(FILE, HERE)], "Of two jobs"),
    "another port": ([(FILE, '"tcp://127.0.0.1:29517"')], "EADDRINUSE"),
    "another port for the store": (
        [(FOLDER, FIXED), (FILE, "port"), (INIT, CONNECT)],
        "Of two jobs that then start at the same time",
    ),
    "each rank alone": (
        [
            (
                INIT,
                "    store = dist.HashStore()\n"
                '    dist.init_process_group("gloo", store=store, rank=0, world_size=1)\n',
            )
        ],
        "'sum': 1000}]",
    ),
    "in this process": (
        [(SPAWN, "        return [work(0)] * world_size\n")],
        "a job that is alone on the machine fails",
    ),
}
