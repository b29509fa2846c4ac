"""Transforms of a photo, the same for all contenders: those of networks trained on ImageNet."""

SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# torchvision's defaults, by which every contender draws its crops.
SCALE, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
