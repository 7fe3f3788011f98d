"""Work that equal processes share by files: claims on items, processes that do them, and one live view."""
