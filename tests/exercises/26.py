GIVEN = "keeps 26,112 bytes of Adam's state"
SCATTER = "            work = dist.reduce_scatter_single(shard, flat, async_op=True)\n"
ALL = """            work = dist.all_reduce(flat, async_op=True)
            shard = self.mine(flat)
"""
GATHER = "            dist.all_gather_single(flat, shard.detach())\n"
WRONG = {
    "an all-reduce, of which a part is used": ([(SCATTER, ALL)], "gave reduce_scatter 0 of"),
    "the others do not get it": ([(GATHER, "")], "what step 1 adds to the weights"),
}
