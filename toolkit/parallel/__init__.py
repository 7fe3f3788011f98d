"""How work is divided over ranks. Knows the model and process groups; not deepspeed."""
