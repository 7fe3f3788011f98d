"""The paper's twelve data sets and NanoBEIR by name, read from the hub."""
