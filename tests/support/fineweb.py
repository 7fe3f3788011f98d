"""FineWeb-Edu as the hub has it, small: its card with the configurations, and files with its columns."""

import os
from collections.abc import Sequence
from pathlib import Path

FINEWEB = "HuggingFaceFW/fineweb-edu"

FINEWEB_CARD = """---
license: odc-by
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*/*
- config_name: sample-10BT
  data_files:
  - split: train
    path: sample/10BT/*
- config_name: CC-MAIN-2013-20
  data_files:
  - split: train
    path: data/CC-MAIN-2013-20/*
---
# FineWeb-Edu
"""


def write_fineweb(path: Path, texts: Sequence[str], *, group_rows: int, padding: int = 0) -> None:
    """Write a Parquet file with FineWeb-Edu's columns.

    Args:
        path: of the file; its folder is made.
        texts: one for each row.
        group_rows: rows of a row group.
        padding: bytes in each row's url, which make the file longer than its text.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = len(texts)
    columns = {
        "text": list(texts),
        "id": [f"<urn:uuid:{path.name}-{number}>" for number in range(count)],
        "dump": ["CC-MAIN-2013-20"] * count,
        "url": [os.urandom(padding // 2).hex() for _ in range(count)],
        "date": ["2013-05-18T05:48:54Z"] * count,
        "file_path": ["s3://commoncrawl/x.warc.gz"] * count,
        "language": ["en"] * count,
        "language_score": [0.95] * count,
        "token_count": [len(text) // 4 for text in texts],
        "score": [2.75] * count,
        "int_score": [3] * count,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=group_rows)
