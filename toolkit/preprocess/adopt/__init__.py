"""Megatron's shard files, where they lie -> a corpus folder that names them."""
