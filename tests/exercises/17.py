GIVEN = "it hangs:\nrank 0 has finished\nrank 1 waits in line 27: loss.backward()"
JOIN = "        with Join([ddp_model]):  # a rank without more batches answers all-reduces\n"
LOOP = "            for x, y in batches:\n"
STEP = "                optimizer.step()\n"
FORWARD = "loss = F.mse_loss(ddp_model(x), y)"
COUNT = """        count = torch.tensor(len(batches))
        dist.all_reduce(count, op=dist.ReduceOp.MAX)
        if True:
"""
REPEATED = "            for x, y in (batches[n % len(batches)] for n in range(count)):\n"
GATHERED = """        each = [None] * dist.get_world_size()
        dist.all_gather_object(each, batches)
        all_batches = sum(each, [])
        all_batches += all_batches[: -len(all_batches) % dist.get_world_size()]
        if True:
"""
EMPTY = """            for n in range(count):
                x, y = batches[n % len(batches)]
"""
NO_SYNC = """        import contextlib
        count = torch.tensor(len(batches))
        dist.all_reduce(count, op=dist.ReduceOp.MIN)
        if True:
            for n, (x, y) in enumerate(batches):
              with ddp_model.no_sync() if n >= count else contextlib.nullcontext():
"""
REST_ALONE = """        count = torch.tensor(len(batches))
        dist.all_reduce(count, op=dist.ReduceOp.MIN)
        if True:
            for n, (x, y) in enumerate(batches):
"""
SENT = """        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
"""
ALONE = "loss = F.mse_loss((ddp_model if n < count else model)(x), y)"
DDP = "    ddp_model = DistributedDataParallel(model)\n"
ALL = """    each = [None] * dist.get_world_size()
    dist.all_gather_object(each, batches)
    batches = sum(each, [])
"""
REST_SEEN = """            for x, y in batches[count:]:
                with torch.no_grad():
                    model(x)
"""
RIGHT = {
    "the first batches again": [(JOIN, COUNT), (LOOP, REPEATED)],
    "all batches over all ranks anew": [
        (JOIN, GATHERED),
        (
            "for x, y in batches",
            "for x, y in all_batches[dist.get_rank() :: dist.get_world_size()]",
        ),
    ],
    "steps with a loss of 0": [
        (JOIN, COUNT),
        (LOOP, EMPTY),
        (FORWARD, f"{FORWARD} * (n < len(batches))"),
    ],
}
WRONG = {
    "the rest alone, then rank 0's weights": (
        [(JOIN + LOOP, REST_ALONE), (FORWARD, ALONE), (STEP, STEP + SENT)],
        "rank 1 has after step 5 the weights that it had after step 3: what it learnt in between",
    ),
    "all data on every rank": (
        [(DDP, ALL + DDP)],
        "rank 0 trained on 32 images in 2 epochs; 20 are enough",
    ),
    "a forward pass for the rest": (
        [
            (JOIN, COUNT.replace("MAX", "MIN")),
            (LOOP, "            for x, y in batches[:count]:\n"),
            (STEP, STEP + REST_SEEN),
        ],
        "with 3 and 5 batches the images 106, 107, 108, 109 of rank 1 were trained on 0 times",
    ),
    "cut to the fewest": (
        [(JOIN, COUNT.replace("MAX", "MIN")), (LOOP, REPEATED)],
        "with 3 and 5 batches the images 106, 107, 108, 109 of rank 1 were trained on 0 times",
    ),
    "the rest without averaging": ([(JOIN + LOOP, NO_SYNC)], "has the weights"),
    "one step": ([(STEP, STEP + "                break\n")], "were trained on 0 times in 2 epochs"),
    "ended when the first rank is done": (
        [("Join([ddp_model])", "Join([ddp_model], throw_on_early_termination=True)")],
        "exhausted",
    ),
    "a barrier after each epoch": (
        [(JOIN, "        dist.barrier()\n        if True:\n")],
        "it hangs",
    ),
    "each rank alone": (
        [(JOIN, "        if True:\n"), (FORWARD, "loss = F.mse_loss(model(x), y)")],
        "has the weights",
    ),
    "each rank alone, and one model at the end": (
        [
            (JOIN, "        if True:\n"),
            (FORWARD, "loss = F.mse_loss(model(x), y)"),
            (STEP, STEP + "        DistributedDataParallel(model)\n"),
        ],
        "has the weights",
    ),
}
