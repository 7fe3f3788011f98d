"""The paper's twelve data sets by name, read from the hub."""
