GIVEN = "collectives that are added if an epoch has 5 times as many steps: 24, 24; 0 with"
LOOP = "for x, y in loader:\n"
EVERY = """for step, (x, y) in enumerate(loader):
            if step % 5 == 4:
                dist.barrier()
"""
WRONG = {
    "the last batch counts as four images, too": (
        [("loss.item() * len(y)", "loss.item() * 4")],
        "what train returns (18 images)",
    ),
    "in every fifth step": ([(LOOP, EVERY)], "5 times as many steps: 6, 6; 0 with our solution"),
}
