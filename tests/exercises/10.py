GIVEN = "collectives that are added if an epoch has 5 times as many steps: 24, 24; 0 with"
SUM = "        losses, right, count = sum_over_ranks(sums.tolist())  # once per epoch\n"
OF_ALL = "*= dist.get_world_size()\n        losses, right, count = sums"
LOOP = "for x, y in loader:\n"
EVERY = """for step, (x, y) in enumerate(loader):
            if step % 5 == 4:
                dist.barrier()
"""
WRONG = {
    "the figures of this rank": (
        [(SUM, "        losses, right, count = sums.tolist()\n")],
        "what train returns (24 images)",
    ),
    "in every fifth step": ([(LOOP, EVERY)], "5 times as many steps: 6, 6; 0 with our solution"),
}
