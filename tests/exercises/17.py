GIVEN = "frozen=1 (the numbers of the body come first): different from our solution: what step 2"
FREEZE = "    model.body.requires_grad_(False)\n"
DDP = "DistributedDataParallel(model"
AGAIN = f"            ddp_model = {DDP})  # it notes again what needs gradients\n"
UNUSED = "find_unused_parameters=True"
WRONG = {
    "parameters that may be unused, nothing else": (
        [
            (AGAIN, ""),
            (f"    ddp_model = {DDP})\n    opt", f"    ddp_model = {DDP}, {UNUSED})\n    opt"),
        ],
        "what step 2 adds",
    ),
    "never frozen": ([(FREEZE, "")], "what step 1 adds"),
}
