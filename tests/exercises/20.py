GIVEN = "rank 1 runs on node 1, which has cuda:0 and no other GPU; it takes cuda:1"
LINE = '    number = int(os.environ["LOCAL_RANK"])  # counts on each node from 0, as the GPUs do\n'
RIGHT = {
    "the rank modulo the node's GPUs": [
        (LINE, "    number = dist.get_rank() % torch.cuda.device_count()\n")
    ],
    "the current device": [
        (LINE, "    torch.cuda.set_device(dist.get_node_local_rank())\n"),
        ('f"cuda:{number}"', '"cuda"'),
    ],
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
        "On 4 ranks: rank 1 failed in line",
    ),
    "a negative number": (
        [
            (LINE, '    torch.cuda.set_device(-int(os.environ["LOCAL_RANK"]))\n'),
            ('f"cuda:{number}"', '"cuda"'),
        ],
        "On 4 ranks: rank 2 runs on node 1, which has cuda:0, cuda:1, cuda:2 and no other GPU",
    ),
    "all take the first": (
        [('f"cuda:{number}"', '"cuda:0"')],
        "On 4 ranks: ranks 1 and 2, both on node 1",
    ),
    "the last for all that have none": (
        [(LINE, '    number = min(int(os.environ["RANK"]), torch.cuda.device_count() - 1)\n')],
        "On 4 ranks: ranks 2 and 3, both on node 1, take the same GPU, cuda:2",
    ),
    "the number of the node": (
        [(LINE, '    number = int(os.environ["GROUP_RANK"])\n')],
        "rank 1 runs on node 1",
    ),
    "the CPU if there is no such GPU": (
        [
            (LINE, '    number = int(os.environ["RANK"])\n'),
            (
                'torch.device(f"cuda:{number}")',
                'torch.device(f"cuda:{number}" if number < torch.cuda.device_count() else "cpu")',
            ),
        ],
        "on rank 1 it returned device(type='cpu')",
    ),
}
