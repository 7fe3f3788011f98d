"""DeepSpeed, which only this package imports: configuration, the training step, collecting and restoring state."""
