GIVEN = "on 8 cores, 2 processes compute with 8 + 8 threads, 16 at a time"
LINE = "torch.set_num_threads(max(1, os.cpu_count() // processes))"
IF = '    if "OMP_NUM_THREADS" not in os.environ:\n'
CHILDREN = """os.environ["OMP_NUM_THREADS"] = str(max(1, os.cpu_count() // processes))
        torch.set_num_interop_threads(1)
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
"""
RIGHT = {
    "for child processes, too": [(LINE + "\n", CHILDREN)],
    "what PyTorch has taken, divided": [
        (LINE, "torch.set_num_threads(max(1, torch.get_num_threads() // processes))")
    ],
    "one number from either": [
        (IF, '    chosen = os.environ.get("OMP_NUM_THREADS")\n    if True:\n'),
        (
            LINE,
            "each = max(1, len(os.sched_getaffinity(0)) // processes)\n"
            "        torch.set_num_threads(int(chosen or each))",
        ),
    ],
}
WRONG = {
    "always one, as torchrun does": (
        [(LINE, "torch.set_num_threads(1)")],
        "on 8 cores, 2 processes compute with 1 + 1 threads; there are cores enough for 4 each",
    ),
    "none for each if there are fewer cores": (
        [("max(1, os.cpu_count() // processes)", "os.cpu_count() // processes")],
        "set_num_threads expects a positive integer",
    ),
    "the variable, which PyTorch has read already": (
        [(LINE, 'os.environ["OMP_NUM_THREADS"] = str(max(1, os.cpu_count() // processes))')],
        "8 + 8 threads, 16 at a time",
    ),
    "rounded up": (
        [("os.cpu_count() // processes", "round(os.cpu_count() / processes + 0.4)")],
        "on 13 cores, 2 processes compute with 7 + 7 threads, 14 at a time",
    ),
    "whatever the user says": ([(IF, "    if processes:\n")], "with OMP_NUM_THREADS=5, process 0"),
}
