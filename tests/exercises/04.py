GIVEN = "the weights after step 1, where they differ: rank 0 has"
FORWARD = "        loss = net.loss(ddp_model(x), y)  # prepares backward to average the gradients\n"
BARE = "        loss = net.loss(net(x), y)\n"
STEP = "        optimizer.step()\n"
AVERAGE = """        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
"""
GATHER = """    each = [None] * dist.get_world_size()
    dist.all_gather_object(each, (x, y))
    x, y = map(torch.cat, zip(*each))
"""
DDP = "    ddp_model = DistributedDataParallel(model)\n"
RIGHT = {"all-reduced after backward": [(FORWARD, BARE), (STEP, AVERAGE + STEP)]}
WRONG = {
    "another loss than the model's": ([("net.loss(", "F.mse_loss(")], "1.43 times as far"),
    "all data on every rank": ([(DDP, GATHER + DDP)], "was given 48 rows"),
}
