GIVEN = "8 + 8 threads"
LINE = "torch.set_num_threads(max(1, os.cpu_count() // processes))"
IF = '    if "OMP_NUM_THREADS" not in os.environ:\n'
CHILDREN = """        os.environ["OMP_NUM_THREADS"] = str(max(1, os.cpu_count() // processes))
        torch.set_num_interop_threads(1)
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
"""
RIGHT = {
    "for child processes, too": [(f"        {LINE}\n", CHILDREN)],
    "cores as psutil counts them": [(LINE, LINE.replace("os.", '__import__("psutil").'))],
}
WRONG = {
    "always one, as torchrun does": ([(LINE, "torch.set_num_threads(1)")], "1 + 1 threads"),
    "whatever the user says": ([(IF, "    if processes:\n")], "OMP_NUM_THREADS=5"),
}
