"""Other right answers to exercise 22. Each stands below our solution in one file."""


# %% the hook gets the gradient before autograd adds it to .grad
class Parallel(Parallel):
    def __init__(self, model, lr, cap_bytes):
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
        trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(trained, lr=lr)
        for parameter in trained:
            parameter.register_hook(self.ready)

    def ready(self, gradient):
        averaged = gradient / dist.get_world_size()
        dist.all_reduce(averaged)
        return averaged


# %% all calls are asynchronous
class Parallel(Parallel):
    works = []

    def ready(self, parameter):
        parameter.grad /= dist.get_world_size()
        self.works.append(dist.all_reduce(parameter.grad, async_op=True))

    def step(self):
        for work in self.works:
            work.wait()
        self.works.clear()
        super().step()
