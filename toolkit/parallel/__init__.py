"""Division of work over ranks. Knows the model and process groups; not deepspeed.

Letters at the end of array names are those of `toolkit.model`; a share keeps the letters of the whole.
"""
