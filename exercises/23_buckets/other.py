"""Other right answers to exercise 23. Each stands below our solution in one file."""


# %% each gradient becomes a view of its bucket
class Parallel(Parallel):
    def reduce(self):
        flat = torch.cat([p.grad.flatten() for p in self.bucket]) / dist.get_world_size()
        dist.all_reduce(flat)
        for p, part in zip(self.bucket, flat.split([p.numel() for p in self.bucket])):
            p.grad = part.view_as(p)
        self.bucket = []
