"""Where the cells of a grid run: in processes of this machine, or in actors of a Ray cluster."""
