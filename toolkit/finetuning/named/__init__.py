"""The paper's twelve data sets by name, from the hub to local files in their published form."""
