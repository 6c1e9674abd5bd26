GIVEN = "it hangs:\nrank 0 has finished\nrank 1 waits in line"
JOIN = "        with Join([ddp_model]):  # a rank without more batches answers all-reduces\n"
LOOP = "            for x, y in batches:\n"
STEP = "                optimizer.step()\n"
FORWARD = "loss = F.mse_loss(ddp_model(x), y)"
COUNT = """        count = torch.tensor(len(batches))
        dist.all_reduce(count, op=dist.ReduceOp.MIN)
        if True:
"""
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
BODY = """                loss = F.mse_loss(ddp_model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
"""
AGAIN = """        count = torch.tensor(len(batches))
        dist.all_reduce(count, op=dist.ReduceOp.MAX)
        for n in range(count):
            x, y = batches[n % len(batches)]
            loss = F.mse_loss(ddp_model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
ZEROS = AGAIN.replace("[n % len(batches)]", "[n] if n < len(batches) else zeros")
ZEROS = "        zeros = [0 * t for t in batches[0]]\n" + ZEROS
NOTHING = ZEROS.replace(
    "mse_loss(ddp_model(x), y)", "mse_loss(ddp_model(x), y) * (n < len(batches))"
)
RIGHT = {
    "the first batches again": [(JOIN + LOOP + BODY, AGAIN)],
    "batches of zeros, whose loss does not count": [(JOIN + LOOP + BODY, NOTHING)],
}
WRONG = {
    "the rest alone, then rank 0's weights": (
        [(JOIN + LOOP, COUNT + NUMBERED), (FORWARD, ALONE), (STEP, STEP + SENT)],
        "thrown away",
    ),
    "batches of zeros": ([(JOIN + LOOP + BODY, ZEROS)], "in no batch of any rank: 0"),
    "all data on every rank": ([(DDP, ALL + DDP)], "20 are enough"),
    "the rest is left out": (
        [(JOIN, COUNT), (LOOP, "            for x, y in batches[:count]:\n")],
        "trained on 0 times",
    ),
    "each rank alone": (
        [(JOIN, "        if True:\n"), (FORWARD, "loss = F.mse_loss(model(x), y)")],
        "has the weights",
    ),
}
