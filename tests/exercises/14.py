GIVEN = "stopped after 1 of 4 epochs and started again, rank 0 has the weights"
LOAD = '        optimizer.load_state_dict(checkpoint["optimizer"])  # its momentum, on all ranks\n'
STATE = '"optimizer": optimizer.state_dict()}'
WRAP = "    ddp_model = DistributedDataParallel(model)\n"
BUFFERS = '"momentum": [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]}'
LOAD_BUFFERS = """        for parameter, buffer in zip(model.parameters(), checkpoint["momentum"]):
            optimizer.state[parameter]["momentum_buffer"] = buffer
"""
SAVE = "            torch.save("
RIGHT = {
    "the momentum alone": [(STATE, BUFFERS), (LOAD, LOAD_BUFFERS)],
    "each rank has a file": [
        ("path, done = Path(path), 0", 'path, done = Path(f"{path}-{dist.get_rank()}"), 0'),
        ("        if dist.get_rank() == 0:\n", "        if True:\n"),
    ],
    "the file is read by rank 0 and sent": [
        ("torch.load(path)", "torch.load(path) if dist.get_rank() == 0 else None"),
        (
            '        model.load_state_dict(checkpoint["model"])\n',
            "        sent = [checkpoint]\n"
            "        dist.broadcast_object_list(sent, src=0)\n"
            "        checkpoint = sent[0]\n"
            '        model.load_state_dict(checkpoint["model"])\n',
        ),
    ],
}
WRONG = {
    "loaded by rank 0 alone": (
        [(LOAD, f"        if dist.get_rank() == 0:\n    {LOAD}")],
        "started again, rank 0 has the weights",
    ),
    "saved, but not loaded": ([(LOAD, "")], "started again, rank 0 has the weights"),
    "no momentum": (
        [(LOAD, ""), (", momentum=0.9", "")],
        "on rank 0 a run that is never stopped ended with the weights",
    ),
    "all epochs again": (
        [
            ("path.exists()", "False"),
        ],
        "rank 0 took 8 more steps; 6 were left",
    ),
    "the state at the start of the epoch": (
        [
            (STATE, '"optimizer": early}'),
            (
                "        for x, y in batches:\n",
                "        early = copy.deepcopy(optimizer.state_dict())\n"
                "        for x, y in batches:\n",
            ),
            ("import tempfile\n", "import copy\nimport tempfile\n"),
        ],
        "started again, rank 0 has the weights",
    ),
}
