GIVEN = "one fails"
FOLDER = (
    "    with tempfile.TemporaryDirectory() as folder:  # new for each job, and no port is needed\n"
)
FILE = 'f"file://{folder}/store"'
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
HERE = '"file://" + __import__("os").getcwd() + "/one"'
RIGHT = {"a free port": [(FOLDER, STORE), (FILE, "port"), (INIT, CONNECT)]}
WRONG = {
    "one file for all jobs": ([(FILE, HERE)], ""),  # a failure, or a hang
    "another port": ([(FILE, '"tcp://127.0.0.1:29517"')], "one fails"),
}
