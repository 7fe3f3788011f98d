"""Megatron's shard files, where they are -> a corpus folder that names them."""
