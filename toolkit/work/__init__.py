"""Work that identical processes share through files: claims on items, worker processes, and one live view."""
