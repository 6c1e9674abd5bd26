GIVEN = "it hangs:\nrank 0 has finished\nrank 1 waits in line"
JOIN = "        with Join([ddp_model]):  # a rank without more batches answers all-reduces\n"
LOOP = "            for x, y in batches:\n"
STEP = "                optimizer.step()\n"
FORWARD = "loss = F.mse_loss(ddp_model(x), y)"
COUNT = """        count = torch.tensor(len(batches))
        dist.all_reduce(count, op=dist.ReduceOp.MAX)
        if True:
"""
REPEATED = "            for x, y in (batches[n % len(batches)] for n in range(count)):\n"
NUMBERED = "            for n, (x, y) in enumerate(batches):\n"
SENT = """        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
"""
ALONE = "loss = F.mse_loss((ddp_model if n < count else model)(x), y)"
DDP = "    ddp_model = DistributedDataParallel(model)\n"
ALL = """    each = [None] * dist.get_world_size()
    dist.all_gather_object(each, batches)
    batches = sum(each, [])
"""
FEWEST = COUNT.replace("MAX", "MIN")
RIGHT = {"the first batches again": [(JOIN, COUNT), (LOOP, REPEATED)]}
WRONG = {
    "the rest alone, then rank 0's weights": (
        [(JOIN + LOOP, FEWEST + NUMBERED), (FORWARD, ALONE), (STEP, STEP + SENT)],
        "thrown away",
    ),
    "all data on every rank": ([(DDP, ALL + DDP)], "20 are enough"),
    "the rest is left out": (
        [(JOIN, FEWEST), (LOOP, "            for x, y in batches[:count]:\n")],
        "trained on 0 times",
    ),
    "each rank alone": (
        [(JOIN, "        if True:\n"), (FORWARD, "loss = F.mse_loss(model(x), y)")],
        "has the weights",
    ),
}
