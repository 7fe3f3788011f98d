"""The families of tasks, one file each."""
