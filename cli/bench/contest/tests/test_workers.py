"""Handover of batches from torch's workers to the trainer: direct, by a thread, to a device."""

import threading
import weakref
from itertools import count

import pytest
import torch
import torch_pixels
from contender import Task
from handover import READY, THREAD, THREAD_UINT8, Threaded, handed_over
from pixels import MEAN, SIZE, STD
from torch.utils.data import DataLoader
from torch_workers import recipe, settings
from torchvision.transforms import v2


class Batch:
    """A batch that supports weak references."""

    def __init__(self, number):
        self.number = number


def task(model=None, **configuration):
    return Task(True, ["jpg", "cls"], [], 4, {"decode": "pillow", **configuration}, model=model)


def pixels(rows, seed=1):
    dice = torch.Generator().manual_seed(seed)
    shape = (rows, 3, SIZE, SIZE)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=dice)


def normalised(images):
    """Normalise images by torchvision's own transforms."""
    return v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])(images)


def test_thread_keeps_the_order_and_releases_batches():
    source = Threaded(map(Batch, range(20)), lambda batch: batch)
    followed = []
    for batch in source:
        assert batch.number == len(followed)
        followed.append(weakref.ref(batch))
        del batch
        # Neither the thread nor the queue keeps a batch that was taken.
        assert followed[-1]() is None
    assert len(followed) == 20


def test_threaded_loader_can_be_iterated_again():
    source = Threaded([1, 2, 3], lambda batch: batch * 10)
    assert list(source) == list(source) == [10, 20, 30]


def test_thread_reads_ahead_only_as_far_as_its_queue():
    made = []
    epoch = iter(Threaded(count(), lambda number: made.append(number) or number))
    assert next(epoch) == 0
    epoch.close()
    # The bound counts one batch taken, READY in the queue, one in hand and one begun meanwhile.
    assert len(made) <= 1 + READY + 2


def test_exception_of_the_loader_reaches_the_trainer():
    def broken():
        yield 1
        raise RuntimeError("a worker died")

    epoch = iter(Threaded(broken(), lambda batch: batch))
    assert next(epoch) == 1
    with pytest.raises(RuntimeError, match="a worker died"):
        next(epoch)


def test_thread_ends_with_an_abandoned_epoch():
    before = threading.active_count()
    for _ in range(3):
        epoch = iter(Threaded(count(), lambda batch: batch))
        next(epoch)
        epoch.close()
    assert threading.active_count() == before


def test_direct_handover_returns_the_loader_itself():
    loader = [1, 2]
    assert handed_over(loader, {"workers": 2}) is loader


def test_a_batch_is_normalised_as_torchvision_does():
    images = pixels(3)
    batch = torch_pixels.collate([(image, label) for label, image in enumerate(images)])
    torch.testing.assert_close(batch[0], normalised(images))
    assert batch[1].tolist() == [0, 1, 2]


@pytest.mark.parametrize("by", ["direct", THREAD, THREAD_UINT8])
def test_all_handovers_deliver_the_same_batches(by):
    images = pixels(10)
    asked = task(workers=1, handover=by)
    made = recipe(asked)
    samples = [(image, label) for label, image in enumerate(images)]
    loader = DataLoader(samples, batch_size=4, collate_fn=made.collate, **settings(asked))
    labels = []
    for batch, of_batch in handed_over(loader, asked.configuration, made.finish):
        assert batch.dtype == torch.float32
        torch.testing.assert_close(batch, normalised(images[of_batch]))
        labels += of_batch.tolist()
    assert labels == list(range(10))


def test_workers_make_batches_in_shared_memory():
    asked = task(workers=1, handover="direct")
    images = pixels(4)
    shared = []

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, number):
            return images[number], number

    def collate(samples):
        batch, _ = torch_pixels.collate(samples)
        return torch.tensor(batch.is_shared())

    loader = DataLoader(Samples(), batch_size=4, collate_fn=collate, **settings(asked))
    shared = [bool(one) for one in loader]
    assert shared == [True]
    assert not torch_pixels.empty(1).is_shared()


def test_reused_memory_belongs_to_no_batch_in_use():
    finish = torch_pixels.Normalised(2)
    # One batch is at the trainer, READY are in the queue, and one is being made.
    given = [finish((pixels(2, seed), torch.tensor([seed]))) for seed in range(READY + 2)]
    for seed, (images, _) in enumerate(given):
        torch.testing.assert_close(images, normalised(pixels(2, seed)))
    again, _ = finish((pixels(1, 9), torch.tensor([9])))
    assert again.data_ptr() == given[0][0].data_ptr()
    assert len(again) == 1


@pytest.mark.parametrize("by", [THREAD, THREAD_UINT8])
def test_batches_of_a_model_are_moved_to_its_device(by):
    asked = task(model="resnet50", workers=2, handover=by)
    assert settings(asked)["pin_memory"]
    made = torch_pixels.recipe(asked, device="cpu")
    images = pixels(2)
    batch = made.collate([(image, label) for label, image in enumerate(images)])
    there, labels = made.finish(batch)
    torch.testing.assert_close(there, normalised(images))
    assert labels.tolist() == [0, 1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs gpu: torch finds none")
def test_batch_is_normalised_on_the_gpu():
    finish = torch_pixels.OnDevice("cuda")
    images = pixels(4)
    there, labels = finish((images.pin_memory(), torch.arange(4).pin_memory()))
    assert there.is_cuda
    assert labels.is_cuda
    torch.testing.assert_close(there.cpu(), normalised(images), rtol=1e-4, atol=1e-4)
