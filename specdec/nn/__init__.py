"""Torch building blocks that targets and draft heads share: caches, masks, rotations, packed and fused layers."""
