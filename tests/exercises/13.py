GIVEN = "it hangs:\nrank 0 has finished\nrank 1 waits in line"
JOIN = "        with Join([ddp_model]):  # answers for a rank that has no batch left\n"
LOOP = "            for x, y in batches:\n"
BODY = """                loss = F.mse_loss(ddp_model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
"""
COUNT = """        count = torch.tensor(len(batches))
        dist.all_reduce(count, op=dist.ReduceOp.MIN)
        if True:
"""
NUMBERED = "            for n, (x, y) in enumerate(batches):\n"
SENT = """        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
"""
ALONE = BODY.replace("ddp_model(x)", "(ddp_model if n < count else model)(x)") + SENT
ZEROS = """        count = torch.tensor(len(batches))
        dist.all_reduce(count, op=dist.ReduceOp.MAX)
        for n in range(count):
            x, y = batches[n] if n < len(batches) else (0 * batches[0][0], 0 * batches[0][1])
            loss = F.mse_loss(ddp_model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
NOTHING = ZEROS.replace("(ddp_model(x), y)", "(ddp_model(x), y) * (n < len(batches))")
RIGHT = {"batches of zeros, whose loss does not count": [(JOIN + LOOP + BODY, NOTHING)]}
WRONG = {
    "the rest alone, then rank 0's weights": (
        [(JOIN + LOOP + BODY, COUNT + NUMBERED + ALONE)],
        "thrown away",
    ),
    "batches of zeros": ([(JOIN + LOOP + BODY, ZEROS)], "in no batch of any rank: [0]"),
}
