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
    "all take the first": ([('f"cuda:{number}"', '"cuda:0"')], "ranks 0 and 1, both on node 0"),
    "the last for all that have none": (
        [(LINE, '    number = min(int(os.environ["RANK"]), torch.cuda.device_count() - 1)\n')],
        "On 4 ranks: ranks 2 and 3, both on node 1, take the same GPU, cuda:1",
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
