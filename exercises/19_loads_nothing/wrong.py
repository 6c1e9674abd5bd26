"""Wrong answers to exercise 19. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: saved from the DDP model (unchanged): different from our solution


# %% not strict
# verdict: (a weight is missing): different from our solution: an error is raised
def load(model, path):
    state = torch.load(path)
    consume_prefix_in_state_dict_if_present(state, "module.")
    model.load_state_dict(state, strict=False)


# %% seven letters of every name
# verdict: saved from the bare model (unchanged): different from our solution
def load(model, path):
    state = torch.load(path)
    model.load_state_dict({name[7:]: value for name, value in state.items()})


# %% only what fits by chance
# verdict: (all names differ): different from our solution: an error is raised
def load(model, path):
    state = torch.load(path)
    consume_prefix_in_state_dict_if_present(state, "module.")
    if set(state) & set(model.state_dict()):
        model.load_state_dict(state)


# %% module. anywhere in a name
# verdict: (a part is called submodule): different from our solution: an error is raised
def load(model, path):
    state = torch.load(path)
    model.load_state_dict({name.replace("module.", ""): state[name] for name in state})
