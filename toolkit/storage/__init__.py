"""Object storage at four doors: listed, read in ranges, written whole, and cached on a disk of this machine.

Any URL whose fsspec package is installed (`s3://` with s3fs). Locks, memory maps and renames stay on local disks: what
is there is downloaded before it is opened, and uploaded when it is finished.
"""

from toolkit.storage.cache import ShardCache
from toolkit.storage.objects import Object, download, is_url, list_objects, modified, put, read, remove

__all__ = ["Object", "ShardCache", "download", "is_url", "list_objects", "modified", "put", "read", "remove"]
