GIVEN = "2 micro-batches, k=2: different from our solution: what step 1 adds"
WITH = "        with nullcontext() if last else ddp_model.no_sync():\n"
FORWARD = "            loss = F.mse_loss(ddp_model(x), y) / k\n"
BACKWARD = "            loss.backward()\n"
STEP = "        if last:\n            optimizer.step()\n"
EACH = """            for p in model.parameters():
                each = [torch.empty_like(p.grad) for _ in range(dist.get_world_size())]
                dist.all_gather(each, p.grad)
                p.grad = sum(each) / len(each)
"""
START = """    for p in model.parameters():
        dist.broadcast(p.data, src=0)
"""
WRONG = {
    "no_sync for the backward pass only": (
        [(WITH + FORWARD, FORWARD[4:] + WITH)],
        "how often all gradients are sent: 2, 2; 1 with our solution",
    ),
    "each micro-batch averaged by all_gather": (
        [
            (WITH, "        if True:\n"),
            (FORWARD, FORWARD.replace("ddp_model", "model")),
            (BACKWARD, BACKWARD + EACH),
            ("    ddp_model = DistributedDataParallel(model)\n", START),
        ],
        "how often all gradients are sent: 2, 2; 1 with our solution",
    ),
}
