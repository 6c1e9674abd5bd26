"""Other right answers to exercise 08. Each stands below our solution in one file."""


# %% rank 0 draws the order and sends it to the other ranks
def split(dataset, count, seed):
    generator = torch.Generator().manual_seed(seed)
    order = [torch.randperm(len(dataset), generator=generator).tolist()]
    dist.broadcast_object_list(order, src=0)
    validation = order[0][:count]
    training = order[0][count:]
    return [torch.utils.data.Subset(dataset, part) for part in (training, validation)]
