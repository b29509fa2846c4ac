"""The same with Forebay, from those shards, with a resume in mid-epoch."""

import json

import forebay


def new_loader() -> forebay.DataLoader:
    """Make the loader of the training script."""
    return forebay.DataLoader(
        "shards/train-*.tar",
        batch_size=8,
        fields={"image": forebay.Image("png", size=32), "label": forebay.Int("cls")},
        shuffle=True,
    )


def main() -> None:
    """Read one epoch, in two runs."""
    samples, total, state = 0, 0, ""
    for batch in (loader := new_loader()):
        samples, total = samples + len(batch["label"]), total + int(batch["label"].sum())
        state = json.dumps(loader.state_dict())
        break
    loader.close()

    resumed = new_loader()
    resumed.load_state_dict(json.loads(state))
    for batch in resumed:
        samples, total = samples + len(batch["label"]), total + int(batch["label"].sum())
    print(f"{samples} samples, labels sum to {total}")


if __name__ == "__main__":
    main()
