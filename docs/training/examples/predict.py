"""Load a checkpoint of any stage, and predict the digits of MNIST's test set with it.

    python 01_baseline/train.py --epochs 1
    python docs/training/examples/predict.py checkpoints/01_baseline.pt

One process is enough, whatever number of ranks trained the model. Every stage saves the bare model,
so the file contains nothing that belongs to DDP.
"""

import argparse
import os

import torch
import torch.nn as nn
from torchvision import datasets


def load_model(path):
    """Return the trained network of a checkpoint, on the CPU and in evaluation mode.

    A checkpoint is a state_dict (minimal.py), or a dictionary with the state_dict under "model"
    (train.py, and the snapshots of stage 5).
    """
    # The file may come from a GPU that this machine does not have, so map_location is the CPU.
    state = torch.load(path, map_location="cpu", weights_only=True)
    if "model" in state:
        state = state["model"]
    # A wrapper puts a prefix before each key. DDP and DataParallel put "module.", and compile puts
    # "_orig_mod.". The outer wrapper's prefix comes first, so "module." is looked for twice.
    # No stage saves a wrapper, but other scripts do.
    for prefix in ("module.", "_orig_mod.", "module."):
        nn.modules.utils.consume_prefix_in_state_dict_if_present(state, prefix)
    has_batchnorm = any(key.endswith("running_mean") for key in state)
    model = make_model(has_batchnorm)
    model.load_state_dict(state)  # This raises an error if a key is missing or unknown.
    # BatchNorm must use the statistics of the training, not those of the batch to predict.
    return model.eval()


def make_model(has_batchnorm):
    """The network of train.py (with BatchNorm) or of minimal.py: [B, 1, 28, 28] -> [B, 10]."""
    layers = []
    for channels_in, channels_out in ((1, 16), (16, 32)):
        layers.append(nn.Conv2d(channels_in, channels_out, kernel_size=5, padding=2))
        if has_batchnorm:
            layers.append(nn.BatchNorm2d(channels_out))
        layers.append(nn.ReLU())
        layers.append(nn.MaxPool2d(2))
    layers.append(nn.Flatten())
    layers.append(nn.Linear(7 * 7 * 32, 10))
    return nn.Sequential(*layers)


@torch.inference_mode()
def predict(model, images):
    """uint8 images [B, 28, 28] -> the digit of each image and its probability, both [B]."""
    x = images.unsqueeze(1).float() / 255  # as in training
    probabilities = model(x).softmax(dim=1)
    best = probabilities.max(dim=1)
    return best.indices, best.values


def main():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("checkpoint", help="file that a stage has written")
    add("--data", default=os.getenv("MNIST_ROOT", "data"), help="folder of MNIST (data)")
    args = parser.parse_args()
    model = load_model(args.checkpoint)
    test_set = datasets.MNIST(args.data, train=False)
    digits = []
    for images in test_set.data.split(500):
        digits.append(predict(model, images)[0])
    correct = (torch.cat(digits) == test_set.targets).sum().item()
    first, certain = predict(model, test_set.data[:5])
    for digit, probability, truth in zip(first.tolist(), certain.tolist(), test_set.targets):
        print(f"predicted {digit} with probability {probability:.2f}, labelled {truth}")
    print(f"{correct} of {len(test_set)} test images correct")


if __name__ == "__main__":
    main()
