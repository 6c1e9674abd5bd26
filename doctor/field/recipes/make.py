"""Makes small synthetic data for the recipes: python make.py KIND FOLDER [number ...].

It imports nothing of this repository, since a recipe starts it in another folder.
"""

import json
import random
import struct
import sys
from pathlib import Path


def main():
    kind, folder, *numbers = sys.argv[1:]
    random.seed(0)
    KINDS[kind](Path(folder), *map(int, numbers))


def picture(size: int, label: int):
    from PIL import Image

    data = bytes(random.randrange(256) // 2 + 12 * label for _ in range(size * size * 3))
    return Image.frombytes("RGB", (size, size), data)


def images(folder, classes=2, train=32, val=21, size=32):
    """train/ and val/ with a folder for each class, as ImageFolder reads them"""
    for part, count in {"train": train, "val": val}.items():
        for number in range(count):
            label = number % classes
            (folder / part / f"class{label}").mkdir(parents=True, exist_ok=True)
            picture(size, label).save(folder / part / f"class{label}/{number}.png")


def pets(folder, classes=2, count=50, size=32):
    """NAME_NUMBER.jpg in one folder"""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        label = number % classes
        picture(size, label).save(folder / f"pet{label}_{number}.jpg")


def boxes(folder, train=24, val=11, size=64):
    """images and labels as YOLO reads them, with data.yaml"""
    for part, count in {"train": train, "val": val}.items():
        for kind in ("images", "labels"):
            (folder / kind / part).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            picture(size, number % 2).save(folder / f"images/{part}/{number}.png")
            lines = [
                f"{number % 2} 0.5 0.5 0.{3 + box} 0.{4 + box}" for box in range(number % 3 + 1)
            ]
            (folder / f"labels/{part}/{number}.txt").write_text("\n".join(lines) + "\n")
    where = folder.resolve()
    rows = [f"path: {where}", "train: images/train", "val: images/val", "names: {0: a, 1: b}"]
    (folder / "data.yaml").write_text("\n".join(rows) + "\n")


def cifar(folder, train=64, test=21):
    """torchvision's CIFAR10 and CIFAR100, whose checksums a recipe leaves out"""
    import pickle

    def batch(count, names):
        label = [number % 10 for number in range(count)]
        rows = [bytes(random.randrange(256) for _ in range(3072)) for _ in range(count)]
        import numpy

        data = numpy.frombuffer(b"".join(rows), numpy.uint8).reshape(count, 3072)
        return {"data": data} | {name: label for name in names}

    ten = folder / "cifar-10-batches-py"
    hundred = folder / "cifar-100-python"
    for place in (ten, hundred):
        place.mkdir(parents=True, exist_ok=True)
    for number in range(1, 6):
        content = batch(train // 5 + (number <= train % 5), ["labels"])
        (ten / f"data_batch_{number}").write_bytes(pickle.dumps(content))
    (ten / "test_batch").write_bytes(pickle.dumps(batch(test, ["labels"])))
    names = {"label_names": [str(label) for label in range(10)]}
    (ten / "batches.meta").write_bytes(pickle.dumps(names))
    for name, count in {"train": train, "test": test}.items():
        (hundred / name).write_bytes(pickle.dumps(batch(count, ["fine_labels"])))
    names = {"fine_label_names": [str(label) for label in range(100)]}
    (hundred / "meta").write_bytes(pickle.dumps(names))


def mnist(folder, train=64, test=21):
    """torchvision's MNIST, as its four raw files"""
    raw = folder / "MNIST/raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, count in {"train": train, "t10k": test}.items():
        pixels = bytes(random.randrange(256) for _ in range(count * 784))
        labels = bytes(number % 10 for number in range(count))
        head = struct.pack(">4i", 2051, count, 28, 28)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(head + pixels)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, count) + labels)


def text(folder, length=2000):
    """input.txt of random words"""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["one", "two", "three", "four", "five", "six"]
    content = ""
    while len(content) < length:
        content += random.choice(words) + " "
    (folder / "input.txt").write_text(content[:length])


def tokens(folder, length=4000, vocabulary=50):
    """train.bin and val.bin of nanoGPT: 16 bits each"""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "val"):
        values = [random.randrange(vocabulary) for _ in range(length)]
        (folder / f"{name}.bin").write_bytes(struct.pack(f"<{length}H", *values))


def sentences(folder, train=33, val=13):
    """train.json and val.json with sentence1, sentence2 and label"""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["one", "two", "three", "four", "five", "six"]

    def sentence():
        return " ".join(random.choices(words, k=random.randrange(3, 12)))

    for name, count in {"train": train, "val": val}.items():
        rows = [
            {"sentence1": sentence(), "sentence2": sentence(), "label": str(number % 2)}
            for number in range(count)
        ]
        (folder / f"{name}.json").write_text("\n".join(map(json.dumps, rows)) + "\n")


def model(folder, causal=0):
    """a tiny untrained BERT, or GPT-2 if causal, with its tokenizer, as from_pretrained reads it"""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, GPT2Config, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += ["one", "two", "three", "four", "five", "six"]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, **special, model_max_length=64)
    tokenizer.save_pretrained(folder)
    if causal:
        config = GPT2Config(vocab_size=len(words), n_positions=64, n_embd=16, n_layer=1, n_head=2)
    else:
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = BertConfig(vocab_size=len(words), intermediate_size=16, **sizes)
    config.save_pretrained(folder)
    if not causal:
        from transformers import AutoModelForSequenceClassification

        AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)


def accuracy(folder):
    """a metric for evaluate.load, which otherwise downloads one"""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "accuracy.py").write_text(ACCURACY)


ACCURACY = """
import datasets
import evaluate


class Accuracy(evaluate.Metric):
    def _info(self):
        features = datasets.Features({
            "predictions": datasets.Value("int32"), "references": datasets.Value("int32")})
        return evaluate.MetricInfo(
            description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        pairs = list(zip(predictions, references))
        return {"accuracy": sum(a == b for a, b in pairs) / len(pairs), "count": len(pairs)}
"""

KINDS = {
    "accuracy": accuracy,
    "boxes": boxes,
    "images": images,
    "pets": pets,
    "cifar": cifar,
    "mnist": mnist,
    "text": text,
    "tokens": tokens,
    "sentences": sentences,
    "model": model,
}


if __name__ == "__main__":
    main()
