"""DeepSpeed, which nothing but this package imports: configuration, the training step, taking and restoring state."""
