GIVEN = "which has cuda:0 and no other GPU; it takes device(type='cuda', index=1)"
LINE = '    number = int(os.environ["LOCAL_RANK"])  # counts on each node from 0, as the GPUs do\n'
RIGHT = {
    "the current device": [
        (
            LINE + '    return torch.device(f"cuda:{number}")\n',
            "    torch.cuda.set_device(dist.get_node_local_rank())\n"
            '    return torch.device("cuda")\n',
        )
    ]
}
WRONG = {
    "for nodes of equal size": (
        [
            (
                LINE,
                '    node, size = os.environ["GROUP_RANK"], os.environ["LOCAL_WORLD_SIZE"]\n'
                '    number = int(os.environ["RANK"]) - int(node) * int(size)\n',
            )
        ],
        "Invalid device string",
    ),
    "the last for all that have none": (
        [(LINE, '    number = min(int(os.environ["RANK"]), torch.cuda.device_count() - 1)\n')],
        "take the same GPU, device(type='cuda', index=2)",
    ),
}
