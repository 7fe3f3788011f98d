"""`toolkit verify`: whether the files of a corpus, a checkpoint or a run's checkpoints are as they were written."""

from collections.abc import Sequence
from pathlib import Path

from toolkit.checkpoint.folders import step_folders
from toolkit.checkpoint.manifest import MANIFEST_NAME as CHECKPOINT_MANIFEST
from toolkit.checkpoint.read import open_unverified
from toolkit.core.errors import CheckpointError, CorpusError, SettingsError
from toolkit.core.text import counted
from toolkit.data import verify_corpus
from toolkit.data.corpus.manifest import CORPUS_MANIFEST
from toolkit.inspection.program import what_is_in
from toolkit.run import RunFolder


def verify(folder: Path) -> list[str]:
    """Read every file that has a hash and compare; returns what to tell the user, and names files that are damaged."""
    if (folder / CHECKPOINT_MANIFEST).is_file():
        return _verify_checkpoints([folder])
    if steps := step_folders(RunFolder(folder).checkpoints) or step_folders(folder):
        return _verify_checkpoints([path for _, path in steps])
    if (folder / CORPUS_MANIFEST).exists():
        found = verify_corpus(folder)
        if found.damaged:
            raise CorpusError(str(found))
        unexpected = [f"{path} does not belong to the corpus; it was not checked." for path in found.unexpected_files]
        return [*unexpected, str(found)]
    raise SettingsError(
        f"nothing to verify in {folder}: {what_is_in(folder)}.\nGive the folder of a corpus (corpus.json), of a run "
        "with checkpoints or of one checkpoint (manifest.json); their files have hashes."
    )


def _verify_checkpoints(folders: Sequence[Path]) -> list[str]:
    lines, damaged, num_intact = list[str](), list[str](), 0
    for folder in folders:
        try:
            checkpoint = open_unverified(folder)
            checkpoint.verify()
        except CheckpointError as error:
            if folder.exists():
                damaged.append(str(error))
            else:
                lines.append(f"{folder} was deleted meanwhile, as a run does with old checkpoints; it was not checked.")
            continue
        num_intact, files = num_intact + 1, checkpoint.manifest.files
        num_bytes = sum(entry.bytes for entry in files.values())
        lines.append(f"{folder} is intact: {counted(len(files), 'file')}, {num_bytes / 1e6:,.1f} MB.")
    if damaged or not num_intact:
        raise CheckpointError("\n".join(damaged or [*lines, "Run it again."]))
    return lines
