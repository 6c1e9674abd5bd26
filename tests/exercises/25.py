GIVEN = "ShardSampler is yours to write"
GENERATOR = "        generator = torch.Generator().manual_seed(self.seed + self.epoch)\n"
ORDER = "        order = torch.randperm(self.size, generator=generator).tolist()"
ORDER += "  # equal on all ranks\n"
SHARD = "order[dist.get_rank() :: dist.get_world_size()]"
LENGTH = "len(range(dist.get_rank(), self.size, dist.get_world_size()))"
PYTHONS = """        import random

        order = list(range(self.size))
        random.Random(self.seed + self.epoch).shuffle(order)
"""
PADDED = """        from torch.utils.data import DistributedSampler

        sampler = DistributedSampler(range(self.size), seed=self.seed)
        sampler.set_epoch(self.epoch)
        return iter(sampler)
"""
FIXED = """        mine = list(range(dist.get_rank(), self.size, dist.get_world_size()))
        order = torch.randperm(len(mine), generator=generator).tolist()
        return iter([mine[i] for i in order])
"""
RIGHT = {
    "Python's generator": [(GENERATOR + ORDER, PYTHONS)],
    "blocks": [
        (
            SHARD,
            "torch.tensor(order).tensor_split(dist.get_world_size())[dist.get_rank()].tolist()",
        )
    ],
}
WRONG = {
    "DistributedSampler": (
        [(GENERATOR + ORDER, PADDED)],
        "25 samples, epoch 0: ",
    ),
    "the global generator": (
        [("torch.randperm(self.size, generator=generator)", "torch.randperm(self.size)")],
        "24 samples, epoch 0: no rank takes",
    ),
    "the global generator with a seed": (
        [(GENERATOR, "        generator = torch.manual_seed(self.seed + self.epoch)\n")],
        "PyTorch's global generator on rank 0 is another",
    ),
    "the tail is dropped": (
        [("self.size, generator", "self.size // dist.get_world_size() * 2, generator")],
        "25 samples, epoch 0: no rank takes",
    ),
    "fixed shards": ([(ORDER, FIXED)], "the same samples in epochs 0 and 1, in another order"),
    "one order": ([("self.seed + self.epoch", "self.seed")], "in the same order"),
    "the seed is not used": ([("self.seed + self.epoch", "self.epoch")], "seeds 5 and 77 give"),
    "len of the longest": (
        [(LENGTH, "-(-self.size // dist.get_world_size())")],
        "on rank 1, len() is 13; it takes 12",
    ),
    "the rest to the last": (
        [
            (SHARD, "order[first:last]"),
            (
                "        return iter",
                "        each = self.size // dist.get_world_size()\n"
                "        first, last = dist.get_rank() * each, (dist.get_rank() + 1) * each\n"
                "        if dist.get_rank() + 1 == dist.get_world_size():\n"
                "            last = self.size\n        return iter",
            ),
            (LENGTH, "len(list(iter(self)))"),
        ],
        "On 3 ranks: 2 samples, epoch 0: the ranks take [0, 0, 2] samples",
    ),
}
