"""Object storage: listing, ranged reads, whole-object writes, and a cache on a disk of this machine.

Any URL whose fsspec package is installed (`s3://` with s3fs). Locks, memory maps and renames stay on local disks:
objects are downloaded before they are opened, and files are uploaded when they are finished.
"""

from toolkit.storage.cache import ShardCache
from toolkit.storage.objects import Object, download, is_url, list_objects, modified, put, read, remove

__all__ = ["Object", "ShardCache", "download", "is_url", "list_objects", "modified", "put", "read", "remove"]
