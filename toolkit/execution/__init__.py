"""Work for workers, whatever it is: items with keys, who runs which next, workers, and records of what is done."""
