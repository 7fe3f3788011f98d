"""Division of work over ranks. Knows the model and process groups; not deepspeed."""
