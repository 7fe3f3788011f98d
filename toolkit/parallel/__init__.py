"""Division of work over ranks. Depends on the model and process groups, not on deepspeed.

Letters at the end of array names are those of `toolkit.model`; a share keeps the letters of the whole.
"""
