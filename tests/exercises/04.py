GIVEN = "what step 1 adds to the weights"
DDP = "    ddp_model = DistributedDataParallel(model)\n"
GATHER = """    each = [None] * dist.get_world_size()
    dist.all_gather_object(each, (x, y))
    x, y = map(torch.cat, zip(*each))
"""
WRONG = {
    "another loss than the model's": ([("net.loss(", "F.mse_loss(")], "what step 1 adds"),
    "all data on every rank": ([(DDP, GATHER + DDP)], "each rank: 48, 48; 24 with our solution"),
}
