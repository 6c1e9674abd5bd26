GIVEN = "keeps 26,112 bytes of Adam's state"
SCATTER = "            work = dist.reduce_scatter_single(shard, flat, async_op=True)\n"
ALL = """            work = dist.all_reduce(flat, async_op=True)
            shard = self.mine(flat)
"""
GATHER = "            dist.all_gather_single(flat, shard.detach())\n"
LIST = """            parts = list(flat.chunk(dist.get_world_size()))
            dist.all_gather(parts, shard.detach())
            flat = torch.cat(parts)
"""
ADAM = "        self.optimizer = torch.optim.Adam(self.shards, lr=lr)\n"
AVERAGES = """        self.lr, self.steps = lr, 0
        self.averages = [torch.zeros(2, *shard.shape).to(shard) for shard in self.shards]
"""
OWN = """        self.steps += 1
        for shard, (mean, square) in zip(self.shards, self.averages):
            mean.lerp_(shard.grad, 0.1)
            square.lerp_(shard.grad**2, 0.001)
            root = (square / (1 - 0.999**self.steps)).sqrt() + 1e-8
            shard.data -= self.lr / (1 - 0.9**self.steps) * mean / root
"""
RIGHT = {
    "gathered into a list": [(GATHER, LIST)],
    "an Adam of its own": [(ADAM, AVERAGES), ("        self.optimizer.step()\n", OWN)],
}
WRONG = {
    "an all-reduce, of which a part is used": ([(SCATTER, ALL)], "gave reduce_scatter 0 of"),
    "the others do not get it": ([(GATHER, "")], "the weights after step 1"),
}
