GIVEN = "one fails"
LAUNCH = """\
    with tempfile.TemporaryDirectory() as folder:  # new for each job, and no port is needed
        args = (work, world_size, f"file://{folder}/store", results)
        mp.spawn(run_rank, args=args, nprocs=world_size)
"""
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
"""
CONNECT = """    store = dist.TCPStore("127.0.0.1", meeting, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
"""
FREE = """    import socket

    ports = range(29517, 29999)
    port = next(p for p in ports if socket.socket().connect_ex(("127.0.0.1", p)))
"""
OF_PID = "    port = 20000 + __import__('os').getpid() % 10\n"


def spawn(meeting):
    args = f"(work, world_size, {meeting}, results)"
    return f"    mp.spawn(run_rank, args={args}, nprocs=world_size)\n"


HERE = spawn('"file://" + __import__("os").getcwd() + "/one"')
TCP = spawn('f"tcp://127.0.0.1:{port}"')
RIGHT = {"a free port": [(LAUNCH, STORE + spawn("port")), (INIT, CONNECT)]}
WRONG = {
    "one file for all jobs": ([(LAUNCH, HERE)], ""),  # a failure, or a hang
    "another port": ([(LAUNCH, "    port = 29517\n" + TCP)], "one fails"),
    "the first port that is free": ([(LAUNCH, FREE + TCP)], "one fails"),
    "a port from the process id": ([(LAUNCH, OF_PID + TCP)], "one fails"),
}
