"""Other right answers to exercise 19. Each stands below our solution in one file."""


# %% a new dictionary has the names without the prefix
def load(model, path):
    state = torch.load(path)
    model.load_state_dict({name.removeprefix("module."): one for name, one in state.items()})


# %% the program ends
def load(model, path):
    state = torch.load(path)
    consume_prefix_in_state_dict_if_present(state, "module.")
    if state.keys() != model.state_dict().keys():
        raise SystemExit("the file does not fit")
    model.load_state_dict(state)


# %% the names are asserted
def load(model, path):
    state = torch.load(path)
    consume_prefix_in_state_dict_if_present(state, "module.")
    assert state.keys() == model.state_dict().keys()
    model.load_state_dict(state, strict=False)
