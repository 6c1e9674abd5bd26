GIVEN = "ShardedAdam is yours to write"
OWNER = "            owner = load.index(min(load))\n"
MINE = "[p for p, owner in zip(self.params, self.owners) if owner == dist.get_rank()]"
START = "        self.params, self.owners = list(params), []\n"
BROADCAST = "            dist.broadcast(parameter.data, src=owner)\n"
STEP = "        if self.optimizer:\n            self.optimizer.step()\n"
FLAT = """        self.params, world_size = list(params), dist.get_world_size()
        self.each = -(-sum(p.numel() for p in self.params) // world_size)
        self.padding = torch.zeros(self.each * world_size - sum(p.numel() for p in self.params))
        self.slice = torch.nn.Parameter(self.mine(self.params))
        self.optimizer = torch.optim.Adam([self.slice], lr=lr)

    def mine(self, tensors):
        flat = torch.cat([*(t.detach().flatten() for t in tensors), self.padding.to(tensors[0])])
        return flat.split(self.each)[dist.get_rank()].clone()

    def step(self):
        self.slice.grad = self.mine([p.grad for p in self.params])
        self.optimizer.step()
        parts = [torch.empty_like(self.slice) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, self.slice.detach())
        flat = torch.cat(parts)
        for p in self.params:
            part, flat = flat[: p.numel()], flat[p.numel() :]
            p.data.copy_(part.view_as(p))

    def not_called(self, params, lr):
"""
BLOCKS = """            done, count = sum(load), dist.get_world_size()
            owner = min(count - 1, done * count // sum(p.numel() for p in self.params))
"""
RIGHT = {
    "one flat vector, one slice for each rank": [
        (START, FLAT + START),
        (
            '    def step(self):\n        """Update',
            '    def not_called_either(self):\n        """Update',
        ),
    ],
    "blocks of neighbours": [(OWNER, BLOCKS)],
    "what others update is zeroed, and all is summed": [
        (
            BROADCAST,
            "            if owner != dist.get_rank():\n"
            "                parameter.data.zero_()\n"
            "            dist.all_reduce(parameter.data)\n",
        )
    ],
}
WRONG = {
    "in turn, whatever their sizes": (
        [(OWNER, "            owner = len(self.owners) % dist.get_world_size()\n")],
        "7 parameters of [64, 1, 64, 2, 64, 1, 64] elements: rank 0 keeps 4096 bytes of state",
    ),
    "all of it on each rank": (
        [(MINE, "self.params")],
        "6 parameters of [6, 6, 6, 6, 6, 6] elements: rank 0 keeps 576 bytes of state, all ranks",
    ),
    "all of it on rank 0": (
        [(OWNER, "            owner = 0\n")],
        "rank 0 keeps 576 bytes of state, all ranks together 576",
    ),
    "the others do not get it": (
        [(BROADCAST, "            pass\n")],
        "after step 1, parameter 1 on rank 0 begins with",
    ),
    "all get rank 0's": (
        [("src=owner", "src=0")],
        "after step 1, parameter 1 on rank 0 begins with",
    ),
    "no optimizer without parameters": (
        [(" if mine else None", "")],
        "optimizer got an empty parameter list",
    ),
    "another optimizer in each step": (
        [
            (
                STEP,
                "        if self.optimizer:\n"
                + "            self.optimizer.state.clear()\n"
                + "            self.optimizer.step()\n",
            )
        ],
        "after step 2, parameter 0 on rank 0 begins with",
    ),
}
